"""The application: its keys, its screens, and the news of the host. Waits neither for data nor for a lock."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from textual import events
from textual.app import SystemCommand
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Input

from vfioctl.tui.changing import Changing
from vfioctl.tui.data.extra import Extra
from vfioctl.tui.data.feed import PAUSE
from vfioctl.tui.dialogs.question import Help
from vfioctl.tui.model.actions import offered
from vfioctl.tui.model.names import Names
from vfioctl.tui.model.sheet import View
from vfioctl.tui.screens.bars import help_parts, view_at
from vfioctl.tui.screens.sheets import Known

_EVENTS = 1000


class Announced(Message):
    """The feed has news."""


class Tui(Changing):
    """The screens of one host."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(str(n), f"show('{view.name}')", show=False) for n, view in enumerate(View, 1)),
        Binding("slash", "filter", show=False),
        Binding("s", "sort", show=False),
        Binding("a", "everything", show=False),
        Binding("d", "details", show=False),
        Binding("r", "read", show=False),
        Binding("p", "progress", show=False),
        Binding("question_mark", "help", show=False),
        Binding("colon", "command_palette", show=False),
        Binding("escape", "leave", show=False),
        Binding("q", "quit", show=False),
    ]
    _taken, _heard = 0.0, 0

    def on_mount(self) -> None:
        """Paint at once; the data come when they come."""
        self.action_show("DEVICES")
        self.set_interval(1.0, self._look_at_age)
        self.feed.announce(self._announce)
        self.follow_signals()

    def _announce(self) -> None:
        self.post_message(Announced())

    def on_unmount(self) -> None:
        """Let the threads end."""
        for part in (self.feed, self.drawing, self.reading):
            part.stop()

    # what is read

    def on_announced(self) -> None:
        """Take the news, at most four times a second."""
        wait = self._taken + PAUSE - time.monotonic()
        if wait > 0:
            self.set_timer(wait, self._take)
        else:
            self._take()

    def _take(self) -> None:
        if self.is_over:
            return
        self._taken = time.monotonic()
        news = self.feed.take()
        known = self.known
        self.problem = self.problem if news.problem is None else news.problem
        overview = news.overview or (known.overview if known else None)
        if overview is None:
            self.draw_bars()
            return
        known = known or Known(overview, Names())
        numbered = tuple((self._heard + n, event) for n, event in enumerate(news.events, 1))
        self._heard += len(numbered)
        events_ = (*reversed(numbered), *known.events)[:_EVENTS]
        known = replace(known, overview=overview, events=events_)
        known = replace(
            known,
            changes=news.changes or known.changes,
            checked=news.checked or known.checked,
            kubelet=news.kubelet or known.kubelet,
        )
        self.known = known
        self.draw_sheet()
        self.draw_bars()

    @property
    def _read_here(self) -> Extra[Any] | None:
        """What is read only for the screen that is shown."""
        feed = self.feed
        extras: dict[View, Extra[Any]] = {
            View.HISTORY: feed.changes,
            View.DOCTOR: feed.checked,
            View.KUBELET: feed.kubelet,
        }
        return extras.get(self.view)

    def _look_at_age(self) -> None:
        if self.is_over:
            return
        since = self.feed.reading_since
        if self.known is None or (since and time.monotonic() - since > 5) or self.change:
            self.draw_bars()

    def action_read(self) -> None:
        """Read everything again."""
        self.feed.ask(None, *filter(None, [self._read_here]))
        self.say("Reading the host again.")

    # keys

    def on_key(self, event: events.Key) -> None:
        """Do the action of the screen that has this key."""
        if len(self.screen_stack) > 1 or isinstance(self.focused, Input):
            return
        if self._said:
            self.say("")
        for action in offered(self.view):
            if event.character == action.key:
                event.stop()
                self.do(action)

    def action_show(self, name: str) -> None:
        """Show another screen."""
        if len(self.screen_stack) > 1:
            return
        self.view = View[name]
        for view in View:
            self.table_of(view).set_class(view is self.view, "shown")
        self.main.remove_class("detailed")
        self.show_filter()
        self.table.focus()
        self.feed.show(self._read_here)
        self.draw_sheet()
        self.draw_bars()

    def on_click(self, event: events.Click) -> None:
        """A click in the bar shows a screen."""
        if event.screen_y == 0 and (view := view_at(event.screen_x, self.size.width)) and len(self.screen_stack) == 1:
            self.action_show(view.name)

    def action_help(self) -> None:
        """Show the keys."""
        if len(self.screen_stack) == 1:
            self.push_screen(Help(f"Keys of the screen {self.view}", help_parts(self.view)))

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Yield what the command palette offers: the screens and the actions of this one."""
        for view in View:
            yield SystemCommand(f"Show {view}", "", partial(self.action_show, view.name))
        for action in offered(self.view):
            yield SystemCommand(action.title, "", partial(self.do, action))
        yield SystemCommand("Read the host again", "", self.action_read)
        yield SystemCommand("Keys", "", self.action_help)
        yield SystemCommand("Quit", "", self.ask_to_quit)
