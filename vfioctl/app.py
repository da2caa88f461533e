"""The entry point, and the one place that catches VfioctlError.

May not import typer: a bare --version is answered without it.
"""

import gc
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

from vfioctl.console.choice import Choice
from vfioctl.console.failure import report
from vfioctl.console.output import ReaderGone, prepare_streams, tell_version
from vfioctl.errors import VfioctlError

_READER_GONE = 141
"""As a shell reports SIGPIPE."""


class Interrupted(VfioctlError):
    """Ctrl-C."""

    exit_code = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit code: 0, 1 to 7 by who must act, 130 and 141 as a shell counts."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    choice = Choice()
    try:
        prepare_streams()
        return _run(words, choice)
    except VfioctlError as error:
        if error.next_command.startswith("vfioctl ") and not error.next_command.endswith(" --help"):
            error.next_command += choice.arguments()
        return report(error, as_json=_wants_json(words))
    except KeyboardInterrupt as interrupt:
        return report(Interrupted(str(interrupt) or "interrupted"), as_json=_wants_json(words))
    except ReaderGone:
        return _READER_GONE


def console() -> NoReturn:
    """The installed command: one process for one command line."""
    # Nothing that one command makes is garbage before it ends; looking for some costs it a fifth of its time.
    gc.disable()
    # pydantic would search all installed packages for plugins, for as long as a small inventory takes.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    code = main()
    # All results have been written and flushed by now; taking the process apart would cost it another fifth.
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)


def _run(words: list[str], choice: Choice) -> int:
    if words == ["--version"]:
        tell_version()
        return 0
    from vfioctl.console.root import run

    return run(words, choice)


def _wants_json(words: Sequence[str]) -> bool:
    """Whether failures are JSON too; asked of the bare words, for a usage error leaves nothing parsed."""
    return "--json" in (words[: words.index("--")] if "--" in words else words)


if __name__ == "__main__":
    console()
