"""What processes have open, and which devices lie below one, from the files of /proc and /sys. Reads only."""

from __future__ import annotations

from vfioctl.kernel.seam import Descendant, OpenNode


def open_nodes(pid: str) -> list[OpenNode]:
    """The device files that a process has open or mapped. Raises OSError."""
    raise NotImplementedError


def below(path: str) -> list[Descendant]:
    """The devices below a directory of sysfs, but for those below another PCI function. Raises OSError."""
    raise NotImplementedError


def claimed(number: str) -> bool:
    """Whether a block device refuses an exclusive open. Raises OSError."""
    raise NotImplementedError


def user(uid: int) -> str:
    """The user's name, or the number as text."""
    raise NotImplementedError
