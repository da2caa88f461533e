"""Resolves the symbolic links of a recorded host, as the kernel does inside a root that they cannot leave."""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable

from vfioctl.errors import KernelRefused

MOST_HOPS = 40
"""MAXSYMLINKS of Linux (include/linux/namei.h)."""


def resolve(
    path: str, readlink: Callable[[str], str | None], is_directory: Callable[[str], bool], *, follow_last: bool = True
) -> str:
    """The path with every link followed; `..` and absolute targets stay inside the root, as in a chroot.

    `readlink` gives a link's target, or None for what is no link. What follows a name that is no directory stays as it
    is, so that nothing exists there. Raises KernelRefused (ELOOP, ENAMETOOLONG).
    """
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
        if hops > MOST_HOPS or len(target) > 4096:
            raise KernelRefused(path, errno.ELOOP if hops > MOST_HOPS else errno.ENAMETOOLONG)
        if target.startswith("/"):
            done = ""
        todo.extendleft(reversed(target.split("/")))
    return done or "/"
