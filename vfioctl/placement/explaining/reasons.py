"""Explains a placement: why these GPUs, CPUs and hugepages, why not each other GPU; or why there is none. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict

from vfioctl.console.words import counted
from vfioctl.errors import NoCapacity, some_of
from vfioctl.inventory.model.functions import Function
from vfioctl.inventory.model.values import PciAddress, Subject
from vfioctl.placement.choosing.gpus import Pool
from vfioctl.placement.choosing.node_resources import UNKNOWN_NODE, NearbyResources
from vfioctl.placement.choosing.preconditions import model_of
from vfioctl.placement.choosing.tree import Kind, Meeting
from vfioctl.placement.model.capacity import Capacity
from vfioctl.placement.model.placement import WARNING, Rejection
from vfioctl.placement.model.request import ClaimRequest
from vfioctl.units import format_cpu_list, format_size

_MEET = {
    Kind.SWITCH: "behind one PCIe switch, {}",
    Kind.PORT: "behind one root port, {}",
    Kind.BRIDGE: "at one PCIe host bridge, {}",
    Kind.NODE: "at several PCIe host bridges",
}
_NVSWITCH, _NVIDIA = "0680", "10de"
_AT = {Kind.SWITCH: "behind {}", Kind.PORT: "behind {}", Kind.BRIDGE: "at host bridge {}", Kind.NODE: "elsewhere"}
"""Where a GPU is of which the chosen ones are apart."""


def why_these(pool: Pool, chosen: Sequence[PciAddress]) -> Iterator[str]:
    """Yield sentences about the GPUs that were chosen."""
    nodes = pool.used_nodes(chosen)
    known = [node for node in nodes if node != UNKNOWN_NODE]
    names = ", ".join(map(_node_name, known))
    if len(known) > 1:
        yield f"on {len(known)} NUMA nodes ({names}): no fewer have all that is asked for"
    elif known:
        yield f"on {names}"
    yield from _why_mixed([pool.capacity.inventory.by_address[gpu] for gpu in chosen])
    yield from _why_without_switches(pool, chosen)
    yield from why_unknown([gpu for gpu in chosen if pool.nodes[gpu] == UNKNOWN_NODE], pool.capacity)
    trees = pool.in_fabric if chosen[0] in pool.fabric else pool.single
    places = [tree for node, tree in trees.items() if node in nodes]
    if len(chosen) > 1 and len(places) == 1:
        meeting = _meeting(places[0], frozenset(chosen))
        yield _MEET[meeting.kind].format(meeting.name)
    yield from _why_near(pool, places, frozenset(chosen))
    if len(chosen) > 1 and all(set(chosen) <= pool.capacity.peers.get(gpu, frozenset()) | {gpu} for gpu in chosen):
        yield "all are peers of each other over NVLink"
    if chosen[0] in pool.fabric:
        yield "they are one whole partition of the fabric manager"
    broken = sorted({place.name: place for tree in places for place in _broken(tree, frozenset(chosen))}.items())
    if broken and len(chosen) < len(pool.gpus):
        left = (f"{len(place.gpus) - len(set(place.gpus) & set(chosen))} behind {name}" for name, place in broken[:3])
        yield f"free GPUs that lose their neighbours: {', '.join(left)}"


def _why_near(pool: Pool, places: Sequence[Meeting], chosen: frozenset[PciAddress]) -> Iterator[str]:
    for function in pool.named:
        place = next((place for place in places if function in place.named), None)
        while place and (nearer := next(filter(lambda below: _has_both(below, function, chosen), place.below), None)):
            place = nearer
        if place and _has_both(place, function, chosen):
            gpus = some_of(gpu for gpu in place.gpus if gpu in chosen)
            yield f"nearest to {function}: {gpus}, {_MEET[place.kind].format(place.name)}"


def _has_both(place: Meeting, function: PciAddress, chosen: frozenset[PciAddress]) -> bool:
    return function in place.named and not chosen.isdisjoint(place.gpus)


def _why_mixed(gpus: Sequence[Function]) -> Iterator[str]:
    models = {model_of(gpu): gpu.title for gpu in gpus}
    if len(models) > 1:
        names = ", ".join(models.values())
        yield f"{WARNING}they are of different models ({names}): no model has as many; --model names one"


def _why_without_switches(pool: Pool, chosen: Sequence[PciAddress]) -> Iterator[str]:
    inventory = pool.capacity.inventory
    switches = [
        function.address
        for function in inventory.functions
        if function.class_code.startswith(_NVSWITCH) and function.vendor_id == _NVIDIA
        if function.address not in pool.request.devices
    ]
    if chosen[0] in pool.fabric:  # the host's fabric manager has a partition for them
        return
    gpus = [gpu for gpu in inventory.gpus if gpu.vendor_id == _NVIDIA and not gpu.is_vf and not gpu.boot_vga]
    if switches and {*chosen}.issuperset(gpu.address for gpu in gpus):
        beside = " ".join(f"--device {switch}" for switch in switches)
        yield (
            f"{WARNING}all GPUs are taken, and the NVSwitches {some_of(switches)} are not. Either the guest gets them "
            f"and runs the fabric manager ({beside}), or the host's fabric manager makes a partition of the GPUs"
        )


def why_unknown(devices: Sequence[Subject], capacity: Capacity) -> Iterator[str]:
    """Yield a sentence about devices whose NUMA node is not known, on a host that has several."""
    if devices and len(capacity.topology.by_node) > 1:
        its = "NUMA node is" if len(devices) == 1 else "NUMA nodes are"
        yield f"{WARNING}the {its} not known of {some_of(devices)}: CPUs and memory may be far away"


def _node_name(node: int) -> str:
    return "a NUMA node that is not known" if node == UNKNOWN_NODE else f"NUMA node {node}"


def _meeting(place: Meeting, chosen: frozenset[PciAddress]) -> Meeting:
    inner = next((child for child in place.below if chosen <= set(child.gpus)), None)
    return _meeting(inner, chosen) if inner else place


def _broken(place: Meeting, chosen: frozenset[PciAddress]) -> Iterator[Meeting]:
    """Yield the switches behind which some are taken, and others are left."""
    for child in place.below:
        yield from _broken(child, chosen)
    taken = chosen & set(place.gpus)
    if place.kind in (Kind.SWITCH, Kind.PORT) and taken and len(taken) < len(place.gpus):
        yield place


def rejections(
    pool: Pool, chosen: Sequence[PciAddress], gpus: Sequence[Function], reasons: Mapping[PciAddress, str]
) -> tuple[Rejection, ...]:
    """Return why each of the other GPUs was not chosen. `reasons`: why some cannot be."""
    better = _Better(pool, chosen)
    listed = []
    for gpu in gpus:
        if gpu.address in reasons:
            listed.append(Rejection(gpu.address, gpu.title, reasons[gpu.address]))
        elif gpu.address not in better.chosen:
            listed.append(Rejection(gpu.address, gpu.title, better.than(gpu.address), free=True))
    return tuple(listed)


class _Better:
    def __init__(self, pool: Pool, chosen: Sequence[PciAddress]) -> None:
        self._pool, self.chosen = pool, frozenset(chosen)
        self._nodes = pool.used_nodes(chosen)
        self._missing = {
            node: pool.node_resources.missing({node: 1}) for node in set(pool.nodes.values()) - set(self._nodes)
        }
        self._places: dict[PciAddress, str] = {}
        for node in self._nodes:
            if node in pool.single and self.chosen.isdisjoint(pool.fabric):
                self._look(pool.single[node])

    def _look(self, place: Meeting) -> None:
        """Keep for each GPU on a node of the chosen ones where it is, seen from them."""
        if self.chosen.isdisjoint(place.gpus):
            self._places.update(dict.fromkeys(place.gpus, f", {_AT[place.kind].format(place.name)}"))
        else:
            for child in place.below:
                self._look(child)

    def than(self, gpu: PciAddress) -> str:
        node = self._pool.nodes[gpu]
        if gpu in self._pool.fabric:
            return "free, in other partitions" if self.chosen & self._pool.fabric else "free, but only in a partition"
        if not self.chosen.isdisjoint(self._pool.fabric):
            return "free; the chosen partition is better"
        if node not in self._nodes:
            if missing := self._missing[node]:
                return f"{_node_name(node)} has {missing}"
            return f"free, on {_node_name(node)}; the chosen ones are on {', '.join(map(_node_name, self._nodes))}"
        return f"free{self._places.get(gpu, '')}; the chosen ones are as good"


def why_nearby(request: ClaimRequest, capacity: Capacity, nearby: NearbyResources) -> Iterator[str]:
    """Yield sentences about the CPUs and hugepages."""
    for node in sorted({core.node for core in nearby.cores}):
        cores = [core for core in nearby.cores if core.node == node]
        cpus = [cpu for core in cores for cpu in core.cpus]
        caches = {core.cache for core in cores if core.cache is not None}
        shared = f" at {counted(len(caches), 'L3 cache')}" if caches else ""
        cpus_and_cores = f"{counted(len(cpus), 'CPU')}, {counted(len(cores), 'whole core')}"
        yield f"{cpus_and_cores} of NUMA node {node}{shared}: {format_cpu_list(cpus)}"
    if len(nearby.cpus) > request.cpus:
        yield f"{counted(len(nearby.cpus), 'CPU')} instead of {request.cpus}, because cores are given whole"
    if request.cpus:
        yield from (f"{what}: {why}" for what, why in capacity.topology.unknown.items())
        yield from why_not_isolated(capacity, nearby.cpus)
    for pages in nearby.hugepages:
        yield f"{counted(pages.pages, 'hugepage')} of {format_size(pages.size)} of NUMA node {pages.node}"


def why_not_isolated(capacity: Capacity, cpus: Collection[int]) -> Iterator[str]:
    """Yield a warning about CPUs of a realtime guest that the host's scheduler does not leave alone."""
    others = sorted({*cpus} - capacity.topology.isolated) if capacity.realtime else ()
    if others:
        why = "too few isolated CPUs are free" if capacity.topology.isolated else "the host isolates no CPUs"
        yield (
            f"{WARNING}realtime CPUs that are not isolated: {format_cpu_list(others)}, because {why}. Other threads of "
            "the host run there too: isolate CPUs with isolcpus= and nohz_full="
        )


