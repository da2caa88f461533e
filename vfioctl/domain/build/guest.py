"""Writes what the guest has besides the host's devices: vCPUs and their threads, disks, networks, a vIOMMU. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from xml.etree.ElementTree import Element

from vfioctl.domain.document.reader import Domain
from vfioctl.domain.document.tree import add, child, insert, remove
from vfioctl.domain.document.values import cpuset, number
from vfioctl.domain.document.xml import Document
from vfioctl.domain.model.layout import Layout
from vfioctl.domain.model.spec import DomainSpec, Viommu
from vfioctl.errors import BadSpec
from vfioctl.units import format_cpu_list

_BLOCK = "/dev/"
_QUEUED = ("network", "bridge", "direct", "ethernet")
"""The kinds of interfaces of which libvirt takes several queues, if they are virtio's (its qemu_validate.c)."""
_MOST_QUEUES, _MOST_IOTHREADS, _VCPUS_OF_IOTHREAD = 8, 4, 8
_VIOMMUS: Mapping[str, tuple[Viommu, ...]] = {
    "x86_64": (Viommu.INTEL, Viommu.VIRTIO),
    "aarch64": (Viommu.SMMUV3, Viommu.VIRTIO),
}


def add_own_devices(root: Element, spec: DomainSpec, layout: Layout, *, edits: bool) -> None:
    """Add what the spec names. `edits`: of an existing domain, only its seed is changed. Raises BadSpec."""
    devices = child(root, "devices")
    is_confidential = root.find("launchSecurity") is not None
    if not edits:
        _disks(devices, spec.disks, is_confidential=is_confidential)
    if spec.seed:
        _seed(devices, spec.seed, is_arm=not layout.is_x86)
    if edits:
        return
    _networks(devices, spec.networks, is_confidential=is_confidential)
    _queues(devices, layout.vcpus)
    _viommu(root, spec.viommu, layout)
    if spec.cdroms:
        _cdroms(root, devices, spec.cdroms, layout)


def _disk(devices: Element, path: str, kind: str, prefix: str, bus: str, driver: Mapping[str, str]) -> Element:
    is_block = path.startswith(_BLOCK)
    disk = Element("disk", {"type": "block" if is_block else "file", "device": kind})
    add(disk, "driver", {"name": "qemu", **driver})
    add(disk, "source", {"dev" if is_block else "file": path})
    taken = {target.get("dev", "") for target in devices.iterfind("disk/target")}
    name = next(name for number in count() if (name := f"{prefix}{_letters(number)}") not in taken)
    add(disk, "target", {"dev": name, "bus": bus})
    insert(devices, disk)
    return disk


def _disks(devices: Element, disks: Sequence[str], *, is_confidential: bool) -> None:
    """Replace the disks; CD-ROMs stay."""
    for disk in devices.findall("disk") if disks else ():
        if disk.get("device", "disk") in ("disk", "lun"):
            devices.remove(disk)
    for path in disks:
        kind = "qcow2" if path.endswith(".qcow2") else "raw"
        options = {"type": kind, "cache": "none", "io": "native", "discard": "unmap"}
        if is_confidential:
            options["iommu"] = "on"  # its virtio devices cannot read the guest's memory otherwise
        _disk(devices, path, "disk", "vd", "virtio", options)


def _seed(devices: Element, path: str, *, is_arm: bool) -> None:
    """Add a seed as a CD-ROM, where all guests look for one; QEMU's `virt` machine has no SATA, but virtio."""
    if any(source.get("file") == path for source in devices.iterfind("disk/source")):
        return  # of a domain that is edited
    where = ("disk", "vd", "virtio") if is_arm else ("cdrom", "sd", "sata")
    add(_disk(devices, path, *where, {"type": "raw"}), "readonly")


def _cdroms(root: Element, devices: Element, cdroms: Sequence[str], layout: Layout) -> None:
    """Add install media, and what one needs to install from them: firmware that boots them, a display on this host.
    QEMU's `virt` machine has no SATA. Windows for Arm has a driver for USB, and none for SCSI by virtio."""
    has_usb = devices.find("controller[@type='usb']") is not None
    has_usb &= devices.find("controller[@type='usb'][@model='none']") is None
    bus = "sata" if layout.is_x86 else "usb" if has_usb else "scsi"
    for path in cdroms:
        add(_disk(devices, path, "cdrom", "sd", bus, {"type": "raw"}), "readonly")
    if bus == "scsi" and devices.find("controller[@type='scsi']") is None:
        insert(devices, Element("controller", {"type": "scsi", "index": "0", "model": "virtio-scsi"}))
    if root.find("os/boot") is not None and root.find("os/boot[@dev='cdrom']") is None:
        insert(child(root, "os"), Element("boot", {"dev": "cdrom"}))
    if devices.find("graphics") is None and devices.find("video") is None:
        graphics = {"type": "vnc", "port": "-1", "autoport": "yes", "listen": "127.0.0.1"}
        insert(devices, Element("graphics", graphics))
        add(child(devices, "video"), "model", {"type": "vga" if layout.is_x86 else "virtio"})


