"""Places a request: devices, CPUs and hugepages, with the reason for each choice. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from vfioctl.errors import BadSpec, NoCapacity, UnknownDevice
from vfioctl.inventory.model.functions import Function
from vfioctl.inventory.model.preconditions import refuse_unread
from vfioctl.inventory.model.values import PciAddress, Subject
from vfioctl.placement.choosing.gpus import Pool
from vfioctl.placement.choosing.node_resources import UNKNOWN_NODE
from vfioctl.placement.choosing.preconditions import (
    BOOT_DISPLAY,
    model_of,
    over_quota,
    refusal,
    refusal_of_mdev,
    refusals,
    why_not_whole,
)
from vfioctl.placement.choosing.shares import best, total_of, why_no_share, words_of
from vfioctl.placement.explaining.nearby import nearby_of
from vfioctl.placement.explaining.reasons import no_capacity, rejections, too_few, why_nearby, why_these
from vfioctl.placement.model.capacity import Capacity, VgpuCreation
from vfioctl.placement.model.placement import NewVgpus, Placement, Rejection
from vfioctl.placement.model.request import ClaimRequest
from vfioctl.placement.model.share import WHOLE, GpuShare
from vfioctl.units import Uuid
from vfioctl.vgpu.model.kinds import creates, place_and_type

_FREE = "free, with room for one; cards with less to spare go first"


def place(request: ClaimRequest, capacity: Capacity) -> Placement:
    """Return what a request gets: the devices that it names, a number of GPUs, or the vGPUs that are planned for it.
    Raises NoCapacity with the reason for each GPU that cannot be chosen, UnknownDevice, BadSpec."""
    if capacity.realtime and request.cpus and capacity.topology.isolated:
        with suppress(NoCapacity):
            return _placed(request, capacity.for_isolated_only)
    return _placed(request, capacity)


def _placed(request: ClaimRequest, capacity: Capacity) -> Placement:
    if capacity.creation:
        return _new_vgpus(request, capacity, capacity.creation)
    if request.is_native:
        return (_share if request.is_share else _native)(request, capacity)
    if request.gpus and request.devices:
        return _chosen_beside(request, capacity)
    if request.devices or request.exact_cpus or request.exact_hugepages or (request.cpus and not request.gpus):
        return _named(request, capacity)
    if not request.gpus:
        raise BadSpec("the request names no device and no number of GPUs")
    return _chosen(request, capacity)


def place_near(vgpus: Sequence[NewVgpus], request: ClaimRequest, capacity: Capacity) -> Placement:
    """Return CPUs and hugepages for new vGPUs, whose parents others have chosen. Raises NoCapacity."""
    functions: Mapping[str, Function] = {function.address: function for function in capacity.inventory.functions}
    placement = nearby_of(request, capacity, (), [functions.get(vgpu.parent) for vgpu in vgpus])
    return replace(placement, vgpus=tuple(vgpus))


def refused(request: ClaimRequest, capacity: Capacity) -> Mapping[PciAddress, str]:
    """Return why each GPU that is no VF cannot be chosen, or why no vGPU may be created on it; others are left out."""
    if request.is_native:
        return _unfit(request, capacity, candidates(capacity))
    return refusals(request, capacity, candidates(capacity))


def _unfit(request: ClaimRequest, capacity: Capacity, gpus: Sequence[Function]) -> Mapping[PciAddress, str]:
    return {gpu.address: why for gpu in gpus if (why := why_not_whole(gpu, request, capacity))}


def candidates(capacity: Capacity, *, virtual: bool = False) -> Sequence[Function]:
    """Return the GPUs that a number of GPUs may mean, in address order: the VFs if `virtual`, else all others."""
    return [gpu for gpu in capacity.inventory.gpus if gpu.is_vf == virtual]


def _new_vgpus(request: ClaimRequest, capacity: Capacity, creation: VgpuCreation) -> Placement:
    places = Counter(place_and_type(change) for change in creation.plan.changes if creates(change))
    vgpus = [NewVgpus(parent, kind, count) for (parent, kind), count in places.items()]
    if over := over_quota(request, capacity, sum(new.count for new in vgpus)):
        raise no_capacity(over, (), {})
    placement = place_near(vgpus, request, capacity)
    others = tuple(_other_cards(vgpus, request, capacity, creation))
    return replace(placement, why=(*creation.plan.notes, *placement.why), others=others)


def _other_cards(
    vgpus: Sequence[NewVgpus], request: ClaimRequest, capacity: Capacity, creation: VgpuCreation
) -> Iterator[Rejection]:
    parents, reasons, gpus = {vgpu.parent for vgpu in vgpus}, refused(request, capacity), candidates(capacity)
    for gpu in gpus:
        if parents.isdisjoint((gpu.address, *gpu.virtfns)):
            why = reasons.get(gpu.address) or creation.refusals.get(gpu.address, "it offers no vGPUs")
            yield Rejection(gpu.address, gpu.title, why or _FREE, free=not why)
    functions = {gpu.address for gpu in gpus}
    for name, why in creation.refusals.items():
        if name not in functions and name not in parents:
            yield Rejection(name, "", why or _FREE, free=not why)


def _share(request: ClaimRequest, capacity: Capacity) -> Placement:
    """Return the GPU that gives a share. Raises NoCapacity with the reason of each that cannot."""
    gpus = _native_candidates(request, capacity)
    reasons = {gpu.address: why for gpu in gpus if (why := why_no_share(gpu, request, capacity))}
    free = [gpu for gpu in gpus if gpu.address not in reasons]
    if over := over_quota(request, capacity, 1):
        raise no_capacity(over, gpus, {**dict.fromkeys((gpu.address for gpu in free), over), **reasons})
    if not free:
        words = GpuShare("", request.cores, request.gpu_memory).words
        raise no_capacity(f"no GPU can give a share of {words}", gpus, reasons)
    gpu = best(request, capacity, free)
    share = _share_of(gpu, request.cores, request)
    choice = "the one with the most free" if request.spread else "the one with the least free that fits"
    chosen = f"{gpu.address} had {words_of(gpu, capacity)}" + (
        f": {choice}" if free[1:] and not request.devices else ""
    )
    others = (
        Rejection(other.address, other.title, reasons.get(other.address, words_of(other, capacity)), other in free)
        for other in gpus
        if other is not gpu
    )
    placement = nearby_of(request, capacity, (), [gpu])
    return replace(placement, shares=(share,), why=(chosen, *placement.why), others=tuple(others))


def _native(request: ClaimRequest, capacity: Capacity) -> Placement:
    """Return whole GPUs that stay with their host driver, as close to each other as those for guests."""
    gpus = _native_candidates(request, capacity)
    reasons = _unfit(request, capacity, gpus)
    whole = replace(request, cores=0, gpus=0 if request.devices else request.cores // WHOLE, bind=False)
    if request.devices:
        bad = [Rejection(gpu.address, gpu.title, reasons[gpu.address]) for gpu in gpus if gpu.address in reasons]
        placement = _given(whole, capacity, {gpu.address: gpu for gpu in gpus}, bad)
    else:
        placement = _chosen(whole, capacity, (gpus, reasons))
    chosen = (capacity.inventory.by_address[address] for address in placement.functions)
    return replace(placement, devices=(), shares=tuple(_share_of(gpu, WHOLE, request) for gpu in chosen))


def _native_candidates(request: ClaimRequest, capacity: Capacity) -> Sequence[Function]:
    """Return the GPUs that a request for native ones may mean: those that it names, or all. Raises BadSpec."""
    named = [_of(capacity, device) for device in request.devices if isinstance(device, PciAddress)]
    gpus = [gpu for gpu in named if gpu and gpu.is_gpu and not gpu.is_vf]
    if len(gpus) != len(request.devices):
        raise BadSpec("only physical GPUs can be shared or given to containers", hint="name a GPU, such as gpu0")
    return gpus or candidates(capacity)


def _share_of(gpu: Function, cores: int, request: ClaimRequest) -> GpuShare:
    uuid, total = gpu.nvml.uuid if gpu.nvml else None, total_of(gpu) or 0
    return GpuShare(gpu.address, cores, request.gpu_memory, total, gpu.identity, uuid or "", request.enforce)


_Judged = tuple[Sequence[Function], Mapping[PciAddress, str]]
"""GPUs that a request may mean, and why some of them cannot be chosen."""


def _chosen(request: ClaimRequest, capacity: Capacity, judged: _Judged | None = None) -> Placement:
    pool, chosen, others = _gpus_for(request, capacity, judged)
    nodes = pool.used_nodes(chosen)
    nearby = pool.node_resources.nearby(nodes)
    return Placement(
        devices=chosen,
        cpus=nearby.cpus,
        hugepages=nearby.hugepages,
        nodes=tuple(node for node in nodes if node != UNKNOWN_NODE),
        why=(*why_these(pool, chosen), *why_nearby(request, capacity, nearby)),
        others=others,
    )


def _chosen_beside(request: ClaimRequest, capacity: Capacity) -> Placement:
    """Return a number of GPUs with the devices that are named beside it; CPUs are near all of them."""
    named = dict.fromkeys((device for device in request.devices if isinstance(device, PciAddress)), "it is named")
    pool, chosen, others = _gpus_for(request, replace(capacity, held={**capacity.held, **named}))
    together = replace(request, devices=(*chosen, *request.devices), gpus=0, model="", memory_min=0)
    placement = _named(together, capacity)
    return replace(placement, why=(*why_these(pool, chosen), *placement.why), others=others)


def _gpus_for(
    request: ClaimRequest, capacity: Capacity, judged: _Judged | None = None
) -> tuple[Pool, tuple[PciAddress, ...], tuple[Rejection, ...]]:
    """Return the GPUs that can be chosen, those that are, and why not each other one. Raises NoCapacity."""
    if judged is None:
        gpus = candidates(capacity, virtual=request.virtual)
        judged = gpus, refusals(request, capacity, gpus)
    gpus, reasons = judged
    free = tuple(gpu.address for gpu in gpus if gpu.address not in reasons)
    if over := over_quota(request, capacity, request.gpus):
        raise no_capacity(over, gpus, {**dict.fromkeys(free, over), **reasons})
    pool = Pool(request, capacity, free)
    chosen = _of_one_model(pool) or pool.choice()
    if chosen is None:
        raise too_few(pool, gpus, reasons)
    return pool, chosen, rejections(pool, chosen, gpus, reasons)


def preferred(request: ClaimRequest, capacity: Capacity, gpus: tuple[PciAddress, ...]) -> tuple[PciAddress, ...]:
    """Return those of these GPUs that a request would get, of the model of those that it names if there are enough.
    Raises NoCapacity."""
    by_address = capacity.inventory.by_address
    models = {model_of(by_address[device]) for device in request.devices if isinstance(device, PciAddress)}
    alike = tuple(gpu for gpu in gpus if model_of(by_address[gpu]) in models)
    pools = [Pool(request, capacity, some) for some in (alike, gpus) if len(some) >= request.gpus]
    for pool in pools:
        if chosen := _of_one_model(pool) or pool.choice():
            return chosen
    raise NoCapacity(f"no {request.gpus} of these GPUs can be chosen together")


def _of_one_model(pool: Pool) -> tuple[PciAddress, ...] | None:
    """Return the best choice of GPUs with the same ids; None if no model has as many."""
    models: dict[tuple[str, str], list[PciAddress]] = {}
    for gpu in pool.gpus:
        models.setdefault(model_of(pool.capacity.inventory.by_address[gpu]), []).append(gpu)
    if len(models) == 1 or pool.request.gpus == 1:
        return None
    choices = (Pool(pool.request, pool.capacity, tuple(gpus)).choice() for gpus in models.values())
    return min(filter(None, choices), key=lambda gpus: (pool.score(gpus), gpus), default=None)


def _named(request: ClaimRequest, capacity: Capacity) -> Placement:
    functions = {device: _of(capacity, device) for device in request.devices}
    titles = {device: function.title if function else "" for device, function in functions.items()}
    asked = [device for device in request.devices if isinstance(device, PciAddress)]
    bad = []
    for device, function in functions.items():
        if function and isinstance(device, PciAddress):
            reason = refusal(function, request, capacity, asked)
        else:
            reason = refusal_of_mdev(device, function or capacity.parents[Uuid(device)], capacity)
        if reason:
            bad.append(Rejection(device, titles[device], reason))
    return _given(request, capacity, functions, bad)


def _given(
    request: ClaimRequest, capacity: Capacity, functions: Mapping[Subject, Function | None], bad: Sequence[Rejection]
) -> Placement:
    """Return the placement of devices that are named. `bad`: those that cannot be given. Raises NoCapacity."""
    titles = {device: function.title if function else "" for device, function in functions.items()}
    if bad:
        more = f", nor {len(bad) - 1} more" if bad[1:] else ""
        error = no_capacity(f"{bad[0].device} cannot be claimed{more}: {bad[0].reason}", (), {}, bad)
        display = next((rejection.device for rejection in bad if rejection.reason == BOOT_DISPLAY), "")
        if display and request.bind:
            error.next_command = f"vfioctl bind {display} --allow-boot-vga"
        raise error
    gpus = sum(bool(isinstance(device, Uuid) or (f and f.is_gpu)) for device, f in functions.items())
    if over := over_quota(request, capacity, gpus):
        raise no_capacity(over, (), {}, [Rejection(device, title, over) for device, title in titles.items()])
    return nearby_of(request, capacity, request.devices, [*functions.values()])


def _of(capacity: Capacity, device: Subject) -> Function | None:
    """Return the function; the parent of a mediated device, None if that is none. Raises UnknownDevice."""
    inventory = capacity.inventory
    if isinstance(device, PciAddress):
        if device not in inventory.by_address:
            refuse_unread(device, inventory)
            raise UnknownDevice(f"there is no device {device} here", next_command="vfioctl inventory --all")
        return inventory.by_address[device]
    parent = next((function for function in inventory.functions if device in function.mdevs), None)
    if parent is None and device not in capacity.parents:
        raise UnknownDevice(f"there is no mediated device {device} here", next_command="vfioctl vgpu list")
    return parent
