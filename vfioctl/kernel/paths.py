"""Resolving symbolic links inside a root that they cannot leave: a captured directory, a recorded host.

Does no input or output itself: it calls `readlink` for each component.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable

from vfioctl.errors import KernelRefused

MOST_HOPS = 40
"""MAXSYMLINKS of Linux (include/linux/namei.h)."""


def resolve(path: str, readlink: Callable[[str], str | None], *, follow_last: bool = True) -> str:
    """The path with every link followed; `..` and absolute targets stay inside the root, as in a chroot.

    `readlink` gives a link's target, or None for what is no link. Raises KernelRefused (ELOOP, ENAMETOOLONG).
    """
    todo, done, hops = deque(path.split("/")), "", 0
    while todo:
        part = todo.popleft()
        if part in ("", "."):
            continue
        if part == "..":
            done = done.rpartition("/")[0]
            continue
        here = f"{done}/{part}"
        target = readlink(here) if todo or follow_last else None
        if target is None:
            done = here
            continue
        hops += 1
        if hops > MOST_HOPS or len(target) > 4096:
            raise KernelRefused(path, errno.ELOOP if hops > MOST_HOPS else errno.ENAMETOOLONG)
        if target.startswith("/"):
            done = ""
        todo.extendleft(reversed(target.split("/")))
    return done or "/"
