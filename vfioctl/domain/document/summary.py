"""Says in a few lines how two documents of a domain differ: one for each kind of element. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from vfioctl.domain.document.differences import differing, flat
from vfioctl.domain.document.xml import Document
from vfioctl.errors import some_of

_PLACE = re.compile(r"(?:[^/\[]|\[[^\[\]]*\])+")
_IN_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_PCI = re.compile(r"0x([0-9a-f]{4}),0x([0-9a-f]{2}),0x([0-9a-f]{2}),0x([0-7])")
_MOST, _FEW = 4, 2
_ADDED, _REMOVED = "added", "removed"
_METADATA = "/domain/metadata"


class Changed(NamedTuple):
    """What becomes of elements of one kind. `what`: their path, without `/domain`."""

    what: str
    how: str


class _Side(NamedTuple):
    values: Mapping[str, str]
    paths: frozenset[str]


def changed(before: Document, after: Document) -> tuple[Changed, ...]:
    """Return what is added, removed and changed, by kind of element, in the documents' order; but not metadata."""
    was, will_be = _side(before), _side(after)
    changes: dict[str, dict[str, dict[str, None]]] = {}
    for path, value, new in differing(was.values, will_be.values):
        if path.startswith(_METADATA):
            continue
        element, _, attribute = path.partition("/@")
        kind, side = (_ADDED, will_be) if value is None else (_REMOVED, was)
        top = "" if value is not None and new is not None else _highest(path, was if value is None else will_be)
        if top and "/@" not in top:
            changes.setdefault(_kind(top), {}).setdefault(kind, {})[_described(top, side.values)] = None
        elif value or new:  # not an element that was empty, or becomes so
            how = f"{_label(element)} {attribute} {_value(value)} -> {_value(new)}"
            changes.setdefault(_kind(element), {}).setdefault("", {})[" ".join(how.split())] = None
    return tuple(Changed(what, "; ".join(_lines(kinds))) for what, kinds in changes.items())


def _side(document: Document) -> _Side:
    values = flat(document)
    return _Side(values, frozenset(prefix for path in values for prefix in _prefixes(path)))


def _prefixes(path: str) -> Iterator[str]:
    prefix = ""
    for part in _PLACE.findall(path):
        prefix = f"{prefix}/{part}"
        yield prefix


def _highest(path: str, other: _Side) -> str:
    """Return the highest place of a path that the other document has not; empty if it has other values there."""
    return next((prefix for prefix in _prefixes(path) if prefix not in other.paths), "")


def _kind(path: str) -> str:
    return _IN_BRACKETS.sub("", path).removeprefix("/domain/")


def _label(path: str) -> str:
    """Return the names in a path; a PCI address as everywhere else."""
    names = (_PCI.sub(r"\1:\2:\3.\4", name) for name in _IN_BRACKETS.findall(path))
    return " ".join(name.removeprefix("type=pci,") for name in names)


def _described(element: str, values: Mapping[str, str]) -> str:
    inside = {
        path.removeprefix(element): value for path, value in values.items() if f"{path}/".startswith(f"{element}/")
    }
    lines = [f"{path.replace('@', '').strip('/')} {_value(value)}".strip() for path, value in inside.items() if value]
    label = " ".join(filter(None, (inside.get("/@model") if "/controller[" in element else "", _label(element))))
    if not label:
        return some_of(lines, _FEW)
    return f"{label} {', '.join(lines)}" if len(lines) <= _FEW else label


def _value(text: str | None) -> str:
    if text is None:
        return "absent"
    return text or "present"


def _lines(kinds: Mapping[str, Mapping[str, None]]) -> Iterator[str]:
    for kind, texts in kinds.items():
        some = some_of([*filter(None, texts)], _MOST)
        yield f"{kind}: {some}" if kind and some else some or kind
