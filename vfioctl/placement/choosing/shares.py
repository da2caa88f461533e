"""Which GPU gives a share: the one with the least free that fits, or the one with the most. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

from vfioctl.inventory.model.functions import Function
from vfioctl.placement.choosing.preconditions import memory_of, native_reasons, unknown_memory
from vfioctl.placement.model.capacity import Capacity
from vfioctl.placement.model.request import ClaimRequest
from vfioctl.placement.model.share import MEMORY_UNIT, WHOLE, GpuShare
from vfioctl.units import format_size


class Free(NamedTuple):
    """What the shares of claims leave of a GPU."""

    cores: int
    memory: int | None
    """Bytes, in whole units; None if the GPU's memory is not known."""
    total: int | None
    """Bytes of whole units that the GPU has; None if not known."""


def free_of(gpu: Function, shares: Sequence[GpuShare]) -> Free:
    """Return what `shares`, all of this GPU, leave of it. Never less than nothing."""
    total = total_of(gpu)
    used = sum(share.memory for share in shares)
    cores = max(0, WHOLE - sum(share.cores for share in shares))
    return Free(cores, None if total is None else max(0, total - used), total)


def total_of(gpu: Function) -> int | None:
    """Return the bytes of whole units that a GPU's memory has; None if it is not known."""
    size = memory_of(gpu)
    return None if size is None else size // MEMORY_UNIT * MEMORY_UNIT


def why_no_share(gpu: Function, request: ClaimRequest, capacity: Capacity) -> str:
    """Return why a GPU cannot give the share that a request asks for; empty if it can."""
    reasons = native_reasons(gpu, request, capacity)
    return next(filter(None, reasons), "") or next(_short(gpu, request, _free(gpu, capacity)), "")


def best(request: ClaimRequest, capacity: Capacity, gpus: Sequence[Function]) -> Function:
    """Return the GPU that gives the share, of `gpus`, which all can: the one that is left with the least, so that
    larger requests still fit elsewhere; with `spread` the one that is left with the most. The first of equals."""
    order = {gpu.address: _left(request, _free(gpu, capacity)) for gpu in gpus}
    return min(gpus, key=lambda gpu: (-order[gpu.address] if request.spread else order[gpu.address], gpu.address.order))


def words_of(gpu: Function, capacity: Capacity) -> str:
    """Return what is free of a GPU: `60 of 100 cores and 71.5 GiB of 79.5 GiB free`."""
    cores, memory, total = _free(gpu, capacity)
    size = "" if memory is None or total is None else f" and {format_size(memory)} of {format_size(total)}"
    return f"{cores} of {WHOLE} cores{size} free"


def _free(gpu: Function, capacity: Capacity) -> Free:
    return free_of(gpu, capacity.taken.shares.get(gpu.address, ()))


def _short(gpu: Function, request: ClaimRequest, free: Free) -> Iterator[str]:
    """Yield what is not left of a GPU that is asked for."""
    if request.cores > free.cores:
        yield f"{free.cores} of its {WHOLE} cores are free" if free.cores else "all of its cores are claimed"
    if request.gpu_memory and free.memory is None:
        yield unknown_memory(gpu)
    elif request.gpu_memory and free.memory is not None and request.gpu_memory > free.memory:
        yield f"{format_size(free.memory)} of its memory is free" if free.memory else "all of its memory is claimed"


def _left(request: ClaimRequest, free: Free) -> Fraction:
    """Return the part that would be left of what is asked for, each of cores and memory as a part of the GPU's."""
    left = Fraction(free.cores - request.cores, WHOLE) if request.cores else Fraction(0)
    if request.gpu_memory and free.total and free.memory is not None:
        left += Fraction(free.memory - request.gpu_memory, free.total)
    return left
