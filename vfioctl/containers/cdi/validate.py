"""Checks a CDI document as the strictest runtime does: unknown fields, names, values, versions. Pure. The JSON schema
of the specification accepts unknown fields and devices of one name; runtimes do not. They refuse versions that they do
not know, and podman 4.3 knows none after 0.5.0: a document says the lowest one that it needs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from vfioctl.untrusted_text import parse_json

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
MOST_BYTES = 4 << 20
MOST_PROBLEMS = 100
"""The maximum number of problems reported."""
Problems = Iterator[str]
Check = Callable[[str, Any], Problems]
_PART = re.compile(r"[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?", re.ASCII)
_ANNOTATION = re.compile(
    r"(?:[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", re.ASCII
)
_HOOKS = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
_MOST_SECONDS = 1 << 31


def problems_of(text: str | bytes) -> tuple[str, ...]:
    """Return what is wrong with a document, each with its place; nothing for one that every runtime accepts."""
    try:
        document = parse_json(text, most=MOST_BYTES, strict=True)
    except ValueError as error:
        return (str(error),)
    return tuple(_problems(document))


def _problems(document: Any) -> Problems:
    problems = list(islice(_DOCUMENT("", document), MOST_PROBLEMS))
    yield from problems
    if problems:
        return
    for name, count in Counter(device["name"] for device in document["devices"]).items():
        if count > 1:
            yield f"devices: {name} is there twice"
    needed, why = needed_version(document)
    if VERSIONS.index(document["cdiVersion"]) < VERSIONS.index(needed):
        yield f"cdiVersion: {why} needs at least {needed}"


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


def _object(*required: str, filled: bool = False, **fields: Check) -> Check:
    def check(place: str, value: Any) -> Problems:
        if not isinstance(value, dict):
            yield f"{place or 'the document'}: not an object"
            return
        start = f"{place}." if place else ""
        for name in value:
            if name not in fields:
                yield f"{start}{name[:40]!a}: not a field of CDI"
        for name, check_field in fields.items():
            if name in value:
                yield from check_field(f"{start}{name}", value[name])
            elif name in required:
                yield f"{start}{name}: missing"
        if filled and not any(value.values()):
            yield f"{place}: empty, so the device would change nothing"

    return check


def _list(item: Check, *, filled: bool = False) -> Check:
    def check(place: str, value: Any) -> Problems:
        if not isinstance(value, list):
            yield f"{place}: not a list"
            return
        if filled and not value:
            yield f"{place}: empty; a file without devices is refused, so remove it"
        for number, element in enumerate(value):
            yield from item(f"{place}[{number}]", element)

    return check


def _text(accepts: Callable[[str], bool], wanted: str) -> Check:
    def check(place: str, value: Any) -> Problems:
        if not isinstance(value, str):
            yield f"{place}: not a text"
        elif "\0" in value or not accepts(value):
            yield f"{place}: {value[:60]!a} is {wanted}"

    return check


def _number(least: int, most: int) -> Check:
    def check(place: str, value: Any) -> Problems:
        if not isinstance(value, int) or isinstance(value, bool):
            yield f"{place}: not a whole number"
        elif not least <= value <= most:
            yield f"{place}: not between {least} and {most}"

    return check


def _truth(place: str, value: Any) -> Problems:
    if not isinstance(value, bool):
        yield f"{place}: neither true nor false"


def _annotations(place: str, value: Any) -> Problems:
    if not isinstance(value, dict):
        yield f"{place}: not an object"
        return
    for name, text in value.items():
        if not _ANNOTATION.fullmatch(name):
            yield f"{place}: {name[:60]!a} is not the name of an annotation"
        yield from _any_text(f"{place}.{name[:40]!a}", text)


def _is_absolute(path: str) -> bool:
    return path.startswith("/") and path != "/" and not {"", ".", ".."} & set(path[1:].split("/"))


def _is_permissions(text: str) -> bool:
    return text in ("", "none") or (set(text) <= set("rwm") and len(set(text)) == len(text))


def _is_kind(text: str) -> bool:
    vendor, _, name = text.partition("/")
    return bool(_PART.fullmatch(vendor) and _PART.fullmatch(name))


_any_text = _text(lambda _: True, "not a text without null bytes")
_filled = _text(bool, "empty")
_path = _text(_is_absolute, "not an absolute path")
_id = _number(0, 0xFFFF_FFFF)
_environment = _list(_text(lambda text: text.find("=") > 0, "not NAME=VALUE"))

_DEVICE_NODE = _object(
    "path",
    path=_path,
    hostPath=_path,
    type=_text(lambda text: text in ("", "b", "c", "u", "p"), "not b, c, u or p"),
    major=_id,
    minor=_id,
    fileMode=_number(0, 0o7777),
    permissions=_text(_is_permissions, "neither none nor letters of rwm"),
    uid=_id,
    gid=_id,
)
_MOUNT = _object(
    "hostPath", "containerPath", hostPath=_filled, containerPath=_path, options=_list(_any_text), type=_any_text
)
_HOOK = _object(
    "hookName",
    "path",
    hookName=_text(lambda text: text in _HOOKS, f"not one of {', '.join(_HOOKS)}"),
    path=_path,
    args=_list(_any_text),
    env=_environment,
    timeout=_number(1, _MOST_SECONDS),
)
_RDT = _object(
    closID=_text(lambda text: text == "/" or "/" not in text, "not a name"),
    l3CacheSchema=_any_text,
    memBwSchema=_any_text,
    schemata=_list(_any_text),
    enableCMT=_truth,
    enableMBM=_truth,
    enableMonitoring=_truth,
)
_NETWORK = _object("hostInterfaceName", "name", hostInterfaceName=_filled, name=_filled)
_EDITS: Mapping[str, Check] = {
    "env": _environment,
    "deviceNodes": _list(_DEVICE_NODE),
    "mounts": _list(_MOUNT),
    "hooks": _list(_HOOK),
    "intelRdt": _RDT,
    "additionalGids": _list(_id),
    "netDevices": _list(_NETWORK),
}
_DEVICE = _object(
    "name",
    "containerEdits",
    name=_text(lambda text: bool(_NAME.fullmatch(text)), "not a name of a device"),
    annotations=_annotations,
    containerEdits=_object(filled=True, **_EDITS),
)
_DOCUMENT = _object(
    "cdiVersion",
    "kind",
    "devices",
    cdiVersion=_text(lambda text: text in VERSIONS, f"not one of {', '.join(VERSIONS)}"),
    kind=_text(_is_kind, "not a kind, vendor/class"),
    annotations=_annotations,
    devices=_list(_DEVICE, filled=True),
    containerEdits=_object(filled=False, **_EDITS),
)
