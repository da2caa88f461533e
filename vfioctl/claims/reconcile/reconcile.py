"""The use cases of `vfioctl reconcile`: looks at the machine, compares, and fixes what is safe to fix.

May not write to the host by itself: a fix is a release, an end or a journaled plan made for the claim.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from vfioctl.claims.lifecycle.lifecycle import followers
from vfioctl.claims.lifecycle.liveness import moment_of
from vfioctl.claims.model.claim import Claim
from vfioctl.claims.model.difference import Difference, Fix, Reconciled
from vfioctl.errors import VfioctlError

if TYPE_CHECKING:
    from vfioctl.claims.lifecycle.lifecycle import Lifecycle
    from vfioctl.core.action import Progress
    from vfioctl.core.change import Plan
    from vfioctl.session import Session


class Fixed(NamedTuple):
    """A difference that was fixed, or why it could not be."""

    difference: Difference
    error: VfioctlError | None = None


class Reconciling:
    """Compares the claims of one host with the host."""

    def __init__(self, session: Session, lifecycle: Lifecycle) -> None:
        self._session, self._ledger, self._lifecycle = session, lifecycle.ledger, lifecycle

    def compare(self) -> Reconciled:
        """Return the differences between the ledger and the machine. Raises StoreDamaged."""
        from vfioctl.claims.reconcile.compare import compare
        from vfioctl.claims.reconcile.look import Look

        claims = self._ledger.claims()
        seen = Look(self._session, self._ledger, claims).seen()
        return Reconciled(compare(claims, seen), seen.unknown)

    def fix(self, differences: Sequence[Difference], *, progress: Progress | None = None) -> tuple[Fixed, ...]:
        """Fix what is safe to fix, each once, and say what could not be. CDI files are written after claims changed."""
        fixed = self._fixed([difference for difference in differences if difference.fix is not Fix.RENEW], progress)
        changed = any(repair.error is None for repair in fixed)
        files = self.compare().differences if changed else differences
        return (*fixed, *self._fixed([file for file in files if file.fix is Fix.RENEW], progress))

    def _fixed(self, differences: Iterable[Difference], progress: Progress | None) -> tuple[Fixed, ...]:
        done: dict[tuple[str, Fix], VfioctlError | None] = {}  # fixing one fixes the others of the same claim
        wanted = [difference for difference in differences if difference.fix is not Fix.NOTHING]
        for difference in wanted:
            if (difference.claim, difference.fix) not in done:
                done[difference.claim, difference.fix] = self._error_of(difference, progress)
        return tuple(Fixed(difference, done[difference.claim, difference.fix]) for difference in wanted)

    def restore(self, name: str, *, progress: Progress | None = None) -> Claim:
        """Bind again what a claim had bound, create the vGPUs that it has lost, and record this boot.

        Its devices, and the parents of its vGPUs, must be the same. Raises ClaimConflict, and what
        `BindingApi.plan_bind`, `VgpuApi.plan_create` and `Session.apply` raise; what is still wrong is reported again
        then.
        """
        claim = self._ledger.claim(name)
        session = self._lifecycle.acting_for(claim)
        plans = self.plans(claim)
        for plan in plans:
            session.apply(plan, progress=progress)
        if not plans and claim.boot_id != session.boot_id:
            return self._ledger.restored(claim.id, moment_of(session))
        return self._ledger.claim(claim.id)

    def plans(self, claim: Claim) -> tuple[Plan, ...]:
        """Return what `restore` would change. Raises what it raises before it changes anything."""
        return self._lifecycle.plans_again(claim)

    def _error_of(self, difference: Difference, progress: Progress | None) -> VfioctlError | None:
        """Fix a difference; return why it could not be."""
        try:
            if difference.fix is Fix.RESTORE:
                self.restore(difference.claim, progress=progress)
            elif difference.fix is Fix.RENEW:
                for follower in followers(self._session):
                    follower.renew(progress=progress)
            else:  # the release of a claim whose process died before any change ends it
                self._lifecycle.release(difference.claim, progress=progress)
        except VfioctlError as error:
            return error
        return None
