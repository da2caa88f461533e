"""Rules about PCI addresses and bus numbers in the guest. May not do input or output. What is below an expander bus
must fit before the next one: libvirt does not check it, and QEMU starts. The firmware then has no number for some
buses, and the guest does not see what is on them. Source: QEMU's docs/pcie.txt, section 4."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from xml.etree.ElementTree import Element

from vfioctl.domain.check.rules.controllers import PLUGS_INTO
from vfioctl.domain.check.rules.rule import Fault, repeats, with_child
from vfioctl.domain.document.reader import Domain
from vfioctl.domain.document.values import GuestAddress, PciController, attribute
from vfioctl.inventory.model.values import any_number

_MOST = {"domain": 0xFFFF_FFFF, "bus": 0xFF, "slot": 0x1F, "function": 7}
"""The kernel numbers the domains of Intel VMD from 0x10000. Which domains a guest has is another rule's."""
_ONE_SLOT = ("pcie-root-port", "pcie-switch-downstream-port")
_FROM_SLOT_1 = ("pci-root", "pcie-root", "pci-bridge", "pcie-to-pci-bridge")
_NO_DEVICES = {
    "pcie-expander-bus": "a pcie-root-port on it",
    "pcie-switch-upstream-port": "a pcie-switch-downstream-port on it",
}
"""Controllers that take only other controllers, each with the one that takes devices."""
_Q35_BUILT_IN, _PC_BUILT_IN = 0x1F, 1
_BUSES, _LEVELS, _SWITCH_PORTS = 256, 32, 32


def address_range(domain: Domain) -> Iterator[Fault]:
    """Every PCI address, of the guest and of the host."""
    for device in domain.devices:
        for element in device.iter("address"):
            parts = [name for name in _MOST if name in element.attrib]
            is_of_host = device.tag in ("hostdev", "interface") and "slot" in element.attrib
            for name in parts if is_of_host or element.get("type") == "pci" else ():
                text = element.get(name)
                value = any_number(text)
                if value is None or value > _MOST[name]:
                    yield Fault(element, f"{name}='{(text or '')[:40]}' is out of range", f"0 to {_MOST[name]:#x}")


def address_twice(domain: Domain) -> Iterator[Fault]:
    for element, address, other in repeats(domain.placed):
        reason = f"the address {address} is also that of {domain.document.path(other)}"
        yield Fault(element, reason, "give each device its own address, or leave it to libvirt")


def address_slot(domain: Domain) -> Iterator[Fault]:
    """The slot is one that the controller has."""
    for element, address in domain.placed:
        model = domain.model_of_bus.get(address.bus, "")
        if model in _ONE_SLOT and address.slot:
            yield Fault(element, f"slot {address.slot:#x} of a {model}, which has only slot 0", "slot='0x00'")
        elif model in _FROM_SLOT_1 and not address.slot:
            yield Fault(element, f"slot 0 of a {model} is taken", "slot='0x01' or above")


def address_place(domain: Domain) -> Iterator[Fault]:
    """A device is plugged into a controller that takes devices."""
    for element, address in domain.placed:
        model = domain.model_of_bus.get(address.bus, "")
        if model in _NO_DEVICES and not _is_port(element):
            yield Fault(element, f"the device is plugged straight into a {model}", f"put {_NO_DEVICES[model]} first")


def address_built_in(domain: Domain) -> Iterator[Fault]:
    """Functions that the machine has built in."""
    for element, address in domain.placed:
        if address.bus or address.domain or element.tag == "controller":
            continue
        if (domain.is_q35 and address.slot == _Q35_BUILT_IN and address.function in (0, 2, 3)) or (
            domain.is_i440fx and address.slot == _PC_BUILT_IN and address.function in (0, 1, 3)
        ):
            yield Fault(element, f"{address} is built into {domain.machine[:40]}", "another slot")


def address_multifunction(domain: Domain) -> Iterator[Fault]:
    """Of several functions in a slot, function 0 must say so, or QEMU does not start."""
    taken = _Q35_BUILT_IN if domain.is_q35 else _PC_BUILT_IN if domain.is_i440fx else None
    by_slot: dict[GuestAddress, list[tuple[int, Element]]] = {}
    for element, address in domain.placed:
        if address.bus or address.slot != taken:
            by_slot.setdefault(address._replace(function=0), []).append((address.function, element))
    for slot, functions in by_slot.items():
        first = next((element for function, element in functions if function == 0), None)
        others = [element for function, element in functions if function]
        if not others:
            continue
        if first is None and domain.is_x86_or_arm:
            reason = f"nothing is function 0 of slot {slot}: the guest does not look at the others"
            yield Fault(others[0], reason, "give a device of this slot function='0x0'")
        elif first is not None and attribute(first.find("address"), "multifunction") != "on" and not _is_port(first):
            remedy = "multifunction='on' in the <address> of function 0"
            yield Fault(first, f"slot {slot} has more functions than this one, which does not say so", remedy)


