"""Shell completion of cards, types and vGPUs. Never raises, because an error would garble the prompt."""

from typing import TYPE_CHECKING

import typer

from vfioctl.console.choice import opened
from vfioctl.errors import VfioctlError
from vfioctl.vgpu.api import VgpuApi

if TYPE_CHECKING:
    from vfioctl.vgpu.model.vgpu import Vgpus


def complete_parent(ctx: typer.Context, _incomplete: str) -> list[tuple[str, str]]:
    """The cards that offer vGPUs."""
    vgpus = _found_or_nothing(ctx)
    return [(card.id, card.dialect) for card in vgpus.cards] if vgpus else []


def complete_type(ctx: typer.Context, _incomplete: str) -> list[tuple[str, str]]:
    """The types of all cards, by their short names."""
    vgpus = _found_or_nothing(ctx)
    return [(kind.profile or kind.id, card.id) for card in vgpus.cards for kind in card.types] if vgpus else []


def complete_vgpu(ctx: typer.Context, _incomplete: str) -> list[tuple[str, str]]:
    """The existing and defined vGPUs."""
    vgpus = _found_or_nothing(ctx)
    return [(vgpu.id, vgpu.profile or vgpu.type) for vgpu in vgpus.instances] if vgpus else []


def _found_or_nothing(ctx: typer.Context) -> "Vgpus | None":
    try:
        return VgpuApi(opened(ctx)).vgpus()
    except (VfioctlError, OSError):
        return None