def _letters(number: int) -> str:
    return (_letters(number // 26 - 1) if number >= 26 else "") + chr(ord("a") + number % 26)


def _networks(devices: Element, networks: Sequence[str], *, is_confidential: bool) -> None:
    if networks:
        remove(devices, "interface[@type='network']")
    for name in networks:
        interface = Element("interface", {"type": "network"})
        add(interface, "source", {"network": name})
        add(interface, "model", {"type": "virtio"})
        if is_confidential:
            add(interface, "driver", {"iommu": "on"})
            add(interface, "rom", {"enabled": "no"})
        insert(devices, interface)


def _queues(devices: Element, vcpus: int) -> None:
    """Give each virtio interface a queue for each vCPU, up to a number; one that says its number keeps it."""
    for interface in devices.iterfind("interface"):
        is_virtio = interface.find("model[@type='virtio']") is not None and interface.get("type") in _QUEUED
        if is_virtio and vcpus > 1 and interface.find("driver[@queues]") is None:
            child(interface, "driver", {"queues": min(vcpus, _MOST_QUEUES)})


def virtio_disks(root: Element) -> Sequence[Element]:
    """Return the disks that an I/O thread can serve; libvirt takes none for vhost-user, another process's."""
    return [
        disk
        for disk in root.iterfind("devices/disk[@device='disk']")
        if disk.find("target[@bus='virtio']") is not None and disk.get("type") != "vhostuser"
    ]


def most_iothreads(root: Element, vcpus: int) -> int:
    """Return the number of I/O threads of a guest: one for each disk, if it has many vCPUs."""
    return max(1, min(len(virtio_disks(root)), vcpus // _VCPUS_OF_IOTHREAD, _MOST_IOTHREADS))


def _viommu(root: Element, viommu: Viommu, layout: Layout) -> None:
    if viommu is Viommu.TEMPLATE:
        return
    devices = child(root, "devices")
    remove(devices, "iommu")
    if viommu is Viommu.NONE:
        return
    known = _VIOMMUS.get(layout.arch, ())
    if viommu not in known:
        hint = f"{layout.arch} has {' and '.join(known)}"
        raise BadSpec(f"--viommu {viommu}: no machine for {layout.arch} has it", hint=hint)
    iommu = add(devices, "iommu", {"model": viommu})
    if viommu is Viommu.INTEL:  # VFIO needs caching_mode, more than 255 vCPUs need eim, and both of these the rest
        add(iommu, "driver", {"intremap": "on", "caching_mode": "on", "eim": "on"})
        child(child(root, "features"), "ioapic", {"driver": "qemu"})


_PINS = ("vcpupin", "emulatorpin", "iothreadpin", "vcpusched")


def write_vcpus(root: Element, layout: Layout) -> None:
    """Write the number of vCPUs, and the CPUs of each thread, if they are pinned. Other settings of CPU time stay."""
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
        child(child(child(root, "features"), "kvm"), "hint-dedicated", {"state": "on"})


def _add(tune: Element, name: str, attributes: Mapping[str, object]) -> None:
    insert(tune, Element(name, {key: str(value) for key, value in attributes.items()}))


def _schedulers(root: Element, before: int, after: int) -> Iterator[Element]:
    """Yield one element for each scheduler and priority: libvirt writes one for each vCPU, and takes none twice. One
    that all vCPUs have, all have afterwards; of another, those that are left."""
    vcpus_of = defaultdict[tuple[str | None, str | None], set[int]](set)
    for vcpusched in root.iterfind("cputune/vcpusched"):
        vcpus_of[vcpusched.get("scheduler"), vcpusched.get("priority")] |= cpuset(vcpusched.get("vcpus")) or set()
    for (scheduler, priority), which in vcpus_of.items():
        have_all = which.issuperset(range(before))
        if vcpus := range(after) if have_all else sorted(which.intersection(range(min(before, after)))):
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
