"""Renders why a domain is as it is: each choice, its reason, and what is weaker. May not read the host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from vfioctl.console.columns import note_lines
from vfioctl.domain.model.layout import Choice


def choices_page(choices: Sequence[Choice]) -> RenderableType:
    """Render the choices of a build, each with its reason, and at the end what is weaker."""
    return Stack(*(line for choice in choices for line in _lines(choice)), *_weaker(choices))


def _lines(choice: Choice) -> Iterator[RenderableType]:
    yield Text.assemble((f"{choice.what}:", "bold"), f" {choice.chosen}")
    for text in (choice.why, *(f"not {reason}" for reason in choice.excluded)):
        yield Padding(Text(text), (0, 0, 0, 2), expand=False)


def _weaker(choices: Sequence[Choice]) -> Iterator[RenderableType]:
    weaker = [f"{choice.what}: {choice.weaker}" for choice in choices if choice.weaker]
    if weaker:
        yield Text()
        yield Text("What is weaker than it could be", style="bold")
        yield from note_lines(weaker)
