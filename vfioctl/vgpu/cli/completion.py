"""Shell completion of cards, types and vGPUs. Never raises, because an error would garble the prompt."""

import typer

from vfioctl.console.choice import opened
from vfioctl.errors import VfioctlError
from vfioctl.vgpu.api import VgpuApi
from vfioctl.vgpu.model.vgpu import Vgpus


def complete_parent(ctx: typer.Context, _incomplete: str) -> list[tuple[str, str]]:
    """The cards that offer vGPUs."""
    return [(card.id, card.dialect) for card in _vgpus_or_none(ctx).cards]


def complete_type(ctx: typer.Context, _incomplete: str) -> list[tuple[str, str]]:
    """The types of all cards, by their short names."""
    return [(kind.profile or kind.id, card.id) for card in _vgpus_or_none(ctx).cards for kind in card.types]


def complete_vgpu(ctx: typer.Context, _incomplete: str) -> list[tuple[str, str]]:
    """The existing and defined vGPUs."""
    return [(vgpu.id, vgpu.profile or vgpu.type) for vgpu in _vgpus_or_none(ctx).instances]


def _vgpus_or_none(ctx: typer.Context) -> Vgpus:
    try:
        return VgpuApi(opened(ctx)).vgpus()
    except (VfioctlError, OSError):
        return Vgpus()
