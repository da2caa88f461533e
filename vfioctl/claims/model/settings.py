"""The table `[claims]` of the configuration. May not do input or output."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, Field

from vfioctl.core.value import Value
from vfioctl.inventory.model.values import CpuSet, PciAddress


class Mode(StrEnum):
    """What a device is for."""

    HOST = "host"
    """It stays with the host's driver."""
    PASSTHROUGH = "passthrough"
    """It is handed to guests as a whole."""
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
    from vfioctl.claims.model.owner import Owner
    from vfioctl.errors import BadSpec

    label, equals, _ = text.partition("=")
    if (equals and label) or text.endswith("*"):
        return text
    try:
        return Owner(text)
    except BadSpec:
        raise ValueError(f"{text[:60]!r} is no owner and no label: write vm/NAME, vm/*, or LABEL=VALUE") from None


Device = Annotated[str, AfterValidator(_selector)]
"""A PCI address, or `vendor:device`."""


class ClaimSettings(Value):
    """The settings of claims. Nothing is reserved, limited or divided unless a setting says so."""

    reserved: tuple[Device, ...] = Field(default=(), description="devices that no claim gets")
    reserved_cpus: CpuSet = Field(default=CpuSet(), description="CPUs that no claim gets")
    housekeeping_cpus: CpuSet | None = Field(
        default=None, description="CPUs that stay with the host; the first core of each node, if not set"
    )
    models: Mapping[str, tuple[str, ...]] = Field(
        default_factory=dict, description="aliases: parts of names, or vendor:device"
    )
    modes: Mapping[Device, Mode] = Field(default_factory=dict, description="what devices are for")
    quotas: Mapping[Annotated[str, AfterValidator(_quota)], Annotated[int, Field(ge=0, strict=True)]] = Field(
        default_factory=dict, description="the most GPUs of each owner, or of all claims with a label"
    )
    partitions: tuple[tuple[PciAddress, ...], ...] = Field(
        default=(), description="the partitions of the fabric manager; a claim has one of them, whole"
    )
    renew_cdi: Annotated[bool, Field(strict=True)] = Field(
        default=False, description="write vfioctl's CDI files again whenever a claim is made or released"
    )
