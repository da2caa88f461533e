"""The failure of a placement: what is missing, and why each device cannot be had. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict

from vfioctl.console.words import counted
from vfioctl.errors import NoCapacity, some_of
from vfioctl.inventory.model.functions import Function
from vfioctl.inventory.model.values import PciAddress
from vfioctl.placement.choosing.gpus import Pool
from vfioctl.placement.choosing.node_resources import UNKNOWN_NODE
from vfioctl.placement.model.placement import Rejection
from vfioctl.units import format_size

_CAN = "can be chosen"
_MOST_REASONS = 6
"""The most reasons in a hint; all of them are in the error's facts."""


def too_few(pool: Pool, gpus: Iterable[Function], reasons: Mapping[PciAddress, str]) -> NoCapacity:
    """Return the failure of choosing a number of GPUs. `reasons`: why some of the GPUs cannot be chosen."""
    request, free, gpus = pool.request, [gpu for gpu in pool.gpus if gpu not in pool.fabric], [*gpus]
    many = counted(request.gpus, "GPU")
    if not gpus:
        hint = "name other devices, such as network cards, with --device"
        return no_capacity(f"{many} cannot be chosen: the host has no GPU", (), {}, hint=hint)
    if len(pool.gpus) < request.gpus:
        left = f"only {len(pool.gpus)}" if pool.gpus else "none"
        return no_capacity(
            f"{many} cannot be chosen: {left} can be", gpus, {**dict.fromkeys(pool.gpus, _CAN), **reasons}
        )
    if len(free) < request.gpus:
        why = f"no free partition has {many}"
    elif request.numa == "same" and max(pool.used_nodes(free).values(), default=0) < request.gpus:
        why = f"no NUMA node has {many} that can be chosen"
    else:
        why = f"no NUMA node has {many} and {_nearby(pool)}"
        if request.numa != "same":
            why = why.replace("no NUMA node has", "no NUMA nodes have", 1)
    found = {gpu: _free(pool, gpu) for gpu in pool.gpus}
    return no_capacity(f"{many} cannot be chosen: {why}", gpus, {**found, **reasons})


def _nearby(pool: Pool) -> str:
    request = pool.request
    cpus = f"{counted(request.cpus, 'free CPU')}" if request.cpus else ""
    pages = f"{format_size(request.hugepages)} in free hugepages" if request.hugepages else ""
    return " and ".join(filter(None, (cpus, pages)))


def _free(pool: Pool, gpu: PciAddress) -> str:
    """Return why a GPU that can be chosen does not help."""
    node = pool.nodes[gpu]
    name = "its NUMA node" if node == UNKNOWN_NODE else f"NUMA node {node}"
    if gpu in pool.fabric:
        return "can be chosen, but only in a partition"
    if missing := pool.node_resources.missing({node: 1}):
        return f"{name} has {missing}"
    number = pool.used_nodes([gpu for gpu in pool.gpus if gpu not in pool.fabric])[node]
    return f"can be chosen, but {name} has only {number} such" if number < pool.request.gpus else _CAN


def no_capacity(
    message: str,
    gpus: Iterable[Function],
    reasons: Mapping[PciAddress, str],
    rejections: Sequence[Rejection] = (),
    hint: str = "",
) -> NoCapacity:
    """Return the error, with the reason for each device as facts, and the most frequent ones in its hint.

    `hint`: what to say instead.
    """
    listed = [*rejections, *(_rejection(gpu, reasons[gpu.address]) for gpu in gpus if gpu.address in reasons)]
    grouped: dict[str, list[str]] = {}
    for rejection in listed:
        grouped.setdefault(rejection.reason, []).append(rejection.device)
    lines = [f"{some_of(devices)}: {reason}" for reason, devices in grouped.items() if reason != _CAN]
    more = [f"and {len(lines) - _MOST_REASONS} more reasons, which --json has"] if lines[_MOST_REASONS:] else []
    is_said = len(grouped) == 1 and all(reason in message for reason in grouped)
    hint = hint or ("" if is_said else "\n".join([*lines[:_MOST_REASONS], *more]))
    return NoCapacity(message, hint=hint, facts={"devices": [asdict(rejection) for rejection in listed]})


def _rejection(gpu: Function, reason: str) -> Rejection:
    return Rejection(gpu.address, gpu.title, reason, free=reason.startswith(_CAN))
