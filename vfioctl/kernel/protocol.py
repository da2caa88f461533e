"""The seam to Linux: a few verbs, and the hosts behind them (live, recorded, simulated).

Every path is absolute, as on the host that is asked. Text comes without its closing newlines.
Reading verbs raise KernelRefused with the errno that Linux would give.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial, wraps
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

PCI_DEVICES = "/sys/bus/pci/devices"
PCI_DRIVERS = "/sys/bus/pci/drivers"
DRIVERS_PROBE = "/sys/bus/pci/drivers_probe"
IOMMU_GROUPS = "/sys/kernel/iommu_groups"
PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)
"""A function as the kernel names it: in lower case, with its domain."""
FIRMWARE_FRAMEBUFFERS = ("efi-framebuffer", "simple-framebuffer", "simpledrm", "vesa-framebuffer", "vga16fb")
"""Platform drivers of the framebuffers that the firmware leaves."""
VFIO_DEVICE = "anon_inode:[vfio-device]"
"""What /proc calls a VFIO device that was opened through its group."""

Prefixes = tuple[str, ...]
EVERY_LINK: Prefixes = ("",)

T = TypeVar("T")
K = TypeVar("K")


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


class OpenNode(NamedTuple):
    """A device file that a process has open or mapped."""

    how: str
    """`open` or `mapped`."""
    path: str
    """As the process sees it; of a file that no node leads to, its kind, as in `anon_inode:[vfio-device]`."""
    number: str
    """`c 195:0` or `b 259:1`; empty for a file that no node leads to."""
    device: str
    """The device's own directory in sysfs, where the kernel tells it for a VFIO device file (fdinfo, Linux 6.17)."""


class Descendant(NamedTuple):
    """A device below another one's directory: a display's card, a disk, a network interface."""

    path: str
    subsystem: str
    """`drm`, `sound`, `block`, `net`, ..."""
    number: str
    """Of its node, as in `226:0`; empty when it has none. Of kind `b` in the subsystem `block`, else `c`."""


def per_subject(read: Callable[[K, str], T]) -> Callable[[K], Callable[[str], T]]:
    """Makes `read(kernel, subject)` a reader for `Isolation.survey`; `reader(kernel)(subject)` calls it."""

    @wraps(read)
    def reader(kernel: K) -> Callable[[str], T]:
        return partial(read, kernel)

    return reader


NvmlAnswer = Mapping[str, Mapping[str, str]] | Unanswered


class FileReader(Protocol):
    """What the files of a host say."""

    @property
    def description(self) -> str:
        """Which host this is, for people."""

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

    def directory(self, path: str, wanted: Collection[str], links: Prefixes = EVERY_LINK) -> Directory:
        """The directory, with the text of the `wanted` files and the links whose names begin so."""

    def texts_below(self, path: str, name: str) -> Directory:
        """The file `name` of each of the directory's own directories: `texts` and `refused` are by directory."""


class Isolation(Protocol):
    """Reads that may block for ever, where the caller does not."""

    def survey(
        self,
        reader: Callable[..., Callable[[str], T]],
        subjects: Iterable[str],
        *,
        args: Sequence[object] = (),
        timeout: float | None = None,
    ) -> Iterator[tuple[str, T | Unanswered]]:
        """What `reader(kernel, *args)` reads of each subject, in order; a read that blocks costs only its subject.

        `reader` is a function or class of a module that imports no model, for workers import it by name; each makes
        one, and reads its share of the subjects with it. `args` and what is read are plain data (marshal). `timeout`:
        seconds without progress until a subject is passed over, where the host's own are too few. A live host reads
        from now on. `per_subject` makes a reader of a function that remembers nothing.
        """


class HardwareDatabase(Protocol):
    """Names of devices."""

    def properties(self, modalias: str) -> Mapping[str, str]:
        """What the hardware database says: ID_VENDOR_FROM_DATABASE, ID_MODEL_FROM_DATABASE, ..."""


class NvmlFacts(Protocol):
    """What NVIDIA's library says."""

    def nvml(self) -> Callable[[], NvmlAnswer]:
        """Begins to ask NVML; the function returned waits for the answer.

        By PCI address: name, uuid, memory_bytes, persistence_mode, compute_mode, mig_mode, vgpu_heterogeneous_mode,
        vgpu_types (`id|name|framebuffer bytes|heads|WxH|max instances` for each, by id, joined by `;`).
        """


