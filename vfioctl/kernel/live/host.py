"""This machine: reading its files, and NVML. Every errno becomes KernelRefused. Workers make the calls that can block.
What a listing does not need is imported when it is used, so that a listing starts quickly."""

from __future__ import annotations

import errno as errnos
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property, partial
from typing import TypeVar, cast

from vfioctl.errors import KernelRefused
from vfioctl.kernel import files, untrusted_files
from vfioctl.kernel.descriptors import closing
from vfioctl.kernel.feeds import Feed
from vfioctl.kernel.gpu_sharing import GpuSharing
from vfioctl.kernel.live.changes import LiveChange
from vfioctl.kernel.live.kernel_log import kernel_log
from vfioctl.kernel.live.permissions import permissions_of
from vfioctl.kernel.live.use import LiveUse, refused
from vfioctl.kernel.open_nodes import BELIEVED_USERS
from vfioctl.kernel.protocol import (
    EVERY_LINK,
    KERNEL_LOG,
    NOT_LISTED,
    PCI_DRIVERS,
    Directory,
    DiskImage,
    Kernel,
    NvmlAnswer,
    Prefixes,
    Unanswered,
)
from vfioctl.kernel.timeouts import Timeouts
from vfioctl.kernel.worker import survey
from vfioctl.kernel.worker.client import ForkServer
from vfioctl.kernel.worker.job import Gathered, begin_each
from vfioctl.kernel.worker.processes import report_progress
from vfioctl.kernel.worker.stall import Unreturned
from vfioctl.kernel.worker.workers import Maker, Workers

T = TypeVar("T")
VFIO_GROUP_FLAGS_VIABLE = 1
_GROUP_SECONDS = 5.0
_NVML_SECONDS = 5.0
_FEW = 1000  # for fewer subjects a second worker costs more than it saves: each looks up names again


