"""A captured root directory as a host, read-only. It may belong to anyone, and may change while it is read. Every
access goes through a descriptor that was opened inside the root (see `inside`), so nothing outside is read. The
processes, devices and units of this machine are not those of the capture."""

from __future__ import annotations

import errno as errnos
import os
import stat
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from vfioctl.errors import KernelRefused
from vfioctl.kernel import files, untrusted_files
from vfioctl.kernel.descriptors import closing
from vfioctl.kernel.live.host import Live
from vfioctl.kernel.live.processes import WITHOUT_DEVICES
from vfioctl.kernel.live.use import refused
from vfioctl.kernel.open_nodes import NO_PROCESSES
from vfioctl.kernel.paths import open_inside, open_root
from vfioctl.kernel.protocol import (
    EVERY_LINK,
    PCI_ADDRESS,
    Descendant,
    Directory,
    DiskImage,
    FileReader,
    NvmlAnswer,
    Prefixes,
    Reader,
    Unanswered,
)

T = TypeVar("T")
Identity = tuple[int, int]
"""The device and the inode of a directory."""


class Captured(Live):
    """`root`: an absolute path without symbolic links. `identity`: that of the directory, where it is known. Raises
    OSError when the directory cannot be opened. If it has another identity, every read is refused (ESTALE)."""

    def __init__(self, root: str, *, identity: Identity | None = None, timeout: float = 2.0) -> None:
        self._path, self._root = root, _Root(root, identity)
        # a worker's host is the same directory, or every read is refused
        how = {"root": root, "identity": self._root.identity, "timeout": timeout}
        super().__init__(read_only=True, timeout=timeout, maker=("vfioctl.kernel.captured.host:Captured", how))

    @property
    def description(self) -> str:
        return f"the files under {self._path}"

    def read(self, path: str) -> str:
        most = files.MOST_OF_SYSFS if path.startswith("/sys/") else files.MOST_TEXT
        with self._inside(path) as fd:
            text = untrusted_files.read_regular(fd, most).decode("utf-8", "replace").rstrip("\n")
        return text.rstrip("\n\0") if path.startswith("/sys/") else text

    def link(self, path: str) -> str:
        with self._inside(path, follow_last=False) as fd:
            if not stat.S_ISLNK(os.fstat(fd).st_mode):
                raise KernelRefused(path, errnos.EINVAL)
            return self._inner(files.target_of(os.readlink("", dir_fd=fd)))

    def children(self, path: str) -> list[str]:
        with self._directory(path) as fd:
            return sorted(map(files.readable, os.listdir(fd)))

    def has(self, path: str) -> bool:
        try:
            with self._inside(path):
                return True
        except KernelRefused:
            return False

    def modified(self, path: str) -> float:
        with self._inside(path) as fd:
            return os.fstat(fd).st_mtime

    def device_number(self, path: str) -> tuple[str, int, int]:
        with self._inside(path) as fd:
            return files.device_number(os.fstat(fd))

    def disk_image(self, path: str) -> DiskImage:
        """Its path alone: a capture has no images."""
        return DiskImage(os.path.normpath(path))

    def directory(self, path: str, wanted: Collection[str], links: Prefixes = EVERY_LINK) -> Directory:
        with self._directory(path) as fd:
            directory = files.read_directory(fd, wanted, links, read_attribute)
        if self._path not in "".join(directory.links.values()):
            return directory
        return directory._replace(links={name: self._inner(target) for name, target in directory.links.items()})

    def _inner(self, target: str) -> str:
        """A link's target as on the captured host: some tools write the path of the directory into absolute links."""
        return target.removeprefix(self._path.rstrip("/")) if target.startswith(f"{self._path}/") else target

    entries = FileReader.entries

    def texts_below(self, path: str, name: str) -> Directory:
        with self._directory(path) as fd:
            return files.read_texts_below(fd, partial(read_below, name))

    @contextmanager
    def _inside(self, path: str, *, follow_last: bool = True) -> Iterator[int]:
        """What is there, opened with O_PATH. An OSError from within becomes KernelRefused."""
        try:
            with closing(self._root.open(path, follow_last=follow_last)) as fd:
                yield fd
        except OSError as error:
            raise refused(path, error) from None

    @contextmanager
    def _directory(self, path: str) -> Iterator[int]:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        with self._inside(path) as inner, closing(os.open(".", flags, dir_fd=inner)) as fd:
            yield fd

    @property
    def processes_unknown(self) -> str:
        return NO_PROCESSES

    @property
    def reads_all_processes(self) -> bool:
        return False

    def made_by_root(self, hierarchy: str, path: str) -> str:
        return ""

    def below(self, path: str) -> Sequence[Descendant]:
        """As `live.processes.below`, in the same order. Raises KernelRefused when `path` is no directory."""
        descendants, todo = [], _entries(path, self.directory(path, ()))
        while todo:
            here = todo.pop()
            try:
                directory = self.directory(here, ("dev",))
            except KernelRefused:  # most entries are files
                continue
            if "subsystem" in directory.links:
                subsystem = directory.links["subsystem"].rpartition("/")[2]
                descendants.append(Descendant(here, subsystem, directory.texts.get("dev", "")))
            todo += _entries(here, directory)
        return descendants

    def unit_states(self, names: Sequence[str]) -> Mapping[str, str]:
        return {}

    device_programs, restricted_cgroups = Reader.device_programs, Reader.restricted_cgroups
    unit_devices = Reader.unit_devices
    viable, permissions = Reader.viable, Reader.permissions
    mps_usage, ask_mps = Reader.mps_usage, Reader.ask_mps

    def nvml(
        self, gpus: Sequence[str], *, types: bool = False, links: bool = False, usage: bool = False
    ) -> Callable[[], NvmlAnswer]:
        return lambda: Unanswered("a captured directory has no NVML")

    def _asked(self, path: str, ask: Callable[[str], T], subject: str) -> T:
        raise KernelRefused(path, errnos.ENOENT)

    def _read_device(self, path: str, read: Callable[[str], bytes | int]) -> bytes:
        raise KernelRefused(path, errnos.ENOENT)


