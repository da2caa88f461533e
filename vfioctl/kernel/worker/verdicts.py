"""The verdicts of abandoned writes: when the write returns after all, its worker appends the result to a file.

A ticket, `PID:START`, names the process of a write.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

from vfioctl.kernel import files
from vfioctl.kernel.worker.processes import ticket_of
from vfioctl.untrusted_text import parse_json

RETURNED = "returned"
_MOST_VERDICTS = 1 << 20


def leave_verdict(verdicts: str, errno: int) -> None:
    """Appends the result of an abandoned write to the verdict file."""
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
    said = ""
    for line in text.splitlines():
        with suppress(ValueError, TypeError, KeyError):
            known = parse_json(line)
            said = str(known["said"]) if known["ticket"] == ticket else said
    return said
