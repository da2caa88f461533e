"""The messages of k8s.io/kube-scheduler/extender/v1 as JSON, by its types.go: field for field, with Go's rules.

No field has a tag there, so Go writes the names as they are, null for a missing pointer, map or list, and leaves
nothing out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

_NAMES = {"type": ["array", "null"], "items": {"type": "string"}}
_MAP = {"type": ["object", "null"], "additionalProperties": {"type": "string"}}
_NODES = {
    "type": ["object", "null"],
    "properties": {"metadata": {"type": "object"}, "items": {"type": "array", "items": {"type": "object"}}},
    "required": ["items"],
}


def _message(**fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": [*fields], "additionalProperties": False}


SCHEMAS: dict[str, dict[str, Any]] = {
    "ExtenderArgs": _message(Pod={"type": ["object", "null"]}, Nodes=_NODES, NodeNames=_NAMES),
    "ExtenderFilterResult": _message(
        Nodes=_NODES,
        NodeNames=_NAMES,
        FailedNodes=_MAP,
        FailedAndUnresolvableNodes=_MAP,
        Error={"type": "string"},
    ),
    "HostPriorityList": {
        "type": ["array", "null"],
        "items": _message(Host={"type": "string"}, Score={"type": "integer", "minimum": 0, "maximum": 10}),
    },
    "ExtenderBindingArgs": _message(
        PodName={"type": "string"}, PodNamespace={"type": "string"}, PodUID={"type": "string"}, Node={"type": "string"}
    ),
    "ExtenderBindingResult": _message(Error={"type": "string"}),
}
_TYPES: dict[str, type] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "null": type(None),
}


def problems(document: object, schema: dict[str, Any], at: str = "") -> Iterator[str]:
    """Yield where a document differs from a schema."""
    kinds = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
    if not any(type(document) is _TYPES[kind] for kind in kinds):
        yield f"{at}: {type(document).__name__} is none of {kinds}"
    elif isinstance(document, dict):
        known = schema.get("properties", {})
        yield from (f"{at}.{name} is missing" for name in schema.get("required", ()) if name not in document)
        for name, value in document.items():
            other = schema.get("additionalProperties", True)
            if name in known or isinstance(other, dict):
                yield from problems(value, known.get(name, other), f"{at}.{name}")
            elif not other:
                yield f"{at}.{name} is not known"
    elif isinstance(document, list):
        for index, item in enumerate(document):
            yield from problems(item, schema.get("items", {"type": [*_TYPES]}), f"{at}[{index}]")
    elif isinstance(document, int) and not schema.get("minimum", document) <= document <= schema.get(
        "maximum", document
    ):
        yield f"{at}: {document} is out of range"


def check(document: object, message: str) -> None:
    """Fail unless a document is such a message."""
    found = [*problems(document, SCHEMAS[message])]
    assert not found, found


def in_lower_case(document: dict[str, Any]) -> dict[str, Any]:
    """A message as schedulers before 1.17 wrote it."""
    return {re.sub("[A-Z]", lambda match: match[0].lower(), name): value for name, value in document.items()}
