"""Toys: the use case of labelling them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tests.toy.model import LabelIntent
from vfioctl.core.change import Change, Draft
from vfioctl.errors import UnknownDevice

if TYPE_CHECKING:
    from vfioctl.core.change import Intent, Plan
    from vfioctl.session import Session


class ToyApi:
    """The toys of one host."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def plan_label(self, toys: Sequence[str], text: str) -> Plan:
        """What labelling them takes. Raises UnknownDevice."""
        return self.replan(LabelIntent(toys=tuple(toys), text=text))

    def replan(self, intent: Intent) -> Plan:
        """The plan for an intent, as the host is now. Raises UnknownDevice."""
        assert isinstance(intent, LabelIntent)
        changes = tuple(self._change(toy, intent.text) for toy in intent.toys)
        return self._session.plan(Draft(intent, changes=changes))

    def _change(self, toy: str, text: str) -> Change:
        file = f"/sys/devices/toys/{toy}/label"
        if not self._session.kernel.has(file):
            raise UnknownDevice(f"there is no toy {toy}")
        now = self._session.kernel.read(file)
        return Change(kind="label", name=file, subject=toy, before=now, after=text)
