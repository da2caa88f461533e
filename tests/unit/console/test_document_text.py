"""Documents of dataclasses are written as json.dumps writes objects."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vfioctl.console.documents import document_pieces, document_text, indented_text
from vfioctl.units import CpuSet


class Colour(StrEnum):
    RED = "red"


@dataclass
class Box:
    kind: str = field(metadata={"alias": "class"})
    value: object = None


@dataclass
class Single:
    value: object


PLAIN: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.text(), PLAIN)
def test_the_text_is_that_of_an_object_with_the_fields(kind: str, value: object) -> None:
    same = {"class": kind, "value": {"value": value}}
    document = Box(kind, Single(value))
    assert document_text(document) == json.dumps(same, separators=(",", ":"), ensure_ascii=False)
    assert indented_text(document_text(document)) == json.dumps(same, indent=2, ensure_ascii=False)


@pytest.mark.parametrize("count", [0, 1, 500, 501, 1000, 1001])
def test_a_long_document_comes_in_pieces(count: int) -> None:
    document = Box("long", tuple(Single(n) for n in range(count)))
    pieces = list(document_pieces(document))
    same = {"class": "long", "value": [{"value": n} for n in range(count)]}
    assert "".join(pieces) == json.dumps(same, separators=(",", ":"))
    assert max(map(len, pieces)) < 500 * len('{"value":1000},')


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Colour.RED, '"red"'),
        (CpuSet((0, 1, 2, 8)), '"0-2,8"'),
        ((), "[]"),
        ({}, "{}"),
        ((Single(1), Single(2)), '[{"value":1},{"value":2}]'),
        ({3: (True, None, 2.5)}, '{"3":[true,null,2.5]}'),
        ('"\\\n\x1b\x7f\u00e9', '"\\"\\\\\\n\\u001b\x7f\u00e9"'),
    ],
)
def test_values_have_one_form(value: object, text: str) -> None:
    assert document_text(Single(value)) == f'{{"value":{text}}}'


@pytest.mark.parametrize("value", [object(), {1, 2}, b"bytes", Mapping])
def test_what_has_no_form_is_an_error(value: object) -> None:
    with pytest.raises(TypeError, match="not serializable"):
        document_text(Single(value))
