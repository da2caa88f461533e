"""Parses TOML, YAML and JSON that anyone may have written: the only module that calls these parsers on such text.

A scan of linear cost refuses a text that is too large, nested too deeply, or has too many tokens or too long a key,
before the parser may spend memory or time on it. Each function raises ValueError, in words for the user, and nothing
else. May not import PyYAML unless there is YAML to parse, nor open a file."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

MOST_BYTES = 4 << 20
"""The largest text, as UTF-8. A plan for a thousand functions has about one million bytes."""
MOST_DEPTH = 64
"""How many objects, arrays or tables may be inside each other."""
MOST_PARTS = 16
"""How many dots one key of TOML may have: the parser remembers each beginning of each key."""
MOST_TOKENS = 1_000_000
MOST_TOKENS_TOML = 100_000
MOST_BYTES_YAML, MOST_TOKENS_YAML = 1 << 20, 50_000
"""PyYAML is written in Python: it takes 2 µs for a character and 20 µs for a token. These are 256 large domains."""
LONGEST_KEY = 256
"""In characters: a key becomes part of messages."""
_LONGEST_NUMBER = 64
"""In characters: the parser's time grows with the square of the digits, and of the parts of `1:30:59`."""
_DEEP, _LONG_KEY, _MANY = "nested too deeply", "a key is too long", "too many values"

