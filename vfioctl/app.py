"""The entry point; the only place that catches VfioctlError. May not import typer, so that --version stays fast."""

import gc
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, NoReturn

from vfioctl.console.choice import Choice, on_this_host, remember
from vfioctl.console.failure import report, report_bug
from vfioctl.console.output import ReaderGone, prepare_streams, tell_version, working
from vfioctl.environment import prepare_for_root
from vfioctl.errors import VfioctlError
from vfioctl.signals import Interrupt, block, deferred, raise_on_termination

if TYPE_CHECKING:
    from vfioctl.console.lazy import Place
    from vfioctl.session import Session

_READER_GONE = 141
"""Exit code that a shell reports for SIGPIPE."""


class Interrupted(VfioctlError):
    """The user pressed Ctrl-C."""

    exit_code = 130


class Terminated(VfioctlError):
    """SIGTERM, as from systemd or kill."""

    exit_code = 143


class HungUp(VfioctlError):
    """SIGHUP: the terminal is gone."""

    exit_code = 129


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code: 0, 1 to 7 by error class, 128 and the number of a signal."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    choice = Choice(_opened)
    try:
        remember(choice)
        prepare_streams()
        return _run(words, choice)
    except VfioctlError as error:
        error.next_command = on_this_host(error.next_command)
        with deferred():
            return report(error, as_json=_wants_json(words))
    except KeyboardInterrupt as interrupt:
        with deferred():  # a second signal must not end the report of what the first one did
            return report(_stopped(interrupt), as_json=_wants_json(words))
    except ReaderGone:
        return _READER_GONE
    finally:
        choice.at_end.close()


def console() -> NoReturn:
    """Run the command line of this process and exit. Never returns."""
    if os.geteuid() == 0:
        prepare_for_root(sys.argv[1:])
    # Garbage collection takes a fifth of a command's run time and frees nothing before the command ends.
    gc.disable()
    # Without this, pydantic searches all installed packages for plugins, which takes as long as a small inventory.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    sys.excepthook = report_bug
    raise_on_termination()
    try:
        code = main()
        block()  # the exit code is decided
    except KeyboardInterrupt as interrupt:  # one that came before the first one was reported, or after the results
        block()
        code = _stopped(interrupt).exit_code
    # All results are written and flushed; the interpreter's shutdown would take another fifth of the run time.
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)


def places() -> "dict[str, Place]":
    """Return all commands by name."""
    from vfioctl.console.lazy import Place
    from vfioctl.subsystems import SUBSYSTEMS

    return {
        name: Place(f"{row.cli}.{name}", command.panel, command.summary)
        for row in SUBSYSTEMS
        for name, command in row.commands.items()
    }


def _run(words: list[str], choice: Choice) -> int:
    if words == ["--version"]:
        tell_version()
        return 0
    from vfioctl.console.lazy import run

    return run(words, choice, places())


def _opened(choice: Choice) -> "Session":
    from vfioctl.opening import open_session

    working("working")
    return open_session(choice)


def _stopped(interrupt: KeyboardInterrupt) -> VfioctlError:
    number = interrupt.number if isinstance(interrupt, Interrupt) else signal.SIGINT
    kind = {signal.SIGTERM: Terminated, signal.SIGHUP: HungUp}.get(signal.Signals(number), Interrupted)
    return kind(str(interrupt) or "interrupted")


def _wants_json(words: Sequence[str]) -> bool:
    """Whether failures are JSON too; asked of the bare words, for a usage error leaves nothing parsed."""
    options = words[: words.index("--")] if "--" in words else words
    return "--json" in options or "--format=json" in options or ("--format", "json") in pairwise(options)


if __name__ == "__main__":
    console()
