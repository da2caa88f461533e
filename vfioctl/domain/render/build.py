"""Renders why a domain is as it is: each choice, its reason, and what is weaker. May not read the host."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.text import Text

from vfioctl.console.columns import fact_grid
from vfioctl.domain.model.layout import Choice


def choices_page(choices: tuple[Choice, ...]) -> RenderableType:
    """Render the choices of a build, each with its reason, and at the end what is weaker."""
    least = max(len(choice.what) for choice in choices)
    return Stack(
        *(fact_grid(_lines(choice), least=least) for choice in choices),
        *_weaker(choices),
    )


def _lines(choice: Choice) -> Iterator[tuple[str, str]]:
    yield choice.what, choice.chosen
    yield "", choice.why
    for each in choice.excluded:
        yield "", f"not {each}"


def _weaker(choices: tuple[Choice, ...]) -> Iterator[RenderableType]:
    weaker = [(choice.what, choice.weaker) for choice in choices if choice.weaker]
    if weaker:
        yield Text()
        yield Text("Weaker than it could be")
        yield fact_grid(weaker)
