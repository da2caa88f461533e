"""Finds the parts of GPUs that a resource of cores or memory has, decides which of them a pod may get, and chooses some
of one GPU. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from vfioctl.claims.model.claim import Claim
from vfioctl.inventory.model.functions import Function
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kubelet.choosing.health import Facts, broken
from vfioctl.kubelet.model.device import GONE, LABEL, PROVISIONAL, Device
from vfioctl.kubelet.model.settings import MOST_UNITS, DeviceKind, ResourceSettings
from vfioctl.kubelet.model.units import gpu_of, is_half, number_of, unit_id, units_of
from vfioctl.placement.model.share import MEMORY_UNIT, WHOLE, GpuShare


def parts_of(
    resource: ResourceSettings, gpus: Sequence[Function], facts: Facts, shares: Mapping[str, Sequence[GpuShare]]
) -> tuple[Device, ...]:
    """Return the parts of these GPUs. `shares`: what claims have of each, by whatever ids, or without the kubelet."""
    held = {name: claim for claim in facts.claims for kind, name in units_of(claim) if kind == resource.name}
    parts = [
        part
        for gpu in gpus
        for part in _of_gpu(resource, gpu, facts, held, sum(_amount(resource, s) for s in shares.get(gpu.address, ())))
    ]
    there = {part.id for part in parts}
    gone = [
        Device(name, PciAddress(gpu_of(name)), None, GONE, claim.id, claim.owner)
        for name, claim in held.items()
        if name not in there
    ]
    return (*parts, *gone)


def problem_of_parts(
    resource: ResourceSettings, gpus: Sequence[Function], found: Sequence[Device], claims: Sequence[Claim]
) -> str:
    """Return why a resource has no parts of GPUs, if there are GPUs; or which containers ask for one of a pair only.
    `claims`: of pods of this resource."""
    for claim in claims:
        if claim.owner != PROVISIONAL and is_half(resource, claim):
            other = resource.beside if claim.labels[LABEL] == resource.name else resource.name
            return f"{claim.owner} cannot start: it asks for {claim.labels[LABEL]} without {other}"
    if found or not gpus:
        return ""
    if any(_count(resource, gpu) > MOST_UNITS for gpu in gpus):
        return f"a GPU has more than {MOST_UNITS} of {resource.unit or '1GiB'}: choose a larger unit"
    return "the memory of no GPU is known: NVML does not report it"


def _of_gpu(
    resource: ResourceSettings, gpu: Function, facts: Facts, held: Mapping[str, Claim], used: int
) -> Iterator[Device]:
    count = _count(resource, gpu)
    if count > MOST_UNITS:
        return
    fault, refusal = broken((str(gpu.address),), facts), facts.refusals.get(gpu.address, "")
    names = [unit_id(gpu.address, number) for number in range(count)]
    free = [name for name in names if name not in held]
    taken = max(0, -(-used // resource.size) - (count - len(free)))
    claimed = frozenset(free[max(0, len(free) - taken) :] if taken else ())  # any of them: the last ones
    for name in names:
        claim = held.get(name)
        reason = "" if claim else refusal or ("it is claimed" if name in claimed else "")
        yield Device(
            id=name,
            subject=gpu.address,
            numa_node=gpu.numa_node,
            reason=fault or reason,
            claim=claim.id if claim else "",
            owner=claim.owner if claim else "",
        )


def _count(resource: ResourceSettings, gpu: Function) -> int:
    if resource.devices is DeviceKind.CORES:
        return WHOLE // resource.size
    memory = gpu.nvml.memory_bytes if gpu.nvml else None
    return (memory or 0) // MEMORY_UNIT * MEMORY_UNIT // resource.size


def _amount(resource: ResourceSettings, share: GpuShare) -> int:
    if resource.devices is DeviceKind.CORES:
        return share.cores
    return share.held_memory


def chosen_parts(
    available: Iterable[str], must: Sequence[str], count: int, gpus: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return `count` of these parts: of these GPUs in their order, and then of others, those with the most first.
    `must`: parts that are among them."""
    by_gpu: dict[str, list[str]] = {}
    for name in dict.fromkeys((*must, *available)):
        by_gpu.setdefault(gpu_of(name), []).append(name)
    order = {gpu: number for number, gpu in enumerate((*map(gpu_of, must), *gpus))}
    names: list[str] = list(must)
    for gpu in sorted(by_gpu, key=lambda gpu: (order.get(gpu, len(order)), -len(by_gpu[gpu]), gpu)):
        names += [name for name in sorted(by_gpu[gpu], key=_order) if name not in names][: count - len(names)]
    return tuple(names[:count])


def _order(name: str) -> tuple[int, str]:
    """Parts come in the order of their numbers; an id of somebody else has none."""
    number = name.rpartition("/")[2]
    return (number_of(name) if number.isascii() and number.isdecimal() else 0), name
