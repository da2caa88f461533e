"""Compares QEMU's command line, and the definition, with a document's devices and PCI. May not do input or output."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import pairwise

from vfioctl.claims.model.passthrough_devices import devices_of_one, withheld_in
from vfioctl.domain.document.reader import Domain
from vfioctl.domain.document.values import GuestAddress, PciController, cpuset
from vfioctl.domain.model.verification import Area, VerifiedFact, judged, unknown
from vfioctl.domain.run.verify.subject import Subject
from vfioctl.inventory.model.values import any_number
from vfioctl.units import format_cpu_list
from vfioctl.untrusted_text import parse_json

_LONGEST = 64 << 10
"""Characters of an argument that are read."""
_QEMU = "{http://libvirt.org/schemas/domain/qemu/1.0}"
_OWN_ARGUMENTS = f"{_QEMU}commandline/{_QEMU}arg"
"""What the document adds to the command line by itself."""
_ADDRESS = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})\.([0-7])", re.ASCII | re.IGNORECASE)


def device_facts(
    subject: Subject, arguments: Sequence[str], groups: Mapping[str, str], opened: Callable[[], Collection[str] | None]
) -> Iterator[VerifiedFact]:
    """Yield facts for the devices of the host: QEMU has those of the document, where it says, and no others. One that
    was attached while QEMU ran is not on its command line: then QEMU has its group open, and no other device of it.
    `groups`: the IOMMU group of each device. `opened`: asks which groups QEMU has open; None if that cannot be read."""
    devices = list(_devices(arguments))
    on_command_line = {name: device for device in devices if (name := _device(device))}
    wanted = subject.domain.host_devices
    known = {groups.get(device) for device in on_command_line}
    remedy = f"stop {subject.name} and start it again"
    withheld = withheld_in(subject.domain.root)
    for device in [device for device in wanted if device not in withheld]:
        group = groups.get(device, "")
        actual = "there" if device in on_command_line else "not there"
        if device not in on_command_line and group not in {"", *known} and group in (opened() or ()):
            actual = f"attached while it runs: group {group} is open"
        has = actual != "not there"
        yield judged(Area.DEVICES, f"{device} on QEMU's command line", "there", actual, remedy, ok=has)
    own = {*wanted, *devices_given([argument.get("value", "") for argument in subject.domain.all(_OWN_ARGUMENTS)])}
    if extra := [device for device in on_command_line if device not in own]:
        with_it = {groups.get(device, "") for device in on_command_line if device in own}
        yield from _others(extra, with_it, groups, opened(), remedy)
    yield from wiring_facts(subject, on_command_line, devices)


def _others(
    devices: Sequence[str], with_it: set[str], groups: Mapping[str, str], opened: Collection[str] | None, remedy: str
) -> Iterator[VerifiedFact]:
    """Yield a fact for each device that the document does not name, unless it was detached: its group is not open.
    `with_it`: the groups of its other devices, which must be open, else the open files say nothing."""
    tells = opened is not None and with_it - {""} <= set(opened)
    for device in devices:
        what, group = f"{device} on QEMU's command line", groups.get(device, "")
        if group and group not in with_it and group in (opened or ()):
            yield judged(Area.DEVICES, what, "not there", "there", remedy, ok=False)
        elif not tells or not group or group in with_it:
            why = "the document does not name it, and /proc does not show whether it was detached since"
            yield unknown(Area.DEVICES, what, "not there", why)


def devices_given(arguments: Sequence[str]) -> list[str]:
    """Return the PCI addresses and the UUIDs of mediated devices on a command line of QEMU."""
    return list(filter(None, map(_device, _devices(arguments))))


def _devices(arguments: Sequence[str]) -> Iterator[dict[str, str]]:
    return (settings(value) for option, value in pairwise(arguments) if option == "-device")


def _device(options: Mapping[str, str]) -> str:
    """Return the device of the host that a -device gives to the guest; empty if it gives none."""
    if not options.get("driver", "").startswith("vfio-"):
        return ""
    return _named(options.get("host", "")) or _named(options.get("sysfsdev", ""))


def settings(value: str) -> dict[str, str]:
    """Return what an argument of QEMU says, in JSON or as driver,key=value; nothing if it is neither."""
    text = value[:_LONGEST]
    if text.startswith("{"):
        try:
            content = parse_json(text)
        except ValueError:
            return {}
        return {key: str(item) for key, item in content.items() if isinstance(item, str | int)}
    parts = text.replace(",,", "\0").split(",")  # QEMU writes a comma in a value twice
    pairs = (part.partition("=") for part in [f"driver={parts[0]}", *parts[1:]])
    return {key: text.replace("\0", ",") for key, _, text in pairs}


def _named(text: str) -> str:
    name = text.rpartition("/")[2].lower()
    if match := _ADDRESS.fullmatch(name):
        domain, bus, slot, function = match.groups()
        return f"{domain or '0':0>4}:{bus:0>2}:{slot:0>2}.{function}"
    return name


def definition_facts(subject: Subject, defined: Domain) -> Iterator[VerifiedFact]:
    """Yield what the document of the next start says of devices, pins and nodes, compared with the one that runs."""
    remedy = f"the definition counts from the next start; {subject.virsh} edit {subject.name} changes it"
    for what, words in (
        ("devices", lambda domain: " ".join(domain.host_devices)),
        ("pins", _pins),
        ("NUMA nodes", _nodes),
    ):
        wanted, actual = words(defined) or "none", words(subject.domain) or "none"
        yield judged(Area.DEFINITION, f"{what} of the definition", wanted, actual, remedy, ok=wanted == actual)


def _pins(domain: Domain) -> str:
    pins = [
        *((str(vcpu), cpus) for vcpu, cpus in sorted(domain.pins.items())),
        *([("emulator", domain.emulator_pin)] if domain.emulator_pin else []),
        *((f"I/O thread {iothread}", cpus) for iothread, cpus in sorted(domain.iothread_pins.items())),
    ]
    return ", ".join(f"{what} to {format_cpu_list(cpus)}" for what, cpus in pins)


def _nodes(domain: Domain) -> str:
    elements = domain.all("numatune/*")
    pairs = ((node.get("cellid", ""), format_cpu_list(cpuset(node.get("nodeset")) or ())) for node in elements)
    return ", ".join(f"cell {cell}: {nodes}" if cell else nodes for cell, nodes in sorted(pairs))


_MOST_LEVELS = 8
_EXPANDERS = ("pxb", "pxb-pcie")
Said = Mapping[str, str]
"""What one -device says."""


def wiring_facts(
    subject: Subject, device_settings: Mapping[str, Said], devices: Collection[Said]
) -> Iterator[VerifiedFact]:
    """Yield a fact for each expander bus with a node, and for each device of the host on the command line: its bus.
    libvirt gives each PCI controller its alias as `id`, which is the name of its bus too: pci.3, below pci.1, below
    pcie.0. `device_settings`: the devices of the host on the command line, by address or UUID. `devices`: all of it."""
    remedy = f"stop {subject.name} and start it again"
    by_id = {device["id"]: device for device in devices if "id" in device}
    domain = subject.domain
    for controller in domain.controllers:
        if controller.is_expander and controller.cell is not None:
            what, actual = f"NUMA node of the expander bus {_name(controller)}", _expander(controller, devices)
            yield judged(Area.DEVICES, what, str(controller.cell), actual, remedy, ok=actual == str(controller.cell))
    for element, address in domain.placed:
        wanted = _wanted(domain, address)
        for device in devices_of_one(element) if wanted else ():
            if device in device_settings:
                yield _place(f"bus of {device} in the guest", wanted, _found(device_settings[device], by_id), remedy)


def _place(what: str, wanted: list[str], actual: list[str], remedy: str) -> VerifiedFact:
    """Compare the levels that both have, from the device up."""
    common = min(len(wanted), len(actual))
    as_wanted = wanted[len(wanted) - common :] == actual[len(actual) - common :]
    if as_wanted and len(actual) < len(wanted):
        return unknown(Area.DEVICES, what, "/".join(wanted), "QEMU's command line does not show it")
    return judged(Area.DEVICES, what, "/".join(wanted), "/".join(actual), remedy, ok=as_wanted)


def _wanted(domain: Domain, address: GuestAddress | None) -> list[str]:
    """Return the buses of a device, from the uppermost in its document."""
    path: list[str] = []
    while address and len(path) < _MOST_LEVELS and (upper := domain.controller_of_bus.get(address.bus)):
        if address.bus and upper.model == "pci-root":
            return []  # of pSeries, whose buses have other names
        path.insert(0, _name(upper))
        address = upper.address if address.bus else None
    return path


def _name(controller: PciController) -> str:
    """Return the name of a controller's bus, which the document of a domain that runs has as its alias."""
    alias = controller.element.find("alias")
    name = "" if alias is None else alias.get("name", "")
    return name or ("pcie.0" if controller.model == "pcie-root" else f"pci.{controller.index}")


def _found(device: Said, by_id: Mapping[str, Said]) -> list[str]:
    path: list[str] = []
    while len(path) < _MOST_LEVELS and (bus := device.get("bus", "")):
        path.insert(0, bus)
        device = by_id.get(bus, {})
    return path


def _expander(controller: PciController, devices: Collection[Said]) -> str:
    """Return the node that QEMU gives to an expander bus; words if it gives none."""
    bus = controller.bus_number
    for device in devices:
        is_its = device.get("id") == _name(controller) or (bus is not None and any_number(device.get("bus_nr")) == bus)
        if device.get("driver") in _EXPANDERS and is_its:
            return device.get("numa_node", "no node")
    return "no such bus"
