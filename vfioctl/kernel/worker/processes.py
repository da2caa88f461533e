"""Reads a process in /proc, kills it, reports progress, and keeps the verdicts of abandoned writes. A process is
identified by pid and start time, because pids are reused: its ticket is `PID:START`. When an abandoned write returns
after all, its worker appends the result to the file of verdicts."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

from vfioctl.kernel import files
from vfioctl.kernel.descriptors import closing
from vfioctl.kernel.worker.wire import Page


def process_text(pid: int, name: str) -> str:
    """The first part of the file `name` in /proc/PID; empty when it cannot be read."""
    try:
        with open(f"/proc/{pid}/{name}", encoding="utf-8", errors="replace") as file:
            return file.read(4096).strip()
    except OSError:
        return ""


def began_at(pid: int) -> int:
    """The start time in clock ticks after boot; 0 if the process does not exist or is a zombie."""
    fields = process_text(pid, "stat").rpartition(")")[2].split()
    return int(fields[19]) if len(fields) > 19 and fields[0] not in ("Z", "X") else 0


def ticket_of(pid: int) -> str:
    """The identity of a process as `PID:START`. START is 0 for a process that has ended."""
    return f"{pid}:{began_at(pid) or ''}"


def state_of(pid: int) -> dict[str, str]:
    """The state, wchan and stack of a blocked process, as far as they are readable."""
    state = {"wchan": process_text(pid, "wchan"), "stack": process_text(pid, "stack")}
    state["stat"] = process_text(pid, "stat").rpartition(")")[2][1:2]
    return {name: text for name, text in state.items() if text}


def kill(pid: int, began: int) -> None:
    """Kills the process with this pid and start time; not another one that has reused the pid."""
    # suppressed: it is already gone; or no pidfd_open (Linux before 5.3): not killed
    with suppress(OSError, AttributeError), closing(os.pidfd_open(pid)) as fd:
        if began and began_at(pid) == began:
            signal.pidfd_send_signal(fd, signal.SIGKILL)


PROGRESS_EVERY = 1000
"""How many files of a process are read between two reports."""
_pages: list[Page] = []


def report_progress_to(page: Page) -> None:
    """From now on, this process reports its progress in `page`."""
    _pages[:] = [page]


def report_progress() -> None:
    """Report progress. Does nothing in a process that is no worker."""
    for page in _pages:
        page.moves += 1


RETURNED = "returned"
_MOST_VERDICTS = 1 << 20


def leave_verdict(verdicts: str, errno: int) -> None:
    """Appends the result of an abandoned write to the verdict file."""
    import json  # few sessions need it

    line = json.dumps({"ticket": ticket_of(os.getpid()), "said": files.symbol(errno) if errno else RETURNED})
    with suppress(OSError):
        fd = os.open(verdicts, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        os.write(fd, f"{line}\n".encode())
        os.close(fd)


def write_ended(ticket: str, verdicts: Path | None) -> str | None:
    """The result of an abandoned write; see `Kernel.write_ended`."""
    if said := _verdict(ticket, verdicts):
        return said
    pid, _, began = ticket.partition(":")
    exists = pid.isascii() and pid.isdigit() and began and ticket_of(int(pid)) == ticket
    return None if exists else "unknown"


def _verdict(ticket: str, verdicts: Path | None) -> str:
    try:
        text = verdicts.read_bytes()[-_MOST_VERDICTS:].decode(errors="replace") if verdicts else ""
    except OSError:
        return ""
    from vfioctl.untrusted_text import parse_json

    said = ""
    for line in text.splitlines():
        with suppress(ValueError, TypeError, KeyError):
            known = parse_json(line)
            said = str(known["said"]) if known["ticket"] == ticket else said
    return said
