"""Compares the NUMA nodes and links that a guest sees with its document. May not do input or output. The guest is asked
for files of its sysfs, in rounds: first the bus numbers that its firmware gave to bridges, which follow from the
document only there, then what its devices say. Its answers may be anything."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from vfioctl.claims.model.passthrough_devices import devices_of_one
from vfioctl.domain.document.reader import AGENT_CHANNEL, Domain
from vfioctl.domain.document.values import GuestAddress, number
from vfioctl.domain.model.verification import Area, VerifiedFact, judged, unknown
from vfioctl.domain.run.verify.subject import Subject

Ask = Callable[[Sequence[str]], Mapping[str, str]]
"""Reads files of the guest; those that cannot be read are left out."""
_DEVICES = "/sys/bus/pci/devices"
_MOST_LEVELS, _MOST_DEVICES = 8, 64
_LINK = ("current_link_speed", "current_link_width")
_SPEED = re.compile(r"[0-9]{1,3}(?:\.[0-9])? GT/s(?: PCIe)?", re.ASCII)
_WIDTH = re.compile(r"[0-9]{1,2}", re.ASCII)
"""0: the kernel does not know it (pcie_link_width in drivers/pci/pci.h)."""
_NODE = re.compile(r"-?[0-9]{1,4}", re.ASCII)


class Wanted(NamedTuple):
    """A device, and what the host says of it."""

    device: str
    link: str
    """The width of its link on the host; empty if it has none."""
    kind: str
    """`vendor:device`; empty if unknown."""


def why_no_agent(subject: Subject) -> str:
    """Return why the guest cannot be asked; empty if it can."""
    channel = subject.domain.one(AGENT_CHANNEL)
    if channel is None:
        return "no agent: the document has no channel for one"
    return "" if channel.get("state") == "connected" else "no agent: none is running in the guest"


def unasked(devices: Collection[Wanted], why: str) -> Iterator[VerifiedFact]:
    """Yield that nothing is known of the guest."""
    for device in devices:
        yield unknown(Area.GUEST, f"{device.device} in the guest", "", why)


def guest_facts(subject: Subject, devices: Collection[Wanted], ask: Ask) -> Iterator[VerifiedFact]:
    """Yield what the guest sees of each device: its NUMA node, if the document gives it one, and its link."""
    domain = subject.domain
    places = {
        device: address
        for element, address in domain.placed
        if element.tag in ("hostdev", "interface")
        for device in devices_of_one(element)
    }
    numbered = _numbered(domain, ask)
    paths: dict[str, str] = {}
    for device in list(devices)[:_MOST_DEVICES]:
        place = places.get(device.device)
        if place is not None and place.bus in numbered:
            paths[device.device] = _file(place, numbered)
    names = ("numa_node", "vendor", "device", *_LINK)
    answers = ask([f"{path}/{name}" for path in paths.values() for name in names]) if paths else {}
    for device in devices:
        path = paths.get(device.device)
        if path is None:
            yield unknown(Area.GUEST, f"{device.device} in the guest", "", "its address in the guest is not known")
            continue
        values = {name: answers.get(f"{path}/{name}", "").strip() for name in names}
        expander = domain.expander_of(places[device.device].bus)
        yield from _facts(device, expander.cell if expander else None, path.rpartition("/")[2], values)


def _facts(wanted: Wanted, cell: int | None, address: str, values: Mapping[str, str]) -> Iterator[VerifiedFact]:
    kind = ":".join(values[name].removeprefix("0x") for name in ("vendor", "device"))
    if not values["vendor"] or (wanted.kind and kind != wanted.kind):
        why = f"the guest has {'another' if values['vendor'] else 'no'} device at {address}, as far as it says"
        yield unknown(Area.GUEST, f"{wanted.device} in the guest", "", why)
        return
    if cell is not None:
        what = f"NUMA node of {wanted.device} in the guest, at {address}"
        if _NODE.fullmatch(values["numa_node"]):
            remedy = "the guest's kernel or firmware ignores the expander bus: see its log for pxb and _PXM"
            yield judged(Area.GUEST, what, str(cell), values["numa_node"], remedy, ok=int(values["numa_node"]) == cell)
        else:
            yield unknown(Area.GUEST, what, str(cell), "the guest does not report it")
    if wanted.link:
        speed, width = (values[name] for name in _LINK)
        what = f"link of {wanted.device} in the guest, at {address}"
        if _WIDTH.fullmatch(width) and int(width) and _SPEED.fullmatch(speed):
            remedy = "compare with the host's link, lspci -vv; a reset of the device trains the link anew"
            ok = int(width) == int(wanted.link)
            yield judged(Area.GUEST, what, f"x{wanted.link}", f"x{width} at {speed}", remedy, ok=ok)
        else:
            yield unknown(Area.GUEST, what, f"x{wanted.link}", "the guest does not report it")


def _numbered(domain: Domain, ask: Ask) -> Mapping[int, int]:
    """Return the guest's bus number of each PCI controller, by its index, as far as the guest reports them."""
    controllers = domain.controller_of_bus
    expanders = ((index, controller.bus_number) for index, controller in controllers.items() if controller.is_expander)
    known = {0: 0, **{index: bus for index, bus in expanders if bus is not None}}
    for _ in range(_MOST_LEVELS):
        files = {
            index: f"{_file(controller.address, known)}/secondary_bus_number"
            for index, controller in controllers.items()
            if index not in known and controller.address and controller.address.bus in known
        }
        answers = ask(list(files.values())) if files else {}
        buses = {index: number((answers.get(file) or "").strip()) for index, file in files.items()}
        new = {index: bus for index, bus in buses.items() if bus is not None}
        if not new:
            break
        known |= new
    return known


def _file(address: GuestAddress, known: Mapping[int, int]) -> str:
    return f"{_DEVICES}/0000:{known[address.bus]:02x}:{address.slot:02x}.{address.function:x}"