class Live(LiveUse, LiveChange):
    """This machine's own files. `timeout`: seconds without progress after which a read is given up. `believed`: see
    `Processes.believed_users`. Any thread may use the object. `close` ends its workers. `maker`: creates the object
    that workers read with."""

    def __init__(
        self,
        *,
        read_only: bool = False,
        timeouts: Timeouts | None = None,
        timeout: float = 2.0,
        maker: Maker | None = None,
        believed: Sequence[str] = BELIEVED_USERS,
    ) -> None:
        self._read_only = read_only
        self._timeouts, self._timeout = timeouts or Timeouts(), timeout
        self._believed = tuple(believed)
        how = {"read_only": read_only, "timeout": timeout, "believed": self._believed}
        self._workers = Workers(ForkServer(), maker or ("vfioctl.kernel.live.host:Live", how))
        LiveChange.__init__(self)

    @property
    def description(self) -> str:
        return "this machine"

    def read(self, path: str) -> str:
        try:
            if path.startswith("/sys/"):
                return files.read_of_sysfs(path)
            if path.startswith("/proc/"):
                return files.read_text(path)
            if path == KERNEL_LOG:
                return kernel_log()
            return untrusted_files.read_start(path, files.MOST_TEXT).decode("utf-8", "replace").rstrip("\n")
        except (OSError, ValueError) as error:
            raise refused(path, error) from None

    def link(self, path: str) -> str:
        try:
            return files.target_of(os.readlink(path))
        except (OSError, ValueError) as error:
            raise refused(path, error) from None

    def children(self, path: str) -> list[str]:
        try:
            return sorted(map(files.readable, os.listdir(path)))
        except (OSError, ValueError) as error:
            raise refused(path, error) from None

    def has(self, path: str) -> bool:
        return os.path.lexists(path)

    def modified(self, path: str) -> float:
        try:
            return os.stat(path).st_mtime
        except (OSError, ValueError) as error:
            raise refused(path, error) from None

    def device_number(self, path: str) -> tuple[str, int, int]:
        try:
            return files.device_number(os.stat(path))
        except (OSError, ValueError) as error:
            raise refused(path, error) from None

    def permissions(self, path: str) -> str:
        try:
            return permissions_of(os.stat(path))
        except (OSError, ValueError) as error:
            raise refused(path, error) from None

    def disk_image(self, path: str) -> DiskImage:
        from vfioctl.kernel.disk_images import disk_image

        return disk_image(path)

    def writable(self, path: str) -> bool:
        return not self._read_only and os.access(path, os.W_OK)

    def directory(self, path: str, wanted: Collection[str], links: Prefixes = EVERY_LINK) -> Directory:
        with self._opened(path) as fd:
            return files.read_directory(fd, wanted, links, files.read_attribute)

    def entries(self, path: str, wanted: Collection[str], links: Collection[str]) -> Directory:
        with self._opened(path) as fd:
            return files.read_entries(fd, wanted, links)

    def texts_below(self, path: str, name: str) -> Directory:
        with self._opened(path) as fd:
            return files.read_texts_below(fd, lambda folder, fd: files.read_attribute(f"{folder}/{name}", fd))

    def survey(
        self,
        reader: Callable[..., Callable[[str], T]],
        subjects: Iterable[str],
        *,
        args: Sequence[object] = (),
        timeout: float | None = None,
        total: float | None = None,
    ) -> Iterator[tuple[str, T | Unanswered]]:
        todo = [str(subject) for subject in subjects]  # workers exchange plain data
        workers = min(4, len(os.sched_getaffinity(0))) if len(todo) > _FEW else 1
        timeout = timeout or self._timeout
        answers = survey.each(self._workers, reader, todo, args=args, timeout=timeout, total=total, workers=workers)
        return ((s, Unanswered(str(result)) if isinstance(result, Exception) else result) for s, result in answers)

    def _opened(self, path: str) -> AbstractContextManager[int]:
        try:
            return closing(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        except (OSError, ValueError) as error:
            raise refused(path, error) from None

    def uevents(self) -> Feed:
        from vfioctl.kernel.live.uevents import Uevents

        return Uevents()

    def domain_events(self, uri: str) -> Feed:
        if self._read_only:  # a capture has no libvirt
            return Feed()
        from vfioctl.kernel.live.domain_events import DomainEvents

        return DomainEvents(uri)

    def gpu_errors(self, gpus: Sequence[str]) -> Feed:
        if self._read_only or not gpus or not self.has(f"{PCI_DRIVERS}/nvidia"):  # without it, NVML would load it
            return Feed()
        from vfioctl.kernel.live.gpu_errors import GpuErrors

        return GpuErrors(gpus)

    def gpu_sharing(self) -> GpuSharing:
        if self._read_only:  # no processes run in a capture
            return Kernel.gpu_sharing(cast("Kernel", self))
        from vfioctl.kernel.live.sharing import LiveSharing

        return LiveSharing()

    def viable(self, group: int) -> bool:
        path = f"/dev/vfio/{group}"
        ((_, answer),) = self.survey(files.group_flags, [path], timeout=_GROUP_SECONDS)
        # without an answer somebody has it open, or is closing it
        errno, flags = (errnos.EBUSY, 0) if isinstance(answer, Unanswered) else answer
        if errno:
            raise KernelRefused(path, errno)
        return bool(flags & VFIO_GROUP_FLAGS_VIABLE)

    def properties(self, modalias: str) -> Mapping[str, str]:
        report_progress()  # opening the database takes longer than reading a function, and the kernel has answered
        database = self._hardware_database
        report_progress()
        names = database(modalias)
        report_progress()
        return names

    @cached_property
    def _hardware_database(self) -> Callable[[str], Mapping[str, str]]:
        from vfioctl.kernel.live.hwdb import hardware_database

        return hardware_database(report_progress)

    def nvml(
        self, gpus: Sequence[str], *, types: bool = False, links: bool = False, usage: bool = False
    ) -> Callable[[], NvmlAnswer]:
        from vfioctl.kernel.live.nvml import read_gpus

        asked = [str(gpu) for gpu in gpus]  # workers exchange plain data
        answers = begin_each(self._workers.server, read_gpus, asked, types, links, usage, timeout=_NVML_SECONDS)
        return partial(_nvml_answer, asked, answers)


def _nvml_answer(gpus: Iterable[str], wait: Callable[[], Gathered]) -> NvmlAnswer:
    """What arrived in time. A GPU of which nothing arrived has the reason as its `error`."""
    items, error = wait()
    known: dict[str, Mapping[str, str]] = dict(items)
    if "" in known:
        return Unanswered(known[""]["error"])
    reason = _nvml_failure(error) if error else NOT_LISTED
    return {gpu: known.get(gpu, {"error": reason}) for gpu in gpus} if known else Unanswered(reason)


def _nvml_failure(error: Exception) -> str:
    if isinstance(error, Unreturned):
        return f"NVML did not answer within {error.seconds:g} s: dmesg | grep -i nvrm"
    if isinstance(error, ChildProcessError):
        return "NVML crashed: dmesg | tail"
    return "NVML gave an answer that vfioctl does not understand"
