"""What the other domains of libvirt have: the CPUs to which they are pinned, their devices and disk images. Pure.

One that is defined and does not run counts as well: it may be started at any time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from vfioctl.domain.document.images import written_images
from vfioctl.domain.document.reader import Domain, read_domain
from vfioctl.domain.model.libvirt import Libvirt
from vfioctl.domain.model.other_domains import Others
from vfioctl.errors import BadDocument


def others_in(libvirt: Libvirt, online: Collection[int], *, but: Collection[str]) -> Others:
    """Return what domains have, without the domains `but`. Pins to every online CPU pin nothing.

    No vCPU of another domain is to be on the CPUs of their emulators and I/O threads either.

    A domain whose XML is not understood is left out: one bad domain must not keep others from being built.
    """
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
        try:
            yield read_domain(text)
        except BadDocument:
            continue
