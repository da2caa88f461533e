"""The table `[claims]` of the configuration. May not do input or output."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import Annotated, ClassVar

from vfioctl.core.frozen import record_class
from vfioctl.core.limits import FORBID, Checked, Strict, Whole
from vfioctl.inventory.model.values import PciAddress
from vfioctl.units import CpuSet


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
    from vfioctl.errors import BadAddress

    if re.fullmatch(r"[0-9a-fA-F]{4}:[0-9a-fA-F]{4}", text, re.ASCII):
        return text.lower()
    try:
        return PciAddress(text)
    except BadAddress:
        raise ValueError(f"{text[:40]!r} is no device: write 0000:41:00.0, or vendor:device as in 10de:2330") from None


def _quota(text: str) -> str:
    """Return the name of a quota: an owner, or a label; a `*` at its end stands for the rest. Raises ValueError."""
    from vfioctl.errors import BadSpec
    from vfioctl.placement.model.owner import Owner

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
