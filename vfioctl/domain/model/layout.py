"""Where all of a domain is, on the host and in the guest. Pure: named tuples, far faster to define than dataclasses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from vfioctl.inventory.model.values import Subject
from vfioctl.units import CpuSet

NO_CPUS = CpuSet()
_LOCAL, _UNREACHABLE = 10, 255


class Choice(NamedTuple):
    """One thing that was chosen, and why."""

    what: str
    """Such as `vCPUs of guest cell 0`."""
    chosen: str
    why: str
    excluded: tuple[str, ...] = ()
    """What could not be chosen, each with the reason."""
    weaker: str = ""
    """What is weaker than asked for, or than it could be; empty if nothing is."""


class Device(NamedTuple):
    """A device that the guest gets."""

    subject: Subject
    label: str
    """`gpu0`, `audio0`, ...: its alias in the XML is `ua-` and this."""
    complex: str
    """The root bus on the host that it is below; empty if that is not known."""
    slot: str
    """Devices with the same slot are functions of one card, and share a slot of the guest."""
    node: int | None
    """The host's NUMA node; None if it is not known."""
    reported_by: str = ""
    prefetchable: int = 0
    """bytes of 64-bit prefetchable BARs"""
    has_display: bool = False
    """a VGA controller, whose ROM firmware needs to show something"""
    vendor_vfio: bool = False
    """a VF whose driver is its own VFIO driver, as NVIDIA's"""
    mdev_display: bool = False
    managed: bool = False
    """libvirt binds it to VFIO, and gives it back"""
    is_coherent: bool = False
    """its memory is memory of the host's CPUs too, as that of NVIDIA Grace's GPUs"""
    is_boot_display: bool = False
    on_vfio: bool = False
    rom: str = ""
    """The file with the ROM that the guest sees; empty for the device's own."""


class Cell(NamedTuple):
    """A NUMA node of the guest."""

    node: int | None
    """The host's node that it mirrors; None on a host without NUMA."""
    vcpus: CpuSet = NO_CPUS
    memory: int = 0
    """bytes"""
    distances: tuple[int, ...] = ()
    """To each cell, in their order; empty if the firmware reports none."""


def is_distance(value: int, *, local: bool) -> bool:
    """Return whether libvirt takes a distance, from a NUMA cell to itself or to another. Source: numa_conf.c."""
    return value == _LOCAL if local else _LOCAL < value <= _UNREACHABLE


class Shape(NamedTuple):
    """The guest's processor: sockets, dies in each, cores in each of these, threads in each of those."""

    sockets: int
    dies: int
    cores: int
    threads: int


class Placed(NamedTuple):
    """A device behind a root port, as a function of the guest's slot."""

    device: Device
    function: int
    multifunction: bool
    slot: int = 0
    was: Slot | None = None
    """Where it is in an existing domain."""
    stays: bool = False
    """Whether it keeps its address in the guest."""


class Port(NamedTuple):
    """A root port, with the functions of one card behind it. `slot`: on the bus that it is on."""

    devices: tuple[Placed, ...]
    slot: int = 0
    controller: int | None = None
    """The controller's index, if it is there already."""


class Expander(NamedTuple):
    """A PCI expander bus, which stands for a root complex of the host; without a bus number, the guest's own root."""

    ports: tuple[Port, ...]
    complex: str = ""
    cell: int | None = None
    bus_number: int | None = None
    controller: int | None = None
    """The controller's index, if it is there already."""
    was: int | None = None
    """The bus number that it has had, if it is there already."""


class Slot(NamedTuple):
    """Where a device is in the guest. `bus`: the index of the controller that it is behind."""

    bus: int
    slot: int
    function: int
    expander: int | None
    """The index of the expander bus that it is below; None if it is below none."""


class CurrentPort(NamedTuple):
    """A controller on an expander bus. `buses`: the bus numbers that it and all below it take."""

    slot: int
    buses: int
    only_host_devices: bool
    """Whether there is nothing behind it but devices of the host."""


class CurrentExpander(NamedTuple):
    """An expander bus. `ports`: what is on it, by the index of the controller."""

    bus_number: int | None
    ports: Mapping[int, CurrentPort]


class GuestTopology(NamedTuple):
    """The PCI of an existing domain: where its devices of the host are, and its expander buses by index."""

    slots: Mapping[str, Slot]
    expanders: Mapping[int, CurrentExpander]


NO_TOPOLOGY = GuestTopology({}, {})


class Layout(NamedTuple):
    """A domain's layout."""

    cells: tuple[Cell, ...]
    pins: Mapping[int, int]
    """The host's CPU of each vCPU; empty if they are not pinned."""
    shape: Shape
    emulator: CpuSet = NO_CPUS
    """The host's CPUs of the emulator and the I/O threads; empty for any."""
    page_size: int | None = None
    """bytes of a hugepage; None for ordinary pages"""
    strict: bool = True
    """Whether the memory may come from no other node."""
    expanders: tuple[Expander, ...] = ()
    hole: int = 0
    """bytes of the 64-bit PCI hole; 0 for the default"""
    wide_addresses: bool = False
    """Whether the guest has the host's width of physical addresses."""
    shares_cache: bool = False
    """Whether the guest's cores share caches as the host's do."""
    arch: str = "x86_64"
    is_amd: bool = False
    choices: tuple[Choice, ...] = ()

    @property
    def is_x86(self) -> bool:
        return self.arch == "x86_64"

    @property
    def vcpus(self) -> int:
        return sum(len(cell.vcpus) for cell in self.cells)

    @property
    def memory(self) -> int:
        """bytes"""
        return sum(cell.memory for cell in self.cells)
