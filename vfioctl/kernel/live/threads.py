"""The threads of a process that have a table of descriptors of their own (unshare(CLONE_FILES)).

/proc/PID/fd shows the table of the thread that began the process. It is empty when that one has ended and
others go on.
"""

from __future__ import annotations

import errno as errnos
import os

_KCMP = {"x86_64": 312, "aarch64": 272, "riscv64": 272, "loongarch64": 272, "ppc64le": 354, "s390x": 343}
_KCMP_FILES = 2  # linux/kcmp.h
_ONE_THREAD = 3  # links of /proc/PID/task: itself, its parent, one directory


def tables(pid: str) -> list[str]:
    """The process, and one of the threads for each other table of descriptors. Raises OSError when it has ended.

    Where the kernel does not compare tables (kcmp), all threads.
    """
    if os.stat(f"/proc/{pid}/task").st_nlink == _ONE_THREAD:
        return [pid]
    others = [name for name in os.listdir(f"/proc/{pid}/task") if name != pid]
    try:
        return [pid, *_distinct(pid, others)]
    except OSError:
        return [pid, *others]


def _distinct(pid: str, others: list[str]) -> list[str]:
    ordered = [pid]  # as the kernel orders tables: a process may have thousands
    for thread in others:
        low, high = 0, len(ordered)
        while low < high:
            middle = (low + high) // 2
            order = _compared(int(thread), int(ordered[middle]))
            if order == 0:
                break
            low, high = (low, middle) if order == 1 else (middle + 1, high)
        else:
            ordered.insert(low, thread)
    return [thread for thread in ordered if thread != pid]


def _compared(one: int, other: int) -> int:
    """0 for the same table, 1 or 2 for one before or after the other. Raises OSError where that is unknown."""
    number = _KCMP.get(os.uname().machine)
    if number is None:
        raise OSError(errnos.ENOSYS, os.strerror(errnos.ENOSYS))
    from vfioctl.kernel.syscalls import call  # ctypes loads slowly, and most processes have one thread

    return call(number, one, other, _KCMP_FILES, 0, 0)
