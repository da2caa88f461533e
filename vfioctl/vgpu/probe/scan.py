"""All that can be sliced on a host, as plain facts.

Imports no model: its workers read while the caller still imports one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain

from vfioctl.errors import KernelRefused
from vfioctl.kernel.protocol import PCI_ADDRESS, PCI_DEVICES, FileReader, Reader, Unanswered
from vfioctl.vgpu.dialects.dialect import Dialect, Facts, physical
from vfioctl.vgpu.dialects.mdev import MdevReader
from vfioctl.vgpu.dialects.sriov import SriovReader
from vfioctl.vgpu.dialects.vendor import VendorReader
from vfioctl.vgpu.dialects.xe import XeReader

READERS: tuple[type[Dialect], ...] = (MdevReader, VendorReader, XeReader, SriovReader)
"""In this order: a card that an earlier dialect vGPUs is none of a later one's."""


_MANY = 100
"""A parent has a score of types: for more than these, a second child is worth its while."""


class VgpuScan:
    """The places of a host that vGPUs are made on, being read from the moment it is made; `results` waits for them."""

    def __init__(self, kernel: Reader, *, suspects: Collection[str] = (), cards: Collection[str] | None = None) -> None:
        """`suspects`: functions whose attributes may block; neither they nor their VFs are asked.

        `cards`: the only ones that are looked at.
        """
        self._kernel, self._only = kernel, cards
        self.problems: list[tuple[str, str]] = []
        """Subject and text of what could not be had."""
        self._readers = {reader.dialect: reader(kernel) for reader in READERS}
        self._answers: list[Iterator[tuple[str, Facts | Unanswered]]] = []
        self._cards: dict[str, str] = {}
        for dialect, reader in self._readers.items():
            if cards is not None and self._cards.keys() >= set(cards):
                break
            self._begin(dialect, list(reader.parents()), suspects)
        self._nvml = kernel.nvml() if VendorReader.dialect in self._cards.values() else None

    def _begin(self, dialect: str, parents: Sequence[str], suspects: Collection[str]) -> None:
        """Has the places of one dialect read, as long as no earlier one vGPUs their card.

        The first dialect's children begin before the others' places are looked for: it has by far the most to read.
        """
        if self._only is not None:
            parents = [parent for parent in parents if self._card_of(parent) in self._only]
            if dialect == SriovReader.dialect:  # a PF that was named may be of any class
                parents += [card for card in self._only if self._has_vfs(card) and card not in (*parents, *self._cards)]
        if suspects or self._cards:
            parents = [parent for parent in parents if self._may_ask(dialect, parent, suspects)]
        half = len(parents) // 2 if len(parents) > _MANY else 0
        for share in (parents[:half], parents[half:]):
            if share:
                self._answers.append(self._kernel.survey(PlaceReader, [f"{dialect} {parent}" for parent in share]))
        for parent in parents:
            self._cards.setdefault(self._card_of(parent), dialect)

    def _may_ask(self, dialect: str, parent: str, suspects: Collection[str]) -> bool:
        card = self._card_of(parent)
        if parent in suspects or card in suspects:
            self.problems.append((parent, "it is wedged, and was not asked"))
            return False
        return self._cards.get(card, dialect) == dialect

    def _has_vfs(self, name: str) -> bool:
        return bool(PCI_ADDRESS.fullmatch(name)) and self._kernel.has(f"{PCI_DEVICES}/{name}/sriov_totalvfs")

    def _card_of(self, parent: str) -> str:
        return physical(self._kernel, parent) if PCI_ADDRESS.fullmatch(parent) else parent

    def results(self) -> Iterator[tuple[str, str, Facts]]:
        """Dialect, parent and facts of each parent that answered; those of one dialect follow one another."""
        for subject, facts in chain.from_iterable(self._answers):
            dialect, _, parent = subject.partition(" ")
            if isinstance(facts, Unanswered):
                self.problems.append((parent, f"reading it did not return: {facts.reason}"))
            elif "failed" in facts:
                self.problems.append((parent, facts["failed"]))
            else:
                yield dialect, parent, facts

    def told(self) -> Mapping[str, Mapping[str, str]]:
        """By address, what NVML says; asked only where a card gives no numbers of its own."""
        answer = self._nvml() if self._nvml else {}
        return {} if isinstance(answer, Unanswered) else answer


class PlaceReader:
    """Reads one place after the other, each named as its dialect and itself, in a worker.

    What twins have in common is read once.
    """

    def __init__(self, kernel: FileReader) -> None:
        self._kernel = kernel
        self._readers: dict[str, Dialect] = {}

    def __call__(self, subject: str) -> Facts:
        """What the place shows, or why it has `failed`."""
        dialect, _, parent = subject.partition(" ")
        try:
            return self._reader(dialect).read(parent)
        except KernelRefused as error:
            return {"failed": f"it could not be read: {error.symbol}"}

    def _reader(self, dialect: str) -> Dialect:
        if dialect not in self._readers:
            self._readers[dialect] = next(reader for reader in READERS if reader.dialect == dialect)(self._kernel)
        return self._readers[dialect]
