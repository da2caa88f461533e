"""The kernel protocol: the methods through which vfioctl reads and changes a host (live, recorded or simulated). Every
path is absolute on that host. Texts are returned without trailing newlines. Methods that read raise KernelRefused with
the errno that Linux returns."""

from __future__ import annotations

import errno as errnos
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial, wraps
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from vfioctl.errors import HostError, KernelRefused
from vfioctl.kernel.device_lists import DeviceListChanges, DeviceLists
from vfioctl.kernel.feeds import Feeds
from vfioctl.kernel.gpu_sharing import GpuSharing
from vfioctl.kernel.mps import MpsOrders, MpsQuestions
from vfioctl.kernel.open_nodes import Opened
from vfioctl.kernel.timeouts import Timeouts

PCI_DEVICES, PCI_DRIVERS = "/sys/bus/pci/devices", "/sys/bus/pci/drivers"
DRIVERS_PROBE = "/sys/bus/pci/drivers_probe"
IOMMU_GROUPS = "/sys/kernel/iommu_groups"
ACPI_TABLES, KERNEL_LOG = "/sys/firmware/acpi/tables", "/dev/kmsg"
PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]", re.ASCII)
"""The full address of a PCI function, in lower case and with its domain."""
VFIO_DEVICE = "anon_inode:[vfio-device]"
"""The name in /proc of a VFIO device that was opened through its group."""

Prefixes = tuple[str, ...]
EVERY_LINK: Prefixes = ("",)
T = TypeVar("T")
K = TypeVar("K")


class Directory(NamedTuple):
    """A directory: all its names, the texts of the requested files, and the targets of the requested links."""

    names: frozenset[str]
    texts: Mapping[str, str]
    links: Mapping[str, str]
    refused: Mapping[str, str]
    """The name of the errno, by file, for requested files that could not be read."""


class Unanswered(NamedTuple):
    """The result of a read that did not return in time, or whose worker died. `reason`: text for the user."""

    reason: str


class Descendant(NamedTuple):
    """A device below the sysfs directory of another one, such as a DRM card, a disk or a network interface."""

    path: str
    subsystem: str
    """`drm`, `sound`, `block`, `net`, ..."""
    number: str
    """The number of its node, such as `226:0`; empty without a node. In subsystem `block` a block device, else `c`."""


def per_subject(read: Callable[[K, str], T]) -> Callable[[K], Callable[[str], T]]:
    """Turns `read(kernel, subject)` into a reader for `Reader.survey`, called as `reader(kernel)(subject)`."""

    @wraps(read)
    def reader(kernel: K) -> Callable[[str], T]:
        return partial(read, kernel)

    return reader


NvmlAnswer = Mapping[str, Mapping[str, str]] | Unanswered
NOT_LISTED = "the nvidia driver has it, but NVML does not list it: dmesg | grep -i nvrm"
"""The reason where NVML does not know a GPU that is on the nvidia driver."""


class FileReader(Protocol):
    """Reads files of a host. Every method raises KernelRefused, except `has`."""

    @property
    def description(self) -> str:
        """The name of the host, for messages."""

    def read(self, path: str) -> str:
        """The text of a file."""

    def link(self, path: str) -> str:
        """The target of a symbolic link, as stored."""

    def children(self, path: str) -> list[str]:
        """The names in a directory, sorted."""

    def has(self, path: str) -> bool:
        """Whether the path exists."""

    def modified(self, path: str) -> float:
        """When a file or directory was last changed, in seconds since 1970; ENODATA where that is not recorded."""

    def device_number(self, path: str) -> tuple[str, int, int]:
        """A device node's kind (`c` or `b`), major and minor number."""

    def directory(self, path: str, wanted: Collection[str], links: Prefixes = EVERY_LINK) -> Directory:
        """A directory with the texts of the files `wanted`, and the links whose names begin with one of `links`."""

    def entries(self, path: str, wanted: Collection[str], links: Collection[str]) -> Directory:
        """As `directory`, without listing it, which takes long: `names` has what there is of these."""
        listed = self.directory(path, wanted, tuple(links))
        targets = {name: listed.links[name] for name in links if name in listed.links}
        return Directory(listed.names & {*wanted, *links}, listed.texts, targets, listed.refused)

    def texts_below(self, path: str, name: str) -> Directory:
        """Reads the file `name` in each subdirectory. `texts` and `refused` are by name of the subdirectory."""


