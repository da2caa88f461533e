"""From a key to the page of what was done: actions, plans, changes, the end. One change at a time, as a host has one
lock."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from textual.message import Message

from vfioctl.console.words import listed
from vfioctl.tui.data.change import Change
from vfioctl.tui.dialogs.form import Form
from vfioctl.tui.dialogs.menu import Entry, Menu
from vfioctl.tui.dialogs.plan import PlanPage
from vfioctl.tui.dialogs.progress import ProgressPage
from vfioctl.tui.dialogs.question import Quit
from vfioctl.tui.model.actions import Action, Situation, addresses, card_of, claims_of, offered, reason
from vfioctl.tui.model.sheet import View
from vfioctl.tui.screens.devices import VFS
from vfioctl.tui.screens.kubelet import devices_of
from vfioctl.tui.screens.lists import CARD, TYPE
from vfioctl.tui.screens.progress import state_line
from vfioctl.tui.showing import Showing

if TYPE_CHECKING:
    from vfioctl.tui.data.prepare import Prepared

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class ChangeTold(Message):
    """The change has an event, or has ended."""


class Changing(Showing):
    """What the application does with actions."""

    last_change: Change | None = None
    _again: tuple[Action, Sequence[str], Mapping[str, str]] | None = None
    _ending: int | None = None
    """The signal that ends the program after the change; 0 if the user asked for that; None if nobody did."""

    # actions

    @property
    def situation(self) -> Situation | None:
        """What actions are judged by; None before the host was read."""
        if self.known is None:
            return None
        from vfioctl.core.caller import this_process  # pydantic, which it needs, would delay the first paint

        caller = this_process()
        busy = self.change.title if self.change else ""
        changes = {str(entry.id): entry for entry in self.known.changes.value}
        owner = f"user/{caller.sudo_user or caller.user}"
        return Situation(self.view, self.known.overview, busy, owner, changes, self.known.kubelet.value)

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of the selected rows, or of the one at the cursor."""
        if self.table.selected:
            return tuple(self.table.selected)
        row = self.table.row
        return (row.key,) if (row and not row.is_heading) or (row and row.key.startswith(CARD)) else ()

    def on_table_opened(self) -> None:
        """Show the menu of the selected rows."""
        situation, keys = self.situation, self.keys
        if situation is None:
            return
        entries = [Entry((a.name, a.key, a.title, reason(a, situation, keys))) for a in offered(self.view)]
        one = keys[0].removeprefix(CARD).removeprefix(TYPE) if keys else "Actions"
        one = f"VFs of {one.removeprefix(VFS)}" if one.startswith(VFS) else one
        title = f"{len(keys)} selected" if len(keys) > 1 else one

        def chosen(name: str | None) -> None:
            if name:
                self.do(next(action for action in offered(self.view) if action.name == name))

        self.push_screen(Menu(title, entries, self.marks), chosen)

    def do(self, action: Action) -> None:
        """Ask for what an action needs, and show its plan; or say why it is not possible."""
        situation, keys = self.situation, self.keys
        if situation is None:
            self.say("Not possible: the host was not read yet.")
            return
        if why := reason(action, situation, keys):
            self.say(f"Not possible: {why}")
            return
        subjects = self._subjects(action, situation, keys)
        fields = action.fields(situation, keys)
        if not fields:
            self.plan(action, subjects, {})
            return

        def answered(answers: Mapping[str, str] | None) -> None:
            if answers is not None:
                self.plan(action, subjects, answers)

        self.push_screen(Form(action.title, fields), answered)

    def _subjects(self, action: Action, situation: Situation, keys: Sequence[str]) -> Sequence[str]:
        if action.name == "release":
            return claims_of(situation, keys)
        if action.name == "create":
            card = card_of(situation, keys)
            return (card.id,) if card else ()
        if self.view is View.DEVICES and action.name != "sriov":
            return addresses(situation, keys)
        if self.view is View.KUBELET:
            return devices_of(keys)
        return tuple(key.removeprefix(VFS).removeprefix(TYPE) for key in keys)

    def plan(self, action: Action, subjects: Sequence[str], answers: Mapping[str, str]) -> None:
        """Show the plan of an action."""
        self._again = action, subjects, answers

        def made(width: int) -> Prepared:
            from vfioctl.tui.data.prepare import PREPARE  # see `situation`

            return PREPARE[action.name](self.host, subjects, answers, width)

        self.push_screen(PlanPage(f"{action.title}: {listed(subjects)}".removesuffix(": "), made), self._agreed)

    def _agreed(self, prepared: Prepared | None) -> None:
        if prepared is None or prepared.apply is None or self.change:
            return
        self.table.clear_selection()
        self.change = self.last_change = Change(prepared.title, prepared.apply)
        self.change.start(self._told)
        self.action_progress()

    # changes

    def _told(self) -> None:
        self.post_message(ChangeTold())

    def on_change_told(self) -> None:
        """Say how the change goes; read the host again when it has ended."""
        change = self.change
        if self.is_over:
            return
        if change and change.is_done:
            self.change = None
            self.feed.ask(None, self.feed.changes, *self.feed.live)
            if self._ending is not None:
                self.exit(self._ending)
            elif not isinstance(self.screen, ProgressPage):
                self.say(f"{'Failed' if change.failure else 'Done'}: {change.title}; p shows it.")
        self.draw_bars()

    @property
    def message(self) -> str:
        """The sentence above the keys: the change under way, or what is wrong."""
        if self.change:
            state = state_line(self.change.events, time.monotonic(), self.change.began)
            ends = "; then this program ends" if self._ending is not None else "; p shows it"
            return f"{self.change.title}: {state}{ends}"
        overview = self.known.overview if self.known else None
        if overview is None:
            return ""
        interrupted = [change for change in overview.unfinished if not change.under_way]
        if interrupted:
            subjects = interrupted[0].subjects
            if any(f.mark for f in overview.inventory.functions if f.address in subjects):
                return f"A change of {listed(subjects)} could not be finished: R says why."
            return f"A change of {listed(subjects)} was interrupted: R recovers it."
        return f"Nothing can be changed here: {overview.read_only}" if overview.read_only else ""

    def action_progress(self) -> None:
        """Show the change that is under way, or the last one."""
        change = self.change or self.last_change
        if change is None:
            self.say("No change was made here yet.")
            return

        def closed(result: str | None) -> None:
            if result == "again" and self._again:
                self.plan(*self._again)

        self.push_screen(ProgressPage(change, self.host.session.registry), closed)

    # the end

    async def action_quit(self) -> None:
        """End the program; ask first while a change is under way."""
        self.ask_to_quit()

    def action_help_quit(self) -> None:
        """Ctrl-C, as in other programs."""
        self.ask_to_quit()

    def ask_to_quit(self) -> None:
        """End the program; ask first while a change is under way."""
        if self.change is None:
            self.exit(0)
            return
        if isinstance(self.screen, Quit):
            return

        def answered(answer: str | None) -> None:
            if answer and self.change is None:
                self.exit(0)
            elif answer and self.change:
                self._ending = 0
                if answer == "cancel":
                    self.change.cancel()
                self.draw_bars()

        self.push_screen(Quit(self.change.title), answered)

    def follow_signals(self) -> None:
        """End when a signal asks for it; roll back the change under way first. Headless applications get none."""
        if self.is_headless:
            return
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:
                loop.add_signal_handler(number, self.end_by, int(number))

    def end_by(self, number: int) -> None:
        """End because of a signal."""
        if self.change is None:
            self.exit(number)
        else:
            self._ending = number
            self.change.cancel()
            self.draw_bars()

    def _fatal_error(self) -> None:
        """End because of a bug, which is raised again when the terminal is as it was: textual would print the values
        of all local variables."""
        self._close_messages_no_wait()

    def raise_bug(self) -> None:
        """Raise the exception that ended the application, if one did."""
        if self._exception:
            raise self._exception
