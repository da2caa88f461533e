"""All PCI functions as plain facts. Imports no model: its children read while the caller still imports those."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from vfioctl.errors import KernelRefused
from vfioctl.kernel.seam import PCI_DEVICES, Kernel, Unanswered
from vfioctl.probe.pci import SAFE, Facts, read_everything, read_function


class Scan:
    """The functions of a host, being read from the moment it is made; `results` waits for them."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.problems: list[tuple[str, str]] = []
        """Subject and text of what could not be had."""
        self._answers = self._survey(self._addresses(), wanted=None)

    def results(self) -> list[Facts]:
        """The facts by function, in address order."""
        found, silent = self._sorted_out(self._answers)
        # A function that is stuck under its device lock may still say what it is.
        recovered, _ = self._sorted_out(self._survey(silent, wanted=SAFE))
        for facts in recovered:
            facts["unknown"]["driver_override"] = silent[facts["address"]]
        return sorted(found + recovered, key=lambda facts: (len(facts["address"]), facts["address"]))

    def _addresses(self) -> list[str]:
        try:
            return self._kernel.children(PCI_DEVICES)
        except KernelRefused as error:
            self.problems.append((PCI_DEVICES, f"no PCI bus: {error.symbol}"))
            return []

    def _survey(self, addresses: Iterable[str], wanted: frozenset[str] | None) -> Iterator[tuple[str, Facts | Unanswered]]:
        return self._kernel.survey(partial(_attempt, self._kernel, wanted), addresses)

    def _sorted_out(self, answers: Iterable[tuple[str, Facts | Unanswered]]) -> tuple[list[Facts], dict[str, str]]:
        """The facts of those that answered, and why the others did not."""
        found, silent = [], {}
        for address, facts in answers:
            if isinstance(facts, Unanswered):
                silent[address] = facts.reason
                self.problems.append((address, f"reading it did not return: {facts.reason}"))
            elif "failed" in facts:
                self.problems.append((address, facts["failed"]))
            else:
                found.append(facts)
        return found, silent


def _attempt(kernel: Kernel, wanted: frozenset[str] | None, address: str) -> Facts:
    try:
        return read_function(kernel, address, wanted) if wanted else read_everything(kernel, address)
    except KernelRefused as error:
        return {"failed": f"it could not be read: {error.symbol}"}
    except ValueError as error:
        return {"failed": str(error)}