_CAN = "can be chosen"
_MOST_REASONS = 6
"""The most reasons in a hint; all of them are in the error's facts."""


def too_few(pool: Pool, gpus: Iterable[Function], reasons: Mapping[PciAddress, str]) -> NoCapacity:
    """Return the failure of choosing a number of GPUs. `reasons`: why some of the GPUs cannot be chosen."""
    request, free, gpus = pool.request, [gpu for gpu in pool.gpus if gpu not in pool.fabric], [*gpus]
    many = counted(request.gpus, "VF" if request.virtual else "GPU")
    if not gpus:
        what, hint = "GPU", "name other devices, such as network cards, with --device"
        if request.virtual:
            what, hint = "VF of a GPU", "create VFs with vfioctl sriov set, or vGPUs with --vgpu"
        return no_capacity(f"{many} cannot be chosen: the host has no {what}", (), {}, hint=hint)
    if len(pool.gpus) < request.gpus:
        left = f"only {len(pool.gpus)}" if pool.gpus else "none"
        reasons = {**dict.fromkeys(pool.gpus, _CAN), **reasons}
        return no_capacity(f"{many} cannot be chosen: {left} can be", gpus, reasons)
    if len(free) < request.gpus:
        why = f"no free partition has {many}"
    elif request.numa == "same" and max(pool.used_nodes(free).values(), default=0) < request.gpus:
        why = f"no NUMA node has {many} that can be chosen"
    else:
        why = f"no NUMA node has {many} and {_nearby(pool)}"
        if request.numa != "same":
            why = why.replace("no NUMA node has", "no NUMA nodes have", 1)
    rooms = {gpu: _free(pool, gpu) for gpu in pool.gpus}
    return no_capacity(f"{many} cannot be chosen: {why}", gpus, {**rooms, **reasons})


