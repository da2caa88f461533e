"""Formats sizes, counts, lists and untrusted text. May not import anything else of vfioctl."""

from __future__ import annotations

from collections.abc import Iterable

NONE = "none"
UNKNOWN = "unknown"
_MARKS_OF_WORDS = "._:/,@%+=-"
_MARKS = f"{_MARKS_OF_WORDS} ()"
_BRACKETS = {"[": "(", "]": ")"}


def plain(text: str) -> str:
    r"""Return one line in which all characters that could control the terminal are escaped: \x1b, \n, \u202e.

    The output escapes all text; only text whose width is measured before must be escaped earlier."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def json_text(text: str) -> str:
    """Return a JSON document with the same values, whose strings have such characters only in escaped form."""
    if text.isascii() and "\x7f" not in text:
        return text  # JSON itself escapes the characters below a space
    return "\n".join(line if line.isprintable() else "".join(map(_json_escaped, line)) for line in text.split("\n"))


def _json_escaped(character: str) -> str:
    if character < "\x7f" or character.isprintable():
        return character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))


def completion_text(text: str) -> str:
    """Return a completion's description without marks that have a meaning for zsh: typer does not quote them."""
    return "".join(c if c.isalnum() or c in _MARKS else _BRACKETS.get(c, " ") for c in text)


def completes(word: str) -> bool:
    """Whether a word may be put on a command line by completion: it has only characters that need no quoting."""
    return word.isascii() and all(c.isalnum() or c in _MARKS_OF_WORDS for c in word)


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: `1 GPU`, `8 GPUs`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def listed(items: Iterable[object]) -> str:
    """Join items: `a`, `a and b`, `a, b and c`."""
    words = [str(item) for item in items]
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1] if words else "")))
