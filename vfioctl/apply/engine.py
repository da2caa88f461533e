"""Carries a plan out: lock, facts unchanged?, journal, walk, proof; otherwise back. Recovers what was cut short.

May not write to the host but by `walk`, nor believe anything but what `proof` finds by a fresh look.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime

from vfioctl.apply.journal import Journal
from vfioctl.apply.proof import dead, prove_bindings, prove_settings, prove_viable
from vfioctl.apply.refusals import refuse_forged, refuse_stale, refuse_unfinished, refuse_unwritable
from vfioctl.apply.walk import Progress, Walk
from vfioctl.apply.wording import listed, said, stuck
from vfioctl.errors import (
    DeviceDead,
    KernelRefused,
    NotPermitted,
    StoreDamaged,
    Stuck,
    VerifyError,
    VfioctlError,
)
from vfioctl.interrupts import held_back, listen
from vfioctl.kernel.seam import Kernel
from vfioctl.model.change import Fact, JournalEntry, JournalState, Outcome, Plan, Result, Verb
from vfioctl.model.inventory import Inventory, Mark, MarkKind
from vfioctl.model.values import PciAddress
from vfioctl.plan.bind import modules_between
from vfioctl.plan.letting_go import to_finish, to_put_back
from vfioctl.plan.steps import Bindings, steps
from vfioctl.probe.bindings import read_facts
from vfioctl.probe.inventory import read_inventory
from vfioctl.probe.settings import read_again

_DEAD = "its configuration space reads as all ones: nothing answers on the bus"
_DID = {Verb.BIND: "bound", Verb.UNBIND: "unbound", Verb.RESET: "reset"}
BOOT_ID = "/proc/sys/kernel/random/boot_id"


class Engine:
    """One host and its journal. `settle`: seconds a driver may take to appear after the last write."""

    def __init__(self, kernel: Kernel, journal: Journal, *, settle: float, lock_wait: float) -> None:
        self._kernel, self._journal = kernel, journal
        self._settle, self._lock_wait = settle, lock_wait

    def apply(self, plan: Plan, progress: Progress | None = None, *, seen: Inventory | None = None) -> Outcome:
        """Does it, or leaves the host as it was. An interrupt is heard between steps, and undoes them too.

        `seen`: the inventory that the plan was made from, where there is one; another is made otherwise.

        Raises BadDocument, NotPermitted, Busy, StalePlan, Unfinished, StoreDamaged before the first write;
        DeviceInUse, KernelRefused, HostError, VerifyError when the host was put back; Stuck when it was not. When all
        is done, but not all else is as it was, VerifyError or DeviceDead says so.
        """
        began = time.monotonic()
        refuse_forged(plan)
        if plan.nothing_to_do:
            refuse_unfinished(plan, self._journal)
            refuse_stale(plan, self._kernel)
            return self._outcome(plan, Result.NOTHING, began)
        refuse_unwritable(plan, self._kernel)
        with self._kernel.exclusive(self._journal.store.lock_file, wait=self._lock_wait), held_back():
            refuse_unfinished(plan, self._journal)  # with the lock in hand: what is open now is nobody's any more
            refuse_stale(plan, self._kernel)
            entry = self._journal.begin(plan, boot_id=self.boot_id, now=_now())
            found = self._carry_out(entry, plan, self._walk(seen), progress)
            return Outcome(plan=plan, result=Result.DONE, found=found, seconds=time.monotonic() - began)

    def recover(self, *, forward: bool, progress: Progress | None = None) -> tuple[Outcome, ...]:
        """Finishes what was cut short, the newest first: back to what was, or with `forward` to what was meant.

        Raises Stuck for the first that cannot be finished, when all others are.
        """
        if not self._journal.unfinished():
            return ()
        if self._kernel.read_only:
            raise NotPermitted(self._kernel.read_only)
        with self._kernel.exclusive(self._journal.store.lock_file, wait=self._lock_wait), held_back():
            return self._finish_all(forward=forward, progress=progress)

    def _finish_all(self, *, forward: bool, progress: Progress | None) -> tuple[Outcome, ...]:
        """One that is stuck keeps no other from being finished."""
        outcomes, stuck_ones = [], []
        for entry in self._journal.unfinished():
            try:
                outcomes.append(self._finish(entry, forward=forward, progress=progress))
            except Stuck as error:
                stuck_ones.append(error)
        if not stuck_ones:
            return tuple(outcomes)
        first = stuck_ones[0]
        first.restored = "; ".join(f"{listed(outcome.plan)}: {outcome.result}" for outcome in outcomes)
        first.facts["others"] = [error.message for error in stuck_ones[1:]]
        raise first

    @property
    def boot_id(self) -> str:
        return self._kernel.read(BOOT_ID)

    def marks(self) -> Mapping[PciAddress, Mark]:
        """What the ledger says against devices in this boot."""
        return self._journal.marks(boot_id=self.boot_id)

    def _walk(self, seen: Inventory | None) -> Walk:
        inventory: list[Inventory] = [seen] if seen else []

        def look() -> Inventory:
            if not inventory:
                inventory.append(read_inventory(self._kernel, self.marks()))
            return inventory[0]

        return Walk(self._kernel, look, settle=self._settle)

    # -- the walk ----------------------------------------------------------------------------------

    def _carry_out(self, entry: int, plan: Plan, walk: Walk, progress: Progress | None) -> tuple[Fact, ...]:
        try:
            left = walk.take(plan.steps, plan.intent, progress, heed=listen)
            known = [fact.address for fact in plan.facts]
            found = prove_bindings(self._kernel, _after(plan), settle=self._settle, also=known)
            left += prove_settings(self._kernel, plan.settings, _after(plan))
            prove_viable(self._kernel, plan.viable_groups)
            listen()
        except (VfioctlError, KeyboardInterrupt) as error:
            self._put_back(entry, plan, error, progress)
            raise
        self._close_done(entry, plan, left)
        self._tell_left(plan, left)
        return tuple(found.values())

    def _close_done(self, entry: int, plan: Plan, left: list[str]) -> None:
        try:
            self._journal.end(entry, JournalState.DONE, now=_now(), why="; ".join(left))
        except StoreDamaged as error:
            error.message = f"{listed(plan)} changed as planned, but the journal could not say so: {error.message}"
            error.next_command = "vfioctl recover"
            raise

    def _tell_left(self, plan: Plan, left: list[str]) -> None:
        """The change is done and stays done; what it leaves behind is told with an exit code of its own."""
        gone = self._mark_dead(plan)
        if gone:
            raise DeviceDead(
                f"{listed(plan)} {_DID[plan.intent.verb]}, but {', '.join(gone)} is dead: {_DEAD}",
                hint="a reboot, or power off and on, may bring it back; it is marked, and kept from guests until then",
            )
        if left:
            raise VerifyError(
                f"{listed(plan)} {_DID[plan.intent.verb]}, but not all is as it was: {'; '.join(left)}",
                hint="put it back by hand",
            )

    def _mark_dead(self, plan: Plan) -> tuple[PciAddress, ...]:
        """Those that a guest, or a reset, has left dead."""
        gone = dead(self._kernel, _after(plan)) if plan.intent.verb != Verb.BIND else ()
        if gone:
            self._mark(MarkKind.DEAD, gone, _DEAD)
        return gone

    # -- the way back ------------------------------------------------------------------------------

    def _put_back(
        self, entry: int, plan: Plan, error: VfioctlError | KeyboardInterrupt, progress: Progress | None
    ) -> None:
        """Plans from what is now to what was before, and walks it; on failure the journal stays open."""
        why = said(error)
        if isinstance(error, Stuck):
            self._note(entry, JournalState.STUCK, why)
            self._mark_wedged(error)
            return
        if gone := self._mark_dead(plan):
            why = f"{why}; {', '.join(gone)} is dead: {_DEAD}"
            if isinstance(error, VfioctlError):
                error.message = why
        try:
            left = self._go_to(plan, _before(plan), progress)
        except VfioctlError as second:
            self._note(entry, JournalState.STUCK, f"{why}; then, going back: {second.message}")
            self._mark_wedged(second)
            raise stuck(f"{why}; and going back failed: {second.message}", second, error) from error
        noted = self._note(entry, JournalState.BACK, why)
        restored = "; ".join([f"{listed(plan)} put back as before", *(f"but {text}" for text in left)])
        error.restored = restored if noted else f"{restored}; the journal could not say so: vfioctl recover"  # type: ignore[union-attr]

    def _note(self, entry: int, state: JournalState, why: str) -> bool:
        """Whether the journal took it. A full disk must not hide what happened to the host."""
        try:
            self._journal.end(entry, state, now=_now(), why=why)
        except StoreDamaged:
            return False
        return True

    def _mark_wedged(self, error: VfioctlError) -> None:
        address, ticket = error.facts.get("address"), error.facts.get("ticket")
        if isinstance(error, Stuck) and address and ticket:
            self._mark(MarkKind.WEDGED, [PciAddress(str(address))], error.message, str(ticket))

    def _mark(self, kind: MarkKind, addresses: Iterable[PciAddress], why: str, ticket: str = "") -> None:
        marks = [Mark(address=address, kind=kind, since=_now(), why=why, ticket=ticket) for address in addresses]
        with suppress(StoreDamaged):
            self._journal.mark(marks, boot_id=self.boot_id)

    def _go_to(
        self, plan: Plan, goals: Bindings, progress: Progress | None, *, forward: bool = False
    ) -> list[str]:
        """From what is now to the goals, the plan's settings with them; what could not be put back."""
        now = {address: fact.binding for address, fact in read_facts(self._kernel, goals).items()}
        if gone := [address for address in goals if address not in now]:
            raise Stuck(f"{', '.join(gone)} has gone from the PCI bus", hint="rescan the bus, then recover")
        values = read_again(self._kernel, plan.settings) if plan.settings else {}
        settings = to_finish(plan.settings, values) if forward else to_put_back(plan.settings, values)
        inventory = read_inventory(self._kernel, self.marks())
        reset = plan.reset if forward else None
        todo = steps(now, goals, modules_between(inventory, now, goals), settings=settings, reset=reset)
        left = self._walk(inventory).take(todo, plan.intent, progress, heed=_deaf)
        prove_bindings(self._kernel, goals, settle=self._settle)
        return left + prove_settings(self._kernel, settings, goals)

    # -- recovery ----------------------------------------------------------------------------------

    def _finish(self, entry: JournalEntry, *, forward: bool, progress: Progress | None) -> Outcome:
        began, plan = time.monotonic(), entry.plan
        if entry.boot_id != self.boot_id:
            self._journal.end(entry, JournalState.REBOOTED, now=_now(), why=entry.why)
            self._journal.unmark(_after(plan), boot_id=self.boot_id)
            return self._outcome(plan, Result.REBOOTED, began)
        self._refuse_wedged(plan)
        done = forward or self._is_done(plan)
        goals, state, result = _before(plan), JournalState.BACK, Result.BACK
        if done:
            goals, state, result = _after(plan), JournalState.DONE, Result.DONE
        try:
            left = self._go_to(plan, goals, progress, forward=done)
            if done:
                prove_viable(self._kernel, plan.viable_groups)
        except VfioctlError as error:
            why = "; then, in recovery: ".join(filter(None, (entry.why, error.message)))
            self._note(entry.id, JournalState.STUCK, why)
            self._mark_wedged(error)
            raise stuck(f"the change of {listed(plan)} could not be finished: {error.message}", error) from error
        self._journal.end(entry, state, now=_now(), why="; ".join(filter(None, (entry.why, *left))))
        self._mark_dead(plan)
        self._journal.unmark(_after(plan), boot_id=self.boot_id)
        return self._outcome(plan, result, began)

    def _refuse_wedged(self, plan: Plan) -> None:
        """While a write that was given up is still in the kernel, reading the device would block too."""
        for mark in self.marks().values():
            concerned = mark.kind == MarkKind.WEDGED and mark.address in _after(plan)
            if concerned and self._kernel.write_ended(mark.ticket) is None:
                raise Stuck(
                    f"{mark.address} is still wedged: {mark.why}",
                    hint="the write is still under way; it ends when what holds the device lets go, or at a reboot",
                    next_command=f"vfioctl holders {mark.address}",
                    facts={"ticket": mark.ticket},
                )

    def _is_done(self, plan: Plan) -> bool:
        """Whether only the last word in the journal was missing."""
        if plan.reset:
            return False  # whether it was reset, no fact tells
        after = _after(plan)
        found = read_facts(self._kernel, after)
        if not all(a in found and found[a].binding.meets(goal) for a, goal in after.items()):
            return False
        try:
            prove_viable(self._kernel, plan.viable_groups)
        except (VerifyError, KernelRefused):
            return False  # a guest could not have it, so it is no success, and there must be a way back
        return True

    def _outcome(self, plan: Plan, result: Result, began: float) -> Outcome:
        found = read_facts(self._kernel, [fact.address for fact in plan.facts])
        return Outcome(plan=plan, result=result, found=tuple(found.values()), seconds=time.monotonic() - began)


def _after(plan: Plan) -> Bindings:
    return {change.address: change.after for change in plan.changes}


def _before(plan: Plan) -> Bindings:
    return {change.address: change.before for change in plan.changes}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _deaf() -> None:
    """Going back is not to be interrupted."""
