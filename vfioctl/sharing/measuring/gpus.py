"""Which GPUs can be measured, and by which source. May not do I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from vfioctl.inventory.model.functions import Function

_NVIDIA = "nvidia"
_COUNTING = frozenset({"amdgpu", "i915", "xe"})
"""Drivers that count time by client in fdinfo."""


class MeasuredGpus(NamedTuple):
    """The GPUs of a host by source, and why others are not measured."""

    nvml: tuple[str, ...] = ()
    fdinfo: tuple[str, ...] = ()
    leases: Mapping[str, str] = MappingProxyType({})
    """Who has a GPU that is passed through, by its address."""
    problems: Mapping[str, str] = MappingProxyType({})
    """Why a GPU is not measured, by its address."""


def gpus_of(functions: Iterable[Function], wanted: Collection[str]) -> MeasuredGpus:
    """Return which GPUs can be measured. `wanted`: their addresses; empty for all."""
    by_source: dict[str, list[str]] = {_NVIDIA: [], "": []}
    leases: dict[str, str] = {}
    problems = dict.fromkeys(wanted, "this host has no such GPU")
    for function in functions:
        address, driver = str(function.address), function.driver or ""
        if wanted and address not in wanted:
            continue
        problems.pop(address, None)
        if driver == _NVIDIA or driver in _COUNTING:
            by_source[_NVIDIA if driver == _NVIDIA else ""].append(address)
        elif function.on_vfio:
            if function.owner:
                leases[address] = function.owner
        else:
            problems[address] = f"its driver {driver} does not tell who uses it" if driver else "no driver has it"
    return MeasuredGpus(tuple(by_source[_NVIDIA]), tuple(by_source[""]), leases, problems)
