"""What the other domains of libvirt have: the CPUs to which they are pinned, and their devices. Pure.

One that is defined and does not run counts as well: it may be started at any time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from vfioctl.domain.document.definition import Definition, read_definition
from vfioctl.domain.model.libvirt import Libvirt
from vfioctl.domain.model.other_domains import Others
from vfioctl.errors import BadDocument, BadSpec
from vfioctl.inventory.model.values import parse_cpu_list


def others_in(libvirt: Libvirt, online: Collection[int], *, but: Collection[str]) -> Others:
    """Return what domains have, without the domains `but`. Pins to every online CPU pin nothing.

    No vCPU of another domain is to be on the CPUs of their emulators and I/O threads either.

    A domain whose XML is not understood is left out: one bad domain must not keep others from being built.
    """
    cpus: dict[int, str] = {}
    devices: dict[str, str] = {}
    for domain in libvirt.domains:
        if domain.name in but:
            continue
        who = f"{'running ' if domain.is_active else ''}domain {domain.name}"
        for definition in _definitions((domain.live, domain.defined)):
            for text in (*(cpus for _, cpus in definition.pins), *definition.shared):
                pinned = _cpus(text)
                if not pinned.issuperset(online):
                    cpus.update({cpu: who for cpu in sorted(pinned) if cpu not in cpus})
            devices.update({device: who for device in definition.devices if device not in devices})
    running = tuple(domain.name for domain in libvirt.domains if domain.is_active)
    return Others(cpus, devices, libvirt.unknown, running=running)


def _definitions(texts: tuple[str, ...]) -> Iterator[Definition]:
    for text in texts:
        if text:
            try:
                yield read_definition(text)
            except (BadDocument, BadSpec):
                continue


def _cpus(text: str) -> set[int]:
    try:
        return set(parse_cpu_list(text))
    except BadSpec:
        return set()
