"""Writes documents as TOML and YAML. Pure. Each value is a JSON string of ASCII, a number, or true or false, which both
languages have too: no library is needed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from vfioctl.state.model.document import HostState

_ABOUT = "# What is not named here is left alone. vfioctl state apply FILE, vfioctl state assert FILE"

_DEFAULTS = (("boot_display", False), ("uuid", ""), ("state", "present"))
"""What a reader takes for granted."""


def toml_text(state: HostState) -> str:
    """The document in TOML."""
    return "\n".join([_ABOUT, *_toml(_content(state)), ""])


def yaml_text(state: HostState) -> str:
    """The document in YAML."""
    return "\n".join([_ABOUT, *_yaml(_content(state), ""), ""])


def _content(state: HostState) -> Mapping[str, Any]:
    """The document without what says nothing: settings that are left out, and empty lists and tables."""
    return {name: value for name, value in _kept(state.model_dump(mode="json", exclude_none=True)).items() if value}


def _kept(table: Mapping[str, Any]) -> Mapping[str, Any]:
    cleaned: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, list):
            cleaned[name] = [_kept(item) for item in value]
        elif isinstance(value, dict):
            cleaned[name] = _kept(value)
        elif (name, value) not in _DEFAULTS:
            cleaned[name] = value
    return {name: value for name, value in cleaned.items() if value not in ([], {})}


def _plain(table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    return ((name, json.dumps(value)) for name, value in table.items() if not isinstance(value, dict | list))


def _toml(document: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"{name} = {value}" for name, value in _plain(document))
    for name, entries in document.items():
        for entry in entries if isinstance(entries, list) else ():
            yield from ("", f"[[{name}]]", *(f"{key} = {value}" for key, value in _plain(entry)))
            for key, table in entry.items():
                if isinstance(table, dict):
                    yield f"[{name}.{key}]"
                    yield from (f"{_toml_key(inner)} = {value}" for inner, value in _plain(table))


def _toml_key(name: str) -> str:
    return name if name.replace("_", "").replace("-", "").isalnum() else json.dumps(name)


def _yaml(document: Mapping[str, Any], indent: str) -> Iterator[str]:
    for name, value in document.items():
        if isinstance(value, list):
            yield f"{indent}{_yaml_key(name)}:"
            for entry in value:
                first, *more = _yaml(entry, f"{indent}    ")
                yield from (f"{indent}  - {first.lstrip()}", *more)
        elif isinstance(value, dict):
            yield from (f"{indent}{_yaml_key(name)}:", *_yaml(value, f"{indent}  "))
        else:
            yield f"{indent}{_yaml_key(name)}: {json.dumps(value)}"


def _yaml_key(name: str) -> str:
    return name if name.replace("_", "").isalpha() else json.dumps(name)
