"""The device files that processes have open, and the devices below a device, from /proc and /sys. Reads names and
attributes only. Opens no device file, except block devices in `claimed`. A stat may hang (a file on a dead NFS server),
so callers run this in a worker."""

from __future__ import annotations

import errno as errnos
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from itertools import count

from vfioctl.kernel.descriptors import closing
from vfioctl.kernel.files import NODE_KINDS, read_bytes, readable, symbol
from vfioctl.kernel.live.process_files import Mounts, file_mappings, tables
from vfioctl.kernel.open_nodes import Opened, OpenNode, is_path_only
from vfioctl.kernel.protocol import PCI_ADDRESS, VFIO_DEVICE, Descendant
from vfioctl.kernel.worker.processes import PROGRESS_EVERY, report_progress

SYSPATH = b"vfio-device-syspath:"  # vfio_device_show_fdinfo, Linux 6.17
DELETED = b" (deleted)"
_PASSES = 20
"""How often a table is read that changes meanwhile. Busy processes close files too, but not one in every pass."""
_LONGEST = 0.5
"""Seconds after which a table is not read again: a user may have made it large to use up the time for all."""
_FLAGS, _PF_KTHREAD = 6, 0x200000
"""The field of /proc/PID/stat, counted after the name, and its bit for a kernel thread (linux/sched.h)."""
_Read = Callable[[str, list[str]], tuple[list[OpenNode], bool]]
TOO_LONG = "/... (a path that is too long)"
"""Instead of a path that the kernel cannot report: more than a page (ENAMETOOLONG)."""
# Directories of sysfs that contain no devices but many files.
WITHOUT_DEVICES = frozenset(
    {"holders", "integrity", "mq", "msi_irqs", "power", "queue", "queues", "slaves", "statistics", "trace"}
)

_numbers: dict[bytes, str] = {}
"""The numbers of mapped files by device and inode: thousands of processes map the same libraries.

A cache in the workers of one scan; it ends with them."""


def open_nodes(pid: str) -> Opened:
    """The device files that a process has open or mapped, each once. Raises OSError when nothing can be read. A file
    that the kernel refuses to describe costs only itself: the rest is known, and `unread` has the reason."""
    if _is_kernel_thread(pid):
        return Opened()
    nodes: dict[OpenNode, None] = {}
    problems: list[str] = []
    threads = tables(pid)
    for thread in threads:
        try:
            nodes.update(dict.fromkeys(_steadily(_opened, thread, problems, "descriptors")))
        except (FileNotFoundError, ProcessLookupError):  # it has ended
            if thread == pid:
                raise
        except OSError as error:
            if thread == pid:
                raise
            problems.append(f"the descriptors of its thread {thread} could not be read ({symbol(error.errno or 0)})")
    for thread in threads:  # all have the same memory, except one that has ended
        try:
            nodes.update(dict.fromkeys(_steadily(_mapped, thread, problems, "mappings")))
            break
        except (FileNotFoundError, ProcessLookupError):  # kernel threads and ending processes have no memory map
            continue
        except OSError as error:
            problems.append(f"its memory map could not be read ({symbol(error.errno or 0)})")
            break
    more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
    return Opened(tuple(nodes), f"{problems[0]}{more}" if problems else "")


def _is_kernel_thread(pid: str) -> bool:
    """Whether it has neither files nor memory of its own: a large host has thousands of these (proc_pid_stat(5))."""
    fields = read_bytes(f"/proc/{pid}/stat").rpartition(b")")[2].split(maxsplit=_FLAGS + 1)
    return bool(int(fields[_FLAGS]) & _PF_KTHREAD)


def _steadily(read: _Read, pid: str, problems: list[str], what: str) -> Iterator[OpenNode]:
    """What `read` finds, which is called again while something vanishes under it: it may have moved, to hide."""
    until = time.monotonic() + _LONGEST
    for passes in count(1):
        own: list[str] = []
        nodes, is_whole = read(pid, own)
        yield from nodes
        if is_whole:
            break
        if passes == _PASSES or time.monotonic() > until:
            own.append(f"its {what} change while they are read")
            break
    problems += own


def _opened(pid: str, problems: list[str]) -> tuple[list[OpenNode], bool]:
    """The descriptors, and whether each one that was listed was there when it was read."""
    mounts, opened, is_whole = Mounts(pid), list[OpenNode](), True
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    # not listdir: a process may have millions of descriptors
    with closing(os.open(f"/proc/{pid}/fd", flags)) as directory, os.scandir(directory) as entries:
        for number, entry in enumerate(entries):
            if not number % PROGRESS_EVERY:
                report_progress()
            try:
                opened += _descriptor(pid, entry.name, directory)
            except (FileNotFoundError, ProcessLookupError):
                is_whole = False
            except OSError as error:
                if not mounts.descriptor_is_none(entry.name):
                    why = symbol(error.errno or 0)
                    problems.append(f"its file descriptor {entry.name} could not be read ({why})")
    return opened, is_whole


