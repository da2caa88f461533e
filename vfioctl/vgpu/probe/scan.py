"""Reads cards and their vGPUs as plain data. Imports no model: its workers read while the caller still imports one."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain

from vfioctl.errors import KernelRefused
from vfioctl.kernel.lenient import failure_of
from vfioctl.kernel.protocol import PCI_ADDRESS, PCI_DEVICES, FileReader, Reader, Unanswered
from vfioctl.vgpu.dialects.dialect import Dialect, Facts, card_of
from vfioctl.vgpu.dialects.mdev import MdevReader
from vfioctl.vgpu.dialects.sriov import SriovReader, XeReader, physical_functions
from vfioctl.vgpu.dialects.vendor import VendorReader

_NO_FACTS = "no facts from the NVIDIA driver"
READERS: tuple[type[Dialect], ...] = (MdevReader, VendorReader, XeReader, SriovReader)
"""The dialects by priority: a card that an earlier dialect reads is skipped by the later ones."""
_MANY = 100
"""A parent has about twenty types: with more parents than these, a second worker pays off."""


class VgpuScan:
    """Reads the parents of a host. Reading starts with the constructor; `results` waits for it."""

    def __init__(
        self,
        kernel: Reader,
        *,
        suspects: Collection[str] = (),
        cards: Collection[str] | None = None,
        types: bool = True,
        physical: Collection[str] | None = None,
        dialects: Collection[str] | None = None,
    ) -> None:
        """`suspects`: functions whose attributes may block; neither they nor their VFs are read. `cards`: only these;
        None: all. `types`: whether NVML is asked for the types of cards whose sysfs files do not have the numbers.
        `physical`: the functions that may be PFs, if they are known: looking at all of the host takes long.
        `dialects`: only these are read; None: all."""
        self._kernel, self._only, self._physical = kernel, cards, physical
        self.problems: list[tuple[str, str]] = []
        """Each subject that could not be read, with the reason."""
        self._answers: list[Iterator[tuple[str, Facts | str | Unanswered]]] = []
        self._cards: dict[str, str] = {}
        for reader in (reader for reader in READERS if dialects is None or reader.dialect in dialects):
            if cards is not None and self._cards.keys() >= set(cards):
                break
            self._begin(reader.dialect, self._parents(reader), suspects)
        self._asked = [c for c, dialect in self._cards.items() if dialect == VendorReader.dialect] if types else []
        self._nvml = kernel.nvml(self._asked, types=True) if self._asked else None

    def _parents(self, reader: type[Dialect]) -> Sequence[str]:
        if issubclass(reader, SriovReader):
            return tuple(reader(self._kernel, self._physical_functions).parents())
        return tuple(reader(self._kernel).parents())

    @cached_property
    def _physical_functions(self) -> tuple[str, ...]:
        """The PFs: two dialects ask for them."""
        return physical_functions(self._kernel, self._physical)

    def _begin(self, dialect: str, parents: Sequence[str], suspects: Collection[str]) -> None:
        """Starts workers that read the parents of one dialect, except on cards that an earlier dialect reads. Workers
        of the first dialect start before the others list their parents, because it reads by far the most."""
        if self._only is not None:
            parents = [parent for parent in parents if card_of(self._kernel, parent) in self._only]
            if dialect == SriovReader.dialect:  # a PF in `cards` may have any class
                parents += [card for card in self._only if self._has_vfs(card) and card not in (*parents, *self._cards)]
        if suspects or self._cards:
            parents = [parent for parent in parents if self._may_ask(dialect, parent, suspects)]
        half = len(parents) // 2 if len(parents) > _MANY else 0
        for share in (parents[:half], parents[half:]):
            if share:
                self._answers.append(self._kernel.survey(PlaceReader, [f"{dialect} {parent}" for parent in share]))
        for parent in parents:
            self._cards.setdefault(card_of(self._kernel, parent), dialect)

    def _may_ask(self, dialect: str, parent: str, suspects: Collection[str]) -> bool:
        card = card_of(self._kernel, parent)
        if parent in suspects or card in suspects:
            self.problems.append((parent, "it is wedged, and was not asked"))
            return False
        return self._cards.get(card, dialect) == dialect

    def _has_vfs(self, name: str) -> bool:
        return bool(PCI_ADDRESS.fullmatch(name)) and self._kernel.has(f"{PCI_DEVICES}/{name}/sriov_totalvfs")

    def results(self) -> Iterator[tuple[str, str, Facts]]:
        """Yields dialect, parent and facts of each parent that could be read, one dialect after the other."""
        for subject, facts in chain.from_iterable(self._answers):
            dialect, _, parent = subject.partition(" ")
            if isinstance(facts, Unanswered):
                self.problems.append((parent, f"reading it did not return: {facts.reason}"))
            elif isinstance(facts, str):
                self.problems.append((parent, facts))
            else:
                yield dialect, parent, facts

    def nvml(self) -> Mapping[str, Mapping[str, str]]:
        """NVML's facts by address, of the cards that it was asked about."""
        answer = self._nvml() if self._nvml else {}
        if isinstance(answer, Unanswered):
            self.problems.append(("NVML", f"{_NO_FACTS}: {answer.reason}"))
            return {}
        self.problems += ((gpu, f"{_NO_FACTS}: {said['error']}") for gpu, said in answer.items() if "error" in said)
        return answer


class PlaceReader:
    """Reads parents in a worker. A subject is `DIALECT PARENT`. Types that parents share are read once."""

    def __init__(self, kernel: FileReader) -> None:
        self._kernel = kernel
        self._readers: dict[str, Dialect] = {}

    def __call__(self, subject: str) -> Facts | str:
        """The facts of the parent, or the reason why it could not be read."""
        dialect, _, parent = subject.partition(" ")
        try:
            return self._reader(dialect).read(parent)
        except KernelRefused as error:
            return f"it could not be read: {error.symbol}"
        except Exception as error:  # noqa: BLE001 - no parent may end the scan of all
            return f"it could not be read: {failure_of(error)}"

    def _reader(self, dialect: str) -> Dialect:
        if dialect not in self._readers:
            self._readers[dialect] = next(reader for reader in READERS if reader.dialect == dialect)(self._kernel)
        return self._readers[dialect]