def _is_port(element: Element) -> bool:
    """Whether it takes other devices: for those that libvirt puts into one slot, it says multifunction itself."""
    return element.tag == "controller" and element.get("type") == "pci"


def address_domain(domain: Domain) -> Iterator[Fault]:
    """A PCI address in a domain other than 0, which no machine of x86 has."""
    for element, address in domain.placed:
        if address.domain and domain.is_x86:
            yield Fault(element, f"the guest has no PCI domain {address.domain:#06x}", "domain='0x0000'")


def address_zpci(domain: Domain) -> Iterator[Fault]:
    for _, element in with_child(domain.devices, "address/zpci"):
        if domain.is_x86:
            yield Fault(element, "zPCI exists on s390 only", "remove <zpci>")


def bus_number(domain: Domain) -> Iterator[Fault]:
    for element, bus, _ in repeats((expander.element, expander.bus_number) for expander in _expanders(domain)):
        yield Fault(element, f"two expander buses have busNr {bus}", "give each its own, from the top down")


def bus_space(domain: Domain) -> Iterator[Fault]:
    expanders = _expanders(domain)
    starts = _starts(expanders)
    below = _children(domain)
    firsts = sorted(set(starts.values()))
    for expander in expanders:
        start = starts[id(expander.element)]
        end = next((first for first in firsts if first > start), _BUSES)
        needed = 1 + _below(expander.index, below) + (expander.model == "pci-expander-bus")
        if start + needed > end:
            chosen_by = "" if expander.bus_number is not None else ", which libvirt chooses"
            reason = f"it needs {needed} bus numbers from {start}{chosen_by}, and only {end - start} are free"
            yield Fault(expander.element, reason, f"a busNr of at most {max(1, end - needed)}")
    if firsts and 1 + _below(0, below) > firsts[0]:
        reason = f"what is on the root needs {1 + _below(0, below)} bus numbers, and an expander bus has {firsts[0]}"
        yield Fault(domain.at("devices"), reason, "expander buses from the top down: a higher busNr")


def _expanders(domain: Domain) -> list[PciController]:
    return [controller for controller in domain.controllers if controller.is_expander]


def _starts(expanders: list[PciController]) -> Mapping[int, int]:
    """The number of each, by `id` of its element; libvirt chooses missing ones, two below the lowest so far."""
    starts = {id(expander.element): bus for expander in expanders if (bus := expander.bus_number) is not None}
    for expander in expanders:
        if id(expander.element) not in starts:
            starts[id(expander.element)] = max(1, min([*starts.values(), _BUSES]) - 2)
    return starts


def _children(domain: Domain) -> Mapping[int, list[PciController]]:
    """The bridges on each bus. Those without an address are where libvirt puts them: on the first that takes them."""
    children: dict[int, list[PciController]] = {}
    for controller in domain.controllers:
        if controller.is_expander or controller.model not in PLUGS_INTO:
            continue
        bus = controller.address.bus if controller.address else _chosen(domain, controller, children)
        children.setdefault(bus, []).append(controller)
    return children


def _chosen(domain: Domain, controller: PciController, children: Mapping[int, list[PciController]]) -> int:
    if controller.model == "pcie-switch-downstream-port":
        for port in domain.controllers:
            is_upper = port.model == "pcie-switch-upstream-port" and port.index is not None
            if is_upper and len(children.get(port.index or 0, ())) < _SWITCH_PORTS:
                return port.index or 0
    return 0


def _below(index: int | None, children: Mapping[int, list[PciController]]) -> int:
    """The number of buses below one, each once, whatever a document with cycles says."""
    seen: set[int] = set()
    level, count = [-1 if index is None else index], 0
    for _ in range(_LEVELS):
        below = [child for bus in level if bus not in seen for child in children.get(bus, ())]
        seen.update(level)
        count += len(below)
        level = list({controller.index for controller in below if controller.index is not None})
    return count
