"""The claims that a domain holds while it runs: made before it starts, given back when it has ended. A claim that its
owner made before, with `vfioctl claim create --owner vm/NAME`, serves the domain too, and stays. One left because its
end was not reported is used if the domain still needs all of it. Changes nothing itself: each change is a claim's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from vfioctl.claims.api import ClaimsApi
from vfioctl.claims.model.claim import LABEL, Claim, ClaimState
from vfioctl.domain.document.needs import is_owner
from vfioctl.domain.model.libvirt import known_as
from vfioctl.errors import Busy, Cancelled, ClaimConflict, VerifyError, VfioctlError
from vfioctl.inventory.model.values import PciAddress
from vfioctl.placement.model.claims import Hugepages

if TYPE_CHECKING:
    from vfioctl.core.change import Plan
    from vfioctl.core.events import Cancel, Progress
    from vfioctl.domain.document.needs import Needs
    from vfioctl.placement.model.request import ClaimRequest
    from vfioctl.session import Session

_MDEVS = "/sys/bus/mdev/devices"
_CLOSING_SECONDS = 10.0
"""How long QEMU's descriptors may take to be closed after it has ended."""


class Held(NamedTuple):
    """The claims that a domain holds: those that were there before, and those that were made for it."""

    kept: tuple[Claim, ...] = ()
    made: tuple[Claim, ...] = ()


class RunClaims:
    """The claims of the domains of one libvirt."""

    def __init__(self, session: Session, uri: str) -> None:
        self._session, self._uri, self._claims = session, known_as(uri), ClaimsApi(session)

    def of(self, needs: Needs) -> tuple[Claim, ...]:
        """Return the live claims of a domain, but not those of a domain of its name at another libvirt."""
        claims = self._claims.claims() if is_owner(needs.name) else ()
        return tuple(claim for claim in claims if claim.is_of(needs.owner, self._uri))

    def made_for(self, needs: Needs) -> tuple[Claim, ...]:
        """Return those of them that were made for the time that the domain runs."""
        return tuple(claim for claim in self.of(needs) if LABEL in claim.labels)

    def serving(self, needs: Needs) -> tuple[Claim, ...]:
        """Return those of its claims that serve it when it starts."""
        return tuple(claim for claim in self.of(needs) if LABEL not in claim.labels or _is_needed(claim, needs))

    def over(self, needs: Needs) -> tuple[Claim, ...]:
        """Return the claims of runs that are over when the domain starts: its own, if it no longer needs all that they
        have; those of another boot that have what it needs, but its own are restored if vfioctl defined it."""
        boot_id = self._claims.boot_id
        made = (claim for claim in self._claims.claims() if LABEL in claim.labels)
        return tuple(claim for claim in made if self._is_over(claim, needs, boot_id))

    def _is_over(self, claim: Claim, needs: Needs, boot_id: str) -> bool:
        is_own = claim.is_of(f"vm/{needs.name}", self._uri)
        if is_own and not _is_needed(claim, needs):
            return True
        return not (is_own and needs.ours) and claim.boot_id != boot_id and _meets(claim, needs)

    def preview_release(self, needs: Needs) -> Iterator[tuple[Claim, Plan | None]]:
        """Yield what `end_over` would release, each with the plan that puts its devices back, if one has to be."""
        for claim in self.over(needs):
            with suppress(VfioctlError):
                yield claim, self._claims.preview_release(claim)

    def end_over(self, needs: Needs) -> None:
        """Release them, except those with a device that is in use all the same."""
        for claim in self.over(needs):
            with suppress(VfioctlError):  # the claim is there to be seen
                self._claims.release(claim.id)

    def missing(self, needs: Needs) -> ClaimRequest | None:
        """Return a request for what the owner's claims lack, or None. Raises BadSpec if no owner can have the name."""
        from vfioctl.placement.model.request import ClaimRequest

        if not needs.is_anything:
            return None
        kept = self.serving(needs)
        devices = {device.subject for claim in kept for device in claim.devices}
        cpus = {cpu for claim in kept for cpu in claim.cpus}
        request = ClaimRequest(
            owner=needs.owner,
            devices=tuple(device for device in needs.bound if device not in devices),
            exact_cpus=tuple(cpu for cpu in needs.cpus if cpu not in cpus),
            exact_hugepages=_without(needs.hugepages, [reserved for claim in kept for reserved in claim.hugepages]),
            labels={LABEL: self._uri},
        )
        return request if request.devices or request.exact_cpus or request.exact_hugepages else None

    def preview_restore(self, serving: Sequence[Claim], needs: Needs) -> Iterator[Plan]:
        """Yield the plans that bind again what claims that serve had bound. Raises ClaimConflict, DeviceInUse."""
        for claim in _to_restore(serving, needs):
            yield from self._claims.reconciling.plans(claim)

    def take(self, needs: Needs, *, progress: Progress | None = None, cancel: Cancel | None = None) -> Held:
        """Claim what a domain needs, bind it, and verify that; or take nothing. Raises ClaimConflict with the owner,
        DeviceInUse with the holders, NoCapacity, VerifyError, and what `ClaimsApi.create` raises."""
        self.end_over(needs)
        serving, made = self.serving(needs), list[Claim]()
        for claim in _to_restore(serving, needs):
            self._claims.reconciling.restore(claim.id, progress=progress, cancel=cancel)
        try:
            if request := self.missing(needs):
                made.append(self._create(request, needs, progress, cancel))
            made += self.adopt(needs, needs.managed)
            self._verify(needs)
        except (VfioctlError, KeyboardInterrupt):
            with suppress(VfioctlError):  # each claim says what is left of it
                self._release(made, None, None)  # what served it before may be another process's, which starts it too
            raise
        kept = tuple(claim for claim in serving if LABEL not in claim.labels)
        return Held(kept, (*(claim for claim in serving if claim not in kept), *made))

    def _create(self, request: ClaimRequest, needs: Needs, progress: Progress | None, cancel: Cancel | None) -> Claim:
        try:
            return self._claims.create(request, progress=progress, cancel=cancel).claim
        except ClaimConflict as error:
            if error.facts.get("claim") not in {claim.id for claim in self.of(needs)}:
                raise
            raise Busy(f"another vfioctl is starting domain {needs.name}", hint="wait for it") from None

    def adopt(self, needs: Needs, devices: Sequence[str]) -> list[Claim]:
        """Claim devices as they are, which the domain has or libvirt binds; not those that its owner has already."""
        known = {device.subject for claim in self.of(needs) for device in claim.devices}
        wanted = [device for device in needs.devices if device in devices and device not in known]
        return [self._claims.adopt(needs.owner, wanted, {LABEL: self._uri}).claim] if wanted else []

    def _verify(self, needs: Needs) -> None:
        from vfioctl.inventory.api import InventoryApi

        inventory = InventoryApi(self._session).inventory(nvml=False)
        for device in needs.bound:
            if isinstance(device, PciAddress):
                function = inventory.by_address.get(device)
                is_ready = function is not None and inventory.is_ready(function)
            else:
                is_ready = self._session.kernel.has(f"{_MDEVS}/{device}")
            if not is_ready:
                raise VerifyError(f"{device} is not ready for a guest", next_command=f"vfioctl show {device}")

    def wait_until_made(self, needs: Needs) -> None:
        """Wait for the process that makes a claim of the domain now, if there is one. Raises Busy, Unfinished."""
        for claim in self.made_for(needs):
            self._claims.await_maker(claim.id)

    def give_back(
        self, needs: Needs, *, progress: Progress | None = None, cancel: Cancel | None = None
    ) -> tuple[Claim, ...]:
        """Release the claims that were made for the domain's run. Raises the first error after trying all of them."""
        return self._release(self.made_for(needs), progress, cancel)

    def _release(self, claims: Sequence[Claim], progress: Progress | None, cancel: Cancel | None) -> tuple[Claim, ...]:
        released, failed = [], None
        for claim in claims:
            try:
                done = self._claims.release(
                    claim.id, wait=_CLOSING_SECONDS, unchanged_in_use=True, progress=progress, cancel=cancel
                )
                released.append(done.claim)
            except Cancelled:
                raise
            except VfioctlError as error:
                failed = failed or error
        if failed:
            raise failed
        return tuple(released)


