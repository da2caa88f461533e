"""Reads or writes one file or directory, or runs one command; without retries, with the errno that Linux returns."""

from __future__ import annotations

import errno as errnos
import fcntl
import os
import re
import stat
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING

from vfioctl.environment import OF_COMMANDS
from vfioctl.kernel import trusted
from vfioctl.kernel.descriptors import closing
from vfioctl.kernel.protocol import Directory, Prefixes, per_subject

if TYPE_CHECKING:
    from subprocess import CompletedProcess

MOST_TEXT = 16 << 20
MOST_OF_SYSFS = 1 << 16
"""Attributes have at most a page, lists of CPUs a few. A damaged capture has files of any size."""
VFIO_GROUP_GET_STATUS = 0x3B67  # _IO(';', 100 + 3), linux/vfio.h
_PAGE = 4096
_PART = 1 << 16
"""A buffer of more would be mapped and unmapped again for each read."""
NODE_KINDS = {stat.S_IFCHR: "c", stat.S_IFBLK: "b"}
READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


def readable(name: str) -> str:
    """A name that JSON can hold: bytes that are not UTF-8 become `?`, and the name can no longer be opened."""
    return name if name.isascii() else name.encode("utf-8", "replace").decode()


def target_of(link: str) -> str:
    """The target of a link as the kernel writes it: without a slash at the end, which tools that copy sysfs add."""
    return readable(link if link[-1:] != "/" else link.rstrip("/") or "/")


def text_in(data: bytes) -> str:
    """The text of an attribute, without newlines and NUL bytes at its end: lists of CPUs may end in a NUL."""
    return data.decode("utf-8", "replace").rstrip("\n\0")


def read_text(path: str, most: int = MOST_TEXT) -> str:
    """A file's text, cut off after `most` bytes."""
    return read_bytes(path, most).decode("utf-8", "replace").rstrip("\n")


def read_of_sysfs(path: str) -> str:
    """The text of an attribute, cut off after MOST_OF_SYSFS bytes. Only after a full page there may be more."""
    fd = os.open(path, READ)
    try:
        data = os.read(fd, _PAGE)
        more = read_up_to(fd, MOST_OF_SYSFS - _PAGE) if len(data) == _PAGE else b""
    finally:
        os.close(fd)
    return text_in(data + more)


def read_bytes(path: str, most: int = MOST_TEXT) -> bytes:
    """A file's content, cut off after `most` bytes."""
    fd = os.open(path, READ)
    try:
        return read_up_to(fd, most)
    finally:
        os.close(fd)


def read_up_to(fd: int, most: int) -> bytes:
    """At most the next `most` bytes: one read of a file of /proc returns a few pages."""
    parts, size = [], 0
    while size < most and (part := os.read(fd, min(_PART, most - size))):
        parts.append(part)
        size += len(part)
    return b"".join(parts)


def read_directory(fd: int, wanted: Collection[str], links: Prefixes, read: Callable[[str, int], str]) -> Directory:
    """`read`: reads a file by its name and the descriptor of its directory."""
    names, targets, texts, refused = [], {}, {}, {}
    with os.scandir(fd) as entries:
        for entry in entries:
            names.append(name := entry.name)
            try:
                if entry.is_symlink():
                    if name.startswith(links):
                        targets[readable(name)] = target_of(os.readlink(name, dir_fd=fd))
                elif name in wanted and entry.is_file():
                    texts[name] = read(name, fd)
                elif name in wanted:
                    refused[name] = "EISDIR" if entry.is_dir() else "ENXIO"
            except OSError as error:
                refused[readable(name)] = errnos.errorcode.get(error.errno or 0, "EIO")
    plain = "".join(names).isascii()  # as all of sysfs is
    return Directory(frozenset(names if plain else map(readable, names)), texts, targets, refused)


