"""All that can be sliced on a host, as plain facts.

Imports no model: its children read while the caller still imports one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from vfioctl.errors import KernelRefused
from vfioctl.kernel.seam import PCI_DEVICES, Kernel, NvmlAnswer, Unanswered
from vfioctl.probe.lenient import text_of
from vfioctl.probe.vgpu.dialect import ADDRESS, Facts, Reader, physical
from vfioctl.probe.vgpu.mdev import MdevReader
from vfioctl.probe.vgpu.sriov import SriovReader
from vfioctl.probe.vgpu.vendor import VendorReader
from vfioctl.probe.vgpu.xe import XeReader

READERS: tuple[type[Reader], ...] = (MdevReader, VendorReader, XeReader, SriovReader)
"""In this order: a card that an earlier dialect slices is none of a later one's."""


_WEIGHT = 4
"""A parent has a score of types: several children are worth their while sooner."""


class VgpuScan:
    """The parents of a host, being read from the moment it is made; `results` waits for them."""

    def __init__(self, kernel: Kernel, *, suspects: Collection[str] = ()) -> None:
        """`suspects`: functions whose attributes may block; neither they nor their VFs are asked."""
        self._kernel = kernel
        self.problems: list[tuple[str, str]] = []
        """Subject and text of what could not be had."""
        self._readers = {reader.dialect: reader(kernel) for reader in READERS}
        self._sliced: dict[str, str] = {}
        subjects = list(self._subjects(suspects))
        self._answers = kernel.survey(self._attempt, subjects, weight=_WEIGHT)
        by_nvml = any(subject.startswith(f"{VendorReader.dialect} ") for subject in subjects)
        self._nvml = kernel.nvml() if by_nvml else None

    def _subjects(self, suspects: Collection[str]) -> Iterator[str]:
        sliced = self._sliced
        for dialect, reader in self._readers.items():
            for parent in reader.parents():
                card = physical(self._kernel, parent) if ADDRESS.fullmatch(parent) else parent
                if parent in suspects or card in suspects:
                    self.problems.append((parent, "it is wedged, and was not asked"))
                elif sliced.setdefault(card, dialect) == dialect:
                    yield f"{dialect} {parent}"

    def _attempt(self, subject: str) -> Facts:
        dialect, _, parent = subject.partition(" ")
        try:
            return self._readers[dialect].read(parent)
        except KernelRefused as error:
            return {"failed": f"it could not be read: {error.symbol}"}

    def results(self) -> Iterator[tuple[str, str, Facts]]:
        """Dialect, parent and facts of each parent that answered; those of one dialect follow one another."""
        for subject, facts in self._answers:
            dialect, _, parent = subject.partition(" ")
            if isinstance(facts, Unanswered):
                self.problems.append((parent, f"reading it did not return: {facts.reason}"))
            elif "failed" in facts:
                self.problems.append((parent, facts["failed"]))
            else:
                yield dialect, parent, facts

    def titles(self) -> dict[str, str]:
        """What each card is, by the hardware database; to be asked while the children are at work."""
        found = {}
        for card in self._sliced:
            modalias = text_of(self._kernel, f"{PCI_DEVICES}/{card}/modalias") if ADDRESS.fullmatch(card) else ""
            if modalias:
                found[card] = self._kernel.properties(modalias).get("ID_MODEL_FROM_DATABASE", "")
        return found

    def memory(self) -> dict[str, int]:
        """By address, what NVML says of memory, in bytes; asked only where a card gives no numbers of its own."""
        answer: NvmlAnswer = self._nvml() if self._nvml else {}
        if isinstance(answer, Unanswered):
            return {}
        return {a: int(f["memory_bytes"]) for a, f in answer.items() if f.get("memory_bytes", "")[:18].isdecimal()}
