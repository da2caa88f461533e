"""Compares the guest's PCI on QEMU's command line with a document: buses and NUMA nodes. May not do input or output.

libvirt gives each PCI controller its alias as `id`, which is the name of its bus too: pci.3, below pci.1, below pcie.0.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from vfioctl.claims.model.passthrough_devices import devices_of_one
from vfioctl.domain.document.values import number
from vfioctl.domain.model.verification import Area, Subject, VerifiedFact, judged, unknown
from vfioctl.inventory.model.values import any_number

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

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
    controllers = {
        number(controller.get("index")): controller
        for controller in subject.root.iterfind("devices/controller[@type='pci']")
    }
    for index, controller in controllers.items():
        node = controller.findtext("target/node")
        if node is not None and controller.get("model", "").endswith("expander-bus"):
            name = _name(index, controller)
            what, actual = f"NUMA node of the expander bus {name}", _expander(name, controller, devices)
            yield judged(Area.DEVICES, what, node.strip(), actual, remedy, ok=actual == node.strip())
    for element in subject.root.iterfind("devices/*"):
        wanted = _wanted(element, controllers)
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


def _wanted(element: Element, controllers: Mapping[int | None, Element]) -> list[str]:
    """Return the buses of a device, from the uppermost in its document."""
    path: list[str] = []
    for _ in range(_MOST_LEVELS):
        address = element.find("address[@type='pci']")
        index = None if address is None else any_number(address.get("bus", "0"))
        upper = None if index is None else controllers.get(index)
        if upper is None:
            return path
        if index and upper.get("model") == "pci-root":
            return []  # of pSeries, whose buses have other names
        path.insert(0, _name(index, upper))
        if not index:
            return path
        element = upper
    return path


def _name(index: int | None, controller: Element) -> str:
    """Return the name of a controller's bus, which the document of a domain that runs has as its alias."""
    alias = controller.find("alias")
    name = "" if alias is None else alias.get("name", "")
    return name or ("pcie.0" if controller.get("model") == "pcie-root" else f"pci.{index}")


def _found(device: Said, by_id: Mapping[str, Said]) -> list[str]:
    path: list[str] = []
    while len(path) < _MOST_LEVELS and (bus := device.get("bus", "")):
        path.insert(0, bus)
        device = by_id.get(bus, {})
    return path


def _expander(name: str, controller: Element, devices: Collection[Said]) -> str:
    """Return the node that QEMU gives to an expander bus; words if it gives none."""
    target = controller.find("target")
    bus = None if target is None else any_number(target.get("busNr"))
    for device in devices:
        is_its = device.get("id") == name or (bus is not None and any_number(device.get("bus_nr")) == bus)
        if device.get("driver") in _EXPANDERS and is_its:
            return device.get("numa_node", "no node")
    return "no such bus"
