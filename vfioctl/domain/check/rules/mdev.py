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
    for each in domain.hostdevs_of("mdev"):
        model = each.get("model")
        if model == "vfio-pci" and each.find("boot") is not None:
            yield Fault(each, "QEMU cannot boot from a mediated device", "remove <boot>")
        elif model in _OTHER and each.get("display") is not None:
            yield Fault(each, f"model='{model}' has no display", "remove display=")
        elif model in _OTHER and domain.is_x86:
            yield Fault(each, f"model='{model}' exists on s390 only", "model='vfio-pci'")


def uuids(domain: Domain) -> Iterator[Fault]:
    for each in domain.hostdevs_of("mdev"):
        source = each.find("source")
        where = each.find("source/address")
        uuid = None if where is None else where.get("uuid")
        if source is None:
            continue  # the rule of all host devices tells
        if uuid is None:
            yield Fault(source if where is None else where, "the source has no uuid", "<address uuid='...'/>")
        elif not is_uuid(uuid):
            yield Fault(source if where is None else where, f"'{uuid[:40]}' is no UUID", "that of vfioctl vgpu list")


def targets(domain: Domain) -> Iterator[Fault]:
    for each in domain.hostdevs_of("mdev"):
        where, allowed = each.find("address"), _MODELS.get(each.get("model", ""))
        if where is not None and allowed is not None and where.get("type") not in allowed:
            kind = where.get("type", "")[:40]
            yield Fault(where, f"{each.get('model')} has no {kind} address", " or ".join(allowed) or "remove it")


def managed(domain: Domain) -> Iterator[Fault]:
    for each in domain.hostdevs_of("mdev"):
        if each.get("managed") == "yes":
            yield warning(each, "libvirt ignores managed= of a mediated device", "vfioctl vgpu create makes it")
