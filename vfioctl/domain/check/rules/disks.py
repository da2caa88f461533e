"""Rules about disks: targets, I/O threads, caches and images. May not do input or output.

Source: libvirt's domain_validate.c and qemu_validate.c.
"""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree.ElementTree import Element

from vfioctl.domain.check.rules.fault import Fault, warning
from vfioctl.domain.document.reader import Domain
from vfioctl.domain.document.values import number

_UNCACHED = ("none", "directsync")
_WRITABLE = (None, "disk", "lun")
_SAFE = ("readonly", "shareable", "transient")
"""Children of a disk that does not write to its image, or not alone."""


def targets(domain: Domain) -> Iterator[Fault]:
    owners: dict[str, Element] = {}
    for disk, name in _attributes(domain, "target", "dev"):
        if name in owners:
            reason = f"target {name[:40]} is also that of {domain.document.path(owners[name])}"
            yield Fault(disk, reason, "give each disk its own dev=, whatever its bus")
        owners.setdefault(name, disk)


def iothreads(domain: Domain) -> Iterator[Fault]:
    for disk, thread in _attributes(domain, "driver", "iothread"):
        target = disk.find("target")
        bus = "virtio" if target is None else target.get("bus", "virtio")
        if disk.get("type") == "vhostuser":
            yield Fault(disk, "a vhostuser disk has no I/O thread", "remove iothread=: another process serves the disk")
        elif bus != "virtio":
            yield Fault(disk, f"a disk on bus {bus[:40]} has no I/O thread", "remove iothread=, or bus='virtio'")
        elif number(thread) not in domain.iothreads:
            yield Fault(disk, f"there is no I/O thread {thread[:40]}", "<iothreads>, or another iothread=")


def native(domain: Domain) -> Iterator[Fault]:
    """Linux AIO needs an image that the host does not cache, and cache= says so: its default is QEMU's."""
    for disk, mode in _attributes(domain, "driver", "io"):
        driver = disk.find("driver")
        given = None if driver is None else driver.get("cache")
        if mode == "native" and given not in _UNCACHED:
            told = f"cache='{given[:40]}'" if given else "no cache="
            yield Fault(disk, f"io='native' with {told}", "cache='none' or cache='directsync', or another io=")


def images(domain: Domain) -> Iterator[Fault]:
    """libvirt accepts it. QEMU locks images, and does not start; where there are no locks, both disks write."""
    owners: dict[str, Element] = {}
    for name in ("file", "dev"):
        for disk, image in _attributes(domain, "source", name):
            if disk.get("device") not in _WRITABLE or any(disk.find(name) is not None for name in _SAFE):
                continue
            if image in owners:
                reason = f"{image[:200]} is also the image of {domain.document.path(owners[image])}: QEMU locks it once"
                yield warning(disk, reason, "an image of its own, or <readonly/> or <shareable/> for both")
            owners.setdefault(image, disk)


def _attributes(domain: Domain, child: str, name: str) -> Iterator[tuple[Element, str]]:
    """The disks of which a child has this attribute, and its value."""
    for disk in domain.all("devices/disk"):
        found = disk.find(child)
        value = None if found is None else found.get(name)
        if value:
            yield disk, value
