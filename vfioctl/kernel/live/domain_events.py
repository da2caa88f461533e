"""The feed of libvirt's domains: starts the program that asks libvirt, and reads its lines. May not import libvirt."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from typing import IO

from vfioctl.kernel.feeds import Feed, Lost, Notice

_MAIN = "vfioctl.kernel.libvirt.events"
_START = f"import sys; sys.path[:] = sys.argv[2:]; from {_MAIN} import main; sys.exit(main(sys.argv[1]))"
_LONGEST_LINE = 1 << 16
_LONGEST_NAME, _LONGEST_WHY = 255, 400
_KILL_SECONDS = 5.0


class DomainEvents(Feed):
    """Events of the domains of one libvirt. It ends when libvirt does, or cannot be asked."""

    def __init__(self, uri: str) -> None:
        """Raises Lost if the program cannot be started."""
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, uri, *sys.path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the one who watches
            )
        except OSError as error:
            raise Lost(f"libvirt's events cannot be followed: {error.strerror}", ended=True) from None
        os.set_blocking(self._pipe.fileno(), False)
        self._rest = b""

    @property
    def _pipe(self) -> IO[bytes]:
        assert self._process.stdout is not None
        return self._process.stdout

    def fileno(self) -> int:
        """Return the pipe from the program."""
        return self._pipe.fileno()

    def read(self) -> list[Notice]:
        """Return the notices that wait. Raises Lost when libvirt is gone, or never answered."""
        text = self._available()
        if text is None:
            return []
        if not text:
            raise Lost("libvirt's events ended", ended=True)
        *lines, self._rest = (self._rest + text).split(b"\n")
        if len(self._rest) > _LONGEST_LINE:
            raise Lost("libvirt's events cannot be read", ended=True)
        return [notice for line in lines if (notice := _notice(line))]

    def _available(self) -> bytes | None:
        try:
            return os.read(self._pipe.fileno(), _LONGEST_LINE)
        except BlockingIOError:
            return None

    def close(self) -> None:
        """End the program."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream:
                with suppress(OSError):
                    stream.close()
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_KILL_SECONDS)


def _notice(line: bytes) -> Notice | None:
    """Return the notice in a line; None for that which says that events are followed. Raises Lost for a failure."""
    from vfioctl.kernel.libvirt.events import FOLLOWED

    event, name, uuid = json.loads(line)
    if not event:
        raise Lost(f"libvirt's events cannot be followed: {name[:_LONGEST_WHY]}", ended=True)
    return None if event == FOLLOWED else Notice(event, name[:_LONGEST_NAME], (), uuid)
