"""Feeds of libraries that may hang or end their process: a program of its own asks the library, and writes a line for
each event, a JSON list `[action, subject, detail]`; `["", reason, ""]` when it cannot go on. May not import them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from typing import IO

from vfioctl.kernel.feeds import Feed, Lost, Notice

_LONGEST_LINE = 1 << 16
_LONGEST_WORD = 400
_KILL_SECONDS = 5.0
_START_SECONDS = 60.0
FOLLOWED = "followed"
"""The action that a program writes once, when it follows the events."""


class ProgramFeed(Feed):
    """The events that `main(word)` of a module writes. It ends when the program does. Longer lines than `longest_line`
    end it, and longer details are cut."""

    longest_line, longest_detail = _LONGEST_LINE, _LONGEST_WORD

    def __init__(self, module: str, word: str, *, what: str) -> None:
        """`what`: the events, for messages. Raises Lost if the program cannot be started."""
        self._what = what
        self._rest, self._lost = b"", Lost(f"{what} ended", ended=True)
        self._start_until: float | None = time.monotonic() + _START_SECONDS
        start = f"import sys; sys.path[:] = sys.argv[2:]; from {module} import main; sys.exit(main(sys.argv[1]))"
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", start, word, *sys.path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the one who watches
            )
        except OSError as error:
            raise self._unfollowed(str(error.strerror)) from None
        os.set_blocking(self._pipe.fileno(), False)

    @property
    def _pipe(self) -> IO[bytes]:
        assert self._process.stdout is not None
        return self._process.stdout

    def fileno(self) -> int:
        """Return the pipe from the program."""
        return self._pipe.fileno()

    @property
    def is_within_line(self) -> bool:
        """Whether a part of a line was read, whose rest is on its way."""
        return bool(self._rest)

    def read(self) -> list[Notice]:
        """Return the notices that wait. Raises Lost when the program ended or never began to follow; what it wrote
        before is returned first."""
        text = self._available()
        if text == b"":
            raise self._lost
        notices: list[Notice] = []
        try:
            self._take(text, notices)
        except Lost as lost:
            self._lost = lost
            self._process.kill()  # so that the pipe ends
            if not notices:
                raise
        return notices

    def _take(self, text: bytes | None, notices: list[Notice]) -> None:
        *lines, self._rest = (self._rest + (text or b"")).split(b"\n")
        for line in lines:
            notice = self._notice(line)
            if notice:
                notices.append(notice)
        if len(self._rest) > self.longest_line:
            raise self._unfollowed("an answer without end")
        if self._start_until is not None and time.monotonic() > self._start_until:
            raise self._unfollowed(f"no answer within {_START_SECONDS:g} s")

    def _available(self) -> bytes | None:
        try:
            return os.read(self._pipe.fileno(), _LONGEST_LINE)
        except BlockingIOError:
            return None

    def _notice(self, line: bytes) -> Notice | None:
        """Return the notice in a line; None for that which says that events are followed. Raises Lost for a failure."""
        try:
            action, subject, detail = map(str, json.loads(line))
        except (ValueError, TypeError):
            raise self._unfollowed("an answer that vfioctl does not understand") from None
        if not action:
            raise self._unfollowed(subject[:_LONGEST_WORD])
        if action == FOLLOWED:
            self._start_until = None
            return None
        return self._as_notice(action, subject[:_LONGEST_WORD], detail[: self.longest_detail])

    def _as_notice(self, action: str, subject: str, detail: str) -> Notice:
        return Notice(action, subject, (), detail)

    def _unfollowed(self, why: str) -> Lost:
        return Lost(f"{self._what} cannot be followed: {why}", ended=True)

    def close(self) -> None:
        """End the program. One that hangs in the kernel is abandoned after a few seconds."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream:
                with suppress(OSError):
                    stream.close()
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_KILL_SECONDS)


def say(action: str, subject: str, detail: str) -> None:
    """Write a line; called in the program."""
    sys.stdout.write(f"{json.dumps([action, subject, detail])}\n")
    sys.stdout.flush()


def failed(why: str) -> int:
    """Write why the program cannot go on; return its exit status."""
    say("", why.strip(), "")
    return 1
