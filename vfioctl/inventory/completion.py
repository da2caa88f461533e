"""Completion of DEVICE words. May not raise: no suggestion is better than a traceback at the prompt."""

import typer

from vfioctl.console.choice import chosen
from vfioctl.errors import VfioctlError


def complete_device(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """The host's GPUs: as gpuN, for bash breaks words at the colons of an address; as addresses once one is begun."""
    try:
        found = chosen(ctx).open().inventory()
    except (VfioctlError, OSError):
        return []
    if incomplete[:1].isdigit():
        return [(gpu.address, gpu.title) for gpu in found.gpus]
    numbered = found.numbered_gpus.items()
    return [(name, f"{address} {found.by_address[address].title}") for name, address in numbered]
