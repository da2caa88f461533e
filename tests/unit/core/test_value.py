"""The first problem of a document in plain words."""

from __future__ import annotations

from enum import StrEnum

import pytest
from pydantic import Field, ValidationError

from vfioctl.core.value import Value, first_problem


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Thing(Value):
    size: int = Field(default=1, ge=1, le=9)
    colour: Colour = Colour.RED


def test_a_value_cannot_be_changed() -> None:
    thing = Thing(size=2)
    with pytest.raises(ValidationError, match="frozen"):
        thing.size = 3
    assert thing.size == 2


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ('{"size": 0}', "size must be at least 1"),
        ('{"size": 10}', "size must be at most 9"),
        ('{"size": "x"}', "size must be a whole number"),
        ('{"colour": "green"}', "colour must be red or blue"),
        ('{"weight": 1}', "weight is not known"),
        ("[]", "it is no object"),
        (f'{{"{"k" * 900_000}": 1}}', f"{'k' * 80} is not known"),
    ],
)
def test_the_first_problem_is_said_in_plain_words(document: str, said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Thing.model_validate_json(document)
    assert first_problem(caught.value) == said


def test_the_canonical_form_has_one_order_and_no_spaces() -> None:
    assert Thing().canonical() == '{"colour":"red","size":1}'
