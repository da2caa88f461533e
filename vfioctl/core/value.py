"""`Value`, the base class of all documents. May not do input or output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError


class Value(BaseModel):
    """A frozen document that refuses unknown fields and has one canonical JSON form."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", serialize_by_alias=True, validate_by_name=True, validate_by_alias=True
    )

    def canonical(self) -> str:
        """Return JSON with sorted keys and no spaces: equal values give equal text."""
        import json

        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))

    def digest(self) -> str:
        """Return the first twelve hexadecimal digits of SHA-256 over the canonical JSON."""
        import hashlib  # imported late: OpenSSL loads slowly, and listings need no digest

        return hashlib.sha256(self.canonical().encode()).hexdigest()[:12]


def first_problem(error: ValidationError) -> str:
    """Return the first problem of a document in plain words: a damaged one often causes hundreds of further errors."""
    first: Mapping[str, Any] = {**error.errors(include_url=False, include_input=False)[0]}
    if first["type"] == "json_invalid":
        return f"no JSON ({first['ctx']['error']})"
    place = ".".join(str(part)[:_LONGEST] for part in first["loc"] if part != KEY)[: 4 * _LONGEST]
    if first["type"] == "value_error":  # in vfioctl's own words
        return ": ".join(filter(None, (place, str(first["ctx"]["error"]))))
    return f"{place or 'it'} {words_of(first) or 'has an unexpected value'}"


def words_of(problem: Mapping[str, Any]) -> str:
    """Return what is wrong, to follow the name of a value, from an error of pydantic; empty if it has no words here."""
    words = _WORDS.get(problem["type"], "").format(**problem.get("ctx", {}))
    return words.replace("'", "") if problem["type"] in ("enum", "literal_error") else words


_LONGEST = 80
"""The most characters of a key of the document that are shown."""
KEY = "[key]"
"""What pydantic adds to the place of a key that is wrong itself."""
_WORDS = {
    "missing": "is missing",
    **dict.fromkeys(("extra_forbidden", "unexpected_keyword_argument"), "is not known"),
    "model_type": "is no object",
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), "must be a whole number"),
    **dict.fromkeys(("bool_parsing", "bool_type"), "must be true or false"),
    "string_type": "must be a text, in quotes",
    **dict.fromkeys(("list_type", "tuple_type"), "must be a list"),
    **dict.fromkeys(("dataclass_type", "dict_type", "mapping_type"), "must be a table"),
    **dict.fromkeys(("enum", "literal_error"), "must be {expected}"),
    "form": "must {rule}",
    "string_pattern_mismatch": "must match {pattern}",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    "too_long": "must have at most {max_length} items",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
}
"""Words for the types of pydantic's errors."""
