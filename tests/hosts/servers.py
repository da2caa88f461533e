"""Servers of any size as values: GPUs behind switches at host bridges of NUMA nodes, with their CPUs and hugepages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vfioctl.core.limits import read_document
from vfioctl.inventory.model.functions import Function, Inventory
from vfioctl.inventory.model.machine import Group, Iommu, NumaNode
from vfioctl.inventory.model.values import PciAddress
from vfioctl.placement.model.capacity import Capacity, Core, HugepagePool, Topology
from vfioctl.placement.model.claims import Taken
from vfioctl.placement.model.request import ClaimRequest
from vfioctl.placement.model.settings import ClaimSettings
from vfioctl.units import CpuSet

_BRIDGE, _GPU = "060400", "030200"


@dataclass(frozen=True)
class Node:
    """A NUMA node. `bridges`: for each host bridge, the number of GPUs behind each of its switches; 0 for a GPU alone.

    `caches`: for each L3 cache, the number of its cores.
    """

    bridges: tuple[tuple[int, ...], ...] = ()
    caches: tuple[int, ...] = (4,)
    threads: int = 2
    hugepages: Mapping[int, tuple[int, int]] | None = None
    """Total and free pages by size in bytes."""


def server(
    nodes: Sequence[Node],
    *,
    taken: Taken | None = None,
    settings: ClaimSettings | None = None,
    pinned: Mapping[int, str] | None = None,
    peers: Mapping[PciAddress, frozenset[PciAddress]] | None = None,
    gpu: Mapping[PciAddress, Mapping[str, Any]] | None = None,
) -> Capacity:
    """A server with everything in a group of its own. `gpu`: further facts of functions."""
    functions = [
        replace(function, **{"iommu_group": number, **(gpu or {}).get(function.address, {})})
        for number, function in enumerate(_functions(nodes))
    ]
    groups: dict[int, list[PciAddress]] = {}
    for each in functions:
        if each.iommu_group is not None:
            groups.setdefault(each.iommu_group, []).append(each.address)
    cores = list(_cores(nodes))
    inventory = Inventory(
        functions=tuple(sorted(functions, key=lambda each: each.address.order)),
        groups=tuple(Group(id=number, members=tuple(members), viable=True) for number, members in groups.items()),
        numa_nodes=tuple(_node(number, len(nodes), cores) for number in range(len(nodes))),
        iommu=Iommu(kind="intel-vt-d", translating=True),
    )
    return Capacity(
        inventory=inventory,
        topology=Topology(tuple(sorted(cores, key=lambda core: core.cpus))),
        hugepages=tuple(
            HugepagePool(number, size, total, free)
            for number, node in enumerate(nodes)
            for size, (total, free) in (node.hugepages or {}).items()
        ),
        taken=taken or Taken(),
        settings=settings or ClaimSettings(),
        pinned=pinned or {},
        peers=peers or {},
    )


def _node(number: int, nodes: int, cores: Sequence[Core]) -> NumaNode:
    return NumaNode(
        id=number,
        cpus=CpuSet(sorted(cpu for core in cores if core.node == number for cpu in core.cpus)),
        memory_bytes=None,
        distances={other: 10 if other == number else 20 + abs(other - number) for other in range(nodes)},
    )


def _cores(nodes: Sequence[Node]) -> Iterator[Core]:
    """Linux numbers the first threads of all cores, then the second ones."""
    total = sum(sum(node.caches) for node in nodes)
    first = 0
    for number, node in enumerate(nodes):
        for size in node.caches:
            for core in range(first, first + size):
                cpus = tuple(core + thread * total for thread in range(node.threads))
                yield Core(cpus, number, first)
            first += size


def _functions(nodes: Sequence[Node]) -> Iterator[Function]:
    """Each host bridge has a PCI domain of its own, with 256 buses."""
    domain = 0
    for number, node in enumerate(nodes):
        for switches in node.bridges:
            bus = 1
            for slot, gpus in enumerate(switches):
                port = _function(f"{domain:04x}:00:{slot + 1:02x}.0", _BRIDGE, number, None)
                yield port
                if not gpus:
                    yield _function(f"{domain:04x}:{bus:02x}:00.0", _GPU, number, port.address)
                    bus += 1
                    continue
                above = _function(f"{domain:04x}:{bus:02x}:00.0", _BRIDGE, number, port.address)
                yield above
                for index in range(gpus):
                    below = _function(f"{domain:04x}:{bus + 1:02x}:{index:02x}.0", _BRIDGE, number, above.address)
                    yield below
                    yield _function(f"{domain:04x}:{bus + 2 + index:02x}:00.0", _GPU, number, below.address)
                bus += 2 + gpus
            domain += 1


def _function(address: str, class_code: str, node: int, upstream: PciAddress | None) -> Function:
    is_gpu = class_code == _GPU
    return Function(
        address=PciAddress(address),
        vendor_id="10de" if is_gpu else "8086",
        device_id="2330" if is_gpu else "1234",
        subsystem_vendor_id="10de",
        subsystem_device_id="16c1",
        device_name="GH100 [H100 SXM5 80GB]" if is_gpu else "PCIe port",
        class_code=class_code,
        driver="nvidia" if is_gpu else "pcieport",
        numa_node=node,
        upstream=upstream,
    )


def asking(**wanted: object) -> ClaimRequest:
    """A request of some virtual machine."""
    return read_document(ClaimRequest, {"owner": "vm/a", **wanted})


def gpus_of(capacity: Capacity) -> tuple[PciAddress, ...]:
    """The addresses of its GPUs."""
    return tuple(gpu.address for gpu in capacity.inventory.gpus)
