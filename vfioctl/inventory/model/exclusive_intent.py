"""Intents of changes that need devices without holders. May not do input or output."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from vfioctl.core.change import Intent
from vfioctl.inventory.model.holders import HolderKind


class MeetsHolders(Intent):
    """An intent whose steps or rollback need devices without holders."""

    ignores: ClassVar[frozenset[HolderKind]] = frozenset()
    """Kinds of holders that do not block this verb."""


class TakesDevices(MeetsHolders):
    """An intent that accepts --force-holders."""

    force_holders: bool = Field(default=False, description="continue although a process has the device open")