def _to_restore(serving: Sequence[Claim], needs: Needs) -> Iterator[Claim]:
    """Yield the claims whose devices have to be bound, also after a reboot. Raises ClaimConflict."""
    for claim in serving:
        if claim.state is not ClaimState.HELD:
            raise ClaimConflict(
                f"claim {claim.id} of {claim.owner} is {claim.state}",
                hint="another vfioctl changes it, or was interrupted",
                next_command="vfioctl reconcile",
            )
        if any(device.subject in needs.devices for device in claim.devices):
            yield claim


def _is_needed(claim: Claim, needs: Needs) -> bool:
    asked = {device.subject for device in claim.devices if device.asked}
    has_use = asked <= {*needs.devices} and {*claim.cpus} <= {*needs.cpus}
    return has_use and not _without(claim.hugepages, needs.hugepages)


def _meets(claim: Claim, needs: Needs) -> bool:
    return any(device.subject in needs.devices for device in claim.devices) or not {*claim.cpus}.isdisjoint(needs.cpus)


def _without(wanted: Sequence[Hugepages], held: Sequence[Hugepages]) -> tuple[Hugepages, ...]:

    have: Counter[tuple[int, int]] = Counter()
    for node, size, pages in held:
        have[node, size] += pages
    missing = (Hugepages(node, size, pages - have[node, size]) for node, size, pages in wanted)
    return tuple(amount for amount in missing if amount.pages > 0)
