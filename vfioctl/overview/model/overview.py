"""A host in one look. May not do input or output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from vfioctl.claims.model.claim import Claim
from vfioctl.domain.model.listing import ListedDomain
from vfioctl.inventory.model.functions import Inventory
from vfioctl.inventory.model.holders import Holders
from vfioctl.inventory.model.usage import Usage
from vfioctl.inventory.model.values import PciAddress
from vfioctl.vgpu.model.vgpu import Vgpus

if TYPE_CHECKING:
    from vfioctl.core.published import BeingChanged


class Part(StrEnum):
    """A part of an overview, which may be missing alone."""

    CLAIMS = "claims"
    HOLDERS = "holders"
    VGPUS = "vgpus"
    DOMAINS = "domains"
    CHANGES = "changes"
    USAGE = "usage"


@dataclass(frozen=True, kw_only=True)
class Overview:
    """A host at one moment. Each part that is missing is empty, and `missing` says why."""

    at: str
    """when it was read: ISO 8601 in UTC, with milliseconds"""
    inventory: Inventory
    claims: tuple[Claim, ...] = ()
    """the live claims, the newest first"""
    holders: Holders = field(default_factory=lambda: Holders(devices=()))
    """the holders of the GPUs, their cards and groups, and of mediated devices"""
    vgpus: Vgpus = field(default_factory=Vgpus)
    domains: tuple[ListedDomain, ...] = ()
    unfinished: tuple[BeingChanged, ...] = ()
    """the changes that are under way or were interrupted, the newest first"""
    usage: Mapping[PciAddress, Usage] = field(default_factory=dict)
    missing: Mapping[Part, str] = field(default_factory=dict)
    """the parts that could not be read, or only in part, and why"""
    without: frozenset[Part] = frozenset()
    """the parts that were not asked for"""
    read_only: str = ""
    """why nothing can be changed here; empty if it can"""
