"""Rules about devices of which a guest has few: USB, TPM, watchdogs, serial ports; and about shared memory.

May not do input or output. Source: libvirt's domain_conf.c, domain_postparse.c and qemu_validate.c.
"""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree.ElementTree import Element

from vfioctl.domain.check.rules.fault import Fault, warning
from vfioctl.domain.document.reader import Domain
from vfioctl.domain.document.values import number

_USB = (
    "controller[@type='usb']",
    "input[@bus='usb']",
    "hub[@type='usb']",
    "hostdev[@type='usb']",
    "redirdev[@bus='usb']",
    "sound[@model='usb']",
    "disk/target[@bus='usb']",
    "serial/target[@type='usb-serial']",
)
_SEVERAL_WATCHDOGS = (9, 1)
_MANY = "i6300esb"
"""The one model of watchdogs of which libvirt accepts several."""


def usb(domain: Domain) -> Iterator[Fault]:
    """A controller with the model none is the only one, and nothing is on it."""
    off = domain.one("devices/controller[@type='usb'][@model='none']")
    for path in _USB if off is not None else ():
        for element in domain.all(f"devices/{path}"):
            if element is not off:
                reason = "USB is off: there is a controller with model='none'"
                yield Fault(element, reason, "remove it, or that controller")


def tpms(domain: Domain) -> Iterator[Fault]:
    """One, and on POWER one that is a proxy beside it."""
    found = domain.all("devices/tpm")
    for is_proxy in (True, False):
        for extra in [device for device in found if (device.get("model") == "spapr-tpm-proxy") is is_proxy][1:]:
            yield Fault(extra, "a second TPM", "keep one of them")


def watchdogs(domain: Domain) -> Iterator[Fault]:
    found = domain.all("devices/watchdog")
    seen: set[str] = set()
    for device in found:
        model = device.get("model", "")
        if model in seen and model != _MANY:
            yield Fault(device, f"a second watchdog of the model {model[:40]}", "keep one of them")
        elif device.get("action", "reset") != found[0].get("action", "reset"):
            yield Fault(device, "watchdogs with different actions", "the same action= for all")
        elif seen and (domain.version is None or domain.version < _SEVERAL_WATCHDOGS):
            fault = warning if domain.version is None else Fault
            yield fault(device, "a second watchdog, which libvirt before 9.1 refuses", "keep one of them")
        seen.add(model)


def serial_ports(domain: Domain) -> Iterator[Fault]:
    owners: dict[int, Element] = {}
    for element in domain.all("devices/serial/target[@type='isa-serial']"):
        port = number(element.get("port"))
        if port is not None and port in owners:
            reason = f"port {port} is also that of {domain.document.path(owners[port])}"
            yield Fault(element, reason, "give each its own port=, or leave it to libvirt")
        elif port is not None:
            owners[port] = element


def shared_memory(domain: Domain) -> Iterator[Fault]:
    """What another process serves needs to see the guest's memory: that of each cell, or all."""
    access = domain.at("memoryBacking/access").get("mode")
    cells = [cell.element.get("memAccess", access) for cell in domain.cells] or [access]
    if all(cell == "shared" for cell in cells):
        return
    for path, what in (
        ("filesystem/driver[@type='virtiofs']", "virtiofs"),
        ("disk[@type='vhostuser']", "a vhostuser disk"),
    ):
        for element in domain.all(f"devices/{path}"):
            remedy = "<memoryBacking><access mode='shared'/>, and no memAccess='private' of a cell"
            yield Fault(element, f"{what} needs memory that QEMU shares", remedy)
