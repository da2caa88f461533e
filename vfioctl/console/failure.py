"""Reports a failure as lines on stderr or as one JSON object on stdout, and a bug as its traceback. May not exit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, TypedDict

from vfioctl.console.output import OutputLost, ReaderGone, emit_json, say_error

if TYPE_CHECKING:
    from types import TracebackType

    from vfioctl.errors import VfioctlError


def report(error: VfioctlError, *, as_json: bool) -> int:
    """Report the failure and return its exit code."""
    if as_json and not isinstance(error, OutputLost):
        try:
            emit_json(document(error))
        except (OutputLost, ReaderGone):
            _say(error)
    else:
        _say(error)
    return error.exit_code


def _say(error: VfioctlError) -> None:
    for line in lines(error):
        say_error(line)


def report_bug(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Report an exception that nobody caught, for `sys.excepthook`. Its message may have text of a host."""
    import traceback

    for part in traceback.format_exception(kind, error, trace):
        for line in part.rstrip("\n").split("\n"):
            say_error(line)


def lines(error: VfioctlError) -> Iterator[str]:
    """Yield lines: what failed, what the kernel said, what was restored, the hint, the command to run next."""
    yield f"vfioctl: {error.message}"
    parts = (
        ("kernel", error.kernel_said),
        ("restored", error.restored),
        ("hint", error.hint),
        ("next", error.next_command),
    )
    for name, text in parts:
        if text:
            first, *more = text.split("\n")  # several hints, or the last words of a tool
            yield f"  {f'{name}:':10}{first}"
            yield from (f"  {'':10}{line}" for line in more)


class Failure(TypedDict):
    """The JSON form of a failure."""

    kind: str
    exit_code: int
    message: str
    kernel_said: str
    restored: str
    hint: str
    next_command: str
    facts: Mapping[str, object]


class FailureDocument(TypedDict):
    error: Failure


def document(error: VfioctlError) -> FailureDocument:
    """Return the failure as a JSON object."""
    return {
        "error": {
            "kind": type(error).__name__,
            "exit_code": error.exit_code,
            "message": error.message,
            "kernel_said": error.kernel_said,
            "restored": error.restored,
            "hint": error.hint,
            "next_command": error.next_command,
            "facts": error.facts,
        }
    }
