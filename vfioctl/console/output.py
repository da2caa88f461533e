"""Writes results to stdout or to a file, and everything else to stderr.

No other module of the command line writes. Escapes all text here, so that text of a host, a file or a process cannot
control the terminal. May not choose the text. Imports rich only to draw."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import StringIO, TextIOWrapper
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Self, TextIO

from vfioctl import __version__
from vfioctl.console.words import json_text, plain
from vfioctl.errors import BadSpec, HostError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from vfioctl.console.spinner import Spinner

_NARROWEST = 20
UNLIMITED = 1 << 16
"""Width in columns of output that is not a terminal: nothing is truncated or wrapped, and all columns are shown."""


class ReaderGone(Exception):
    """The reader of stdout closed the pipe before all results were written."""


class _Notes:
    wanted = True

    @classmethod
    def want(cls) -> None:
        cls.wanted = True


_spinners: list[Spinner] = []


class OutputLost(HostError):
    """Results could not be written to stdout."""

    @classmethod
    def because(cls, error: OSError) -> Self:
        """Return the error with the kernel's reason."""
        lost = cls("the results could not be written to stdout")
        lost.kernel_said = error.strerror or str(error)
        return lost


def width(stream: TextIO | None = None) -> int:
    """Return the width in columns of a stream (default: stdout): COLUMNS or the terminal's; unlimited elsewhere."""
    if not (stream or sys.stdout).isatty():
        return UNLIMITED
    import shutil  # imported late: it imports all of Python's compression modules

    return max(_NARROWEST, shutil.get_terminal_size().columns)


def prepare_streams() -> None:
    """Raise OutputLost if stdout is closed. Characters that an encoding lacks are written as question marks."""
    if sys.stdout is None:
        raise OutputLost("stdout is closed: the results would be lost", hint="send it to a file, or to /dev/null")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")


def emit(text: str) -> None:
    """Write a line of text to stdout. Raises OutputLost, ReaderGone."""
    _emit(plain(text))


def emit_long_json(text: str) -> None:
    """Write a JSON document that is compact and may be long: as it is, but indented if stdout is a terminal."""
    if sys.stdout.isatty():
        from vfioctl.console.documents import indented_text

        text = indented_text(text)
    emit_json_text(text)


def emit_json_text(text: str) -> None:
    """Write a JSON document to stdout. Its strings show no character that could control the terminal."""
    _emit(json_text(text))


def emit_document(document: object, *, compact: bool = False) -> None:
    """Write a document as JSON. `compact`: not indented, unless stdout is a terminal: twice as fast for long ones."""
    from vfioctl.console.documents import document_pieces, document_text, indented_text

    if compact and not sys.stdout.isatty():
        _emit_pieces(chain(map(json_text, document_pieces(document)), "\n"))
    else:
        emit_json_text(indented_text(document_text(document)))


def emit_file(text: str) -> None:
    """Write the text of a file to stdout as it is."""
    _emit(text)


def emit_csv(rows: Iterable[Sequence[str]]) -> None:
    """Write rows to stdout as CSV (RFC 4180, with new lines as Unix has them); each row is one line."""
    import csv

    text = StringIO()
    csv.writer(text, lineterminator="\n").writerows([plain(cell) for cell in row] for row in rows)
    if text.tell():
        _emit(text.getvalue())


def draw(renderable: RenderableType, *, within: int | None = None) -> None:
    """Write a rich renderable to stdout. `within`: a width in columns, if not that of stdout."""
    _emit(_drawn(renderable, sys.stdout, within))


def clear() -> None:
    """Clear the screen if stdout is a terminal that can."""
    if sys.stdout.isatty():
        from vfioctl.console.screen import Screen

        settle()
        Screen(sys.stdout, width()).clear()


def _emit(text: str) -> None:
    """Write results to stdout and flush them, so that a failure can be reported. Raises OutputLost, ReaderGone."""
    _emit_pieces((text if text.endswith("\n") else f"{text}\n",))


