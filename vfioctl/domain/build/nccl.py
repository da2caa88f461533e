"""Writes the topology that NCCL reads in the guest (NCCL_TOPO_FILE), from the layout and the host's PCI tree. Pure. In
the guest, NCCL sees which NUMA node a device is on, and not which devices share a PCIe switch of the host. The format
is that of NCCL's own dumps (NCCL_TOPO_DUMP_FILE; src/graph/xml.h). A switch that the guest does not have gets an
address that no device has, as in the files of cloud providers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple
from xml.etree.ElementTree import Element, SubElement

from vfioctl.domain.document.xml import Document, text_of
from vfioctl.domain.model.layout import Layout
from vfioctl.inventory.model.functions import Function, Inventory
from vfioctl.inventory.model.machine import Processor
from vfioctl.inventory.model.numa_affinity import above
from vfioctl.inventory.model.values import PciAddress

_WANTED = ("03", "1200", "02", "0680")
"""The classes that NCCL uses: GPUs, network devices, NVSwitches."""
_SWITCH_CLASS = "060400"
_WORD = 32


class _Seen(NamedTuple):
    """A function as the guest sees it; without an address if it is on a bus whose number is not known."""

    function: Function
    address: str
    cell: int | None


def nccl_topology(layout: Layout, inventory: Inventory, processor: Processor) -> str:
    """Return the XML of the guest's topology, without devices whose node is not known."""
    root = Element("system", {"version": "1"})
    seen = [function for function in _seen(layout, inventory) if function.address]
    switches = 0
    for number, cell in enumerate(layout.cells):
        cpu = SubElement(root, "cpu", {"numaid": str(number), "affinity": _mask(cell.vcpus), **_processor(processor)})
        by_switch: dict[str, list[_Seen]] = {}
        for function in seen:
            if function.cell == number:
                by_switch.setdefault(_switch(function.function, inventory), []).append(function)
        for switch, members in by_switch.items():
            parent = cpu
            if switch:
                switches += 1
                bridge = inventory.by_address[PciAddress(switch)]
                parent = SubElement(cpu, "pci", _pci(bridge, f"ffff:ff:{switches:02x}.0", _SWITCH_CLASS))
            for member in members:
                SubElement(parent, "pci", _pci(member.function, member.address, member.function.class_code))
    return text_of(Document(root))


def left_out(layout: Layout, inventory: Inventory) -> list[PciAddress]:
    """Return the functions that NCCL uses, and that the topology has not, because their node is not known."""
    return [seen.function.address for seen in _seen(layout, inventory) if not seen.address]


def _seen(layout: Layout, inventory: Inventory) -> Iterator[_Seen]:
    """Yield the functions that NCCL uses. Firmware numbers the buses of root ports in the order of their slots."""
    for expander in layout.expanders:
        for slot, port in enumerate(expander.ports):
            for placed in port.devices:
                subject, bus = placed.device.subject, expander.bus_number
                function = inventory.by_address[subject] if isinstance(subject, PciAddress) else None
                if function and function.class_code.startswith(_WANTED):
                    address = "" if bus is None else f"0000:{bus + 1 + slot:02x}:00.{placed.function}"
                    yield _Seen(function, address, expander.cell)


def _switch(function: Function, inventory: Inventory) -> str:
    """Return a switch's upstream port, which is above the port above the function; empty if it is at a root port."""
    bridges = list(above(function, inventory))
    return bridges[1].address if len(bridges) > 2 else ""


def _pci(function: Function, address: str, class_code: str) -> dict[str, str]:
    attributes = {"busid": address, "class": f"0x{class_code}"}
    link = function.link
    speed, width = (link.max_speed or link.speed, link.max_width or link.width) if link else (None, None)
    if speed and width:
        attributes |= {"link_speed": f"{speed:g} GT/s", "link_width": str(width)}
    return attributes


def _processor(processor: Processor) -> dict[str, str]:
    attributes = {"arch": "arm64" if processor.arch == "aarch64" else processor.arch}
    optional = {"vendor": processor.vendor, "familyid": processor.family, "modelid": processor.model}
    return {**attributes, **{name: value for name, value in optional.items() if value}}


def _mask(vcpus: Sequence[int]) -> str:
    """Return CPUs as the kernel's cpumap has them: words of 32 bits in hexadecimal, the highest first."""
    bits = sum(1 << vcpu for vcpu in vcpus)
    words = max(1, -(-bits.bit_length() // _WORD))
    return ",".join(f"{bits >> _WORD * word & 0xFFFFFFFF:08x}" for word in reversed(range(words)))