def _nearby(pool: Pool) -> str:
    request = pool.request
    cpus = f"{counted(request.cpus, 'free CPU')}" if request.cpus else ""
    pages = f"{format_size(request.hugepages)} in free hugepages" if request.hugepages else ""
    return " and ".join(filter(None, (cpus, pages)))


def _free(pool: Pool, gpu: PciAddress) -> str:
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
    """Return the error: the reason for each device as facts, and the most frequent ones unless there is a `hint`."""
    unfit = ((gpu, reasons[gpu.address]) for gpu in gpus if gpu.address in reasons)
    listed = [*rejections, *(Rejection(gpu.address, gpu.title, why, free=why.startswith(_CAN)) for gpu, why in unfit)]
    grouped: dict[str, list[str]] = {}
    for rejection in listed:
        grouped.setdefault(rejection.reason, []).append(rejection.device)
    lines = [f"{some_of(devices)}: {reason}" for reason, devices in grouped.items() if reason != _CAN]
    more = [f"and {len(lines) - _MOST_REASONS} more reasons, which --json has"] if lines[_MOST_REASONS:] else []
    is_said = len(grouped) == 1 and all(reason in message for reason in grouped)
    hint = hint or ("" if is_said else "\n".join([*lines[:_MOST_REASONS], *more]))
    return NoCapacity(message, hint=hint, facts={"devices": [asdict(rejection) for rejection in listed]})
