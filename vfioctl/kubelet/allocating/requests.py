"""Decides which claims a container's devices need. Pure. Devices that exist are one claim, so that a partition of a
fabric, or an IOMMU group with several GPUs, is claimed whole; a vGPU that is created is a claim of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from vfioctl.inventory.model.values import Subject
from vfioctl.kubelet.model.device import LABEL, PROVISIONAL, Device
from vfioctl.kubelet.model.settings import ResourceSettings
from vfioctl.placement.model.request import ClaimRequest
from vfioctl.units import Uuid


class Wanted(NamedTuple):
    """A claim that a container needs. The key makes a second call for the same devices harmless."""

    request: ClaimRequest
    key: str
    subjects: tuple[Subject, ...]
    of_existing: ClaimRequest | None = None
    """For a vGPU that is created: the request if it exists already."""


def wanted(resource: ResourceSettings, devices: Sequence[Device]) -> tuple[Wanted, ...]:
    """Return the claims for these devices of a resource."""
    existing = tuple(sorted((d.subject for d in devices if d.birth is None), key=lambda subject: subject.order))
    claims = []
    if existing:
        claims.append(Wanted(_existing(resource, existing), _key(resource, existing), existing))
    for device in devices:
        if device.birth:
            subjects = (device.subject,)
            request = ClaimRequest(
                owner=PROVISIONAL,
                vgpu=device.birth.type,
                parent=device.birth.parent,
                uuids=tuple(subject for subject in subjects if isinstance(subject, Uuid)),
                labels={LABEL: resource.name},
            )
            claims.append(Wanted(request, _key(resource, subjects), subjects, _existing(resource, subjects)))
    return tuple(claims)


def _existing(resource: ResourceSettings, subjects: tuple[Subject, ...]) -> ClaimRequest:
    return ClaimRequest(owner=PROVISIONAL, devices=subjects, bind=resource.bind, labels={LABEL: resource.name})


def _key(resource: ResourceSettings, subjects: tuple[Subject, ...]) -> str:
    return f"kubelet {resource.name} {' '.join(map(str, subjects))}"
