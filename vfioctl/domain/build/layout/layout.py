"""Lays out a domain: its vCPUs, memory and devices. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from vfioctl.domain.build.layout import cpus, memory, pci
from vfioctl.domain.build.layout.devices import address_space, node_choices
from vfioctl.domain.model.layout import NO_TOPOLOGY, Cell, Choice, Device, GuestTopology, Layout, Shape, is_distance
from vfioctl.domain.model.libvirt import NOBODY, Others
from vfioctl.domain.model.spec import DomainSpec
from vfioctl.errors import HostError, some_of
from vfioctl.inventory.model.machine import Processor
from vfioctl.placement.model.capacity import Capacity
from vfioctl.placement.model.placement import WARNING
from vfioctl.units import CpuSet

_ARCHITECTURES = ("x86_64", "aarch64")


class Host(NamedTuple):
    """What a layout is made of: a host at one moment."""

    capacity: Capacity
    processor: Processor
    free_memory: Mapping[int, int]
    """Bytes of ordinary memory that are free, by node, where they are known."""
    others: Others = NOBODY
    """What other domains have."""


def lay_out(
    spec: DomainSpec,
    devices: Sequence[Device],
    chosen: Sequence[int],
    host: Host,
    why: Sequence[str] = (),
    topology: GuestTopology = NO_TOPOLOGY,
    *,
    nccl: bool = False,
) -> Layout:
    """Return the layout of a domain with these devices and host CPUs; without CPUs, its vCPUs are not pinned. `spec`:
    with the numbers of vCPUs and bytes that are wanted. `why`: why these devices and CPUs. `topology`: the PCI of an
    existing domain. `nccl`: whether NCCL's topology is to be written. Raises HostError, NoCapacity, BadSpec."""
    _refuse_without_layout(host.processor)
    capacity, pinning, vcpus = host.capacity, None, _floating(devices, spec, host)
    on_nodes = list(node_choices(devices, capacity.inventory, spec.policy))
    if chosen:
        pinning = cpus.pin(chosen, spec.cpus, spec.smt, capacity.topology, has_dies=host.processor.is_x86)
        vcpus = {node: len(pins) for node, pins in pinning.by_node.items()}
    division = memory.divide(spec.memory, vcpus, capacity, host.free_memory, pages=spec.hugepages, policy=spec.policy)
    cells = _cells(vcpus, division.by_node, devices, host)
    cell_of = {cell.node: number for number, cell in enumerate(cells) if cell.node is not None}
    expanders = pci.expanders(devices, cell_of, topology, nccl=nccl)
    space = address_space(devices, host.processor, spec.memory)
    emulator, pinned = CpuSet(), [_NOT_PINNED]
    if pinning:
        emulator = CpuSet(cpus.housekeeping(capacity, list(vcpus)))
        pinned = [*_pinned(pinning.choices, cpus.excluded(capacity, chosen)), _emulator(emulator)]
    return Layout(
        cells=cells,
        pins=pinning.pins if pinning else {},
        shape=pinning.shape if pinning else Shape(1, 1, spec.cpus, 1),
        emulator=emulator,
        page_size=division.page_size,
        strict=bool(division.page_size) or spec.policy == "strict",
        expanders=expanders,
        hole=space.hole,
        wide_addresses=space.wide,
        shares_cache=bool(pinning and pinning.shares_cache),
        arch=host.processor.arch,
        is_amd=host.processor.is_amd,
        choices=(
            _device_choice(devices, why),
            *on_nodes,
            *_room_choices(devices, vcpus, spec, host),
            *pinned,
            *division.choices,
            *_cell_choices(cells, host.capacity),
            *_distance_choices(cells, host.capacity),
            *pci.choices(expanders, nccl=nccl),
            *space.choices,
            *_notes(devices),
            *cpus.shared(capacity, chosen),
            *_shared_choices(devices, host.others),
        ),
    )


_WEAKER = "the guest shares CPUs with the host and with other guests"
_NOT_PINNED = Choice("vCPUs", "not pinned", "there are too few free cores", weaker=_WEAKER)


