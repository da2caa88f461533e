"""The use cases of access to device nodes: plan it, set it, compare it. Writes to the host only through a plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from vfioctl.access.model.record import FILE, PERMISSIONS, node_of
from vfioctl.claims.api import ClaimsApi
from vfioctl.claims.model.access import ACCESS, Access, labelled_access
from vfioctl.claims.model.claim import Claim, ClaimState
from vfioctl.errors import StalePlan, VfioctlError
from vfioctl.kernel.host_paths import ACCESS_RUN
from vfioctl.kernel.lenient import names_in, permissions_of

if TYPE_CHECKING:
    from vfioctl.claims.model.difference import Difference
    from vfioctl.core.change import Change, Outcome, Plan
    from vfioctl.core.events import Cancel, Progress
    from vfioctl.inventory.model.functions import Inventory
    from vfioctl.session import Session
    from vfioctl.vgpu.model.vgpu import Vgpu


class AccessApi:
    """Who may open the device nodes of claims. See `vfioctl.claims.lifecycle.lifecycle.Follower`."""

    def __init__(self, session: Session) -> None:
        self._session, self._kernel, self._claims = session, session.kernel, ClaimsApi(session)

    def follow(self) -> str:
        """Give the access that claims name now, and take all other back; return why that failed."""
        try:
            self.renew()
        except VfioctlError as error:
            return f"who may open the device nodes was not set: {error.message}"
        return ""

    def differences(self, inventory: Inventory, mdevs: Sequence[Vgpu]) -> Iterator[Difference]:
        """Yield the nodes that somebody may open who may not, or may not open who may."""
        if self._session.reads_published and self._claims.hides_labels(self._claims.claims()):
            return
        claims, given = self._naming(), self._given()
        if not claims and not given:
            return
        from vfioctl.claims.model.difference import Difference, DifferenceKind, Fix

        subjects = {str(f.address): (f.vfio_group, f.vfio_cdev) for f in inventory.functions}
        subjects |= {str(vgpu.id): (vgpu.vfio_group, vgpu.vfio_cdev) for vgpu in mdevs}
        nodes = {node: claim for claim in claims for d in claim.devices for node in subjects.get(d.subject, ()) if node}
        for change in self._changes({node: _access(claim) for node, claim in nodes.items()}, given):
            if change.kind == PERMISSIONS:
                claim = nodes.get(change.name)
                words = f"{change.name} has the permissions {change.before}, and should have {change.after}"
                named = {"claim": claim.id, "owner": claim.owner} if claim else {}
                yield Difference(DifferenceKind.ACCESS, words, "vfioctl reconcile --fix", fix=Fix.RENEW, **named)

    def renew(self, *, progress: Progress | None = None, cancel: Cancel | None = None) -> Outcome | None:
        """Set what differs. Raises what `plan` and `Session.apply` raise."""
        for last in (False, False, True):
            plan = self.plan()
            if plan is None:
                return None
            try:
                return self._session.apply(plan, progress=progress, cancel=cancel)
            except StalePlan:  # udev has just handled a new node
                if last:
                    raise
        return None

    def plan(self) -> Plan | None:
        """Plan what differs from the claims; None if nothing does. Raises BadSpec, StoreDamaged."""
        claims, given = self._naming(), self._given()
        if not claims and not given:
            return None
        wanted = {
            node: _access(claim)
            for claim in claims
            for nodes in self._claims.nodes(claim).values()
            for node in nodes
            if node
        }
        changes = tuple(self._changes(wanted, given))
        if not changes:
            return None
        from vfioctl.access.model.intents import AccessIntent
        from vfioctl.core.change import Draft

        return self._session.registry.plan(Draft(AccessIntent(), changes=changes))

    def _naming(self) -> list[Claim]:
        """Return the claims that name a user or a group."""
        return [claim for claim in self._claims.labelled(ACCESS) if claim.state is ClaimState.HELD]

    def _changes(self, wanted: Mapping[str, Access], given: Mapping[str, str]) -> Iterator[Change]:
        from vfioctl.access.plan.permissions import changes

        nodes = {*wanted, *map(node_of, given)}
        now = {node: text for node in nodes if (text := permissions_of(self._kernel, node))}
        return changes(wanted, given, now)

    def _given(self) -> Mapping[str, str]:
        """Return the text of each note, by its name."""
        files = {name: f"{ACCESS_RUN}/{name}" for name in names_in(self._kernel, ACCESS_RUN)}
        return {name: self._kernel.read(file) for name, file in files.items() if FILE.fullmatch(file)}


def _access(claim: Claim) -> Access:
    return labelled_access(claim.labels[ACCESS])
