"""Where the functions of a synthetic host are: buses, parents, groups, NUMA nodes, VFs. Pure and repeatable.

A host is a row of root complexes with sixteen root ports each; behind each port sits one card, in a cycle of the cards
that such servers carry. The larger the host, the more VFs its network cards and GPUs have, as on real ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count, cycle, islice

from bench import parts
from bench.parts import Part

PORTS_PER_COMPLEX = 16
BUSES_PER_COMPLEX = 32
COMPLEXES_PER_DOMAIN = 8


@dataclass(frozen=True)
class Planned:
    """One function that is to be. `folder` lies below /sys/devices; `group` is its IOMMU group."""

    address: str
    folder: str
    part: Part
    group: int
    numa_node: int
    driver: str | None
    driver_override: str = "(null)"
    physfn: str | None = None
    supplier: str | None = None
    boot_vga: bool = False


@dataclass(frozen=True)
class _Slot:
    """A root port and the bus behind it."""

    port: Planned
    bus: str

    def function(self, number: int, part: Part, group: int) -> Planned:
        """The bus's function by routing number: with ARI, 256 of them to a bus."""
        address = f"{self.bus}:{number >> 3:02x}.{number & 7}"
        folder = f"{self.port.folder}/{address}"
        return Planned(address, folder, part, group, self.port.numa_node, part.driver)


def functions(count_wanted: int) -> list[Planned]:
    """Exactly so many functions, in no particular order; the same for the same number."""
    vfs = min(120, max(4, count_wanted // 64))
    return list(islice(_host(vfs), count_wanted))


def _host(vfs: int) -> Iterator[Planned]:
    groups = count()
    cards = cycle((_h100, _network_card, _workstation_card, _disk, _vgpu_card, _disk))
    for number in count():
        domain, index = divmod(number, COMPLEXES_PER_DOMAIN)
        node, first_bus = number % 2, index * BUSES_PER_COMPLEX
        root = f"pci{domain:04x}:{first_bus:02x}"
        address = f"{domain:04x}:{first_bus:02x}:00.0"
        yield Planned(address, f"{root}/{address}", parts.HOST_BRIDGE, next(groups), node, None)
        for port in range(1, PORTS_PER_COMPLEX + 1):
            address = f"{domain:04x}:{first_bus:02x}:{port:02x}.0"
            bridge = Planned(address, f"{root}/{address}", parts.ROOT_PORT, next(groups), node, "pcieport")
            yield bridge
            yield from next(cards)(_Slot(bridge, f"{domain:04x}:{first_bus + port:02x}"), groups, vfs)


def _h100(slot: _Slot, groups: Iterator[int], _: int) -> Iterator[Planned]:
    function = slot.function(0, parts.H100, next(groups))
    # one in four is lent to a guest already
    lent = function.group % 4 == 0
    yield replace(function, driver="vfio-pci", driver_override="vfio-pci") if lent else function


def _workstation_card(slot: _Slot, groups: Iterator[int], _: int) -> Iterator[Planned]:
    group = next(groups)
    display = slot.function(0, parts.RTX3090, group)
    yield replace(display, boot_vga=display.address.startswith("0000:03:"))
    yield replace(slot.function(1, parts.RTX3090_AUDIO, group), supplier=display.address)


def _disk(slot: _Slot, groups: Iterator[int], _: int) -> Iterator[Planned]:
    yield slot.function(0, parts.NVME, next(groups))


def _network_card(slot: _Slot, groups: Iterator[int], vfs: int) -> Iterator[Planned]:
    ports = [slot.function(number, parts.CONNECTX, next(groups)) for number in (0, 1)]
    yield from ports
    for number in range(2 * vfs):
        virtual = slot.function(2 + number, parts.CONNECTX_VF, next(groups))
        yield replace(virtual, physfn=ports[number // vfs].address)


def _vgpu_card(slot: _Slot, groups: Iterator[int], vfs: int) -> Iterator[Planned]:
    physical = slot.function(0, parts.L40S, next(groups))
    yield physical
    for number in range(min(32, vfs)):
        yield replace(slot.function(4 + number, parts.L40S_VF, next(groups)), physfn=physical.address)
