"""The kernel's log, as it is now. Source: Documentation/ABI/testing/dev-kmsg."""

from __future__ import annotations

import os

from vfioctl.kernel.protocol import KERNEL_LOG

_RECORD = 8192
"""A read returns one record, which is shorter."""
_MOST = 65_536
"""Records; a kernel keeps fewer."""


def kernel_log() -> str:
    """Return its records, one a line, each with the seconds since boot. Raises OSError."""
    fd = os.open(KERNEL_LOG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    lines: list[str] = []
    try:
        for _ in range(_MOST):
            try:
                record = os.read(fd, _RECORD)
            except BrokenPipeError:  # older ones were overwritten meanwhile
                continue
            except BlockingIOError:
                break
            lines += _lines(record.decode("utf-8", "replace"))
    finally:
        os.close(fd)
    return "\n".join(lines)


def _lines(record: str) -> list[str]:
    """Return the text of a record: `PRIORITY,NUMBER,MICROSECONDS,FLAGS;TEXT`, then properties, which are left out."""
    head, _, body = record.partition(";")
    microseconds = head.split(",")[2:3]
    if not microseconds or not microseconds[0].isdecimal():
        return []
    return [f"[{int(microseconds[0]) / 1e6:12.6f}] {body.partition(chr(10))[0]}"]