def _floating(devices: Sequence[Device], spec: DomainSpec, host: Host) -> Mapping[int, int]:
    """Return the one node whose memory a domain without pinned vCPUs has: that of most of its devices."""
    known = [device.node for device in devices if device.node in host.capacity.topology.by_node]
    nodes = known or list(memory.by_room(spec, host.capacity, host.free_memory)) or [0]
    return {max(dict.fromkeys(nodes), key=nodes.count) or 0: spec.cpus}


def _room_choices(
    devices: Sequence[Device], vcpus: Mapping[int, int], spec: DomainSpec, host: Host
) -> Sequence[Choice]:
    """Return why these nodes, if no device reports its own."""
    nodes = memory.by_room(spec, host.capacity, host.free_memory)
    if len(nodes) < 2 or not devices or any(device.node is not None for device in devices):
        return []
    taken = f"NUMA node{'s' * (len(vcpus) > 1)} {', '.join(map(str, vcpus))}"
    most = "it has the most free memory" if [*vcpus] == [nodes[0]] else "those with more free memory have too few CPUs"
    why = f"{most}: {memory.rooms_in_words(spec, host.capacity, host.free_memory)}"
    return [Choice("NUMA node, which no device reports", taken, why, weaker=f"{taken} was taken: {why}")]


def _cells(
    vcpus: Mapping[int, int], by_node: Mapping[int, int], devices: Sequence[Device], host: Host
) -> tuple[Cell, ...]:
    """Return a cell for each node with vCPUs, then one without for each other node that has devices."""
    has_nodes = bool(host.capacity.inventory.numa_nodes)
    device_nodes = sorted({device.node for device in devices if device.node is not None}.difference(vcpus))
    nodes = [*vcpus, *(device_nodes if has_nodes else ())]
    known = _distances(nodes, host.capacity)
    is_known = len(nodes) > 1 and len(known) == len(nodes) ** 2 and not _refused(known)
    cells, first = [], 0
    for node in nodes:
        own = CpuSet(range(first, first + vcpus.get(node, 0)))
        distances = tuple(known[node, other] for other in nodes) if is_known else ()
        cells.append(Cell(node if has_nodes else None, own, by_node.get(node, 0), distances))
        first += len(own)
    return tuple(cells)


def _distances(nodes: Sequence[int], capacity: Capacity) -> Mapping[tuple[int, int], int]:
    distances = {node.id: node.distances for node in capacity.inventory.numa_nodes}
    pairs = ((node, other) for node in nodes for other in nodes)
    return {(a, b): distances[a][b] for a, b in pairs if a in distances and b in distances[a]}


def _refused(known: Mapping[tuple[int, int], int]) -> Sequence[str]:
    """Return the distances that libvirt does not take: some firmware, and nodes that the kernel fakes, have such."""
    refused = ((a, b, value) for (a, b), value in known.items() if not is_distance(value, local=a == b))
    return [f"{value} from node {a} to node {b}" for a, b, value in refused]


def _distance_choices(cells: Sequence[Cell], capacity: Capacity) -> Sequence[Choice]:
    nodes = [cell.node for cell in cells if cell.node is not None]
    refused = _refused(_distances(nodes, capacity))
    if len(nodes) < 2 or not refused:
        return []
    why = f"the host has {some_of(refused, 2)}; libvirt takes 10 for a node itself, 11 to 255 for another"
    weaker = "the guest does not see how far its nodes are from each other: libvirt does not take the host's distances"
    return [Choice("distances of the guest's cells", "left out", why, weaker=weaker)]


def _device_choice(devices: Sequence[Device], why: Sequence[str]) -> Choice:
    named = some_of((f"{device.subject} as {device.label}" for device in devices), 12)
    reasons = "; ".join(text for text in why if not text.startswith(WARNING))
    weaker = "; ".join(text.removeprefix(WARNING) for text in why if text.startswith(WARNING))
    return Choice("devices", named, reasons or "they were asked for, with what must travel with them", weaker=weaker)


def _pinned(choices: Sequence[Choice], excluded: tuple[str, ...]) -> Sequence[Choice]:
    return [choice._replace(excluded=excluded) if number == 1 else choice for number, choice in enumerate(choices)]


