"""What /proc shows of one process, and killing exactly that one. Numbers are used again: the moment it began tells."""

from __future__ import annotations

import os
import signal
from contextlib import suppress


def process_text(pid: int, name: str) -> str:
    """The beginning of a file below /proc/PID; empty when it cannot be read."""
    try:
        with open(f"/proc/{pid}/{name}", encoding="utf-8", errors="replace") as file:
            return file.read(4096).strip()
    except OSError:
        return ""


def began_at(pid: int) -> int:
    """When it began, in clock ticks after the boot; 0 for one that is not there, or has ended and is a zombie."""
    fields = process_text(pid, "stat").rpartition(")")[2].split()
    return int(fields[19]) if len(fields) > 19 and fields[0] not in ("Z", "X") else 0


def ticket_of(pid: int) -> str:
    """A process by its number and the moment it began. One that has ended began never."""
    return f"{pid}:{began_at(pid) or ''}"


def state_of(pid: int) -> dict[str, str]:
    """What the kernel shows of one that does not come back: state, wchan and stack where readable."""
    found = {"wchan": process_text(pid, "wchan"), "stack": process_text(pid, "stack")}
    found["stat"] = process_text(pid, "stat").rpartition(")")[2][1:2]
    return {name: text for name, text in found.items() if text}


def kill(pid: int, began: int) -> None:
    """Kills the process that has the number and began then; no other that has got its number since."""
    with suppress(OSError, AttributeError):  # gone already; or Linux before 5.3, where it is left alone
        fd = os.pidfd_open(pid)
        try:
            if began and began_at(pid) == began:
                signal.pidfd_send_signal(fd, signal.SIGKILL)
        finally:
            os.close(fd)
