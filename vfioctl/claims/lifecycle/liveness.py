"""Whether the process that makes a claim still does, and which claims are stale. May not write to the host."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from vfioctl.claims.ledger.ledger import Moment
from vfioctl.claims.model.claim import Claim, ClaimState, Stale
from vfioctl.core import caller
from vfioctl.core.events import Cancel, check_stop
from vfioctl.errors import Busy, Unfinished

if TYPE_CHECKING:
    from vfioctl.claims.ledger.ledger import ClaimLedger
    from vfioctl.kernel.protocol import Reader
    from vfioctl.session import Session

_PAUSE = 0.05
"""Seconds between two looks."""


def moment_of(session: Session) -> Moment:
    """Return now, this boot and this process."""
    return Moment(now(), session.boot_id, caller.this_process())


def now() -> str:
    """Return the time, as claims have it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def after(begin: str, seconds: float | None) -> str | None:
    """Return the time after that number of seconds; None for never."""
    if seconds is None:
        return None
    return (datetime.fromisoformat(begin) + timedelta(seconds=seconds)).isoformat(timespec="milliseconds")


def runs(pid: int | None, then: str, boot_id: str) -> bool:
    """Return whether a process of the boot `then` still runs in this one."""
    return then == boot_id and pid is not None and caller.is_running(pid)


class Liveness:
    """The processes that make the claims of one ledger. They are waited for as long as for the host's lock."""

    def __init__(self, session: Session, ledger: ClaimLedger) -> None:
        self._session, self._ledger = session, ledger

    def made(self, key: str, request: str, cancel: Cancel | None = None) -> Claim | None:
        """Return the live claim with this key once it is made; None if there is none, or its process died before.
        Raises ClaimConflict, Busy, Unfinished, Cancelled."""
        while claim := self.known(key, request, cancel):
            claim = self.awaited(claim, cancel)
            if claim.state is not ClaimState.RESERVED:
                return claim if claim.is_live else None
            self.end(claim)
        return None

    def awaited(self, claim: Claim, cancel: Cancel | None = None) -> Claim:
        """Return the claim once no process makes it; still reserved if its process died. Raises Busy, Unfinished,
        Cancelled."""
        until = time.monotonic() + self._session.lock_wait
        while (claim := self.settled(claim, cancel)).state is ClaimState.RESERVED and not self.has_died(claim):
            if time.monotonic() > until:
                raise Busy(f"process {claim.pid} is still making claim {claim.id}", hint="try again later")
            check_stop(cancel)
            time.sleep(_PAUSE)
            claim = self._ledger.claim(claim.id)
        return claim

    def known(self, key: str, request: str, cancel: Cancel | None = None) -> Claim | None:
        """Return the live claim with this key, if any. Raises Busy, Unfinished; ClaimConflict if of another request."""
        claim = self._ledger.keyed(key, request)
        return self.settled(claim, cancel) if claim else None

    def settled(self, claim: Claim, cancel: Cancel | None = None) -> Claim:
        """Return the claim as it is when no change for it is under way.
        Raises Unfinished if a change was interrupted, for recovery decides the claim's state; Busy, Cancelled."""
        if not self._ledger.is_changing(claim.id):
            return claim
        store = self._session.store
        # under the lock, an open change is an interrupted one: no other process is working on it
        check = partial(check_stop, cancel)
        with self._session.kernel.exclusive(store.lock_file, wait=self._session.lock_wait, check=check):
            if self._ledger.is_changing(claim.id):
                words = f"a change for claim {claim.id} was interrupted"
                raise Unfinished(words, hint="finish it first", next_command="vfioctl recover")
        return self._ledger.claim(claim.id)

    def has_died(self, claim: Claim) -> bool:
        """Return whether a reserved claim's process died before it changed anything."""
        return claim.state is ClaimState.RESERVED and not runs(claim.pid, claim.boot_id, self._session.boot_id)

    def end(self, claim: Claim) -> Claim:
        """End a claim whose process has died before any change."""
        why = "interrupted before any change"
        return self._ledger.move(claim.id, ClaimState.FAILED, moment_of(self._session), why=why)


GRACE = timedelta(minutes=10)
"""An owner may not have started yet: a claim is made before its VM or container."""
_DOMAINS = ("/etc/libvirt/qemu", "/run/libvirt/qemu")
"""Where libvirt keeps the definitions of domains, and those that run."""


def stale_claims(session: Session, claims: Sequence[Claim], ledger: ClaimLedger) -> Stale:
    """Return the claims that are stale: their term is over, the process that made them is gone, or their owner is.
    Only what is cheap and certain: a listing asks. Who is gone by libvirt or a container runtime is told by
    `vfioctl reconcile`. Which processes run is not known of a host that reports no boot id."""
    from vfioctl.claims.model.difference import DifferenceKind

    kernel, time, boot_id = session.kernel, now(), session.known_boot_id
    stale: dict[str, tuple[DifferenceKind, str]] = {}
    perhaps_gone = []
    for claim in claims:
        if not claim.is_live:
            continue
        if boot_id and claim.state is ClaimState.RESERVED and not runs(claim.pid, claim.boot_id, boot_id):
            stale[claim.id] = DifferenceKind.PROCESS_GONE, "the process that was making it has ended"
        elif boot_id and claim.state is ClaimState.RELEASING and not _is_released(claim, boot_id, ledger):
            stale[claim.id] = DifferenceKind.PROCESS_GONE, "the process that was releasing it has ended"
        elif claim.expires and claim.expires <= time:
            stale[claim.id] = DifferenceKind.EXPIRED, "its term is over"
        elif claim.state is ClaimState.HELD and claim.owner.kind == "vm" and is_settled(claim, time):
            perhaps_gone.append(claim)
    guests = _guests(kernel) if perhaps_gone else None
    if guests is None:
        return stale
    for claim in perhaps_gone:
        if claim.owner.name not in guests and not any(kernel.has(f"{at}/{claim.owner.name}.xml") for at in _DOMAINS):
            words = f"no guest {claim.owner.name} runs, and libvirt has no such domain"
            stale[claim.id] = DifferenceKind.OWNER_GONE, words
    return stale


def _is_released(claim: Claim, boot_id: str, ledger: ClaimLedger) -> bool:
    """Return whether the process that began to release a claim still runs."""
    last = ledger.events(claim=claim.id)[-1]
    return runs(last.pid, last.boot_id, boot_id)


def is_settled(claim: Claim, now: str) -> bool:
    """Return whether the owner has had time to start."""
    return datetime.fromisoformat(now) - datetime.fromisoformat(claim.since) > GRACE


def _guests(kernel: Reader) -> frozenset[str] | None:
    """Return the names of running guests; None if not all processes can be seen.
    Also names of guests that no other command believes: any user can give a process one, and no claim is lost by it."""
    from vfioctl.errors import KernelRefused
    from vfioctl.inventory.api import guest_name, hidden, is_vmm
    from vfioctl.kernel.lenient import text_of

    try:
        names = kernel.texts_below("/proc", "comm").texts
    except KernelRefused:
        return None
    names = {pid: name for pid, name in names.items() if pid.isdecimal()}
    if kernel.processes_unknown or hidden(kernel, names):
        return None
    guests = (pid for pid, name in names.items() if is_vmm(name))
    return frozenset(name for pid in guests if (name := guest_name(text_of(kernel, f"/proc/{pid}/cmdline"))))
