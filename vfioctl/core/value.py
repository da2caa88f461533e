"""`Value`, the base class of all documents. May not do input or output."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part)[:_LONGEST] for part in first["loc"] if part != _KEY)[: 4 * _LONGEST] or "it"
    context: Mapping[str, Any] = first.get("ctx", {})
    return _PROBLEMS.get(first["type"], _unexpected)(place, context)


_LONGEST = 80
"""The most characters of a key of the document that are shown."""
_KEY = "[key]"
"""What pydantic adds to the place of a key that is wrong itself."""


def _unexpected(place: str, _: Mapping[str, Any]) -> str:
    return f"{place} has an unexpected value"


_PROBLEMS: Mapping[str, Callable[[str, Mapping[str, Any]], str]] = {
    "missing": lambda place, _: f"{place} is missing",
    "extra_forbidden": lambda place, _: f"{place} is not known",
    "json_invalid": lambda _, context: f"no JSON ({context['error']})",
    "unexpected_keyword_argument": lambda place, _: f"{place} is not known",
    "model_type": lambda place, _: f"{place} is no object",
    "dataclass_type": lambda place, _: f"{place} is no object",
    "value_error": lambda place, context: f"{place}: {context['error']}" if place != "it" else str(context["error"]),
    "greater_than_equal": lambda place, context: f"{place} must be at least {context['ge']}",
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), lambda place, _: f"{place} must be a whole number"),
    "form": lambda place, context: f"{place} must {context['rule']}",
    "string_type": lambda place, _: f"{place} must be a text, in quotes",
    "string_pattern_mismatch": lambda place, context: f"{place} must match {context['pattern']}",
    "string_too_short": lambda place, context: f"{place} must have at least {context['min_length']} characters",
    "string_too_long": lambda place, context: f"{place} must have at most {context['max_length']} characters",
    "too_long": lambda place, context: f"{place} must have at most {context['max_length']} items",
    **dict.fromkeys(("tuple_type", "list_type"), lambda place, _: f"{place} must be a list"),
    **dict.fromkeys(("mapping_type", "dict_type"), lambda place, _: f"{place} must be a table"),
    **dict.fromkeys(("bool_type", "bool_parsing"), lambda place, _: f"{place} must be true or false"),
    **dict.fromkeys(
        ("literal_error", "enum"),
        lambda place, context: f"{place} must be {context['expected'].replace(chr(39), '')}",
    ),
    "less_than_equal": lambda place, context: f"{place} must be at most {context['le']}",
}
"""Words for the types of pydantic's errors; a `value_error` is raised by vfioctl, in its own words."""
