"""Adds the devices of a claim to an OCI bundle's config.json. Pure. Source: the OCI runtime specification, config.md
and config-linux.md. What is not understood is refused: a wrong guess could give a container more than was asked for."""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from vfioctl.claims.model.cdi import is_vfio_node, node_path
from vfioctl.errors import BadDocument, ConflictError
from vfioctl.untrusted_text import parse_json

CLAIM, NODES = "vfioctl.claim", "vfioctl.nodes"
"""Annotations that vfioctl adds: the claim whose devices the container has, and what was added for it."""
ACCESS = "rw"
_INDENT = re.compile(r"\A\s*\{\r?\n([ \t]{1,16})\S")
_CONFIG = "config.json"


class DeviceNode(NamedTuple):
    """A character device that the container gets."""

    path: str
    major: int
    minor: int


@dataclass(frozen=True)
class Edited:
    """The document after the edit, and what was changed; nothing if it was as wanted."""

    document: dict[str, Any]
    changes: tuple[str, ...]


def read_config(data: bytes) -> dict[str, Any]:
    """Return the document of a config.json. Raises BadDocument for one that could not be written back as it is."""
    try:
        document = parse_json(data, strict=True)
        _refuse_infinite(document)
    except ValueError as error:
        raise BadDocument(f"{_CONFIG}: {error}") from None
    if not isinstance(document, dict) or not isinstance(document.get("ociVersion"), str):
        raise BadDocument(f"{_CONFIG} is not a container's configuration: it has no ociVersion")
    return document


def _refuse_infinite(value: Any) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a number is too large")
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _refuse_infinite(item)


def written(document: dict[str, Any], before: bytes) -> bytes:
    """Return the text of an edited document, indented like the text before."""
    match = _INDENT.match(before[:256].decode("utf-8", "replace"))
    separators = None if match else (",", ":")
    text = json.dumps(document, indent=match[1] if match else None, separators=separators)
    return f"{text}\n".encode() if before.endswith(b"\n") else text.encode()


def injected(document: dict[str, Any], claim: str, devices: Sequence[DeviceNode]) -> Edited:
    """Return the document with these devices for a claim. Doing it again changes nothing.
    Raises BadDocument for a document that is not understood, ConflictError if it has another claim's devices."""
    edited = copy.deepcopy(document)
    if edited.get("linux") is None:
        raise BadDocument(f"{_CONFIG} has no linux section, so it is not a Linux container's")
    linux, notes = _section(edited, "linux"), _section(edited, "annotations")
    nodes, rules = _nodes(linux), _rules(linux)
    if any(not isinstance(text, str) for text in notes.values()):
        raise BadDocument(f"{_CONFIG}: annotations: not all are texts")
    _refuse_other_claim(notes, nodes, claim, devices)
    before = _shown(nodes, rules, notes)
    wanted = {device.path for device in devices}
    leftover = _ours(notes) - wanted
    gone = {(node.get("major"), node.get("minor")) for node in nodes if node_path(node["path"]) in leftover}
    nodes[:] = [node for node in nodes if node_path(node["path"]) not in leftover]
    rules[:] = [rule for rule in rules if not _allows(rule, gone)]
    for device in devices:
        _place(nodes, device)
        _allow(rules, device)
    notes |= {CLAIM: claim, NODES: ",".join(device.path for device in devices)}
    after = _shown(nodes, rules, notes)
    return Edited(edited, (*_only("-", before, after), *_only("+", after, before)))


def _only(sign: str, lines: Sequence[str], others: Sequence[str]) -> Iterator[str]:
    known = set(others)
    return (f"{sign} {line}" for line in lines if line not in known)


def _section(document: dict[str, Any], name: str) -> dict[str, Any]:
    """Return an object of the document, made if there is none. A null counts as none, as it does for Go programs."""
    if document.get(name) is None:
        document[name] = {}
    if not isinstance(document[name], dict):
        raise BadDocument(f"{_CONFIG}: {name}: not an object")
    section: dict[str, Any] = document[name]
    return section


def _list(document: dict[str, Any], name: str, place: str) -> list[dict[str, Any]]:
    if document.get(name) is None:
        document[name] = []
    items = document[name]
    if not isinstance(items, list) or not all(isinstance(entry, dict) for entry in items):
        raise BadDocument(f"{_CONFIG}: {place}: not a list of objects")
    return items


