"""The seam to Linux: a few verbs, and the hosts behind them (live, recorded, simulated).

Every path is absolute, as on the host that is asked. Text comes without its closing newlines.
Reading verbs raise KernelRefused with the errno that Linux would give.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

PCI_DEVICES = "/sys/bus/pci/devices"
PCI_DRIVERS = "/sys/bus/pci/drivers"
DRIVERS_PROBE = "/sys/bus/pci/drivers_probe"
IOMMU_GROUPS = "/sys/kernel/iommu_groups"

Prefixes = tuple[str, ...]
EVERY_LINK: Prefixes = ("",)

T = TypeVar("T")


class Directory(NamedTuple):
    """One directory, read at once: all its names, and what was asked of its files and links."""

    names: frozenset[str]
    texts: Mapping[str, str]
    links: Mapping[str, str]
    refused: Mapping[str, str]
    """The errno's name, by file, for those that are there and could not be read."""


class Unanswered(NamedTuple):
    """A read that did not come back in time, or whose reader died; `reason` is for people."""

    reason: str


NvmlAnswer = Mapping[str, Mapping[str, str]] | Unanswered


class Kernel(Protocol):
    """A host."""

    @property
    def description(self) -> str:
        """Which host this is, for people."""

    @property
    def read_only(self) -> str:
        """Why nothing can be written to this host; empty where it can."""

    def read(self, path: str) -> str:
        """A file's text."""

    def link(self, path: str) -> str:
        """A symbolic link's target, as it is stored."""

    def children(self, path: str) -> list[str]:
        """A directory's names, sorted."""

    def has(self, path: str) -> bool:
        """Whether the path exists."""

    def device_number(self, path: str) -> tuple[str, int, int]:
        """A device node's kind (`c` or `b`), major and minor number."""

    def writable(self, path: str) -> bool:
        """Whether this process may write the file."""

    def directory(self, path: str, wanted: Collection[str], links: Prefixes = EVERY_LINK) -> Directory:
        """The directory, with the text of the `wanted` files and the links whose names begin so."""

    def survey(self, read_one: Callable[[str], T], subjects: Iterable[str]) -> Iterator[tuple[str, T | Unanswered]]:
        """`read_one` for each subject, in order, where a read that blocks costs only its subject.

        On a live host it runs in forked children, so what it returns must be plain data (marshal).
        """

    def properties(self, modalias: str) -> Mapping[str, str]:
        """What the hardware database says: ID_VENDOR_FROM_DATABASE, ID_MODEL_FROM_DATABASE, ..."""

    def nvml(self) -> Callable[[], NvmlAnswer]:
        """Begins to ask NVML; the function returned waits for the answer.

        By PCI address: name, uuid, memory_bytes, persistence_mode, compute_mode, mig_mode.
        """

    def write(self, path: str, value: str) -> None:
        """Writes once. Raises KernelRefused, or Stuck when the write did not return in time."""

    def load(self, module: str) -> None:
        """Loads a module with what it depends on. Raises HostError."""

    def viable(self, group: int) -> bool:
        """VFIO_GROUP_GET_STATUS: whether a guest could own the group now. Raises KernelRefused."""

    def exclusive(self, lock: Path, *, wait: float) -> AbstractContextManager[None]:
        """The host's lock, held by no other process meanwhile. Raises Busy after `wait` seconds."""
