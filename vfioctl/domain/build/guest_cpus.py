"""Writes the guest's vCPUs and threads into the XML: which CPUs they have, how they are scheduled. Pure.

Other settings of the domain's CPU time stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from xml.etree.ElementTree import Element

from vfioctl.domain.build.guest import most_iothreads, virtio_disks
from vfioctl.domain.document.reader import Domain
from vfioctl.domain.document.tree import child, insert, remove
from vfioctl.domain.document.values import cpuset, number
from vfioctl.domain.document.xml import Document
from vfioctl.domain.model.layout import Layout
from vfioctl.units import format_cpu_list

_PINS = ("vcpupin", "emulatorpin", "iothreadpin", "vcpusched")


def write_vcpus(root: Element, layout: Layout) -> None:
    """Write the number of vCPUs, and the CPUs of each thread of the domain, if they are pinned."""
    vcpu = child(root, "vcpu", {"placement": "static"})
    before = number(vcpu.text) or layout.vcpus
    vcpu.text = str(layout.vcpus)
    if layout.pins or before != layout.vcpus:  # all are there from the start, each on its CPU
        vcpu.attrib.pop("current", None)
        vcpu.attrib.pop("cpuset", None)
        remove(root, "vcpus")
    schedulers = list(_schedulers(root, before, layout.vcpus))
    for name in _PINS:
        remove(root, f"cputune/{name}")
    if layout.pins:  # a realtime scheduler would keep others from CPUs that they share
        _pin(root, layout, schedulers)
    tune = root.find("cputune")
    if tune is not None and not len(tune):
        root.remove(tune)


def _pin(root: Element, layout: Layout, schedulers: Sequence[Element]) -> None:
    if not iothreads(root):
        child(root, "iothreads", text=str(most_iothreads(root, layout.vcpus)))
    tune = child(root, "cputune")
    for vcpu, cpu in layout.pins.items():
        _add(tune, "vcpupin", {"vcpu": vcpu, "cpuset": cpu})
    if layout.emulator:
        _add(tune, "emulatorpin", {"cpuset": layout.emulator})
        for iothread in iothreads(root):
            _add(tune, "iothreadpin", {"iothread": iothread, "cpuset": layout.emulator})
    for scheduler in schedulers:
        insert(tune, scheduler)
    if is_host_x86(root, layout):  # libvirt takes the hint for no other model, QEMU for no other architecture
        hints = child(child(root, "features"), "kvm")
        child(hints, "hint-dedicated", {"state": "on"})


def _add(tune: Element, name: str, attributes: Mapping[str, object]) -> None:
    insert(tune, Element(name, {key: str(value) for key, value in attributes.items()}))


def _schedulers(root: Element, before: int, after: int) -> Iterator[Element]:
    """Yield one element for each scheduler and priority: libvirt writes one for each vCPU, and takes none twice.

    One that all vCPUs have, all have afterwards; of another, those that are left.
    """
    vcpus_of: dict[tuple[str | None, str | None], frozenset[int]] = {}
    for vcpusched in root.iterfind("cputune/vcpusched"):
        which = cpuset(vcpusched.get("vcpus")) or frozenset()
        kind = vcpusched.get("scheduler"), vcpusched.get("priority")
        vcpus_of[kind] = vcpus_of.get(kind, frozenset()) | which
    for (scheduler, priority), which in vcpus_of.items():
        vcpus = (
            range(after) if which.issuperset(range(before)) else sorted(which.intersection(range(min(before, after))))
        )
        if vcpus:
            attributes = {"vcpus": format_cpu_list(vcpus), "scheduler": scheduler, "priority": priority}
            yield Element("vcpusched", {name: value for name, value in attributes.items() if value is not None})


def iothreads(root: Element) -> Sequence[int]:
    """Return the ids of the I/O threads."""
    return sorted(Domain(Document(root)).iothreads)


def use_iothreads(root: Element) -> None:
    """Give each virtio disk the I/O thread that the fewest have, if it has none."""
    threads = [str(thread) for thread in iothreads(root)]
    drivers = [driver for disk in virtio_disks(root) for driver in disk.iterfind("driver")]
    for driver in drivers:
        if "iothread" not in driver.attrib and driver.find("iothreads") is None:
            used = [other.get("iothread") for other in drivers]
            driver.set("iothread", min(threads, key=used.count))


def is_host_x86(root: Element, layout: Layout) -> bool:
    """Return whether the guest has the host's CPU model, on x86: only that can show caches and give KVM's hints."""
    return layout.is_x86 and root.find("cpu[@mode='host-passthrough']") is not None
