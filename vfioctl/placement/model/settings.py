"""The table `[claims]` of the configuration, and what of it a host does not have. May not do input or output."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import field
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, ClassVar

from vfioctl.core.frozen import record_class
from vfioctl.core.limits import FORBID, Checked, Strict, Whole
from vfioctl.errors import BadAddress, BadSpec
from vfioctl.inventory.model.values import PciAddress
from vfioctl.units import CpuSet, format_cpu_list

if TYPE_CHECKING:
    from vfioctl.inventory.model.functions import Inventory


class Mode(StrEnum):
    """What a device is for."""

    HOST = "host"
    """It stays with the host's driver."""
    PASSTHROUGH = "passthrough"
    """It is passed to guests as a whole."""
    VGPU = "vgpu"
    """vGPUs are created on it."""


def _selector(text: str) -> str:
    """Return an address as the kernel writes it, or `vendor:device` in lower case. Raises ValueError."""
    if re.fullmatch(r"[0-9a-fA-F]{4}:[0-9a-fA-F]{4}", text, re.ASCII):
        return text.lower()
    try:
        return PciAddress(text)
    except BadAddress:
        raise ValueError(f"{text[:40]!r} is no device: write 0000:41:00.0, or vendor:device as in 10de:2330") from None


def _quota(text: str) -> str:
    """Return the name of a quota: an owner, or a label; a `*` at its end stands for the rest. Raises ValueError."""
    from vfioctl.placement.model.claims import Owner

    label, equals, _ = text.partition("=")
    if (equals and label) or text.endswith("*"):
        return text
    try:
        return Owner(text)
    except BadSpec:
        raise ValueError(f"{text[:60]!r} is no owner and no label: write vm/NAME, vm/*, or LABEL=VALUE") from None


Device = Annotated[str, Checked(_selector)]
"""A PCI address, or `vendor:device`."""
Quota = Annotated[str, Checked(_quota)]
"""An owner, or a label."""


_NONE = CpuSet()


@record_class
class ClaimSettings:
    """The settings of claims. Nothing is reserved, limited or divided unless a setting says so."""

    __pydantic_config__: ClassVar = FORBID

    reserved: tuple[Device, ...] = ()
    """Devices that no claim gets."""
    reserved_cpus: CpuSet = _NONE
    """CPUs that no claim gets."""
    housekeeping_cpus: CpuSet | None = None
    """CPUs that stay with the host; the first core of each node, if not set."""
    models: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Aliases: parts of names, or vendor:device."""
    modes: Mapping[Device, Mode] = field(default_factory=dict)
    """What devices are for."""
    quotas: Mapping[Quota, Annotated[int, Whole(0, strict=True)]] = field(default_factory=dict)
    """The most GPUs of each owner, or of all claims with a label."""
    partitions: tuple[tuple[PciAddress, ...], ...] = ()
    """The partitions of the fabric manager; a claim has one of them, whole."""
    renew_cdi: Annotated[bool, Strict()] = False
    """Write vfioctl's CDI files again whenever a claim is made or released."""


Missing = tuple[tuple[str | int, ...], str]
"""The keys of a setting, and what the host lacks."""


def missing_in(settings: ClaimSettings, inventory: Inventory, online: Collection[int]) -> Iterator[Missing]:
    """Yield each device, and each list of CPUs, that the host does not have. `online`: its CPUs; none if unknown."""
    known = {*inventory.by_address, *inventory.unread, *(f"{f.vendor_id}:{f.device_id}" for f in inventory.functions)}
    devices: list[tuple[tuple[str | int, ...], str]] = [(("reserved", n), d) for n, d in enumerate(settings.reserved)]
    devices += [(("modes", device), device) for device in settings.modes]
    for number, partition in enumerate(settings.partitions):
        devices += [(("partitions", number, index), device) for index, device in enumerate(partition)]
    yield from (
        (keys, f"is {device}, which this host does not have") for keys, device in devices if device not in known
    )
    lists = {"reserved_cpus": settings.reserved_cpus, "housekeeping_cpus": settings.housekeeping_cpus or ()}
    for key, cpus in lists.items():
        if online and (absent := [cpu for cpu in cpus if cpu not in online]):
            yield (key,), f"has CPUs {format_cpu_list(absent)}, which this host does not have online"
