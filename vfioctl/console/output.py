"""Where words go: results to stdout, everything else to stderr.

All writing of the command line happens here. May not decide what is said. rich is imported only
when something is drawn.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from io import TextIOWrapper
from typing import TYPE_CHECKING, Self, TextIO

from vfioctl import __version__
from vfioctl.errors import HostError

if TYPE_CHECKING:
    from rich.console import RenderableType

_NARROWEST = 40


class ReaderGone(Exception):
    """The reader of stdout closed its end before it had all results."""


class OutputLost(HostError):
    """Results could not be written."""

    @classmethod
    def because(cls, error: OSError) -> Self:
        """With what the kernel said of it."""
        lost = cls("the results could not be written to stdout")
        lost.kernel_said = error.strerror or str(error)
        return lost


def width() -> int:
    """Columns to draw for: COLUMNS, the terminal's own, or 80 when stdout is none."""
    import shutil  # and with it every compressor that Python has

    return max(_NARROWEST, shutil.get_terminal_size((80, 24)).columns)


def prepare_streams() -> None:
    """Raises OutputLost when stdout is closed, before anything is done that could not be reported.

    A character that the terminal's encoding lacks becomes a question mark.
    """
    if sys.stdout is None:
        raise OutputLost("stdout is closed: the results would be lost", hint="send it to a file, or to /dev/null")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")


def emit(text: str) -> None:
    """Results, flushed, so that what went wrong is known while it can still be said."""
    try:
        sys.stdout.write(text if text.endswith("\n") else f"{text}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        abandon_stdout()
        raise ReaderGone from None
    except OSError as error:
        abandon_stdout()
        raise OutputLost.because(error) from error


def tell_version() -> None:
    """Which vfioctl this is."""
    emit(f"vfioctl {__version__}")


def emit_json(document: Mapping[str, object]) -> None:
    """One JSON object as a result; what JSON has no form for is written as text."""
    import json

    emit(json.dumps(document, indent=2, ensure_ascii=False, default=str))


def draw(renderable: RenderableType) -> None:
    """A drawing as a result."""
    emit(_drawn(renderable, sys.stdout))


def abandon_stdout() -> None:
    """Points stdout at nothing, else Python complains once more when it flushes at exit."""
    try:
        with open(os.devnull, "wb") as nothing:
            os.dup2(nothing.fileno(), sys.stdout.fileno())
    except OSError:
        pass


def say(text: str) -> None:
    """A line for people. A stderr that is closed or full is no reason to stop."""
    try:
        if sys.stderr is not None:
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()
    except OSError:
        pass


def sketch(renderable: RenderableType) -> None:
    """A drawing that is no result, such as a plan before the question whether to go on."""
    say(_drawn(renderable, sys.stderr).rstrip("\n"))


def _drawn(renderable: RenderableType, stream: TextIO) -> str:
    from rich.console import Console

    console = Console(file=stream, width=width(), markup=False, highlight=False, emoji=False)
    with console.capture() as capture:
        console.print(renderable, crop=False)
    text = capture.get()
    return text if console.is_terminal else "".join(f"{line.rstrip()}\n" for line in text.splitlines())
