"""Rules about words that libvirt knows, and parts that it wants, wherever they are. May not do input or output.

Source: the enumerations in libvirt's domain_conf.c, and its parsers of disks, interfaces and random number generators.
An empty word is left to libvirt, which takes it for none in some places.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from vfioctl.domain.check.rules.fault import Fault, unknown
from vfioctl.domain.document.reader import Domain
from vfioctl.domain.document.values import text_in

_HEXADECIMAL = frozenset("0123456789abcdefABCDEF")
_ACTIONS = "destroy restart rename-restart preserve coredump-destroy coredump-restart"


class _Words(NamedTuple):
    """The words that an attribute may be."""

    path: str
    name: str
    known: str
    is_needed: bool = False


_ATTRIBUTES = (
    _Words("os", "firmware", "bios efi"),
    _Words("os/boot", "dev", "fd cdrom hd network", is_needed=True),
    _Words("clock", "offset", "utc localtime variable timezone absolute"),
    _Words("clock/timer", "name", "platform pit rtc hpet tsc kvmclock hypervclock armvtimer", is_needed=True),
    _Words("devices/disk", "device", "disk cdrom floppy lun"),
    _Words("devices/disk/target", "bus", "ide fdc scsi virtio xen usb uml sata sd nvme"),
    _Words(
        "devices/memballoon", "model", "virtio xen none virtio-transitional virtio-non-transitional", is_needed=True
    ),
    _Words("devices/rng", "model", "virtio virtio-transitional virtio-non-transitional", is_needed=True),
    _Words("devices/rng/backend", "model", "random egd builtin", is_needed=True),
)
_TEXTS: Mapping[str, str] = {
    "on_poweroff": _ACTIONS,
    "on_reboot": _ACTIONS,
    "on_crash": _ACTIONS,
    "on_lockfailure": "default poweroff restart pause ignore",
}
_SOURCES: Mapping[str, str] = {
    "network": "network",
    "bridge": "bridge",
    "internal": "name",
    "direct": "dev",
    "vdpa": "dev",
    "client": "port",
    "server": "port",
    "mcast": "port",
    "udp": "port",
    "vds": "switchid",
}
"""What the source of each type of interface says at least."""


def words(domain: Domain) -> Iterator[Fault]:
    for path, name, known, is_needed in _ATTRIBUTES:
        for element in domain.all(path):
            given = element.get(name)
            if given is None and is_needed:
                yield Fault(element, f"<{element.tag}> has no {name}=", ", ".join(known.split()))
            elif given and given not in known.split():
                yield unknown(element, name, known.split())
    for path, known in _TEXTS.items():
        first = domain.one(path)
        text = text_in(first)
        if first is not None and text and text not in known.split():
            yield Fault(first, f"'{text[:40]}' is unknown", ", ".join(known.split()))


def parts(domain: Domain) -> Iterator[Fault]:
    for disk in domain.all("devices/disk"):
        target = disk.find("target")
        if target is None or target.get("dev") is None:
            yield Fault(disk, "the disk has no <target> with dev=", "<target dev='vda' bus='virtio'/>")
    for generator in domain.all("devices/rng"):
        if len(generator.findall("backend")) != 1:
            remedy = "<backend model='random'>/dev/urandom</backend>"
            yield Fault(generator, "the <rng> needs one <backend>", remedy)
    for interface in domain.all("devices/interface"):
        kind, source = interface.get("type", ""), interface.find("source")
        name = _SOURCES.get(kind)
        if name and (source is None or source.get(name) is None):
            yield Fault(interface, f"the interface has no <source> with {name}=", f"<source {name}='...'/>")


def mac_addresses(domain: Domain) -> Iterator[Fault]:
    for interface in domain.all("devices/interface"):
        element = interface.find("mac")
        given = None if element is None else element.get("address")
        if element is not None and given is not None and not _is_mac(given):
            yield Fault(element, f"'{given[:40]}' is no MAC address", "such as 52:54:00:12:34:56, of one device")


def _is_mac(text: str) -> bool:
    """Whether libvirt reads it so (virMacAddrParse): white space may follow. An odd first byte means a group."""
    octets = text.partition(" ")[0].rstrip().split(":")
    is_read = len(octets) == 6 and all(0 < len(each) <= 2 and _HEXADECIMAL.issuperset(each) for each in octets)
    return is_read and not int(octets[0], 16) & 1
