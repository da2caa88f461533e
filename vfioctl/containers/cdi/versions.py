"""Which version of the CDI specification a document needs. Pure.

Runtimes refuse a version that they do not know: podman 4.3 knows none after 0.5.0. So a document says the lowest one
that its fields need.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

OLDEST = "0.3.0"
"""Earlier versions had another form, and current runtimes refuse them."""
VERSIONS = (OLDEST, "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
SINCE: Mapping[tuple[str, str], str] = {
    ("document", "annotations"): "0.6.0",
    ("device", "annotations"): "0.6.0",
    ("mount", "type"): "0.4.0",
    ("device node", "hostPath"): "0.5.0",
    ("container edits", "intelRdt"): "0.7.0",
    ("container edits", "additionalGids"): "0.7.0",
    ("container edits", "netDevices"): "1.1.0",
    ("Intel RDT", "schemata"): "1.1.0",
    ("Intel RDT", "enableMonitoring"): "1.1.0",
}
"""The version that added a field, by the part that has it. All others have been there from the start."""
_LISTED = {"deviceNodes": "device node", "mounts": "mount", "hooks": "hook", "netDevices": "network device"}


def needed_version(document: Mapping[str, Any]) -> tuple[str, str]:
    """Return the lowest version with all that a valid document uses, and what needs it; empty if nothing does."""
    needs = [(OLDEST, ""), *_needs(document)]
    return max(needs, key=lambda need: VERSIONS.index(need[0]))


def _needs(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield from _fields("document", document)
    if "." in document["kind"].partition("/")[2]:
        yield "0.6.0", "a dot in the class"
    for device in document["devices"]:
        yield from _fields("device", device)
        if not re.match("[A-Za-z]", device["name"]):
            yield "0.5.0", "a name that begins with a digit"
    for owner in (document, *document["devices"]):
        yield from _edits(owner.get("containerEdits", {}))


def _edits(edits: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield from _fields("container edits", edits)
    yield from _fields("Intel RDT", edits.get("intelRdt", {}))
    for field, part in _LISTED.items():
        items: Sequence[Mapping[str, Any]] = edits.get(field, ())
        for item in items:
            yield from _fields(part, item)


def _fields(part: str, fields: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """An empty list or text counts as a field that is not there, as it does for the runtimes' library."""
    used = [name for name, value in fields.items() if (part, name) in SINCE and value not in ("", [], {})]
    return ((SINCE[part, name], name) for name in used)
