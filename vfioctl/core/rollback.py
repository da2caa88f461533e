"""The way back: from whatever a host is now to what it was, and the last word on it in the journal.

Going back is planning again, with what was before as the goal, so it works from any half-done state and in another
process. May not write to the host but by `walk`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime

from vfioctl.binding.plan.bind import modules_between
from vfioctl.binding.plan.release import to_finish, to_put_back
from vfioctl.binding.plan.steps import Bindings, steps
from vfioctl.binding.probe.settings import read_again
from vfioctl.core.change import JournalState, Plan, Verb
from vfioctl.core.executor import Executor, Progress
from vfioctl.core.journal import Journal
from vfioctl.core.messages import listed, said, stuck
from vfioctl.core.setting import SettingKind
from vfioctl.core.snapshot import BOOT_ID
from vfioctl.core.verify import dead, verify_bindings, verify_settings
from vfioctl.errors import StoreDamaged, Stuck, VfioctlError
from vfioctl.inventory.model.functions import Inventory, Mark, MarkKind
from vfioctl.inventory.model.values import PciAddress, Subject, subject
from vfioctl.inventory.probe.facts import read_facts
from vfioctl.inventory.probe.inventory import read_inventory
from vfioctl.kernel.protocol import Kernel

_OF_A_VGPU = (SettingKind.MDEV, SettingKind.VGPU_TYPE, SettingKind.PARAMETER)
DEAD = "its configuration space reads as all ones: nothing answers on the bus"


class Rollback:
    """Of one host and its journal. `settle`: seconds a driver may take to appear after the last write."""

    def __init__(self, kernel: Kernel, journal: Journal, *, settle: float) -> None:
        self._kernel, self._journal, self._settle = kernel, journal, settle

    @property
    def boot_id(self) -> str:
        return self._kernel.read(BOOT_ID)

    def marks(self) -> Mapping[Subject, Mark]:
        """What the ledger says against devices in this boot."""
        return self._journal.marks(boot_id=self.boot_id)

    def walk(self, seen: Inventory | None) -> Executor:
        inventory: list[Inventory] = [seen] if seen else []

        def look() -> Inventory:
            if not inventory:
                inventory.append(read_inventory(self._kernel, self.marks()))
            return inventory[0]

        return Executor(self._kernel, look, settle=self._settle)

    def mark_dead(self, plan: Plan) -> tuple[PciAddress, ...]:
        """Those that a guest, or a reset, has left dead."""
        gone = dead(self._kernel, after(plan)) if plan.intent.verb in (Verb.UNBIND, Verb.RESET) else ()
        if gone:
            self._mark(MarkKind.DEAD, gone, DEAD)
        return gone

    def put_back(
        self,
        entry: int,
        plan: Plan,
        error: VfioctlError | KeyboardInterrupt,
        progress: Progress | None,
        *,
        spare: Collection[Subject],
        written: Collection[tuple[SettingKind, str]] = (),
    ) -> None:
        """Plans from what is now to what was before, and walks it; on failure the journal stays open.

        `spare`: vGPUs that were not come to, or that the kernel refused. Whatever is there now in their place, or is
        not there any more, is somebody else's doing. `written`: see `to_put_back`.
        """
        why = said(error)
        if isinstance(error, Stuck):
            self.note(entry, JournalState.STUCK, why)
            self.mark_wedged(error)
            return
        if gone := self.mark_dead(plan):
            why = f"{why}; {', '.join(gone)} is dead: {DEAD}"
            if isinstance(error, VfioctlError):
                error.message = why
        try:
            left = self.go_to(plan, before(plan), progress, spare=spare, written=written)
        except VfioctlError as second:
            self.note(entry, JournalState.STUCK, f"{why}; then, going back: {second.message}")
            self.mark_wedged(second)
            raise stuck(f"{why}; and going back failed: {second.message}", second, error) from error
        noted = self.note(entry, JournalState.BACK, why)
        restored = "; ".join([f"{listed(plan)} put back as before", *(f"but {text}" for text in left)])
        error.restored = restored if noted else f"{restored}; the journal could not say so: vfioctl recover"  # type: ignore[union-attr]

    def note(self, entry: int, state: JournalState, why: str) -> bool:
        """Whether the journal took it. A full disk must not hide what happened to the host."""
        try:
            self._journal.end(entry, state, now=now(), why=why)
        except StoreDamaged:
            return False
        return True

    def mark_wedged(self, error: VfioctlError) -> None:
        address, ticket = error.facts.get("address"), error.facts.get("ticket")
        if isinstance(error, Stuck) and address and ticket:
            self._mark(MarkKind.WEDGED, [subject(str(address))], error.message, str(ticket))

    def _mark(self, kind: MarkKind, addresses: Iterable[Subject], why: str, ticket: str = "") -> None:
        marks = [Mark(address=address, kind=kind, since=now(), why=why, ticket=ticket) for address in addresses]
        with suppress(StoreDamaged):
            self._journal.mark(marks, boot_id=self.boot_id)

    def go_to(
        self,
        plan: Plan,
        goals: Bindings,
        progress: Progress | None,
        *,
        forward: bool = False,
        rebooted: bool = False,
        spare: Collection[Subject] = (),
        written: Collection[tuple[SettingKind, str]] = (),
    ) -> list[str]:
        """From what is now to the goals, the plan's settings with them; what could not be put back.

        `rebooted`: there has been a boot since, which only the files below /etc have outlived.
        """
        bound = {address: fact.binding for address, fact in read_facts(self._kernel, goals).items()}
        if gone := [address for address in goals if address not in bound]:
            raise Stuck(f"{', '.join(gone)} has gone from the PCI bus", hint="rescan the bus, then recover")
        planned = [s for s in plan.settings if s.address not in spare or s.kind not in _OF_A_VGPU]
        if rebooted:
            planned = [setting for setting in planned if setting.kind == SettingKind.KEPT]
        values = read_again(self._kernel, planned) if planned else {}
        settings = to_finish(planned, values) if forward else to_put_back(planned, values, written)
        inventory = read_inventory(self._kernel, self.marks()) if goals else None
        modules = modules_between(inventory, bound, goals) if inventory else ()
        todo = steps(bound, goals, modules, settings=settings, reset=plan.reset if forward else None)
        left = self.walk(inventory).take(todo, plan.intent, progress, check_interrupt=_deaf)
        verify_bindings(self._kernel, goals, settle=self._settle)
        return left + verify_settings(self._kernel, settings, goals)


def after(plan: Plan) -> Bindings:
    """To what each function is to be bound; with one whose VFs a tool of NVIDIA's changes: to what it was."""
    return {**_lasting(plan), **{change.address: change.after for change in plan.changes}}


def before(plan: Plan) -> Bindings:
    """To what each function was bound."""
    return {**_lasting(plan), **{change.address: change.before for change in plan.changes}}


def _lasting(plan: Plan) -> Bindings:
    managed = {setting.address for setting in plan.settings if setting.kind == SettingKind.NVIDIA_VFS}
    return {fact.address: fact.binding for fact in plan.facts if fact.address in managed}


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _deaf() -> None:
    """Going back is not to be interrupted."""
