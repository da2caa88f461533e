"""Reads what a host has for claims. May not write."""

from __future__ import annotations

from vfioctl.inventory.model.functions import Inventory
from vfioctl.kernel.protocol import Reader
from vfioctl.placement.model.capacity import Capacity
from vfioctl.placement.model.settings import ClaimSettings
from vfioctl.placement.model.taken import Taken
from vfioctl.placement.probe.hugepages import read_hugepages
from vfioctl.placement.probe.peers import read_peers
from vfioctl.placement.probe.pinned import read_pinned
from vfioctl.placement.probe.topology import read_topology


def read_capacity(
    kernel: Reader,
    inventory: Inventory,
    taken: Taken,
    settings: ClaimSettings,
    *,
    links: bool = False,
    cpus: bool = True,
) -> Capacity:
    """Return the host's devices, CPUs and hugepages with what claims and settings take of them.

    What cannot be read is not offered: a pool of hugepages, a CPU. `links`: whether NVML is asked for NVLink peers,
    which may take a second. `cpus`: whether all processes are looked at for pinned guests.
    """
    topology = read_topology(kernel, inventory.numa_nodes)
    nodes = [{cpu for core in cores for cpu in core.cpus} for cores in topology.by_node.values()]
    return Capacity(
        inventory=inventory,
        topology=topology,
        hugepages=read_hugepages(kernel, [node.id for node in inventory.numa_nodes]),
        taken=taken,
        settings=settings,
        pinned=read_pinned(kernel, nodes) if cpus else {},
        peers=read_peers(kernel, inventory) if links else {},
    )
