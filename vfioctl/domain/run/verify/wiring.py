"""Compares the guest's PCI on QEMU's command line with a document: buses and NUMA nodes. May not do input or output.

libvirt gives each PCI controller its alias as `id`, which is the name of its bus too: pci.3, below pci.1, below pcie.0.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from vfioctl.claims.model.passthrough_devices import devices_of_one
from vfioctl.domain.document.reader import Domain
from vfioctl.domain.document.values import GuestAddress, PciController
from vfioctl.domain.model.verification import Area, VerifiedFact, judged, unknown
from vfioctl.domain.run.verify.subject import Subject
from vfioctl.inventory.model.values import any_number

_MOST_LEVELS = 8
_EXPANDERS = ("pxb", "pxb-pcie")
Said = Mapping[str, str]
"""What one -device says."""


def wiring_facts(
    subject: Subject, device_settings: Mapping[str, Said], devices: Collection[Said]
) -> Iterator[VerifiedFact]:
    """Yield a fact for each expander bus with a node, and for each device of the host on the command line: its bus.

    `said`: the devices of the host on the command line, by address or UUID. `devices`: all that it has.
    """
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
