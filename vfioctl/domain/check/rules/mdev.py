"""Rules about mediated devices in a domain. May not do input or output."""

from __future__ import annotations

from collections.abc import Iterator

from vfioctl.domain.check.rules.fault import Fault, warning
from vfioctl.domain.document.reader import Domain
from vfioctl.domain.document.values import is_uuid

_MODELS = {"vfio-pci": ("pci",), "vfio-ccw": ("ccw",), "vfio-ap": ()}
"""Each with the types of address that it has in the guest."""
_OTHER = ("vfio-ccw", "vfio-ap")


def models(domain: Domain) -> Iterator[Fault]:
    for hostdev in domain.hostdevs_of("mdev"):
        model = hostdev.get("model")
        if model == "vfio-pci" and hostdev.find("boot") is not None:
            yield Fault(hostdev, "QEMU cannot boot from a mediated device", "remove <boot>")
        elif model in _OTHER and hostdev.get("display") is not None:
            yield Fault(hostdev, f"model='{model}' has no display", "remove display=")
        elif model in _OTHER and domain.is_x86:
            yield Fault(hostdev, f"model='{model}' exists on s390 only", "model='vfio-pci'")


def uuids(domain: Domain) -> Iterator[Fault]:
    for hostdev in domain.hostdevs_of("mdev"):
        source = hostdev.find("source")
        where = hostdev.find("source/address")
        uuid = None if where is None else where.get("uuid")
        if source is None:
            continue  # the rule of all host devices tells
        if uuid is None:
            yield Fault(source if where is None else where, "the source has no uuid", "<address uuid='...'/>")
        elif not is_uuid(uuid):
            yield Fault(source if where is None else where, f"'{uuid[:40]}' is no UUID", "that of vfioctl vgpu list")


def targets(domain: Domain) -> Iterator[Fault]:
    for hostdev in domain.hostdevs_of("mdev"):
        where, allowed = hostdev.find("address"), _MODELS.get(hostdev.get("model", ""))
        if where is not None and allowed is not None and where.get("type") not in allowed:
            kind = where.get("type", "")[:40]
            yield Fault(where, f"{hostdev.get('model')} has no {kind} address", " or ".join(allowed) or "remove it")


def managed(domain: Domain) -> Iterator[Fault]:
    for hostdev in domain.hostdevs_of("mdev"):
        if hostdev.get("managed") == "yes":
            yield warning(hostdev, "libvirt ignores managed= of a mediated device", "vfioctl vgpu create makes it")
