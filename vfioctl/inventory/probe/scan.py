"""All PCI functions as plain facts. Imports no model: its children read while the caller still imports those."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property

from vfioctl.errors import KernelRefused
from vfioctl.inventory.probe.drivers import modules_for, read_aliases
from vfioctl.inventory.probe.pci import SAFE, Facts, read_everything, read_function
from vfioctl.kernel.modalias import Aliases
from vfioctl.kernel.protocol import PCI_DEVICES, PCI_DRIVERS, Reader, Unanswered

_NAMES = {
    "vendor_name": ("ID_VENDOR_FROM_DATABASE",),
    "device_name": ("ID_MODEL_FROM_DATABASE",),
    "subsystem_name": ("ID_PCI_SUBSYS_FROM_DATABASE",),
    "class_name": ("ID_PCI_SUBCLASS_FROM_DATABASE", "ID_PCI_CLASS_FROM_DATABASE"),
}


class Scan:
    """The functions of a host, being read from the moment it is made; `results` waits for them."""

    def __init__(self, kernel: Reader, catalogue: Catalogue | None = None, *, suspects: Collection[str] = ()) -> None:
        """`suspects`: functions whose attributes may block; they are asked only what never does."""
        self._kernel, self._catalogue = kernel, catalogue or Catalogue(kernel)
        self.problems: list[tuple[str, str]] = []
        """Subject and text of what could not be had."""
        addresses = self._addresses()
        self._answers = self._survey([a for a in addresses if a not in suspects], wanted=None)
        self._passed_over = {a: "it is wedged, and was not asked" for a in addresses if a in suspects}
        # Starting NVML takes longer than reading a small host, so it is asked at once where its driver has a GPU.
        asked = _has_nvidia_gpu(kernel)
        if asked and suspects:
            self.problems.append(("NVML", "not asked while a device is wedged: it may hang as well"))
        self.nvml = kernel.nvml() if asked and not suspects else None

    def results(self) -> list[Facts]:
        """The facts by function, in address order."""
        found, silent = self._sorted_out(self._answers)
        silent |= self._passed_over
        # A function that is stuck under its device lock may still say what it is.
        recovered, _ = self._sorted_out(self._survey(silent, wanted=SAFE))
        for facts in recovered:
            facts["unknown"]["driver_override"] = silent[facts["address"]]
        for facts in found:
            self._catalogue.learn(facts)
        return sorted(found + recovered, key=lambda facts: (len(facts["address"]), facts["address"]))

    def _addresses(self) -> list[str]:
        try:
            return self._kernel.children(PCI_DEVICES)
        except KernelRefused as error:
            self.problems.append((PCI_DEVICES, f"no PCI bus: {error.symbol}"))
            return []

    def _survey(
        self, addresses: Iterable[str], wanted: frozenset[str] | None
    ) -> Iterator[tuple[str, Facts | Unanswered]]:
        return self._kernel.survey(FunctionReader, addresses, args=(self._catalogue.known, wanted))

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


def _has_nvidia_gpu(kernel: Reader) -> bool:
    try:
        return any(":" in name for name in kernel.children(f"{PCI_DRIVERS}/nvidia"))
    except KernelRefused:
        return False


class Catalogue:
    """What a modalias alone tells, names and modules: the same for all twins, and until the next boot.

    A worker looks up what is new and takes it to its end; what comes back with the facts is kept for the next scan.
    """

    def __init__(self, kernel: Reader, known: dict[str, Facts] | None = None) -> None:
        self._kernel = kernel
        self.known = known or {}
        """By modalias; plain data."""

    @cached_property
    def _aliases(self) -> Aliases:
        return read_aliases(self._kernel)

    def of(self, modalias: str) -> Facts:
        if modalias not in self.known:
            named = _named(self._kernel.properties(modalias))
            self.known[modalias] = named | {"modules": modules_for(self._aliases, modalias)}
        return self.known[modalias]

    def learn(self, facts: Facts) -> None:
        if facts["modalias"] not in self.known:
            self.known[facts["modalias"]] = {key: facts[key] for key in (*_NAMES, "modules") if key in facts}


def _named(properties: Mapping[str, str]) -> Facts:
    found = {field: next((properties[k] for k in keys if k in properties), None) for field, keys in _NAMES.items()}
    return {field: name for field, name in found.items() if name}


class FunctionReader:
    """Reads one function after the other, in a worker. `wanted`: the only files; all of them without it."""

    def __init__(self, kernel: Reader, known: dict[str, Facts], wanted: frozenset[str] | None) -> None:
        self._kernel, self._wanted = kernel, wanted
        self._catalogue = Catalogue(kernel, known)

    def __call__(self, address: str) -> Facts:
        """The function's facts, or why it has `failed`."""
        try:
            facts = self._facts(address)
            return facts | self._catalogue.of(facts["modalias"])
        except KernelRefused as error:
            return {"failed": f"it could not be read: {error.symbol}"}
        except ValueError as error:
            return {"failed": str(error)}

    def _facts(self, address: str) -> Facts:
        if self._wanted:
            return read_function(self._kernel, address, self._wanted)
        return read_everything(self._kernel, address)
