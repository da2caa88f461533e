"""Sends changes to the system journal: a handler for the logger `vfioctl.changes`. Escapes text as the console does.

Speaks journald's native protocol: one datagram for each record, of fields `NAME=value`, or for values of several lines
`NAME`, their length as 64 bits little-endian, and the bytes (systemd, "Native Journal Protocol"). A message that cannot
be sent is dropped; the change goes on."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator

from vfioctl.console.words import plain
from vfioctl.core.logs import CHANGES, FIELDS, priority_of

SOCKET = "/run/systemd/journal/socket"
_IDENTIFIER = "vfioctl"
_LONGEST = 4096
"""Maximum length of one value in bytes. A datagram too large for the socket would have to be sent as a memfd."""


class JournalHandler(logging.Handler):
    """Sends log records to the system journal. `path`: path of the journal's socket."""

    def __init__(self, path: str = SOCKET) -> None:
        super().__init__()
        self._path = path

    def emit(self, record: logging.LogRecord) -> None:
        """Send the record; drop it if there is no journal or the journal does not accept it."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.settimeout(0)  # a hanging journald must not block a change
                sender.sendto(b"".join(_fields(record)), self._path)
        except (OSError, ValueError):  # ValueError: a path that is no valid socket address
            pass


def log_to_journal(path: str = SOCKET) -> Callable[[], None]:
    """Send log records about changes to the journal until the returned function is called."""
    logger, handler = logging.getLogger(CHANGES), JournalHandler(path)
    handler.setLevel(logging.INFO)
    before = logger.level
    logger.setLevel(min(logger.getEffectiveLevel(), logging.INFO))
    logger.addHandler(handler)

    def stop() -> None:
        logger.removeHandler(handler)
        logger.setLevel(before)

    return stop


def _fields(record: logging.LogRecord) -> Iterator[bytes]:
    yield _field("MESSAGE", record.getMessage())
    yield _field("PRIORITY", str(priority_of(record)))
    yield _field("SYSLOG_IDENTIFIER", _IDENTIFIER)
    for name in FIELDS:
        if (value := getattr(record, name, None)) is not None:
            yield _field(f"VFIOCTL_{name.upper()}", str(value))


def _field(name: str, value: str) -> bytes:
    data = "\n".join(map(plain, value.split("\n"))).encode("utf-8", "replace")[:_LONGEST]
    if b"\n" not in data:
        return name.encode() + b"=" + data + b"\n"
    return name.encode() + b"\n" + len(data).to_bytes(8, "little") + data + b"\n"
