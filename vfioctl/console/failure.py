"""How a failure is told: as lines on stderr, or as one JSON object on stdout. May not exit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vfioctl.console.output import OutputLost, ReaderGone, emit_json, say

if TYPE_CHECKING:
    from vfioctl.errors import VfioctlError


def report(error: VfioctlError, *, as_json: bool) -> int:
    """Tells the failure and returns the exit code that goes with it."""
    if as_json and not isinstance(error, OutputLost):
        try:
            emit_json(document(error))
        except (OutputLost, ReaderGone):
            say(lines(error))
    else:
        say(lines(error))
    return error.exit_code


def lines(error: VfioctlError) -> str:
    """What failed and on what; what the kernel said; what was restored; the hint; the command to run next."""
    told = (
        ("kernel", error.kernel_said),
        ("restored", error.restored),
        ("hint", error.hint),
        ("next", error.next_command),
    )
    rest = (f"  {name + ':':10}{printable(text)}" for name, text in told if text)
    return "\n".join((f"vfioctl: {printable(error.message)}", *rest))


def document(error: VfioctlError) -> dict[str, object]:
    """The same as a JSON object."""
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


def printable(text: str) -> str:
    """Without control characters: a file from elsewhere may not drive the terminal."""
    safe = "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)
    return safe.replace("\n", "\n" + " " * 12)
