"""Whether a process holds a lock, as the running kernel says to any user. Reads the real /proc only, also for simulated
hosts: their locks are real. Every answer is false if in doubt.

A process id alone proves nothing: it may be another process's by now, or of another PID namespace. Nor does the lock:
the kernel lists it under the process that took it, which may be dead while its worker, stuck in a write, keeps it."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

LOCKS = Path("/proc/locks")
"""proc_locks(5). The numbers of processes are those of the reader's PID namespace, 0 or -1 for processes outside it."""
_ENDED = ("Z", "X", "x")


def holds_lock(pid: int, inode: int, *, since: float) -> bool:
    """Return whether this process, which ran at the time `since`, lives and holds a flock of the file with this inode.

    `since`: seconds since the epoch. Devices are not compared: /proc/locks has the file system's, which differs from
    stat's on btrfs and overlayfs."""
    started = _started(pid)
    return started is not None and started <= since and _is_listed(pid, inode)


def _started(pid: int) -> float | None:
    """Return when the process started, in seconds since the epoch; None if there is none, or only a zombie."""
    with suppress(OSError, ValueError, IndexError):
        text = Path(f"/proc/{pid}/stat").read_bytes().decode(errors="replace")
        state, *fields = text.rpartition(")")[2].split()  # the name before it may have spaces and parentheses
        since_boot = int(fields[18]) / os.sysconf("SC_CLK_TCK")
        boot = time.clock_gettime(time.CLOCK_REALTIME) - time.clock_gettime(time.CLOCK_BOOTTIME)
        return None if state in _ENDED else boot + since_boot
    return None


def _is_listed(pid: int, inode: int) -> bool:
    try:
        lines = LOCKS.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return False
    rows = (line.split() for line in lines)
    wanted = ["FLOCK", "WRITE", str(pid), str(inode)]  # a process that waits has `->` before FLOCK
    return any(len(row) > 5 and [row[1], row[3], row[4], row[5].rpartition(":")[2]] == wanted for row in rows)
