"""The words that libvirt knows as the values of attributes, by rule; and parts that it needs, wherever they are.
Source: the enumerations in libvirt's domain_conf.c, numa_conf.c and cpu_conf.c, its schema (cputypes.rng), and its
parsers of disks, interfaces and random number generators. May not do input or output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from vfioctl.domain.check.rules.rule import Fault, with_child
from vfioctl.domain.document.reader import Domain
from vfioctl.domain.document.values import attribute, text_in

_HEXADECIMAL = frozenset("0123456789abcdefABCDEF")
_ACTIONS = "destroy restart rename-restart preserve coredump-destroy coredump-restart"


class _Words(NamedTuple):
    """The words that an attribute may be. `is_needed`: libvirt refuses an element without the attribute."""

    path: str
    name: str
    known: str
    is_needed: bool = False


_ANYWHERE = "word-unknown"
_SWITCH, _SAID = "on off", "yes no"
_POLICIES = "strict preferred interleave restrictive"
_SCHEDULERS = "fifo rr batch idle"
_GENERAL = (
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
ATTRIBUTES: Mapping[str, Sequence[_Words]] = {
    _ANYWHERE: _GENERAL,
    "memory-backing": (
        _Words("memoryBacking/source", "type", "file anonymous memfd"),
        _Words("memoryBacking/access", "mode", "shared private"),
        _Words("memoryBacking/allocation", "mode", "immediate ondemand"),
    ),
    "memory-access": (_Words("cpu/numa/cell", "memAccess", "shared private"),),
    "vcpu-count": (_Words("vcpu", "placement", "static auto"),),
    "vcpu-each": tuple(_Words("vcpus/vcpu", name, _SAID) for name in ("enabled", "hotpluggable")),
    "cpu-model": (
        _Words("cpu", "mode", "custom host-model host-passthrough maximum"),
        _Words("cpu", "match", "minimum exact strict"),
        _Words("cpu", "check", "none partial full"),
        _Words("cpu", "migratable", _SWITCH),
        _Words("cpu/feature", "policy", "force require optional disable forbid"),
    ),
    "cpu-cache": (_Words("cpu/cache", "mode", "emulate passthrough disable", is_needed=True),),
    "cpu-address-bits": (_Words("cpu/maxphysaddr", "mode", "passthrough emulate", is_needed=True),),
    "feature-state": tuple(
        _Words(path, "state", _SWITCH) for path in ("features/*", "features/kvm/*", "features/hyperv/*")
    ),
    "scheduler": tuple(
        _Words(f"cputune/{name}", "scheduler", _SCHEDULERS, is_needed=True)
        for name in ("vcpusched", "iothreadsched", "emulatorsched")
    ),
    "numa-nodeset": (_Words("numatune/memory", "mode", _POLICIES), _Words("numatune/memnode", "mode", _POLICIES)),
    "numa-placement": (_Words("numatune/memory", "placement", "static auto"),),
    "address-multifunction": (_Words("devices/*/address", "multifunction", _SWITCH),),
    "hostdev-type": (
        _Words("devices/hostdev", "type", "pci usb scsi scsi_host mdev", is_needed=True),
        _Words("devices/hostdev", "mode", "subsystem capabilities"),
    ),
    "hostdev-driver": (
        _Words("devices/hostdev[@type='pci']/driver", "name", "vfio kvm xen default"),
        _Words("devices/hostdev[@type='pci']/driver", "iommufd", _SAID),
        _Words("devices/interface[@type='hostdev']/driver", "iommufd", _SAID),
    ),
    "hostdev-managed": (_Words("devices/hostdev[@type='pci']", "managed", _SAID),),
    "hostdev-rom": tuple(_Words("devices/*/rom", name, f"{_SWITCH} {_SAID}") for name in ("bar", "enabled")),
    "mdev-model": (_Words("devices/hostdev[@type='mdev']", "model", "vfio-pci vfio-ccw vfio-ap", is_needed=True),),
    "iommu-model": (_Words("devices/iommu", "model", "intel smmuv3 virtio amd", is_needed=True),),
    "ioapic": (_Words("features/ioapic", "driver", "kvm qemu", is_needed=True),),
    "confidential-type": (_Words("launchSecurity", "type", "sev sev-snp tdx s390-pv", is_needed=True),),
}
"""The attributes that each rule judges."""
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


def unknown_words(domain: Domain, rule: str) -> Iterator[Fault]:
    """Yield the attributes of a rule that have none of the words that libvirt knows."""
    for path, name, known, is_needed in ATTRIBUTES.get(rule, ()):
        remedy = ", ".join(known.split())
        for element in domain.all(path):
            value = element.get(name)
            if value is None and is_needed:
                yield Fault(element, f"<{element.tag}> has no {name}=", remedy)
            elif value is not None and value not in known.split() and (value or rule != _ANYWHERE):
                # libvirt takes some empty ones for none
                yield Fault(element, f"{name}='{value[:40]}' is unknown", remedy)


def word_unknown(domain: Domain) -> Iterator[Fault]:
    for path, known in _TEXTS.items():
        first = domain.one(path)
        text = text_in(first)
        if first is not None and text and text not in known.split():
            yield Fault(first, f"'{text[:40]}' is unknown", ", ".join(known.split()))


def part_missing(domain: Domain) -> Iterator[Fault]:
    for disk in domain.all("devices/disk"):
        if attribute(disk.find("target"), "dev") is None:
            yield Fault(disk, "the disk has no <target> with dev=", "<target dev='vda' bus='virtio'/>")
    for generator in domain.all("devices/rng"):
        if len(generator.findall("backend")) != 1:
            yield Fault(generator, "the <rng> needs one <backend>", "<backend model='random'>/dev/urandom</backend>")
    for interface in domain.all("devices/interface"):
        name = _SOURCES.get(interface.get("type", ""))
        if name and attribute(interface.find("source"), name) is None:
            yield Fault(interface, f"the interface has no <source> with {name}=", f"<source {name}='...'/>")


def mac_address(domain: Domain) -> Iterator[Fault]:
    for _, element in with_child(domain.all("devices/interface"), "mac"):
        address = element.get("address")
        if address is not None and not _is_mac(address):
            yield Fault(element, f"'{address[:40]}' is no MAC address", "such as 52:54:00:12:34:56, of one device")


def _is_mac(text: str) -> bool:
    """Whether libvirt reads it so (virMacAddrParse): white space may follow. An odd first byte means a group."""
    octets = text.partition(" ")[0].rstrip().split(":")
    is_read = len(octets) == 6 and all(0 < len(octet) <= 2 and _HEXADECIMAL.issuperset(octet) for octet in octets)
    return is_read and not int(octets[0], 16) & 1
