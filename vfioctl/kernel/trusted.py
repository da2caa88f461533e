"""Opens directories component by component, and looks at files in them, so that no other user can redirect root. For
root, every directory on the way must be one that only root can change, and so must every symbolic link. Nobody can then
put another directory or file in its place later, and its path stays good. Other users endanger only themselves: for
them nothing is refused but special files and links in the place of files. Descriptors of files are opened with O_PATH:
closing any other would release SQLite's locks on the file."""

from __future__ import annotations

import errno as errnos
import os
import stat
from contextlib import AbstractContextManager, suppress

from vfioctl.kernel.descriptors import closing
from vfioctl.kernel.paths import MOST_HOPS

_SEARCH = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_OVERFLOW_UID = 65534
"""Owner of what belongs to a user that this user namespace does not have."""
PRIVATE_DIRECTORY, PUBLIC_DIRECTORY = 0o700, 0o755
PRIVATE_FILE, GROUP_FILE, PUBLIC_FILE, PUBLIC_PROGRAM = 0o600, 0o640, 0o644, 0o755
KEEP_TO_ROOT = "as root, use a directory that only root can change; or run it as its owner"
"""The hint for what is Untrusted."""


class Untrusted(OSError):
    """Another user could change this file or directory, or it is not what it should be."""

    def __init__(self, reason: str) -> None:
        super().__init__(errnos.EPERM, reason)


def opened_directory(path: str, *, make: int | None = None) -> AbstractContextManager[int]:
    """Open a directory and give its descriptor (O_PATH). Raises Untrusted, OSError. `make`: create it with this mode,
    independent of the umask, where it is missing; directories above it get 0755."""
    return closing(_walk(path, make))


def output_directory(path: str) -> AbstractContextManager[int]:
    """Open a directory that a user named for a result, and give its descriptor (O_PATH). Raises Untrusted, OSError. The
    directory may be another user's, as a home is for sudo; but root follows no symbolic link of another user's."""
    return closing(_walk(path, None, is_output=True))


def place_of(directory: int) -> str:
    """Return the path of an open directory, without symbolic links."""
    return os.readlink(f"/proc/self/fd/{directory}")


def status_of(directory: int, name: str) -> os.stat_result | None:
    """Return the status of a file in the directory; None if there is none. Raises Untrusted for a symbolic link, and
    for root if another user owns it; OSError for what is no regular file."""
    try:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
    path = f"{place_of(directory)}/{name}"
    if stat.S_ISLNK(status.st_mode):
        raise Untrusted(f"{path} is a symbolic link")
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errnos.ENXIO, f"{path} is no regular file")
    if os.geteuid() == 0 and not _is_roots(status):
        raise Untrusted(f"{path} belongs to user {status.st_uid}")
    return status


def make_private(directory: int, name: str) -> None:
    """Create an empty file of mode 0600 if there is none; take access to it from everybody but its owner."""
    with suppress(FileExistsError):
        os.mknod(name, stat.S_IFREG | PRIVATE_FILE, dir_fd=directory)
    keep_private(directory, name)


def keep_private(directory: int, name: str) -> None:
    """Give a file the mode 0600, if it exists."""
    with suppress(FileNotFoundError), closing(os.open(name, _SEARCH, dir_fd=directory)) as fd:
        status = os.fstat(fd)
        if stat.S_ISREG(status.st_mode) and stat.S_IMODE(status.st_mode) != PRIVATE_FILE:
            set_mode(fd, PRIVATE_FILE)


def set_mode(fd: int, mode: int) -> None:
    """Set the mode of what an O_PATH descriptor names: fchmod refuses such descriptors."""
    os.chmod(f"/proc/self/fd/{fd}", mode)


def read_published(path: str, most: int) -> bytes:
    """Read a regular file that root or this user has written, and nobody else can write. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
    with open(fd, "rb") as stream:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise Untrusted(f"{path} is no regular file")
        if status.st_uid not in (0, os.geteuid()) or stat.S_IMODE(status.st_mode) & 0o022:
            raise Untrusted(f"{path} can be written by users other than root")
        if status.st_size > most:
            raise Untrusted(f"{path} is larger than {most >> 20} MiB")
        return stream.read(most)


def _walk(path: str, make: int | None, *, is_output: bool = False) -> int:
    whole = os.path.join(os.getcwd(), path) if not path.startswith("/") else path
    names, links = _names(whole), 0
    fd = _opened("/", None)
    try:
        while names:
            name = names.pop()
            opened = _opened(name, fd, make=None if make is None else PUBLIC_DIRECTORY if names else make)
            status = os.fstat(opened)
            if stat.S_ISLNK(status.st_mode):
                target = _target(opened, status, f"{place_of(fd)}/{name}")
                links += 1
                if links > MOST_HOPS:
                    raise OSError(errnos.ELOOP, os.strerror(errnos.ELOOP))
                names += _names(target)
                opened = _opened("/", None) if target.startswith("/") else os.dup(fd)
            os.close(fd)
            fd = opened
            _refuse(fd, last=not names, is_output=is_output)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")][::-1]


def _opened(name: str, directory: int | None, *, make: int | None = None) -> int:
    try:
        return os.open(name, _SEARCH, dir_fd=directory)
    except FileNotFoundError:
        if make is None:
            raise
    with suppress(FileExistsError):
        os.mkdir(name, PRIVATE_DIRECTORY, dir_fd=directory)
    fd = os.open(name, _SEARCH | os.O_DIRECTORY, dir_fd=directory)
    try:
        if stat.S_IMODE(os.fstat(fd).st_mode) != make:
            set_mode(fd, make)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _target(link: int, status: os.stat_result, path: str) -> str:
    with closing(link):
        if os.geteuid() == 0 and not _is_roots(status):
            raise Untrusted(f"{path} is a symbolic link of user {status.st_uid}")
        return os.readlink("", dir_fd=link)


def _refuse(directory: int, *, last: bool, is_output: bool) -> None:
    """Raise Untrusted if root may not rely on the directory. In a sticky one others cannot replace what is root's."""
    status = os.fstat(directory)
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errnos.ENOTDIR, os.strerror(errnos.ENOTDIR))
    if os.geteuid() != 0 or is_output:
        return
    if not _is_roots(status):
        raise Untrusted(f"{place_of(directory)} belongs to user {status.st_uid}")
    if status.st_mode & 0o022 and (last or not status.st_mode & stat.S_ISVTX):
        raise Untrusted(f"{place_of(directory)} can be written by users other than root")


def _is_roots(status: os.stat_result) -> bool:
    return status.st_uid == 0 or (status.st_uid == _OVERFLOW_UID and _in_user_namespace())


def _in_user_namespace() -> bool:
    """Whether the machine's root may be unknown here: then its directories seem to belong to the overflow user."""
    with suppress(OSError), open("/proc/self/uid_map", encoding="ascii") as stream:
        return stream.read().split() != ["0", "0", "4294967295"]
    return False
