"""Gives devices to a container: a claim first, then what it needs of the host, verified; then the answer. Changes the
host only through claims and CDI files."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from vfioctl.claims.api import ClaimsApi
from vfioctl.claims.model.cdi import Node, cdi_file
from vfioctl.claims.model.claim import ClaimState
from vfioctl.errors import Busy, Cancelled, ClaimConflict, ConflictError, StalePlan, VfioctlError
from vfioctl.kubelet.allocating.deadline import Deadline
from vfioctl.kubelet.allocating.following import claims_of_pods
from vfioctl.kubelet.allocating.handovers import alone_with, count_of, given
from vfioctl.kubelet.allocating.requests import Wanted, wanted
from vfioctl.kubelet.answer.answer import Answer, answer
from vfioctl.kubelet.ledger.cordons import cordons
from vfioctl.kubelet.model.device import LABEL, PROVISIONAL, Device
from vfioctl.kubelet.model.settings import Consumer, KubeletSettings, ResourceSettings

if TYPE_CHECKING:
    from vfioctl.claims.model.claim import Claim, Nodes
    from vfioctl.inventory.model.values import Subject
    from vfioctl.session import Session

_CHANGING = (ClaimState.RESERVED, ClaimState.RELEASING)
_PAUSE = 0.05
"""Seconds between two looks at them."""
_FOR_HOLDERS = 0.5
"""The part of a call's time in which the last holder may close a device."""
_RELEASE_SECONDS = 60.0
"""How long a release waits for other changes."""
_ATTEMPTS = 5


