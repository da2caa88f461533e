"""What the commands about vGPUs share: completion, and the card that `gpu0` means."""

from typing import TYPE_CHECKING

import typer

from vfioctl.console.choice import chosen
from vfioctl.errors import VfioctlError

if TYPE_CHECKING:
    from vfioctl.host import Host
    from vfioctl.vgpu.model.vgpu import Vgpus


def complete_parent(ctx: typer.Context, _incomplete: str) -> list[tuple[str, str]]:
    """The cards that can be sliced."""
    found = _found_or_nothing(ctx)
    return [(card.id, card.dialect) for card in found.cards] if found else []


def complete_type(ctx: typer.Context, _incomplete: str) -> list[tuple[str, str]]:
    """The types of all cards, by their short names."""
    found = _found_or_nothing(ctx)
    return [(kind.profile or kind.id, card.id) for card in found.cards for kind in card.types] if found else []


def complete_instance(ctx: typer.Context, _incomplete: str) -> list[tuple[str, str]]:
    """The vGPUs that are there."""
    found = _found_or_nothing(ctx)
    return [(vgpu.id, vgpu.profile or vgpu.type) for vgpu in found.instances] if found else []


def unnumbered(host: "Host", parent: str | None) -> str | None:
    """The address that `gpu0` means; the inventory that counts the GPUs is read only for that."""
    if parent is not None and parent.startswith("gpu") and parent[3:].isdecimal():
        (parent,) = host.find([parent])
    return parent


def _found_or_nothing(ctx: typer.Context) -> "Vgpus | None":
    """No suggestion is better than a traceback at the prompt."""
    try:
        return chosen(ctx).open().vgpus()
    except (VfioctlError, OSError):
        return None
