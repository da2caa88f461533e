"""Carries a plan out: lock, facts unchanged?, journal, walk, proof; otherwise back. Recovers what was cut short.

May not write to the host but by `walk`, nor believe anything but what `proof` finds by a fresh look.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from vfioctl.core.change import JournalState, Left, Outcome, Plan, Result, Step, Verb
from vfioctl.core.conflicts import conflict
from vfioctl.core.executor import Executor, Progress
from vfioctl.core.journal import NO_NAMES, Journal
from vfioctl.core.messages import listed
from vfioctl.core.preconditions import refuse_foreign, refuse_forged, refuse_stale, refuse_unfinished, refuse_unwritable
from vfioctl.core.recovery import Recovery, outcome_of
from vfioctl.core.rollback import DEAD, Rollback, after, now
from vfioctl.core.setting import VF_COUNTS, SettingKind
from vfioctl.core.snapshot import LedgerSnapshot, Names
from vfioctl.core.verify import verify_bindings, verify_settings, verify_vgpus, verify_viable
from vfioctl.errors import (
    DeviceDead,
    NotPermitted,
    StoreDamaged,
    VerifyError,
    VfioctlError,
)
from vfioctl.inventory.model.functions import Inventory, Mark
from vfioctl.inventory.model.values import Subject
from vfioctl.inventory.probe.inventory import wedged
from vfioctl.kernel.protocol import Kernel
from vfioctl.signals import held_back, listen
from vfioctl.vgpu.model.vgpu import Vgpu
from vfioctl.vgpu.plan.steps import untouched, written

_DID = {
    Verb.BIND: "bound",
    Verb.UNBIND: "unbound",
    Verb.RESET: "reset",
    Verb.CREATE: "made",
    Verb.REMOVE: "removed",
    Verb.SRIOV: "changed",
    Verb.PROFILE: "changed",
}


class Engine:
    """One host and its journal. `settle`: seconds a driver may take to appear after the last write."""

    def __init__(self, kernel: Kernel, journal: Journal, *, settle: float, lock_wait: float) -> None:
        self._kernel, self._journal = kernel, journal
        self._settle, self._lock_wait = settle, lock_wait
        self._way = Rollback(kernel, journal, settle=settle)

    def apply(
        self,
        plan: Plan,
        progress: Progress | None = None,
        *,
        seen: Inventory | None = None,
        names: Names = NO_NAMES,
    ) -> Outcome:
        """Does it, or leaves the host as it was. An interrupt is heard between steps, and undoes them too.

        `seen`: the inventory that the plan was made from, where there is one; another is made otherwise. `names`: what
        the types of vGPUs are called, to be remembered.

        Raises BadDocument, NotPermitted, Busy, StalePlan, Unfinished, StoreDamaged before the first write;
        DeviceInUse, KernelRefused, NoCapacity, HostError, VerifyError when the host was put back; Stuck when it was
        not. When all is done, but not all else is as it was, VerifyError or DeviceDead says so.
        """
        began = time.monotonic()
        refuse_forged(plan)
        if plan.nothing_to_do:
            refuse_unfinished(plan, self._journal, self._kernel)
            refuse_stale(plan, self._kernel)
            return outcome_of(self._kernel, plan, Result.NOTHING, began)
        refuse_unwritable(plan, self._kernel)
        store = self._journal.store
        with self._kernel.exclusive(store.lock_file, wait=self._lock_wait), held_back(), store.kept_open():
            # with the lock in hand: what is open now is nobody's any more
            refuse_unfinished(plan, self._journal, self._kernel)
            refuse_stale(plan, self._kernel)
            refuse_foreign(plan, LedgerSnapshot(store, boot_id=self.boot_id))
            entry = self._journal.begin(plan, boot_id=self.boot_id, now=now(), names=names)
            outcome = self._carry_out(entry, plan, self._way.walk(seen), progress, names)
            return outcome.model_copy(update={"seconds": time.monotonic() - began})

    def recover(
        self, *, forward: bool, progress: Progress | None = None, of_this_boot: bool = True
    ) -> tuple[Outcome, ...]:
        """Finishes what was cut short, the newest first: back to what was, or with `forward` to what was meant.

        Without `of_this_boot` only what a reboot has cut short.

        Raises Stuck for the first that cannot be finished, when all others are.
        """
        if not self._journal.unfinished():
            return ()
        if self._kernel.read_only:
            raise NotPermitted(self._kernel.read_only)
        with self._kernel.exclusive(self._journal.store.lock_file, wait=self._lock_wait), held_back():
            return Recovery(self._kernel, self._journal, self._way).finish_all(
                forward=forward, progress=progress, of_this_boot=of_this_boot
            )

    @property
    def boot_id(self) -> str:
        return self._way.boot_id

    def marks(self) -> Mapping[Subject, Mark]:
        """What the ledger says against devices in this boot."""
        return self._way.marks()

    # -- the walk ----------------------------------------------------------------------------------

    def _carry_out(self, entry: int, plan: Plan, walk: Executor, progress: Progress | None, names: Names) -> Outcome:
        try:
            left = walk.take(plan.steps, plan.intent, self._noting(entry, plan, progress), check_interrupt=listen)
            known = [fact.address for fact in plan.facts]
            found = verify_bindings(self._kernel, after(plan), settle=self._settle, also=known)
            left += verify_settings(self._kernel, plan.settings, after(plan))
            verify_viable(self._kernel, plan.viable_groups)
            vgpus, room = self._vgpus(plan, names)
            listen()
        except (VfioctlError, KeyboardInterrupt) as error:
            self._way.put_back(
                entry,
                plan,
                error,
                progress,
                spare=untouched(plan, walk.reached),
                written=written(plan, walk.reached),
            )
            if isinstance(error, VerifyError):
                error.kernel_said = error.kernel_said or walk.said
            if owed := conflict(self._kernel, plan, error, wedged(self.marks())):
                raise owed from error
            raise
        self._close_done(entry, plan, left)
        self._tell_left(plan, left)
        return Outcome(plan=plan, result=Result.DONE, found=tuple(found.values()), vgpus=vgpus, left=room)

    def _noting(self, entry: int, plan: Plan, progress: Progress | None) -> Progress | None:
        """Notes how far it comes where somebody else's vGPU could be in the place of one that was not made yet.

        An mdev's name is nobody else's; a VF's type may be.
        """
        if not any(setting.kind == SettingKind.VGPU_TYPE for setting in plan.settings):
            return progress

        def noting(step: Step, number: int, total: int) -> None:
            self._journal.reach(entry, number)
            if progress:
                progress(step, number, total)

        return noting

    def _vgpus(self, plan: Plan, names: Names) -> tuple[tuple[Vgpu, ...], tuple[Left, ...]]:
        if not any(setting.makes or setting.kind in VF_COUNTS for setting in plan.settings):
            return (), ()
        return verify_vgpus(self._kernel, plan, settle=self._settle, names=names, suspects=wedged(self.marks()))

    def _close_done(self, entry: int, plan: Plan, left: list[str]) -> None:
        try:
            self._journal.end(entry, JournalState.DONE, now=now(), why="; ".join(left), plan=plan)
        except StoreDamaged as error:
            error.message = f"{listed(plan)} changed as planned, but the journal could not say so: {error.message}"
            error.next_command = "vfioctl recover"
            raise

    def _tell_left(self, plan: Plan, left: list[str]) -> None:
        """The change is done and stays done; what it leaves behind is told with an exit code of its own."""
        gone = self._way.mark_dead(plan)
        if gone:
            raise DeviceDead(
                f"{listed(plan)} {_DID[plan.intent.verb]}, but {', '.join(gone)} is dead: {DEAD}",
                hint="a reboot, or power off and on, may bring it back; it is marked, and kept from guests until then",
            )
        if left:
            raise VerifyError(
                f"{listed(plan)} {_DID[plan.intent.verb]}, but not all is as it was: {'; '.join(left)}",
                hint="put it back by hand",
            )