def _emit_pieces(pieces: Iterable[str]) -> None:
    settle()
    with _reported():
        for piece in pieces:
            sys.stdout.write(piece)
        sys.stdout.flush()


def refuse_terminal(what: str) -> None:
    """Raise BadSpec if stdout is a terminal, for binary results."""
    if sys.stdout.isatty():
        raise BadSpec(f"{what} is binary: it is not written to a terminal", hint="send stdout to a file or a pipe")


def emit_bytes(data: bytes) -> None:
    """Write binary results to stdout. Raises OutputLost, ReaderGone."""
    settle()
    with _reported():
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


@contextmanager
def _reported() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        abandon_stdout()
        raise ReaderGone from None
    except OSError as error:
        abandon_stdout()
        raise OutputLost.because(error) from error


def tell_version() -> None:
    """Write the version to stdout."""
    emit(f"vfioctl {__version__}")


def abandon_stdout() -> None:
    """Redirect stdout to /dev/null, so that Python does not fail again when it flushes at exit."""
    try:
        with open(os.devnull, "wb") as nothing:
            os.dup2(nothing.fileno(), sys.stdout.fileno())
    except OSError:
        pass


def be_quiet() -> Callable[[], None]:
    """Write only results and errors until the returned function is called."""
    _Notes.wanted = False
    return _Notes.want


def notes_wanted() -> bool:
    """Return whether notes and progress are written besides results and errors."""
    return _Notes.wanted


def working(text: str, *, timeout: float | None = None) -> None:
    """Show on a terminal what is being done and for how long, from half a second on, until anything else is written.

    `timeout`: in seconds, shown beside the elapsed time. A shell that asks for completions is shown nothing."""
    settle()
    wanted = _Notes.wanted and "_VFIOCTL_COMPLETE" not in os.environ
    able = sys.stderr is not None and os.environ.get("TERM") not in (None, "", "dumb", "unknown")
    if wanted and able and sys.stderr.isatty():
        from vfioctl.console.spinner import Spinner

        _spinners.append(Spinner(text, timeout))


def settle() -> None:
    """Erase what `working` shows."""
    while _spinners:
        _spinners.pop().stop()


def say(text: str) -> None:
    """Write a note or progress to stderr, unless that is quiet; ignore a closed or full stderr."""
    if _Notes.wanted:
        _say(plain(text))


def say_error(text: str) -> None:
    """Write a line of an error or of the log to stderr; ignore a closed or full stderr."""
    _say(plain(text))


def sketch(renderable: RenderableType) -> None:
    """Write a rich renderable to stderr, such as the plan before the confirmation prompt."""
    _say(_drawn(renderable, sys.stderr).rstrip("\n"))


def _say(text: str) -> None:
    settle()
    try:
        if sys.stderr is not None:
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()
    except OSError:
        pass


def _drawn(renderable: RenderableType, stream: TextIO, within: int | None = None) -> str:
    from vfioctl.console.screen import Screen

    screen = Screen(stream, within or width(stream))
    with screen.capture() as capture:
        screen.print(renderable, crop=False)
    text = capture.get()
    return text if screen.is_terminal else "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def refuse_to_replace(path: Path, *, force: bool, otherwise: str) -> None:
    """Raise BadSpec if `path` is no regular file, or exists and `force` is false. `otherwise`: a hint."""
    if path.exists() and not path.is_file():
        raise BadSpec(f"{path} is not a plain file", hint=otherwise)
    if os.path.lexists(path) and not force:  # a dangling symlink counts as existing
        raise BadSpec(f"{path} already exists", hint="choose another name, or --force to replace it")
    if not path.parent.is_dir():
        raise BadSpec(f"{path}: there is no directory {path.parent}", hint="create it first")


def write_whole(path: Path, data: bytes) -> None:
    """Write a file atomically. Raises HostError."""
    from vfioctl.kernel import files

    try:
        files.write_whole(str(path), data)
    except OSError as error:
        failure = HostError(f"writing {path} failed", hint="choose a directory that you may write to")
        failure.kernel_said = error.strerror or str(error)
        raise failure from error