class Processes(Protocol):
    """Reads which processes use devices, and the devices below a device."""

    @property
    def processes_unknown(self) -> str:
        """The reason why it is unknown which processes use devices; empty if processes can be read."""

    @property
    def reads_all_processes(self) -> bool:
        """Whether the reader may read every process, as root may. What it cannot read then is no normal limit."""

    @property
    def believed_users(self) -> Collection[str]:
        """The users, by name or number, whose processes' command lines are believed. Root is always believed."""

    def open_nodes(self, pid: str) -> Opened:
        """The device files that a process has open or mapped. Raises KernelRefused (ENOENT when it has ended)."""

    def made_by_root(self, hierarchy: str, path: str) -> str:
        """The beginning of a control group's path that no ordinary user can have named; `hierarchy` is empty for v2."""

    def below(self, path: str) -> Sequence[Descendant]:
        """The devices below a device's directory, at any depth, except those below another PCI function."""

    def claimed(self, number: str) -> bool:
        """Whether a block device (`259:0`) has an exclusive owner: a file system, swap, device mapper, md, ZFS, ..."""


class DiskImage(NamedTuple):
    """A disk image. `file`: the same text for each name of the same file or block device. `backing`: the path of the
    image it is based on and reads; empty if it has none or it is not known. `unknown`: why it is not known."""

    file: str
    backing: str = ""
    unknown: str = ""


class DiskImages(Protocol):
    """Disk images of domains."""

    def disk_image(self, path: str) -> DiskImage:
        """The image at a path, which need not exist: which file it is, and on which image it is based."""


class Reader(FileReader, Processes, DiskImages, DeviceLists, MpsQuestions, Feeds, Protocol):
    """All methods that read a host. It has none that changes one, so mypy verifies that a probe cannot."""

    def survey(
        self,
        reader: Callable[..., Callable[[str], T]],
        subjects: Iterable[str],
        *,
        args: Sequence[object] = (),
        timeout: float | None = None,
        total: float | None = None,
    ) -> Iterator[tuple[str, T | Unanswered]]:
        """Yields each subject with the result of `reader(kernel, *args)(subject)`, in order; Unanswered if it blocked.

        Reads that may block without a timeout run in workers, so that the caller does not block.
        `reader` is a module-level function or class; workers import it by name, so its module should import no model.
        Each worker calls it once, for its part of the subjects. `args` and results are plain data (marshal). `timeout`:
        seconds without progress until a subject is skipped; None for the host's default. `total`: seconds of waiting
        until the rest is skipped; None for no limit. On a live host, reading starts with the call."""

    def ask_libvirt(self, uri: str, question: str, *words: str) -> Any:
        """The answer to one of the questions of `vfioctl.kernel.libvirt`, plain data; asked in a worker.

        A recorded or a simulated host has libvirt's test driver only (`test:`). A simulated one keeps what it is told
        to define in /etc/libvirt/qemu, as libvirtd does, because the test driver forgets it with the connection.
        Raises what `libvirt.value_of` raises; HostError if there is no answer."""

    def properties(self, modalias: str) -> Mapping[str, str]:
        """The properties of a device in the hardware database: ID_VENDOR_FROM_DATABASE, ID_MODEL_FROM_DATABASE, ..."""

    def nvml(
        self, gpus: Sequence[str], *, types: bool = False, links: bool = False, usage: bool = False
    ) -> Callable[[], NvmlAnswer]:
        """Starts a query of NVML about these GPUs. The returned function waits for the answer; Unanswered for none.

        The answer, by PCI address: name, uuid, memory_bytes, persistence_mode, compute_mode, mig_mode; `error`, the
        reason for the user, for a GPU that NVML does not know or whose facts did not arrive in time. With `types`, also
        vgpu_heterogeneous_mode and vgpu_types (`id|name|framebuffer bytes|heads|WxH|max instances` for each type,
        sorted by id, joined by `;`): on a vGPU host these are hundreds of calls. With `links`, also nvlink: the
        addresses at the other ends of its active NVLinks, GPUs and NVSwitches, joined by spaces. With `usage`, also
        utilisation_percent, temperature_celsius and memory_used_bytes."""

    def user(self, uid: int) -> str:
        """The name of a user; the uid as text if there is none."""

    def unit_states(self, names: Sequence[str]) -> Mapping[str, str]:
        """The ActiveState of each unit that systemd knows: active, inactive, failed, ..."""

    def permissions(self, path: str) -> str:
        """Owner, group and mode of a file or a device node: `0:0:600`. Raises KernelRefused: ENODATA if unknown."""
        raise KernelRefused(path, errnos.ENODATA)

    def config(self, address: str) -> bytes:
        """The first 64 bytes of a function's configuration space. Raises KernelRefused, Stuck."""

    def viable(self, group: int) -> bool:
        """Whether the group is viable for a guest now (VFIO_GROUP_GET_STATUS). Raises KernelRefused."""
        raise KernelRefused(f"/dev/vfio/{group}", errnos.EROFS)