class _Root:
    """The descriptor of a root directory, which is closed with the object."""

    def __init__(self, path: str, expected: Identity | None) -> None:
        self._fd = -1
        try:
            self._fd = open_root(path)
        except OSError:
            if expected is None:
                raise
            self.identity: Identity = (0, 0)
        else:
            status = os.fstat(self._fd)
            self.identity = (status.st_dev, status.st_ino)
        self._replaced = expected not in (None, self.identity)

    def open(self, path: str, *, follow_last: bool) -> int:
        if self._replaced:
            raise OSError(errnos.ESTALE, os.strerror(errnos.ESTALE))
        return open_inside(self._fd, path, follow_last=follow_last)

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


_LOOK = os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW
_ATTRIBUTE = 4096


def read_attribute(name: str, directory: int) -> str:
    """The beginning of a file, as of an attribute of sysfs. Raises OSError, for a link too."""
    with closing(os.open(name, _LOOK, dir_fd=directory)) as fd:
        return files.text_in(untrusted_files.read_regular(fd, _ATTRIBUTE))


def read_below(name: str, folder: str, directory: int) -> str:
    """The same for the file `name` in a directory of a directory. Raises OSError (ENOTDIR) for a link to one."""
    with closing(os.open(folder, _LOOK | os.O_DIRECTORY, dir_fd=directory)) as below:
        return read_attribute(name, below)


def _entries(path: str, directory: Directory) -> list[str]:
    """The paths of what may be directories, in reverse order, because the last one is read next."""
    names = sorted(directory.names - set(directory.links) - WITHOUT_DEVICES, reverse=True)
    return [f"{path}/{name}" for name in names if not PCI_ADDRESS.fullmatch(name)]
