"""When and by whom claims are changed: whether the process that makes one still does, and what follows if it died."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from vfioctl.claims.ledger.ledger import Moment
from vfioctl.claims.model.claim import Claim, ClaimState
from vfioctl.core import caller
from vfioctl.errors import Busy, Unfinished

if TYPE_CHECKING:
    from vfioctl.claims.ledger.ledger import ClaimLedger
    from vfioctl.session import Session

_PAUSE = 0.2
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

    def made(self, key: str, request: str) -> Claim | None:
        """Return the live claim with this key once it is made; None if there is none, or its process died before.

        Raises ClaimConflict, Busy, Unfinished.
        """
        while claim := self.known(key, request):
            claim = self.awaited(claim)
            if claim.state is not ClaimState.RESERVED:
                return claim if claim.is_live else None
            self.end(claim)
        return None

    def awaited(self, claim: Claim) -> Claim:
        """Return the claim once no process makes it any more; it is still reserved if its process died before.

        Raises Busy, Unfinished.
        """
        until = time.monotonic() + self._session.lock_wait
        while (claim := self.settled(claim)).state is ClaimState.RESERVED and not self.has_died(claim):
            if time.monotonic() > until:
                raise Busy(f"process {claim.pid} is still making claim {claim.id}", hint="try again later")
            time.sleep(_PAUSE)
            claim = self._ledger.claim(claim.id)
        return claim

    def known(self, key: str, request: str) -> Claim | None:
        """Return the live claim with this key as it is now; None if there is none.

        Raises ClaimConflict if it was made for another request, Busy, Unfinished.
        """
        claim = self._ledger.keyed(key, request)
        return self.settled(claim) if claim else None

    def settled(self, claim: Claim) -> Claim:
        """Return the claim as it is when no change for it is under way.

        Raises Unfinished if a change was interrupted, for recovery decides the claim's state; Busy.
        """
        if not self._ledger.is_changing(claim.id):
            return claim
        store = self._session.store
        # under the lock, an open change is an interrupted one: no other process is working on it
        with self._session.kernel.exclusive(store.lock_file, wait=self._session.lock_wait):
            if self._ledger.is_changing(claim.id):
                raise Unfinished(
                    f"a change for claim {claim.id} was interrupted",
                    hint="finish it first",
                    next_command="vfioctl recover",
                )
        return self._ledger.claim(claim.id)

    def has_died(self, claim: Claim) -> bool:
        """Return whether a reserved claim's process died before it changed anything."""
        made_by = (claim.pid, claim.boot_id, self._session.boot_id)
        return claim.state is ClaimState.RESERVED and not runs(*made_by)

    def end(self, claim: Claim) -> Claim:
        """End a claim whose process has died before any change."""
        return self._ledger.move(
            claim.id, ClaimState.FAILED, moment_of(self._session), why="interrupted before any change"
        )
