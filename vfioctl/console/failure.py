"""Reports a failure as lines on stderr or as one JSON object on stdout, and a bug as its traceback. May not exit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from vfioctl.console.output import OutputLost, ReaderGone, emit_json_text, say_error

if TYPE_CHECKING:
    from types import TracebackType

    from vfioctl.errors import VfioctlError

_TEXTS = ("message", "kernel_said", "restored", "hint", "next_command")


def report(error: VfioctlError, *, as_json: bool) -> int:
    """Report the failure and return its exit code."""
    if as_json and not isinstance(error, OutputLost):
        import json

        try:
            emit_json_text(json.dumps(document(error), indent=2, ensure_ascii=False, default=str))
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
    for name in _TEXTS[1:]:
        if text := getattr(error, name):
            first, *more = text.split("\n")  # several hints, or the last words of a tool
            label = f"{name.partition('_')[0]}:"
            yield f"  {label:10}{first}"
            yield from (f"  {'':10}{line}" for line in more)


def document(error: VfioctlError) -> Mapping[str, Mapping[str, object]]:
    """Return the failure as a JSON object."""
    failure = {name: getattr(error, name) for name in ("exit_code", *_TEXTS, "facts")}
    return {"error": {"kind": type(error).__name__, **failure}}
