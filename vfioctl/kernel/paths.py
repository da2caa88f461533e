"""Paths below a root directory, as in a chroot: no path and no link leads out, even while somebody replaces them.
Resolves those of a recorded host, and opens those of a captured directory, with O_PATH only, which has no effect on
FIFOs and devices. Uses openat2(2); where the kernel lacks it (before 5.6) or a sandbox forbids it, opens one component
after the other."""

from __future__ import annotations

import errno as errnos
import os
import stat
import struct
from collections import deque
from collections.abc import Callable

from vfioctl.errors import KernelRefused
from vfioctl.kernel.descriptors import call, closing

MOST_HOPS = 40
"""MAXSYMLINKS of Linux (include/linux/namei.h)."""
_OPENAT2 = 437  # the same on all architectures but alpha
RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_IN_ROOT = 0x02, 0x04, 0x10  # linux/openat2.h
_MOST_PATH = 4096
_ATTEMPTS = 16
_LOOK = os.O_PATH | os.O_CLOEXEC


def resolve(
    path: str, readlink: Callable[[str], str | None], is_directory: Callable[[str], bool], *, follow_last: bool = True
) -> str:
    """The path with every link followed; `..` and absolute targets stay inside the root, as in a chroot. `readlink`
    gives a link's target, or None for what is no link. What follows a name that is no directory stays as it is, so that
    nothing exists there. Raises KernelRefused (ELOOP, ENAMETOOLONG)."""
    todo, done, hops = deque(path.split("/")), "", 0
    while todo:
        part = todo.popleft()
        if part in ("", ".", ".."):
            if done and not is_directory(done):
                return "/".join((done, part, *todo))
            if part == "..":
                done = done.rpartition("/")[0]
            continue
        here = f"{done}/{part}"
        target = readlink(here) if todo or follow_last else None
        if target is None:
            done = here
            continue
        hops += 1
        if hops > MOST_HOPS or len(target) > _MOST_PATH:
            raise KernelRefused(path, errnos.ELOOP if hops > MOST_HOPS else errnos.ENAMETOOLONG)
        if target.startswith("/"):
            done = ""
        todo.extendleft(reversed(target.split("/")))
    return done or "/"


def openat2(directory: int, path: bytes, flags: int, how_to_resolve: int) -> int:
    """The system call. Raises OSError."""
    how = struct.pack("=3Q", flags, 0, how_to_resolve)  # struct open_how, linux/openat2.h
    return call(_OPENAT2, directory, path, how, len(how))


def open_inside(root: int, path: str, *, follow_last: bool = True) -> int:
    """What a path leads to when `root` is the root directory, as a descriptor with O_PATH. Raises OSError.
    `follow_last`: whether to follow a symbolic link at the end. Absolute links and `..` stay inside, as in a chroot."""
    name, flags = _encoded(path), _LOOK if follow_last else _LOOK | os.O_NOFOLLOW
    for _ in range(_ATTEMPTS):
        try:
            return openat2(root, name, flags, RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS)
        except OSError as error:
            # EAGAIN: something was renamed while `..` was resolved; where that never ends, the walk does not mind
            if error.errno in (errnos.ENOSYS, errnos.EPERM):
                break
            if error.errno != errnos.EAGAIN:
                raise
    return _walk(root, path, follow_last=follow_last)


def open_root(path: str) -> int:
    """A directory by its absolute path without symbolic links, as a descriptor with O_PATH. Raises OSError."""
    flags = _LOOK | os.O_DIRECTORY
    with closing(os.open("/", flags)) as top:
        try:
            return openat2(top, _encoded(path), flags, RESOLVE_NO_SYMLINKS)
        except OSError as error:
            if error.errno not in (errnos.ENOSYS, errnos.EPERM):
                raise
        here = os.dup(top)
        for part in filter(None, path.split("/")):
            with closing(here):
                here = os.open(part, flags | os.O_NOFOLLOW, dir_fd=here)
        return here


def _encoded(path: str) -> bytes:
    try:
        name = os.fsencode(path)
    except UnicodeEncodeError:
        raise OSError(errnos.EILSEQ, os.strerror(errnos.EILSEQ)) from None
    if b"\0" in name:
        raise OSError(errnos.EINVAL, os.strerror(errnos.EINVAL))
    if len(name) >= _MOST_PATH:
        raise OSError(errnos.ENAMETOOLONG, os.strerror(errnos.ENAMETOOLONG))
    return name


def _walk(root: int, path: str, *, follow_last: bool) -> int:
    """Follows the links itself: each component is opened in the directory before it, as what it is."""
    todo, opened, hops = deque(path.split("/")), [os.dup(root)], 0
    try:
        while todo:
            part = todo.popleft()
            if part in ("", ".", ".."):
                if not stat.S_ISDIR(os.fstat(opened[-1]).st_mode):
                    raise OSError(errnos.ENOTDIR, os.strerror(errnos.ENOTDIR))
                if part == ".." and len(opened) > 1:
                    os.close(opened.pop())
                continue
            opened.append(os.open(part, _LOOK | os.O_NOFOLLOW, dir_fd=opened[-1]))
            if not (todo or follow_last) or not stat.S_ISLNK(os.fstat(opened[-1]).st_mode):
                continue
            hops += 1
            if hops > MOST_HOPS:
                raise OSError(errnos.ELOOP, os.strerror(errnos.ELOOP))
            target = os.readlink("", dir_fd=opened[-1])
            os.close(opened.pop())
            while target.startswith("/") and len(opened) > 1:
                os.close(opened.pop())
            todo.extendleft(reversed(target.split("/")))
        return opened.pop()
    finally:
        for fd in opened:
            os.close(fd)