class Users(Protocol):
    """Names of users."""

    def user(self, uid: int) -> str:
        """A user's name; the number as text where it has none."""


class UnitStates(Protocol):
    """What systemd says of its units."""

    def unit_states(self, names: Sequence[str]) -> Mapping[str, str]:
        """systemd's word for those of the units that it knows: active, inactive, failed, ..."""


class Processes(Protocol):
    """Who uses devices, and what lies below them."""

    def open_nodes(self, pid: str) -> Sequence[OpenNode]:
        """The device files that a process has open or mapped. Raises KernelRefused (ENOENT when it has ended)."""

    def below(self, path: str) -> Sequence[Descendant]:
        """The devices below a device's directory, at any depth, but for those below another PCI function there."""

    def claimed(self, number: str) -> bool:
        """Whether a block device (`259:0`) has an exclusive owner: a file system, swap, device mapper, md, ZFS, ..."""


class ConfigSpace(Protocol):
    """What functions say themselves."""

    def config(self, address: str) -> bytes:
        """The first 64 bytes of a function's configuration space. Raises KernelRefused, Stuck."""


class GroupStatus(Protocol):
    """What VFIO says of a group."""

    def viable(self, group: int) -> bool:
        """VFIO_GROUP_GET_STATUS: whether a guest could own the group now. Raises KernelRefused."""


class Reader(
    FileReader, Isolation, HardwareDatabase, NvmlFacts, Users, UnitStates, Processes, ConfigSpace, GroupStatus, Protocol
):
    """All that can be asked of a host. It has no method that changes one, so that mypy proves that a probe cannot."""


class FileWriter(Protocol):
    """Writes to files of the kernel."""

    @property
    def read_only(self) -> str:
        """Why nothing can be written to this host; empty where it can."""

    def writable(self, path: str) -> bool:
        """Whether this process may write the file."""

    def write(self, path: str, value: str) -> None:
        """Writes once. Raises KernelRefused, or Stuck when the write did not return in time."""

    def write_ended(self, ticket: str) -> str | None:
        """What became of a write that was given up (`Stuck.facts["ticket"]`); None while it is still under way.

        `returned`, an errno's name, or `unknown` when its process ended without a word.
        """


class NvmlSettings(Protocol):
    """What NVIDIA's library is told."""

    def persist(self, address: str, *, on: bool) -> None:
        """Sets the persistence mode of one NVIDIA GPU. Raises HostError, Stuck."""


class UnitControl(Protocol):
    """Starts and stops units of systemd."""

    def set_unit(self, name: str, *, active: bool) -> None:
        """Starts a systemd unit (its failures forgotten first) or stops it. Raises HostError, Stuck."""


class VfManagement(Protocol):
    """NVIDIA's sriov-manage."""

    def manage_vfs(self, address: str, *, on: bool) -> str:
        """Has NVIDIA's sriov-manage turn all VFs of a GPU on or off; what it said. What it did, only a look tells.

        Raises HostError where there is none, Stuck.
        """


class PersistentFiles(Protocol):
    """Files below /etc."""

    def replace_file(self, path: str, text: str | None) -> None:
        """Replaces a file below /etc whole, with the folders that it needs; removes it for None. Raises HostError."""


class Modules(Protocol):
    """Kernel modules."""

    def load(self, module: str) -> None:
        """Loads a module with what it depends on. Raises HostError."""


class ExpansionRom(Protocol):
    """Reading a ROM switches it on and off again, which is a write."""

    def rom(self, address: str) -> bytes:
        """The expansion ROM, switched on and off again around the read. Raises KernelRefused, Stuck."""


class HostLock(Protocol):
    """One change at a time."""

    def prepare(self, lock: Path) -> None:
        """A change is to come: what it needs may start now. Takes no lock, makes no file."""

    def exclusive(self, lock: Path, *, wait: float) -> AbstractContextManager[None]:
        """The host's lock, held by no other process meanwhile. Raises Busy after `wait` seconds."""


class Kernel(
    Reader,
    FileWriter,
    NvmlSettings,
    UnitControl,
    VfManagement,
    PersistentFiles,
    Modules,
    ExpansionRom,
    HostLock,
    Protocol,
):
    """A host: all of it."""
