"""Runs the screens in the terminal, and ends as the command line does. May not draw."""

from __future__ import annotations

import gc
import os
import signal
import threading
from typing import TYPE_CHECKING

from vfioctl.signals import Interrupt

if TYPE_CHECKING:
    from vfioctl.host import Host
    from vfioctl.tui.data.feed import Feed

_OF_TEXTUAL = ("TEXTUAL", "TEXTUAL_")
"""What variables begin with that change what textual does: developer's tools, drivers, filters."""


def run(host: Host, feed: Feed) -> None:
    """Show the screens until the user or a signal ends them. Raises Interrupt for a signal."""
    for name in [*os.environ]:
        if name.startswith(_OF_TEXTUAL):
            del os.environ[name]
    from vfioctl.tui.app import Tui

    gc.enable()  # commands, which end soon, do without
    gc.freeze()  # modules stay
    app = Tui(host, feed)
    bugs: list[BaseException] = []

    def note_bug(arguments: threading.ExceptHookArgs) -> None:
        if arguments.exc_value is not None:
            bugs.append(arguments.exc_value)
        app.call_later(app.exit, -1)

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    hook, threading.excepthook = threading.excepthook, note_bug
    try:
        number = app.run()
    finally:
        threading.excepthook = hook
        for each, handler in handlers.items():
            signal.signal(each, handler)
        feed.stop()
    app.raise_bug()
    if bugs:
        raise bugs[0]
    if number:
        interrupt = Interrupt(number)
        ended = app.last_change
        if ended and ended.failure:
            interrupt.args = (ended.failure[0].removeprefix("vfioctl: "),)
        raise interrupt