def _emulator(emulator: CpuSet) -> Choice:
    what = "emulator and I/O threads"
    if not emulator:
        weaker = "they may run on any CPU, also those of guests"
        return Choice(what, "not pinned", "no CPUs stay with the host", weaker=weaker)
    return Choice(what, f"CPUs {emulator}", "the CPUs that stay with the host on the same nodes")


def _cell_choices(cells: Sequence[Cell], capacity: Capacity) -> Iterator[Choice]:
    for number, cell in enumerate(cells):
        if cell.node is not None and cell.vcpus:
            yield Choice(f"guest cell {number}", f"NUMA node {cell.node}", "vCPUs and memory are there")
        elif cell.node is not None:
            why = "devices are on this node, where the domain has no vCPUs"
            has_cpus = cell.node in capacity.topology.by_node
            far = "its devices are far from all CPUs and memory of the domain" if has_cpus else ""
            yield Choice(f"guest cell {number}", f"NUMA node {cell.node}, without CPUs and memory", why, weaker=far)


def _notes(devices: Sequence[Device]) -> Iterator[Choice]:
    """Yield what some devices need. Source of coherent memory: libvirt, formatdomain, acpi of hostdev."""
    if off := _labels(device for device in devices if hides_rom(device)):
        why = "they show no display: the guest's firmware need not run their code"
        yield Choice("ROMs that are off", off, why)
    yield from _boot_choices(devices)
    if coherent := _labels(device for device in devices if device.is_coherent):
        weaker = (
            "their memory does not come online as memory of the guest: its driver needs NUMA cells without CPUs and "
            "memory, which the device names with <acpi nodeset='1-8'/> (libvirt 11.8)"
        )
        yield Choice("coherent memory of GPUs", coherent, "no cells are made for it", weaker=weaker)
    if vendor := _labels(device for device in devices if device.vendor_vfio):
        why = "their driver is their VFIO driver; older releases refuse them"
        yield Choice("libvirt", f"9.7 or newer, for {vendor}", why)


def _labels(devices: Iterable[Device]) -> str:
    return ", ".join(device.label for device in devices)


def _boot_choices(devices: Sequence[Device]) -> Iterator[Choice]:
    """Yield what a boot display still needs: VFIO, and a ROM file, because the host's firmware has run the card's."""
    for device in devices:
        if device.is_boot_display and not device.on_vfio:
            weaker = f"a preview: the domain starts after vfioctl bind {device.subject} --allow-boot-vga"
            yield Choice(f"{device.label} is the boot display", "not on VFIO yet", "it is named", weaker=weaker)
        if device.rom:
            yield Choice(f"ROM of {device.label}", device.rom, "as asked for")
        elif device.is_boot_display:
            weaker = (
                "the guest may show nothing: the host's firmware has run the card's ROM, and may have changed it. Save "
                f"a sound one (vfioctl rom {device.subject} -o FILE), and build with --rom {device.subject}=/PATH/FILE"
            )
            yield Choice(f"ROM of {device.label}", "the card's", "no file is named", weaker=weaker)


def _shared_choices(devices: Sequence[Device], others: Others) -> Iterator[Choice]:
    for device in devices:
        if who := others.devices.get(device.subject):
            weaker = "only one of the domains can run at a time"
            yield Choice(f"other owners of {device.label}", who, "its XML names the device too", weaker=weaker)
    if others.unknown:
        weaker = "CPUs and devices of other domains may have been chosen"
        yield Choice("other domains", "not known", others.unknown, weaker=weaker)


def hides_rom(device: Device) -> bool:
    """Return whether the guest's firmware is not to see a device's ROM."""
    return device.label.startswith("gpu") and not (device.has_display or device.vendor_vfio or device.rom)


def _refuse_without_layout(processor: Processor) -> None:
    if processor.arch not in _ARCHITECTURES:
        hint = f"it knows those of {' and '.join(_ARCHITECTURES)}; vfioctl domain define takes XML for others"
        raise HostError(f"vfioctl builds no domain for {processor.arch}, the processor of this host", hint=hint)