def _nodes(linux: dict[str, Any]) -> list[dict[str, Any]]:
    nodes = _list(linux, "devices", "linux.devices")
    for node in nodes:
        if not isinstance(node.get("path"), str) or not isinstance(node.get("type"), str):
            raise BadDocument(f"{_CONFIG}: linux.devices: one has no path or no type")
        if node["type"] != "p" and not all(_is_number(node.get(part)) for part in ("major", "minor")):
            raise BadDocument(f"{_CONFIG}: linux.devices: {node['path'][:60]!a} has no numbers")
    paths = [node_path(node["path"]) for node in nodes]
    if len(set(paths)) < len(paths):
        raise BadDocument(f"{_CONFIG}: linux.devices: a path is there twice")
    return nodes


def _rules(linux: dict[str, Any]) -> list[dict[str, Any]]:
    rules = _list(_section(linux, "resources"), "devices", "linux.resources.devices")
    for rule in rules:
        if not isinstance(rule.get("allow"), bool) or not isinstance(rule.get("access", ""), str):
            raise BadDocument(f"{_CONFIG}: linux.resources.devices: a rule is not understood")
    return rules


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _refuse_other_claim(
    notes: dict[str, str], nodes: Sequence[dict[str, Any]], claim: str, devices: Sequence[DeviceNode]
) -> None:
    other = notes.get(CLAIM, claim)
    if other != claim:
        raise ConflictError(
            f"the container has the devices of claim {other[:60]} already",
            hint="a bundle is for one claim: make a new one",
            facts={"claim": other},
        )
    ours = {device.path for device in devices} | _ours(notes)
    numbers = {(device.major, device.minor) for device in devices}
    majors = {device.major for device in devices if is_vfio_node(device.path)}  # VFIO's, whatever a node is called
    for node in nodes:
        path, number = node_path(node["path"]), (node.get("major"), node.get("minor"))
        is_other = node["type"] in ("c", "u") and number[0] in majors and number not in numbers
        if path not in ours and (is_vfio_node(path) or is_other):
            raise ConflictError(
                f"the container has {path} already, a node of VFIO that is not of claim {claim}",
                hint="remove it from the bundle, or claim that device too",
                facts={"node": path},
            )


def _ours(notes: dict[str, str]) -> set[str]:
    """Return what was added for the claim before: a group may have another number now."""
    return {path for path in notes.get(NODES, "").split(",") if path}


def _place(nodes: list[dict[str, Any]], device: DeviceNode) -> None:
    """Add the node, or correct its numbers; its owner and mode stay as they are."""
    numbers = {"type": "c", "major": device.major, "minor": device.minor}
    for node in nodes:
        if node_path(node["path"]) == device.path:
            node.update(numbers)
            return
    nodes.append({"path": device.path, **numbers})


def _rule(major: object, minor: object) -> dict[str, Any]:
    return {"allow": True, "type": "c", "major": major, "minor": minor, "access": ACCESS}


def _allows(rule: dict[str, Any], numbers: Collection[tuple[Any, Any]]) -> bool:
    """Return whether the rule is what vfioctl adds for one of these device numbers."""
    major, minor = rule.get("major"), rule.get("minor")
    if not (_is_number(major) and _is_number(minor)):
        return False  # perhaps a list, which no set can hold
    return (major, minor) in numbers and rule == _rule(major, minor)


def _allow(rules: list[dict[str, Any]], device: DeviceNode) -> None:
    """Add the rule behind all others: later rules win, and the first one usually denies everything."""
    rule = _rule(device.major, device.minor)
    if rule in rules and all(later["allow"] for later in rules[rules.index(rule) :]):
        return
    rules[:] = [*(known for known in rules if known != rule), rule]


def _shown(nodes: Iterable[dict[str, Any]], rules: Iterable[dict[str, Any]], notes: dict[str, str]) -> list[str]:
    """Return what an edit may change as lines, to compare before and after."""
    devices = [f"device {node['path']} {node['type']} {node.get('major')}:{node.get('minor')}" for node in nodes]
    words = [
        f"{'allow' if rule['allow'] else 'deny'} {rule.get('type') or 'a'} "
        f"{rule.get('major', '*')}:{rule.get('minor', '*')} {rule.get('access', '')}"
        for rule in rules
    ]
    return [*devices, *words, *(f"annotation {name}={notes[name]}" for name in (CLAIM, NODES) if name in notes)]
