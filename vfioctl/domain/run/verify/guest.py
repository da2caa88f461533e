"""Compares the NUMA nodes and links that a guest sees with its document. May not do input or output.

The guest is asked for files of its sysfs, in rounds: first the bus numbers that its firmware gave to bridges, which
follow from the document only there, then what its devices say. Its answers may be anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from vfioctl.claims.model.passthrough_devices import devices_of_one
from vfioctl.domain.document.values import number
from vfioctl.domain.model.verification import Area, Subject, VerifiedFact, judged, unknown
from vfioctl.inventory.model.values import any_number

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element


AGENT = "org.qemu.guest_agent.0"
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


class _Place(NamedTuple):
    device: str
    bus: int
    slot: str
    cell: int | None
    """The guest cell of its expander bus; None if it is on none."""


def why_no_agent(subject: Subject) -> str:
    """Return why the guest cannot be asked; empty if it can."""
    for target in subject.root.iterfind("devices/channel/target"):
        if target.get("name") == AGENT:
            return "" if target.get("state") == "connected" else "no agent: none is running in the guest"
    return "no agent: the document has no channel for one"


def unasked(devices: Collection[Wanted], why: str) -> Iterator[VerifiedFact]:
    """Yield that nothing is known of the guest."""
    for device in devices:
        yield unknown(Area.GUEST, f"{device.device} in the guest", "", why)


def guest_facts(subject: Subject, devices: Collection[Wanted], ask: Ask) -> Iterator[VerifiedFact]:
    """Yield what the guest sees of each device: its NUMA node, if the document gives it one, and its link."""
    places = {place.device: place for place in _places(subject.root)}
    numbered = _numbered(subject.root, ask)
    paths: dict[str, str] = {}
    for device in list(devices)[:_MOST_DEVICES]:
        place = places.get(device.device)
        bus = None if place is None else numbered.get(place.bus)
        if place is not None and bus is not None:
            paths[device.device] = f"{_DEVICES}/0000:{bus:02x}:{place.slot}"
    names = ("numa_node", "vendor", "device", *_LINK)
    answers = ask([f"{path}/{name}" for path in paths.values() for name in names]) if paths else {}
    for device in devices:
        path = paths.get(device.device)
        if path is None:
            yield unknown(Area.GUEST, f"{device.device} in the guest", "", "its address in the guest is not known")
            continue
        values = {name: answers.get(f"{path}/{name}", "").strip() for name in names}
        yield from _facts(device, places[device.device].cell, path.rpartition("/")[2], values)


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
            yield judged(
                Area.GUEST, what, f"x{wanted.link}", f"x{width} at {speed}", remedy, ok=int(width) == int(wanted.link)
            )
        else:
            yield unknown(Area.GUEST, what, f"x{wanted.link}", "the guest does not report it")


# -- addresses ---------------------------------------------------------------------------------------------


def _numbered(root: Element, ask: Ask) -> Mapping[int, int]:
    """Return the guest's bus number of each PCI controller, by its index, as far as the guest reports them."""
    controllers = dict(_controllers(root))
    known = {0: 0}
    for index, controller in controllers.items():
        target = controller.find("target")
        fixed = None if target is None else number(target.get("busNr"))
        if controller.get("model", "").endswith("expander-bus") and fixed is not None:
            known[index] = fixed
    for _ in range(_MOST_LEVELS):
        files = {
            index: file
            for index, controller in controllers.items()
            if index not in known and (file := _file(controller, known))
        }
        if not files:
            break
        answers = ask(list(files.values()))
        new = {
            index: bus
            for index, file in files.items()
            if (bus := number((answers.get(file) or "").strip())) is not None
        }
        if not new:
            break
        known |= new
    return known


def _file(controller: Element, known: Mapping[int, int]) -> str:
    """Return the file of the guest that has a bridge's bus number; empty if its own bus is not known."""
    place = _address(controller)
    if place is None or place[0] not in known:
        return ""
    return f"{_DEVICES}/0000:{known[place[0]]:02x}:{place[1]}/secondary_bus_number"


def _places(root: Element) -> Iterator[_Place]:
    controllers = dict(_controllers(root))
    for tag in ("hostdev", "interface"):
        for element in root.iterfind(f"devices/{tag}"):
            place = _address(element)
            for device in devices_of_one(element):
                if place is not None:
                    yield _Place(device, *place, _cell(controllers, place[0]))


def _cell(controllers: Mapping[int, Element], index: int) -> int | None:
    for _ in range(_MOST_LEVELS):
        controller = controllers.get(index)
        if controller is None:
            return None
        if controller.get("model", "").endswith("expander-bus"):
            return number(controller.findtext("target/node"))
        place = _address(controller)
        if place is None:
            return None
        index = place[0]
    return None


def _controllers(root: Element) -> Iterator[tuple[int, Element]]:
    for controller in root.iterfind("devices/controller[@type='pci']"):
        index = number(controller.get("index"))
        if index:
            yield index, controller


def _address(element: Element) -> tuple[int, str] | None:
    """Return the index of the controller, and `slot.function` there."""
    address = element.find("address[@type='pci']")
    if address is None:
        return None
    bus, slot, function = (any_number(address.get(name, "0")) for name in ("bus", "slot", "function"))
    if bus is None or slot is None or function is None or slot > 31 or function > 7:
        return None
    return bus, f"{slot:02x}.{function:x}"
