"""What domains have for themselves: CPUs, devices, images they write to; also if shut off: they may start. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from os.path import normpath
from xml.etree.ElementTree import Element

from vfioctl.domain.document.reader import Domain, read_domain
from vfioctl.domain.model.libvirt import Libvirt, Others
from vfioctl.errors import BadDocument

_SHARED = ("readonly", "shareable", "transient")


def others_in(libvirt: Libvirt, online: Collection[int], *, but: Collection[str]) -> Others:
    """Return what domains have, without the domains `but`. Pins to every online CPU pin nothing; those of emulators and
    I/O threads count too. A domain whose XML is not understood is left out: others must be built all the same."""
    cpus: dict[int, str] = {}
    devices: dict[str, str] = {}
    images: dict[str, str] = {}
    for domain in libvirt.domains:
        if domain.name in but:
            continue
        who = f"{'running ' if domain.is_active else ''}domain {domain.name}"
        for document in understood((domain.live, domain.defined)):
            for pinned in (*document.pins.values(), *document.shared_cpus):
                if not pinned.issuperset(online):
                    cpus.update({cpu: who for cpu in sorted(pinned) if cpu not in cpus})
            devices.update({device: who for device in document.host_devices if device not in devices})
            images.update({image: who for _, image in written_images(document) if image not in images})
    running = tuple(domain.name for domain in libvirt.domains if domain.is_active)
    return Others(cpus, devices, libvirt.unknown, running=running, images=images)


def understood(texts: tuple[str, ...]) -> Iterator[Domain]:
    """Yield the domains of those documents that can be read."""
    for text in filter(None, texts):
        with suppress(BadDocument):
            yield read_domain(text)


def written_images(domain: Domain) -> Iterator[tuple[Element, str]]:
    """Yield each disk that the domain writes to and does not share, with its image: a path, or `POOL VOLUME`."""
    for disk in domain.all("devices/disk"):
        source, is_shared = disk.find("source"), any(disk.find(tag) is not None for tag in _SHARED)
        if source is None or is_shared or disk.get("device") in ("cdrom", "floppy"):
            continue
        if path := source.get("file") or source.get("dev"):
            yield disk, image_path(path)
        elif volume := source.get("volume"):
            yield disk, f"{source.get('pool')} {volume}"


def image_path(text: str) -> str:
    """Return a path in one form. POSIX lets two slashes at the beginning mean something else; Linux does not."""
    path = normpath(text)
    return path[1:] if path.startswith("//") else path