class Kernel(Reader, DeviceListChanges, MpsOrders, Protocol):
    """All methods that read and change a host. Unless a host has its own, they refuse every change."""

    @property
    def read_only(self) -> str:
        """The reason why this host cannot be changed; empty if it can."""

    @property
    def timeouts(self) -> Timeouts:
        """How long the caller waits for a write, and for steps that take longer."""
        return Timeouts()

    def writable(self, path: str) -> bool:
        """Whether this process may write the file."""
        return False

    def write(self, path: str, value: str) -> None:
        """Writes the value with one write(2). Raises KernelRefused; Stuck when the write did not return in time."""
        raise KernelRefused(path, errnos.EROFS, value)

    def write_ended(self, ticket: str) -> str | None:
        """The result of an abandoned write (`ticket`: `Stuck.facts["ticket"]`): `returned`, the name of an errno, or
        `unknown` when its process ended without recording a result; None while it has not returned."""
        return "unknown"

    def persist(self, address: str, *, on: bool) -> None:
        """Sets the persistence mode of one NVIDIA GPU through NVML. Raises HostError, Stuck."""
        raise _unchanged(self, f"the persistence mode of {address} cannot be set")

    def set_unit(self, name: str, *, active: bool) -> None:
        """Starts a systemd unit (after reset-failed) or stops it. Raises HostError, Stuck."""
        raise _unchanged(self, f"{name} cannot be {'started' if active else 'stopped'}")

    def manage_vfs(self, address: str, *, on: bool) -> str:
        """Turns all VFs of a GPU on or off with NVIDIA's sriov-manage; returns its output. Raises HostError, Stuck."""
        raise _unchanged(self, f"the VFs of {address} cannot be turned {'on' if on else 'off'}")

    def replace_file(self, path: str, text: str | None) -> None:
        """Replaces a file, and creates its directories; removes the file for None. Raises HostError."""
        raise _unchanged(self, f"{path} cannot be {'removed' if text is None else 'written'}")

    def replace_link(self, path: str, target: str | None) -> None:
        """Replaces a symbolic link, and creates its directories; removes the link for None. Raises HostError."""
        raise _unchanged(self, f"{path} cannot be {'removed' if target is None else 'created'}")

    def set_permissions(self, path: str, value: str) -> None:
        """Sets owner, group and mode of a device node, as `1000:0:600`. Raises KernelRefused."""
        raise KernelRefused(path, errnos.EROFS, value)

    def tell_libvirt(self, uri: str, order: str, *words: str) -> None:
        """Gives libvirt one of the orders of `vfioctl.kernel.libvirt`. Raises what `libvirt.value_of` raises; Stuck."""
        raise _unchanged(self, "libvirt's domains cannot be changed")

    def gpu_sharing(self) -> GpuSharing:
        """Control groups, and who uses how much GPU time. Raises HostError where no processes run."""
        raise HostError(f"no processes run on {self.description}", hint="GPU time is measured on the machine itself")

    def load(self, module: str) -> None:
        """Loads a module with its dependencies. Raises HostError."""
        raise _unchanged(self, f"cannot load {module}")

    def rom(self, address: str) -> bytes:
        """The content of the expansion ROM, which writes enable for the read. Raises KernelRefused, Stuck."""

    def exclusive(
        self,
        lock: Path,
        *,
        wait: float,
        waiting: Callable[[], None] | None = None,
        check: Callable[[], None] | None = None,
    ) -> AbstractContextManager[None]:
        """Holds the host's exclusive lock. Raises Busy when another process holds it for `wait` seconds. `waiting` is
        called once if another process holds it, `check` many times a second until then; it may raise."""
        raise _unchanged(self, "it cannot be locked")


def _unchanged(kernel: Kernel, what: str) -> HostError:
    return HostError(f"{what}: {kernel.read_only}", hint="use --simulate to try changes")