def _descriptor(pid: str, name: str, directory: int) -> Iterator[OpenNode]:
    try:
        target = os.readlink(name, dir_fd=directory)
    except OSError as error:
        if error.errno != errnos.ENAMETOOLONG:
            raise
        target = TOO_LONG  # the path; the file itself can be asked all the same
    if target[:1] == "/":
        # stat the link itself: its text may be a path in another mount namespace
        if (number := _number(os.stat(name, dir_fd=directory))) and not is_path_only(_fdinfo(pid, name)):
            yield OpenNode("open", readable(target), number, "")
    elif target == VFIO_DEVICE:
        yield OpenNode("open", target, "", _device_of(pid, name))


def _number(status: os.stat_result) -> str:
    kind = NODE_KINDS.get(stat.S_IFMT(status.st_mode))
    return f"{kind} {os.major(status.st_rdev)}:{os.minor(status.st_rdev)}" if kind else ""


def _fdinfo(pid: str, fd: str) -> bytes:
    return read_bytes(f"/proc/{pid}/fdinfo/{fd}")


def _device_of(pid: str, fd: str) -> str:
    lines = (line for line in _fdinfo(pid, fd).split(b"\n") if line.startswith(SYSPATH))
    return readable(os.fsdecode(next(lines, b"").removeprefix(SYSPATH).strip()))


def _mapped(pid: str, problems: list[str]) -> tuple[list[OpenNode], bool]:
    """The mapped files, and whether each mapping was still there when its file was asked."""
    mounts, mapped, is_whole = Mounts(pid), list[OpenNode](), True
    for index, (place, key, path) in enumerate(file_mappings(pid)):
        if not index % PROGRESS_EVERY:
            report_progress()
        if path == VFIO_DEVICE.encode():
            mapped.append(OpenNode("mapped", VFIO_DEVICE, "", ""))
            continue
        if key not in _numbers:
            try:
                number = _mapped_number(pid, place, path.removesuffix(DELETED))
            except (FileNotFoundError, ProcessLookupError):
                is_whole = False
                continue
            except OSError as error:
                if not mounts.device_is_none(_device_number(key)):
                    problems.append(f"a file that it has mapped could not be read ({symbol(error.errno or 0)})")
                continue
            if number is None:
                continue
            _numbers[key] = number  # only what the file itself has told: all processes share it
        if _numbers[key]:
            shown = readable(os.fsdecode(path.removesuffix(DELETED))) if path else TOO_LONG
            mapped.append(OpenNode("mapped", shown, _numbers[key], ""))
    return mapped, is_whole


def _mapped_number(pid: str, place: bytes, path: bytes) -> str | None:
    """The number by /proc/PID/map_files where that is permitted, else by the path as the process sees it; None if
    neither has one. Raises FileNotFoundError if it is no longer mapped there, OSError for a file that is refused."""
    home = f"/proc/{pid}/".encode()
    try:
        return _number(os.stat(home + b"map_files/" + place))
    except FileNotFoundError:
        if os.path.exists(home + b"map_files"):
            raise
    except OSError as error:
        if error.errno != errnos.EPERM:
            raise
    with suppress(OSError):
        return _number(os.stat(home + b"root" + path)) if path else None
    return None


def _device_number(key: bytes) -> str:
    """`0:45` for `00:2d 1234`, the device and inode of a mapping."""
    major, _, minor = key.partition(b" ")[0].partition(b":")
    return f"{int(major, 16)}:{int(minor, 16)}"


def below(path: str) -> list[Descendant]:
    """The devices below a directory of sysfs, except those below another PCI function. Raises OSError. Reads only their
    file `dev`: reading others may wait for the device lock."""
    descendants: list[Descendant] = []
    for directory in _directories(path):
        with suppress(OSError):  # a directory may vanish at any time
            _below(directory, descendants)
    return descendants


def _below(path: str, descendants: list[Descendant]) -> None:
    with suppress(FileNotFoundError):
        subsystem = os.readlink(f"{path}/subsystem").rpartition("/")[2]
        descendants.append(Descendant(path, subsystem, _dev(path)))
    for directory in _directories(path):
        with suppress(OSError):
            _below(directory, descendants)


def _directories(path: str) -> list[str]:
    with os.scandir(path) as entries:
        names = [e.name for e in entries if e.name not in WITHOUT_DEVICES and e.is_dir(follow_symlinks=False)]
    return [f"{path}/{name}" for name in sorted(names) if not PCI_ADDRESS.fullmatch(name)]


def _dev(path: str) -> str:
    try:
        return read_bytes(f"{path}/dev").decode("ascii", "replace").strip()
    except OSError:
        return ""


def claimed(number: str) -> bool:
    """Whether a block device refuses an exclusive open (bd_prepare_to_claim). Raises OSError."""
    name = os.readlink(f"/sys/dev/block/{number}").rpartition("/")[2]
    try:
        # not /dev/block, which exists only with udev
        os.close(os.open(f"/dev/{name.replace('!', '/')}", os.O_RDONLY | os.O_EXCL | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:
        if error.errno == errnos.EBUSY:
            return True
        raise
    return False


@cache
def user(uid: int) -> str:
    """The user's name, or the number as text."""
    import pwd

    try:
        return readable(pwd.getpwuid(uid).pw_name)
    except KeyError:
        return str(uid)