def read_entries(fd: int, wanted: Collection[str], links: Collection[str]) -> Directory:
    """These files and links of a directory of the kernel's, which has no special files."""
    names, texts, targets, refused = {*wanted, *links}, {}, {}, {}
    for name in links:
        try:
            targets[name] = target_of(os.readlink(name, dir_fd=fd))
        except FileNotFoundError:
            names.discard(name)
        except OSError as error:
            if error.errno != errnos.EINVAL:  # it is no link
                refused[name] = symbol(error.errno or errnos.EIO)
    for name in wanted:
        try:
            texts[name] = read_attribute(name, fd, READ | os.O_NOFOLLOW)
        except FileNotFoundError:
            names.discard(name)
        except OSError as error:
            if error.errno != errnos.ELOOP:  # it is a link
                refused[name] = symbol(error.errno or errnos.EIO)
    return Directory(frozenset(names), texts, targets, refused)


def read_texts_below(fd: int, read: Callable[[str, int], str]) -> Directory:
    """A text of each directory in a directory. `read`: reads it, by the name and the descriptor of where that is."""
    texts, refused, names = {}, {}, os.listdir(fd)
    plain = "".join(names).isascii()
    for folder in names:
        try:
            texts[folder if plain else readable(folder)] = read(folder, fd)
        except OSError as error:
            if error.errno != errnos.ENOTDIR:
                refused[readable(folder)] = symbol(error.errno or errnos.EIO)
    return Directory(frozenset(names if plain else map(readable, names)), texts, {}, refused)


def read_attribute(name: str, directory: int, flags: int = READ) -> str:
    """One read(2): an attribute of sysfs has at most one page."""
    fd = os.open(name, flags, dir_fd=directory)
    try:
        return text_in(os.read(fd, _PAGE))
    finally:
        os.close(fd)


def device_number(status: os.stat_result) -> tuple[str, int, int]:
    """A device node's kind (`c` or `b`), major and minor number. Raises OSError (ENODEV)."""
    kind = NODE_KINDS.get(stat.S_IFMT(status.st_mode))
    if kind is None:
        raise OSError(errnos.ENODEV, os.strerror(errnos.ENODEV))
    return kind, os.major(status.st_rdev), os.minor(status.st_rdev)


def run(command: list[str]) -> tuple[int, str]:
    """Runs a command; its exit code, and the end of its stdout followed by its stderr."""
    try:
        done = completed(command)
    except OSError as error:
        return 127, f"{command[0]}: {error.strerror}"
    return done.returncode, f"{done.stdout.strip()}\n{done.stderr.strip()}".strip()[-500:]


def completed(command: list[str], *, timeout: float | None = None) -> CompletedProcess[str]:
    """Runs a command found on vfioctl's own PATH, in `/`, with nothing of the caller's environment or descriptors.
    Raises OSError, subprocess.TimeoutExpired."""
    import subprocess

    return subprocess.run(
        command,
        check=False,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        stdin=subprocess.DEVNULL,
        timeout=timeout,
        cwd="/",
        env=dict(OF_COMMANDS),
    )


def symbol(errno: int) -> str:
    """The errno's name, as `EBUSY`; the number as text where it has no name."""
    return errnos.errorcode.get(errno, str(errno))


_FOR_INSTALLED_FILES = re.compile(
    r"/usr/lib/(vfioctl|dracut/modules\.d/90vfioctl)|/etc/systemd/system/[a-z-]+\.target\.wants"
    r"|/usr/local/share/(man/man1|bash-completion(/completions)?|zsh(/site-functions)?|fish(/vendor_completions\.d)?)",
    re.ASCII,
)


def replace_file(path: str, text: str | None) -> None:
    """Replaces a file atomically, synced to disk, or removes it (None). A script can be run. Raises OSError."""
    if text is None:
        _remove(path)
        return
    folder, name = os.path.split(path)
    with trusted.opened_directory(folder, make=trusted.PUBLIC_DIRECTORY) as directory:
        mode = trusted.PUBLIC_PROGRAM if text.startswith("#!") else trusted.PUBLIC_FILE
        write_into(directory, name, text.encode(), mode=mode)
        _sync(directory)