# Each alternative matches at once, also without an end, so that no character is looked at twice.
_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+(?P<end>"?)(?P<key>(?=\s{0,9}:))?|[\[\]{},:]', re.DOTALL)
_TOML_TOKEN = re.compile(
    r'"""(?:[^\\]|\\.)*?(?:"""|\\?\Z)'
    r"|'''.*?(?:'''|\Z)"
    r'|"(?:[^"\\\n]|\\[^\n])*+"?(?P<key>(?=[ \t]{0,9}[.=]))?'
    r"|'[^'\n]*'?(?P<literal>(?=[ \t]{0,9}[.=]))?"
    r"|\#[^\n]*"
    r"|[\[\]{},=.\n]"
    r"|(?P<bare>[A-Za-z0-9_:+-]+)",
    re.DOTALL,
)


def parse_json(text: str | bytes, *, most: int = MOST_BYTES, strict: bool = False) -> Any:
    """Return what a text in JSON holds. `strict`: no object may have a key twice, and no number may be NaN."""
    text = _decoded(text, most)
    if len(text) > MOST_DEPTH:
        _check_json(text)
    import json

    try:
        if strict:
            return json.loads(text, object_pairs_hook=_without_duplicates, parse_constant=_no_number)
        return json.loads(text)
    except Duplicate:
        raise
    except ValueError as error:
        raise ValueError(f"no JSON: {error}") from None


def parse_toml(text: str | bytes, *, most: int = MOST_BYTES) -> dict[str, Any]:
    """Return the table that a text in TOML holds."""
    text = _decoded(text, most)
    _check_toml(text)
    import tomllib

    return tomllib.loads(text)


def parse_yaml(text: str | bytes, *, most: int = MOST_BYTES_YAML) -> Any:
    """Return what one document in YAML holds, without aliases and keys that are there twice. Raises ImportError."""
    import yaml

    text = _decoded(text, most)
    try:
        loader = _loader()(text)
        node = loader.get_single_node()
        _refuse_twice(node)
        return None if node is None else loader.construct_document(node)
    except yaml.YAMLError as error:
        raise ValueError(_problem(error, text)) from None


_QUOTED = re.compile(r" '[!\w-]{2,}'", re.ASCII)
"""A word of the text in an error of PyYAML: the name of an alias, an anchor or a tag. Tokens are `<...>`."""


def kind_of_yaml(text: str) -> str:
    """Return what a text in YAML is: `mapping`, `sequence`, `scalar`, or nothing. Raises ImportError.

    Aliases are allowed: the text is not made into values. The ValueError quotes no word of the text."""
    import yaml

    text = _decoded(text, MOST_BYTES_YAML)
    try:
        loader = _loader()(text)
        loader.aliases = True
        node = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise ValueError(f"{line}{_QUOTED.sub('', str(error.problem))}") from None
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
    return "" if node is None else str(node.id)


class Duplicate(ValueError):
    """An object has the same key twice."""


def _decoded(text: str | bytes, most: int) -> str:
    if len(text) > most:
        raise ValueError(f"larger than {most >> 20} MiB" if most >> 20 else f"larger than {most >> 10} KiB")
    try:
        # not the codec utf-8-sig, which is a module to import
        return text if isinstance(text, str) else bytes(text).decode().removeprefix("\ufeff")
    except UnicodeDecodeError:
        raise ValueError("not UTF-8") from None


def _check_json(text: str) -> None:
    depth = 0
    for number, match in enumerate(_JSON_TOKEN.finditer(text)):
        first = match[0][0]
        if number > MOST_TOKENS:
            raise ValueError(_MANY)
        if first in "[{":
            depth += 1
            if depth > MOST_DEPTH:
                raise ValueError(_DEEP)
        elif first in "]}":
            depth -= 1
        elif match["key"] is not None and len(match[0]) > 6 * LONGEST_KEY:  # an escape has six characters
            raise ValueError(_LONG_KEY)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise Duplicate(f"{twice[:40]!a} is there twice in one object")
    return unique


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is not a number of JSON")


def _check_toml(text: str) -> None:
    depth = dots = 0
    for number, match in enumerate(_TOML_TOKEN.finditer(text)):
        token, first = match[0], match[0][0]
        if number > MOST_TOKENS_TOML:
            raise ValueError(_MANY)
        if first == ".":
            dots += 1
        elif first in "[]{},=\n":
            dots = 0
            depth = max(0, depth + (first in "[{") - (first in "]}"))
        is_key = match["bare"] or (match["key"], match["literal"]) != (None, None)
        if depth > MOST_DEPTH or dots > MOST_PARTS:
            raise ValueError(f"line {text.count(chr(10), 0, match.start()) + 1}: {_DEEP}")
        if is_key and len(token) > LONGEST_KEY:
            raise ValueError(f"line {text.count(chr(10), 0, match.start()) + 1}: {_LONG_KEY}")


def statements_of_toml(text: str) -> Iterator[tuple[int, str]]:
    """Yield the statements of a text in TOML, each with the number of its first line: tables, keys, empty lines."""
    begin, line, depth = 0, 1, 0
    for match in _TOML_TOKEN.finditer(text):
        first = match[0][0]
        depth = max(0, depth + (first in "[{") - (first in "]}"))
        if first == "\n" and not depth:
            yield line, text[begin : match.end()]
            line += text.count("\n", begin, match.end())
            begin = match.end()
    yield line, text[begin:]


@cache
def _loader() -> Any:
    """Return PyYAML's safe loader with limits. A value that it cannot read is an error of YAML; numbers are short."""
    import yaml

    numbers = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
    begin = (
        *(yaml.BlockSequenceStartToken, yaml.BlockMappingStartToken),
        *(yaml.FlowSequenceStartToken, yaml.FlowMappingStartToken),
    )
    end = (yaml.BlockEndToken, yaml.FlowSequenceEndToken, yaml.FlowMappingEndToken)

    class Loader(yaml.SafeLoader):  # type: ignore[misc] # PyYAML has no types
        aliases, count, depth, is_key = False, 0, 0, False

        def get_token(self) -> Any:
            token = super().get_token()
            self.count += 1
            self.depth += isinstance(token, begin) - isinstance(token, end)
            if isinstance(token, yaml.AliasToken) and not self.aliases:
                raise ValueError("aliases are not allowed")  # a few lines of them can mean gigabytes
            is_long = self.is_key and isinstance(token, yaml.ScalarToken) and len(token.value) > LONGEST_KEY
            self.is_key = isinstance(token, yaml.KeyToken)
            problem = _DEEP if self.depth > MOST_DEPTH else _MANY if self.count > MOST_TOKENS_YAML else ""
            if problem or is_long:
                raise ValueError(f"line {token.start_mark.line + 1}: {problem or _LONG_KEY}")
            return token

        def construct_object(self, node: Any, deep: bool = False) -> Any:  # noqa: FBT001, FBT002 - PyYAML's form
            kind = str(node.tag).rpartition(":")[2][:40]
            try:
                if node.tag in numbers and len(node.value) > _LONGEST_NUMBER:
                    raise ValueError
                return super().construct_object(node, deep)
            except (ValueError, LookupError, TypeError, AttributeError, OverflowError):
                raise yaml.constructor.ConstructorError(
                    None, None, f"the value is not of its type {kind}", node.start_mark
                ) from None

    return Loader


def _problem(error: Any, text: str) -> str:
    """Return what is wrong with YAML in one line: PyYAML has it in several, with a part of the text."""
    mark, place = getattr(error, "problem_mark", None), getattr(error, "position", None)
    if mark is None and isinstance(place, int):  # of a character that YAML does not have
        line, column = text.count("\n", 0, place), place - text.rfind("\n", 0, place) - 1
    else:
        line, column = (mark.line, mark.column) if mark else (0, 0)
    what = getattr(error, "problem", None) or str(error).partition("\n")[0]
    return f"line {line + 1}, column {column + 1}: {str(what)[:200]}"


def _refuse_twice(node: Any) -> None:
    """Raise ValueError for a key that a table has twice: PyYAML takes the last one, TOML none."""
    if node is None or node.id == "scalar":
        return
    if node.id == "sequence":
        for item in node.value:
            _refuse_twice(item)
        return
    names = set()
    for key, value in node.value:
        if key.id == "scalar":
            if key.value in names:
                raise ValueError(f"line {key.start_mark.line + 1}: {key.value[:60]} is there twice")
            names.add(key.value)
        _refuse_twice(value)
