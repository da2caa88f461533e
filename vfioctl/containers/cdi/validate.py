"""Checks a CDI document as the strictest runtime does: unknown fields, names, values, versions. Pure.

The JSON schema of the specification accepts unknown fields, and devices of the same name; runtimes do not.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from vfioctl.containers.cdi.versions import VERSIONS, needed_version
from vfioctl.untrusted_text import parse_json

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
_MOST_ID = 0xFFFF_FFFF
_MOST_SECONDS = 1 << 31


class Field(NamedTuple):
    """A field of an object, and how its value is checked."""

    check: Check
    required: bool = False


def problems_of(text: str | bytes) -> tuple[str, ...]:
    """Return what is wrong with a document, each with its place; nothing for one that every runtime accepts."""
    try:
        document = parse_json(text, most=MOST_BYTES, strict=True)
    except ValueError as error:
        return (str(error),)
    return tuple(_problems(document))


def _twice(names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


def _problems(document: Any) -> Problems:
    problems = list(islice(_DOCUMENT("", document), MOST_PROBLEMS))
    yield from problems
    if problems:
        return
    for name in _twice(device["name"] for device in document["devices"]):
        yield f"devices: {name} is there twice"
    needed, why = needed_version(document)
    if VERSIONS.index(document["cdiVersion"]) < VERSIONS.index(needed):
        yield f"cdiVersion: {why} needs at least {needed}"


# -- kinds of values -------------------------------------------------------------------------------


def _object(fields: Mapping[str, Field], *, filled: bool = False) -> Check:
    def check(place: str, value: Any) -> Problems:
        if not isinstance(value, dict):
            yield f"{place or 'the document'}: not an object"
            return
        start = f"{place}." if place else ""
        for name in value:
            if name not in fields:
                yield f"{start}{name[:40]!a}: not a field of CDI"
        for name, field in fields.items():
            if name in value:
                yield from field.check(f"{start}{name}", value[name])
            elif field.required:
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


# -- the parts of a document -----------------------------------------------------------------------

_any_text = _text(lambda _: True, "not a text without null bytes")
_filled = _text(bool, "empty")
_path = _text(_is_absolute, "not an absolute path")
_id = _number(0, _MOST_ID)
_environment = _list(_text(lambda text: text.find("=") > 0, "not NAME=VALUE"))

_DEVICE_NODE = _object(
    {
        "path": Field(_path, required=True),
        "hostPath": Field(_path),
        "type": Field(_text(lambda text: text in ("", "b", "c", "u", "p"), "not b, c, u or p")),
        "major": Field(_number(0, _MOST_ID)),
        "minor": Field(_number(0, _MOST_ID)),
        "fileMode": Field(_number(0, 0o7777)),
        "permissions": Field(_text(_is_permissions, "neither none nor letters of rwm")),
        "uid": Field(_id),
        "gid": Field(_id),
    }
)
_MOUNT = _object(
    {
        "hostPath": Field(_filled, required=True),
        "containerPath": Field(_path, required=True),
        "options": Field(_list(_any_text)),
        "type": Field(_any_text),
    }
)
_HOOK = _object(
    {
        "hookName": Field(_text(lambda text: text in _HOOKS, f"not one of {', '.join(_HOOKS)}"), required=True),
        "path": Field(_path, required=True),
        "args": Field(_list(_any_text)),
        "env": Field(_environment),
        "timeout": Field(_number(1, _MOST_SECONDS)),
    }
)
_RDT = _object(
    {
        "closID": Field(_text(lambda text: text == "/" or "/" not in text, "not a name")),
        "l3CacheSchema": Field(_any_text),
        "memBwSchema": Field(_any_text),
        "schemata": Field(_list(_any_text)),
        "enableCMT": Field(_truth),
        "enableMBM": Field(_truth),
        "enableMonitoring": Field(_truth),
    }
)
_NETWORK = _object({"hostInterfaceName": Field(_filled, required=True), "name": Field(_filled, required=True)})
_EDITS: Mapping[str, Field] = {
    "env": Field(_environment),
    "deviceNodes": Field(_list(_DEVICE_NODE)),
    "mounts": Field(_list(_MOUNT)),
    "hooks": Field(_list(_HOOK)),
    "intelRdt": Field(_RDT),
    "additionalGids": Field(_list(_id)),
    "netDevices": Field(_list(_NETWORK)),
}
_DEVICE = _object(
    {
        "name": Field(_text(lambda text: bool(_NAME.fullmatch(text)), "not a name of a device"), required=True),
        "annotations": Field(_annotations),
        "containerEdits": Field(_object(_EDITS, filled=True), required=True),
    }
)
_DOCUMENT = _object(
    {
        "cdiVersion": Field(_text(lambda text: text in VERSIONS, f"not one of {', '.join(VERSIONS)}"), required=True),
        "kind": Field(_text(_is_kind, "not a kind, vendor/class"), required=True),
        "annotations": Field(_annotations),
        "devices": Field(_list(_DEVICE, filled=True), required=True),
        "containerEdits": Field(_object(_EDITS)),
    }
)