class Allocation:
    """Gives the devices of resources to containers, and takes them back."""

    def __init__(self, session: Session) -> None:
        self._session, self._claims = session, ClaimsApi(session)

    def allocate(
        self, resource: ResourceSettings, containers: Sequence[Sequence[Device]], deadline: Deadline
    ) -> Sequence[Answer]:
        """Claim devices for containers whose pod is not known yet, prepare them, and return the answer for each, in the
        order of its devices. A claim of an earlier container is taken over, if nobody has its devices open. Raises Busy
        after the deadline, and what `ClaimsApi.create` raises; nothing is left behind then."""
        self._wait_for_others(deadline)
        with self._session.store.one_connection():
            return self._allocate(resource, containers, deadline)

    def _wait_for_others(self, deadline: Deadline) -> None:
        """Wait for other changes of the host as long as there is time: releases of other pods are among them."""
        self._session = self._session.acting_for(self._session.reservation, lock_wait=deadline.left)
        self._claims = ClaimsApi(self._session)

    def _allocate(
        self, resource: ResourceSettings, containers: Sequence[Sequence[Device]], deadline: Deadline
    ) -> Sequence[Answer]:
        made: list[Claim] = []
        answers = []
        with self._all_or_none(made, deadline):
            for devices in containers:
                self._refuse_cordoned(devices)
                claims = [self._allocated(resource, want, deadline, made) for want in wanted(resource, devices)]
                self._refuse_cordoned(devices)  # whoever cordons one later sees its claim
                answers.append(self._answer(resource, devices, claims))
        return answers

    @contextmanager
    def _all_or_none(self, made: Sequence[Claim], deadline: Deadline) -> Iterator[None]:
        """Release what is made in the block, if it fails. Raises Busy after the deadline."""
        try:
            yield
        except Exception as error:
            for claim in made:
                with suppress(VfioctlError):  # it stays, is shown, and is released when its pod does not come
                    self.release(claim, count_of(claim.id))
            if isinstance(error, Cancelled):
                raise _too_slow(deadline) from None
            raise

    def ready(self, resource: ResourceSettings, containers: Sequence[Sequence[Device]], deadline: Deadline) -> None:
        """Verify the devices of a container that starts, or starts again, after a reboot too: what is missing of its
        claims is restored, and a device without a claim is claimed. Raises what `allocate` raises."""
        self._wait_for_others(deadline)
        try:
            with self._session.store.one_connection():
                for devices in containers:
                    self._ready(resource, devices, deadline)
        except Cancelled:
            raise _too_slow(deadline) from None

    def _ready(self, resource: ResourceSettings, devices: Sequence[Device], deadline: Deadline) -> None:
        claims = []
        for want in wanted(resource, devices):
            held: set[Subject] = set()
            for known in self._known(resource, want, deadline):
                with alone_with(known.id, deadline):
                    claim = self._claims.claim(known.id)
                    if not claim.is_live:  # it was just released
                        continue
                    claims.append(self._restored(resource, claim, deadline))
                    given(claim.id)
                held |= {device.subject for device in claim.devices}
            if not held.issuperset(want.subjects):
                self._refuse_cordoned(devices)
                claims.append(self._created(want, deadline))
        self._answer(resource, devices, claims)

    def release(self, claim: Claim, count: int) -> bool:
        """Put back what a claim has changed, and end it, unless it was given to a container since `count_of` returned
        `count`; return whether it has ended. Raises DeviceInUse while somebody has a device open."""
        with alone_with(claim.id, Deadline(_RELEASE_SECONDS)):
            if count_of(claim.id) != count:
                return False
            self._claims.release(claim.id)
        self._without_cdi(claim)
        return True

    def _allocated(self, resource: ResourceSettings, want: Wanted, deadline: Deadline, made: list[Claim]) -> Claim:
        for known in self._known(resource, want, deadline):
            with alone_with(known.id, deadline):
                claim = self._claims.claim(known.id)
                if not claim.is_live:  # it was just released
                    continue
                self._claims.refuse_in_use(claim, wait=deadline.left * _FOR_HOLDERS, cancel=deadline.is_over)
                if {device.subject for device in claim.devices if device.asked} == {*want.subjects}:
                    return self._taken_over(resource, claim, deadline)
                self._claims.release(claim.id, cancel=deadline.is_over)
            self._without_cdi(claim)
        made.append(self._created(want, deadline))
        return made[-1]

    def _taken_over(self, resource: ResourceSettings, claim: Claim, deadline: Deadline) -> Claim:
        restored = self._restored(resource, claim, deadline)
        given(claim.id)
        if restored.owner == PROVISIONAL:
            return restored
        return self._claims.transfer(restored.id, PROVISIONAL, within_quota=False).claim

    def _created(self, want: Wanted, deadline: Deadline) -> Claim:
        request = want.request
        if want.of_existing and self._exists(want):
            request = want.of_existing
        claim = self._claims.create(request, key=want.key, near=True, cancel=deadline.is_over).claim
        if claim.owner.kind != "pod":  # somebody has given the claim of this key away
            raise _taken(want, claim)
        return claim

    def _exists(self, want: Wanted) -> bool:
        """Return whether a vGPU that would be created is there already."""
        from vfioctl.vgpu.api import VgpuApi
        from vfioctl.vgpu.model.vgpu import VgpuState

        vgpus = VgpuApi(self._session).vgpus().instances
        return any(vgpu.id in want.subjects and vgpu.state is VgpuState.LIVE for vgpu in vgpus)

    def _restored(self, resource: ResourceSettings, claim: Claim, deadline: Deadline) -> Claim:
        if claim.state is not ClaimState.HELD:
            raise ClaimConflict(
                f"claim {claim.id} of {claim.owner} is {claim.state}: {claim.why or 'a change is under way'}",
                next_command="vfioctl reconcile",
                facts={"claim": claim.id},
            )
        return self._claims.reconciling.restore(claim.id, bind=resource.bind, cancel=deadline.is_over)

    def _known(self, resource: ResourceSettings, want: Wanted, deadline: Deadline) -> Sequence[Claim]:
        """Return the claims of pods that have one of these devices, with what travels with it, once nobody makes or
        releases them: an earlier call may still work on one, as its kubelet has ended. Raises ClaimConflict for a
        device that a pod has by another resource: one device may be in several."""
        while True:
            known = [
                claim
                for claim in claims_of_pods(self._claims)
                if any(device.asked and device.subject in want.subjects for device in claim.devices)
            ]
            if deadline.is_over() or not any(claim.state in _CHANGING for claim in known):
                break
            time.sleep(_PAUSE)
        for claim in known:
            if claim.labels[LABEL] != resource.name and self._settings.resource(claim.labels[LABEL]):
                raise _taken(want, claim)
        return known

    @property
    def _settings(self) -> KubeletSettings:
        settings: KubeletSettings = self._session.settings("kubelet")
        return settings

    def _answer(self, resource: ResourceSettings, devices: Sequence[Device], claims: Sequence[Claim]) -> Answer:
        nodes: dict[str, Nodes] = {}
        for claim in claims:
            nodes |= self._claims.nodes(claim)
        made = answer(resource, [device.subject for device in devices], nodes)
        for claim in claims:
            self._cdi(resource, claim)
        return made

    def _cdi(self, resource: ResourceSettings, claim: Claim) -> None:
        """Write the CDI file of a resource for Kata Containers, with a claim's devices."""
        if resource.consumer is Consumer.KATA:
            self._write_cdi(resource.name, resource.node, claim)

    def _without_cdi(self, claim: Claim) -> None:
        """Write the CDI file of a claim's resource without its devices, also if the configuration no longer has it."""
        kind = claim.labels[LABEL]
        if self._session.kernel.has(cdi_file(kind)):
            resource = self._settings.resource(kind)
            self._write_cdi(kind, resource.node if resource else Node.GROUP, claim)

    def _write_cdi(self, kind: str, node: Node, claim: Claim) -> None:
        from vfioctl.containers.api import ContainersApi

        for attempt in range(_ATTEMPTS):
            plan = ContainersApi(self._session).cdi.plan_for_claim(kind, node, claim.id)
            if plan.nothing_to_do:
                return
            try:
                self._session.apply(plan)
            except StalePlan:  # another call has just written the file
                if attempt == _ATTEMPTS - 1:
                    raise
            else:
                return

    def _refuse_cordoned(self, devices: Sequence[Device]) -> None:
        self._refuse_cordons({name: device.subject for device in devices for name in (device.subject, *device.under)})

    def _refuse_cordons(self, subjects: Mapping[str, str]) -> None:
        """Raise ConflictError if one is cordoned. `subjects`: what is not given to pods then, by name."""
        for name, cordon in cordons(self._session).items():
            if subject := subjects.get(name):
                raise ConflictError(
                    f"{subject} is not given to pods: {cordon.words}",
                    next_command=f"vfioctl kubelet uncordon {cordon.device}",
                )


def _taken(want: Wanted, claim: Claim) -> ClaimConflict:
    return ClaimConflict(
        f"{want.subjects[0]} belongs to claim {claim.id} of {claim.owner}, as {claim.labels.get(LABEL, 'no resource')}",
        next_command=f"vfioctl claim show {claim.id}",
        facts={"claim": claim.id, "owner": claim.owner},
    )


def _too_slow(deadline: Deadline) -> Busy:
    """Return the error of a call that has reached its deadline."""
    return Busy(f"the devices were not ready within {deadline.seconds:g} s", next_command="vfioctl kubelet status")


def words_for_user(error: VfioctlError) -> str:
    """Return an error as the events of a pod show it, on one line: what is wrong, and the next command on the node."""
    hint = f" ({error.hint})" if error.hint else ""
    command = f"; on the node: {error.next_command}" if error.next_command else ""
    return " ".join(f"{error.message}{hint}{command}".split())
