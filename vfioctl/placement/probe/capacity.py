"""Reads the CPUs, memory and hugepages that a host has for claims, and what other guests use. May not write."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from vfioctl.errors import BadSpec, KernelRefused
from vfioctl.inventory.model.functions import Inventory
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel.lenient import names_in, number_in, text_of
from vfioctl.kernel.protocol import FileReader, NvmlAnswer, Reader, Unanswered
from vfioctl.placement.model.capacity import Capacity, HugepagePool
from vfioctl.placement.model.claims import Taken
from vfioctl.placement.model.settings import ClaimSettings
from vfioctl.placement.probe.topology import read_topology
from vfioctl.units import parse_cpu_list


def read_capacity(
    kernel: Reader,
    inventory: Inventory,
    taken: Taken,
    settings: ClaimSettings,
    *,
    links: bool = False,
    cpus: bool = True,
) -> Capacity:
    """Return the host's devices, CPUs and hugepages with what claims and settings take of them. What cannot be read is
    not offered: a pool of hugepages, a CPU. `links`: whether NVML is asked for NVLink peers, which may take a second.
    `cpus`: whether all processes are looked at for pinned guests."""
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


NODE = "/sys/devices/system/node/node{}/hugepages"
HOST = "/sys/kernel/mm/hugepages"
_SIZE = re.compile(r"hugepages-([0-9]{1,9})kB", re.ASCII)


def read_hugepages(kernel: FileReader, nodes: Sequence[int]) -> tuple[HugepagePool, ...]:
    """Return the hugepages by node and size; those of node 0 are all of the host on a kernel without NUMA. A pool that
    cannot be read is left out. Pages that a mapping has reserved and not touched are not free."""
    homes = {node: NODE.format(node) for node in nodes} or {0: HOST}
    reserved = {name: number_in(text_of(kernel, f"{HOST}/{name}/resv_hugepages")) or 0 for name in _sizes(kernel, HOST)}
    return tuple(
        pool
        for node, home in homes.items()
        for name in _sizes(kernel, home)
        if (pool := _pool(kernel, node, f"{home}/{name}", reserved.get(name, 0)))
    )


def read_total_pages(kernel: FileReader, node: int, size: int) -> int | None:
    """Return the number of hugepages of a node, free or not; None if it cannot be read."""
    home = NODE.format(node) if kernel.has(NODE.format(node)) or node else HOST
    try:
        return number_in(kernel.read(f"{home}/hugepages-{size // 1024}kB/nr_hugepages"))
    except KernelRefused as error:
        return 0 if error.symbol == "ENOENT" else None


def _sizes(kernel: FileReader, home: str) -> Iterator[str]:
    return filter(_SIZE.fullmatch, names_in(kernel, home))


def _pool(kernel: FileReader, node: int, place: str, reserved: int) -> HugepagePool | None:
    """`reserved`: pages of all nodes. The kernel does not say of which node they will be: each may lack them all."""
    try:
        texts = kernel.entries(place, ("nr_hugepages", "free_hugepages"), ()).texts
    except KernelRefused:
        return None
    total, free = number_in(texts.get("nr_hugepages", "")), number_in(texts.get("free_hugepages", ""))
    size = _SIZE.fullmatch(place.rpartition("/")[2])
    if total is None or free is None or size is None:
        return None
    return HugepagePool(node, int(size[1]) * 1024, total, max(0, free - reserved))


_NVIDIA, _NOWHERE = "nvidia", "0000:00:00.0"
Peers = Mapping[PciAddress, frozenset[PciAddress]]


def read_peers(kernel: Reader, inventory: Inventory) -> Peers:
    """Return the peers of each GPU on the nvidia driver. NVML is not asked while a device is wedged: it might hang."""
    gpus = [gpu.address for gpu in inventory.gpus if gpu.driver == _NVIDIA and not gpu.is_vf]
    if len(gpus) < 2 or any(function.mark for function in inventory.functions):
        return {}
    return peers_in(kernel.nvml(gpus, links=True)())


def peers_in(answer: NvmlAnswer) -> Peers:
    """Return the peers in an answer of NVML."""
    if isinstance(answer, Unanswered):
        return {}
    ends = {PciAddress(gpu): set(facts.get("nvlink", "").split()) - {_NOWHERE} for gpu, facts in answer.items()}
    switches = {gpu: other - ends.keys() for gpu, other in ends.items()}
    links = {
        gpu: frozenset(
            other
            for other in ends
            if other != gpu and (other in ends[gpu] or gpu in ends[other] or switches[gpu] & switches[other])
        )
        for gpu in ends
    }
    return {gpu: peers for gpu, peers in links.items() if peers}


_VMMS = ("qemu", "kvm", "cloud-hyperviso", "crosvm", "firecracker")
_VCPU = re.compile(r"^Name:\t(?:CPU [0-9]+/[A-Z]+|(?:fc_|crosvm_)?vcpu[ _]?[0-9]+)$", re.ASCII | re.MULTILINE)
_ALLOWED = re.compile(r"^Cpus_allowed_list:\t([0-9,-]+)$", re.ASCII | re.MULTILINE)
_USERS = re.compile(r"^Uid:\t([0-9]+)\t([0-9]+)\t([0-9]+)\t([0-9]+)$", re.ASCII | re.MULTILINE)


def read_pinned(kernel: Reader, nodes: Sequence[Collection[int]]) -> Mapping[int, str]:
    """Return the CPUs of pinned guests, each with the process. `nodes`: the online CPUs of each NUMA node."""
    pinned: dict[int, str] = {}
    for pid, name in sorted(_vmms(kernel)):
        cpus = _allowed(kernel, pid)
        if cpus and not any(cpus.issuperset(node) for node in nodes if node):
            pinned.update({cpu: f"process {pid} ({name})" for cpu in sorted(cpus) if cpu not in pinned})
    return pinned


def _vmms(kernel: Reader) -> Iterator[tuple[int, str]]:
    """Yield the VMMs whose users are believed: anybody can give a program any name."""
    try:
        names = kernel.texts_below("/proc", "comm").texts
    except KernelRefused:
        return
    for pid, name in names.items():
        if pid.isdecimal() and name.startswith(_VMMS) and _is_believed(kernel, pid):
            yield int(pid), name


def _is_believed(kernel: Reader, pid: str) -> bool:
    users = _USERS.search(text_of(kernel, f"/proc/{pid}/status"))
    believed = kernel.believed_users
    return users is not None and all(
        uid == "0" or uid in believed or kernel.user(int(uid)) in believed for uid in set(users.groups())
    )


def _allowed(kernel: Reader, pid: int) -> set[int]:
    """Return the CPUs on which the threads of virtual CPUs may run; none if there are no such threads."""
    try:
        statuses = kernel.texts_below(f"/proc/{pid}/task", "status").texts.values()
        lists = [_ALLOWED.search(status) for status in statuses if _VCPU.search(status)]
        return {cpu for allowed in lists if allowed for cpu in parse_cpu_list(allowed[1])}
    except (KernelRefused, BadSpec):
        return set()
