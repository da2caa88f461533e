"""VFs of NVIDIA's driver that are no vGPU, and of no use to a guest. May not do input or output."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from vfioctl.errors import HostError

if TYPE_CHECKING:
    from vfioctl.inventory.model.functions import Function


def why_no_vgpu(function: Function) -> str:
    """Return in words that a function is such a VF; empty if it is none."""
    return f"{function.address} is no vGPU: NVIDIA's driver has it, without a type" if function.lacks_vgpu else ""


def command_for(function: Function) -> str:
    """Return the command that gives such a VF a type."""
    return f"vfioctl vgpu create TYPE --parent {function.address}"


def refuse_untyped(functions: Iterable[Function]) -> None:
    """Raise HostError for the first of these functions that is such a VF."""
    for function in functions:
        if why := why_no_vgpu(function):
            hint = "a guest could not use it: on VFIO, a VF of NVIDIA's is no GPU"
            raise HostError(why, hint=hint, next_command=command_for(function))
