"""Reads documents, which anyone may have written: TOML, YAML in *.yaml, JSON in *.json. Reads that file only."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Never

from vfioctl.errors import BadDocument, MissingLibrary
from vfioctl.kernel.untrusted_files import read_file, read_stream
from vfioctl.state.model.document import HostState
from vfioctl.untrusted_text import parse_json, parse_toml, parse_yaml

LARGEST = 1 << 20
STDIN = "-"
_HINT = "vfioctl state show writes such a document; docs/reference/state.schema.json says what each key may be"


def read_state(name: str) -> HostState:
    """Return the document in a file; `-`: TOML on stdin. Raises BadDocument, MissingLibrary for YAML without PyYAML."""
    return state_in(_bytes(name), name)


def state_in(data: bytes, name: str) -> HostState:
    """Return the document in a text. `name`: of its file, whose ending says what it is written in."""
    from pydantic import ValidationError

    from vfioctl.core.value import first_problem

    try:
        # from JSON, so that pydantic can be strict: no number is taken for a text, nor the other way round
        return HostState.model_validate_json(_as_json(_parsed(data, name)), strict=True)
    except ValidationError as error:
        raise BadDocument(f"{_named(name)}: {first_problem(error)}", hint=_HINT) from None
    except ValueError as error:  # TOML, YAML, JSON and UTF-8 alike
        raise BadDocument(f"{_named(name)} is not understood: {error}"[:400], hint=_form_hint(name)) from None


def _bytes(name: str) -> bytes:
    try:
        if name == STDIN and sys.stdin is not None:
            return read_stream(sys.stdin.buffer, LARGEST)
        return read_file(name, LARGEST)
    except OSError as error:
        raise BadDocument(f"{_named(name)} cannot be read: {error.strerror or error}") from None


def _parsed(data: bytes, name: str) -> Any:
    ending = Path(name).suffix
    if ending == ".json":
        return parse_json(data, most=LARGEST, strict=True)
    if ending not in (".yaml", ".yml"):
        return parse_toml(data, most=LARGEST)
    try:
        return parse_yaml(data, most=LARGEST)
    except ImportError:
        raise MissingLibrary(
            f"{name}: YAML needs PyYAML, which is not installed",
            hint="write TOML, which needs nothing; or install PyYAML: pip install 'vfioctl[yaml]'",
        ) from None


def _as_json(content: Any) -> str:
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise ValueError("it is no table of settings")
    return json.dumps(content, default=_refuse, skipkeys=False)


def _refuse(value: object) -> Never:
    raise ValueError(f"{str(value)[:40]} is neither text, number, true, false, list nor table: put it in quotes")


def _named(name: str) -> str:
    return "stdin" if name == STDIN else name or "the file, whose name is empty,"


def _form_hint(name: str) -> str:
    return "stdin is read as TOML" if name == STDIN else "write it as TOML, as YAML in *.yaml, or as JSON in *.json"
