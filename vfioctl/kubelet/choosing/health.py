"""Decides which devices of a resource a pod may get, each with the reason. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from vfioctl.claims.model.claim import Claim, ClaimState
from vfioctl.core.marks import Mark
from vfioctl.inventory.model.functions import Inventory
from vfioctl.kubelet.choosing.members import Member
from vfioctl.kubelet.model.cordon import Cordons
from vfioctl.kubelet.model.device import GONE, LABEL, Device, device_id
from vfioctl.kubelet.model.settings import ResourceSettings

RELEASED = "vfioctl kubelet uncordon"


class Facts(NamedTuple):
    """What decides the health of devices, besides what the devices are."""

    inventory: Inventory
    marks: Mapping[str, Mark]
    cordons: Cordons
    claims: Sequence[Claim]
    """The live claims of pods of this resource."""
    refusals: Mapping[str, str]
    """Why a claim would not get each device that none of these claims has."""


def devices_of(resource: ResourceSettings, members: Sequence[Member], facts: Facts) -> tuple[Device, ...]:
    """Return the devices of a resource with their health."""
    ours = {device.subject: claim for claim in facts.claims for device in claim.devices if device.asked}
    others = {device.subject: claim for claim in facts.claims for device in claim.devices if not device.asked}
    devices = []
    for member in members:
        claim, other = ours.get(member.subject), others.get(member.subject)
        under = _under(member, facts.inventory)
        reason = broken((str(member.subject), *under), facts)
        reason = reason or (_of_claim(claim, member) if claim else _refused(resource, member, facts))
        if other and not claim and not reason:
            reason = f"it travels with a device of {other.owner} ({other.id})"
        devices.append(
            Device(
                id=device_id(member.subject, resource),
                subject=member.subject,
                numa_node=member.numa_node,
                reason=reason,
                claim=claim.id if claim else "",
                owner=claim.owner if claim else "",
                birth=member.birth,
                under=under,
            )
        )
    return tuple(devices)


def lost_of(resource: ResourceSettings, members: Sequence[Member], claims: Sequence[Claim]) -> tuple[Device, ...]:
    """Return the devices that pods have, and that are not there any more: a kubelet that is told nothing of them would
    only stop counting them."""
    there = {member.subject for member in members}
    return tuple(
        Device(device_id(device.subject, resource), device.subject, None, GONE, claim.id, claim.owner)
        for claim in claims
        for device in claim.devices
        if device.asked and device.subject not in there and claim.labels.get(LABEL) == resource.name
    )


def _under(member: Member, inventory: Inventory) -> tuple[str, ...]:
    """Return the parent of a device, and the PF."""
    function = inventory.by_address.get(member.parent)  # type: ignore[call-overload]
    names = (member.parent, str(function.physfn) if function and function.physfn else "")
    return tuple(name for name in names if name and name != member.subject)


def broken(names: Sequence[str], facts: Facts) -> str:
    """Return why nobody should have a device, whoever has it now. `names`: it, and what it is a part of."""
    for name in names:
        if name in facts.marks:
            return f"it is {facts.marks[name].kind}: {facts.marks[name].why}"
        if name in facts.cordons:
            return facts.cordons[name].words
    return ""


def _of_claim(claim: Claim, member: Member) -> str:
    if claim.state is ClaimState.WEDGED:
        return f"claim {claim.id} is wedged: {claim.why or 'vfioctl recover'}"
    return member.problem  # such as a vGPU of another type


def _refused(resource: ResourceSettings, member: Member, facts: Facts) -> str:
    if reason := facts.refusals.get(member.subject) or member.problem:
        return reason
    function = facts.inventory.by_address.get(member.parent)  # type: ignore[call-overload]
    if resource.bind or member.birth or function is None or member.subject != member.parent:
        return ""
    driver = f"{function.driver} has it" if function.driver else "it has no driver"
    return "" if function.serves_guests else f"{driver}, and this resource binds nothing"
