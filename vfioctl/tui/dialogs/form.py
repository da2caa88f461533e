"""Asks for the few values that an action needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Input

from vfioctl.tui.dialogs.dialog import Dialog, text_line, title_line
from vfioctl.tui.model.actions import Field
from vfioctl.tui.widgets.choice import Choices


class Form(Dialog[Mapping[str, str]]):
    """Results in the values by their names. Enter goes on to the plan, which shows what would be done."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down", "app.focus_next", show=False),
        Binding("up", "app.focus_previous", show=False),
    ]

    def __init__(self, title: str, fields: Sequence[Field]) -> None:
        super().__init__()
        self._title, self._fields = title, fields

    def compose(self) -> ComposeResult:
        """Make a line for each value."""
        with Vertical(classes="box"):
            yield title_line(self._title)
            for field in self._fields:
                yield text_line(f"{field.label}   ({field.hint})" if field.hint else field.label)
                yield Input(field.value, id=f"field-{field.name}", compact=True)
            yield text_line()
            yield Choices(("Show the plan", "accept"), ("Cancel", "leave"))

    def on_mount(self) -> None:
        """Begin with the first value."""
        self.query(Input).first().focus()

    def on_input_submitted(self) -> None:
        """Go on to the next value, or to the plan."""
        inputs = list(self.query(Input))
        place = next((number for number, field in enumerate(inputs) if field.has_focus), len(inputs))
        if place + 1 < len(inputs):
            inputs[place + 1].focus()
        else:
            self.action_accept()

    def action_accept(self) -> None:
        """Return the values."""
        self.finish({field.name: self.query_one(f"#field-{field.name}", Input).value.strip() for field in self._fields})