def replace_link(path: str, target: str | None) -> None:
    """Replaces a symbolic link atomically, or removes it (None). Never replaces a file or directory. Raises OSError."""
    if os.path.lexists(path) and not os.path.islink(path):
        raise OSError(errnos.EEXIST, "it is no symbolic link")
    if target is None:
        _remove(path)
        return
    folder, name = os.path.split(path)
    with trusted.opened_directory(folder, make=trusted.PUBLIC_DIRECTORY) as directory:
        beside = f".{name}.{os.getpid()}"
        with suppress(FileNotFoundError):
            os.unlink(beside, dir_fd=directory)
        os.symlink(target, beside, dir_fd=directory)
        os.replace(beside, name, src_dir_fd=directory, dst_dir_fd=directory)
        _sync(directory)


def _remove(path: str) -> None:
    """Removes a file or link, synced to disk, and directories that are there for such files only and are empty then;
    does nothing if there is none. Raises OSError."""
    if not os.path.lexists(path):
        return
    folder, name = os.path.split(path)
    with trusted.opened_directory(folder) as directory:
        os.unlink(name, dir_fd=directory)
        _sync(directory)
    while _FOR_INSTALLED_FILES.fullmatch(folder):
        folder, name = os.path.split(folder)
        try:
            with trusted.opened_directory(folder) as directory:
                os.rmdir(name, dir_fd=directory)
        except OSError:  # other programs have files there
            return


def write_whole(path: str, data: bytes, *, mode: int | None = None) -> None:
    """Writes a file atomically, its text synced to disk. Replaces a symbolic link at `path`, not its target; for root,
    follows none of another user's, see `output_directory`. `mode`: permissions, whatever the umask. Raises OSError."""
    folder, name = os.path.split(path)
    with trusted.output_directory(folder or ".") as directory:
        write_into(directory, name, data, mode=mode)


def write_into(
    directory: int, name: str, data: bytes, *, mode: int | None = None, owner: tuple[int, int] | None = None
) -> None:
    """Writes a file of an open directory as `write_whole` does, whatever is put in the directory's place meanwhile.
    `owner`: the user and group that it belongs to; None for those of this process."""
    beside = f".{name}.{os.getpid()}.{threading.get_native_id()}"
    with suppress(FileNotFoundError):
        os.unlink(beside, dir_fd=directory)  # left by a process that was killed and had the same id
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(beside, flags, 0o666 if mode is None else trusted.PRIVATE_FILE, dir_fd=directory)
    try:
        with open(fd, "wb") as stream:
            stream.write(data)
            stream.flush()
            if owner is not None:
                os.fchown(fd, *owner)  # before the mode, because it clears the setuid bit
            if mode is not None:
                os.fchmod(fd, mode)
            os.fsync(fd)
        os.replace(beside, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        os.unlink(beside, dir_fd=directory)
        raise


def _sync(directory: int) -> None:
    with closing(os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)) as fd:
        os.fsync(fd)


def write_once(path: str, value: str) -> int:
    """Writes with one write(2), because sysfs handles each write as one command. Returns 0 or the errno."""
    try:
        with closing(os.open(path, os.O_WRONLY | os.O_CLOEXEC)) as fd:
            os.write(fd, value.encode())
    except OSError as error:
        return error.errno or errnos.EIO
    return 0


@per_subject
def group_flags(_: object, path: str) -> tuple[int, int]:
    """The errno or 0, and the flags of a VFIO group. For a worker: opening blocks while a device leaves the group."""
    status = (8).to_bytes(4, "little") + bytes(4)  # struct vfio_group_status: argsz and flags
    try:
        with closing(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)) as fd:
            return 0, int.from_bytes(fcntl.ioctl(fd, VFIO_GROUP_GET_STATUS, status)[4:8], "little")
    except OSError as error:
        return error.errno or errnos.EIO, 0
