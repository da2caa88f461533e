"""Which names in a control group's path only root can have chosen. Reads the owners of directories."""

from __future__ import annotations

import os

_MOUNTED = "/sys/fs/cgroup"


def made_by_root(hierarchy: str, path: str) -> str:
    """The beginning of the path in which every name was chosen by root; empty where that is unknown.

    Who owns a directory can create others in it: systemd hands a delegated subtree over by chown (Delegate=, User=).
    `hierarchy`: the controllers of a version 1 hierarchy as /proc/PID/cgroup has them; empty for version 2.
    """
    names = path.strip("/").split("/")
    if ".." in names:  # outside the reader's cgroup namespace
        return ""
    places = (f"{_MOUNTED}/{hierarchy.removeprefix('name=')}",) if hierarchy else (_MOUNTED, f"{_MOUNTED}/unified")
    return max((_owned(place, names) for place in places), key=len)


def _owned(place: str, names: list[str]) -> str:
    known: list[str] = []
    for name in names:
        try:
            if os.stat("/".join((place, *known))).st_uid != 0:
                break
            os.stat("/".join((place, *known, name)))
        except OSError:
            break
        known.append(name)
    return "".join(f"/{name}" for name in known)
