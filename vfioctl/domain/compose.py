"""Writes a layout into the XML of a template. Pure.

Each element and its reason is in docs/how-to/build-a-domain.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from xml.etree.ElementTree import Element

from vfioctl.domain.guest_pci import add_pci
from vfioctl.domain.model.layout import Layout
from vfioctl.domain.model.spec import DomainSpec
from vfioctl.domain.tree import add, child, insert, remove
from vfioctl.domain.xml import METADATA, Document
from vfioctl.inventory.model.values import CpuSet, format_cpu_list

_PREALLOCATORS = 8
"""The most threads that fill hugepages."""
_ONLY_X86 = (
    *("features/apic", "features/smm", "features/hyperv", "features/pmu", "features/ioapic"),
    *("cpu/maxphysaddr", "cpu/feature", "clock/timer", "pm", "launchSecurity"),
    *("devices/tpm", "devices/serial", "devices/console"),
)
"""What a template has for x86_64, and QEMU's `virt` machine has not."""
_BLOCK = "/dev/"
_OVERHEAD, _OWN = 64, 2 << 30
"""What QEMU takes besides the guest's memory: page tables in proportion to it, and its own (bytes)."""


def composed(template: Document, spec: DomainSpec, layout: Layout) -> Document:
    """Return the domain: the template with the layout's vCPUs, memory and devices."""
    document = Document(deepcopy(template.root), prefixes=template.prefixes)
    root = document.root
    if layout.arch != "x86_64":
        _for_arm(root, layout.arch)
    child(root, "name", text=spec.name)
    _metadata(root, spec)
    _memory(root, layout)
    _vcpus(root, layout)
    _nodes(root, layout)
    _processor(root, layout)
    devices = child(root, "devices")
    is_confidential = root.find("launchSecurity") is not None
    _disks(devices, spec.disks, has_iothread=bool(layout.pins), is_confidential=is_confidential)
    _networks(devices, spec.networks, is_confidential=is_confidential)
    add_pci(devices, layout)
    return document


def _for_arm(root: Element, arch: str) -> None:
    for path in _ONLY_X86:
        remove(root, path)
    kind = child(child(root, "os"), "type", text="hvm")
    kind.set("arch", arch)
    kind.set("machine", "virt")
    remove(root, "os/firmware")
    if root.find("os[@firmware]") is not None:
        features = child(child(root, "os"), "firmware")
        add(features, "feature", {"enabled": "no", "name": "secure-boot"})


def _metadata(root: Element, spec: DomainSpec) -> None:
    metadata = child(root, "metadata")
    remove(metadata, f"{{{METADATA}}}allocation")
    given = {"id": spec.claim} if spec.claim else {}
    add(metadata, f"{{{METADATA}}}allocation", {**given, "template": spec.template})


# -- memory and vCPUs ------------------------------------------------------------------------------------


def _memory(root: Element, layout: Layout) -> None:
    amount = {"unit": "KiB"}
    child(root, "memory", amount, str(layout.memory >> 10))
    remove(root, "currentMemory")
    limit = root.find("memtune/hard_limit")
    if limit is not None:
        limit.set("unit", "KiB")
        limit.text = str((layout.memory + layout.memory // _OVERHEAD + _OWN) >> 10)
    remove(root, "memoryBacking/hugepages")
    if layout.page_size is None:
        return
    backing = child(root, "memoryBacking")
    cells = format_cpu_list(number for number, cell in enumerate(layout.cells) if cell.memory)
    pages = child(backing, "hugepages")
    add(pages, "page", {"size": layout.page_size >> 10, "unit": "KiB", "nodeset": cells})
    child(backing, "allocation", {"mode": "immediate", "threads": min(_PREALLOCATORS, layout.vcpus)})


def _vcpus(root: Element, layout: Layout) -> None:
    child(root, "vcpu", {"placement": "static"}, str(layout.vcpus))
    schedulers = root.findall("cputune/vcpusched")
    remove(root, "cputune")
    if not layout.pins:  # a realtime scheduler would keep others from CPUs that they share
        return
    child(root, "iothreads", text="1")
    tune = child(root, "cputune")
    for vcpu, cpu in layout.pins.items():
        add(tune, "vcpupin", {"vcpu": vcpu, "cpuset": cpu})
    if layout.emulator:
        add(tune, "emulatorpin", {"cpuset": layout.emulator})
        add(tune, "iothreadpin", {"iothread": 1, "cpuset": layout.emulator})
    for scheduler in schedulers:
        scheduler.set("vcpus", format_cpu_list(layout.pins))
        tune.append(scheduler)
    if _is_host_cpu(root):  # libvirt takes the hint for no other
        hints = child(child(root, "features"), "kvm")
        child(hints, "hint-dedicated", {"state": "on"})


def _nodes(root: Element, layout: Layout) -> None:
    remove(root, "numatune")
    nodes = {number: cell.node for number, cell in enumerate(layout.cells) if cell.node is not None and cell.memory}
    if not nodes:
        return
    mode = "strict" if layout.strict else "preferred"
    tune = child(root, "numatune")
    if layout.strict or len(nodes) == 1:  # QEMU prefers one node only
        add(tune, "memory", {"mode": mode, "nodeset": CpuSet(sorted(node for node in nodes.values()))})
    for number, node in nodes.items():
        add(tune, "memnode", {"cellid": number, "mode": mode, "nodeset": node})


def _processor(root: Element, layout: Layout) -> None:
    cpu = child(root, "cpu")
    shape = layout.shape
    child(
        cpu,
        "topology",
        {"sockets": shape.sockets, "dies": shape.dies, "cores": shape.cores, "threads": shape.threads},
    )
    remove(cpu, "cache")
    if layout.shares_cache and _is_host_cpu(root):
        child(cpu, "cache", {"mode": "passthrough"})
    if layout.wide_addresses and cpu.find("maxphysaddr") is None:
        child(cpu, "maxphysaddr", {"mode": "passthrough"})
    if layout.is_amd and shape.threads > 1 and cpu.find("feature[@name='topoext']") is None:
        insert(cpu, Element("feature", {"policy": "require", "name": "topoext"}))
    remove(cpu, "numa")
    numa = child(cpu, "numa")
    for number, cell in enumerate(layout.cells):
        given: dict[str, object] = {"id": number}
        if cell.vcpus:
            given["cpus"] = cell.vcpus
        made = add(numa, "cell", {**given, "memory": cell.memory >> 10, "unit": "KiB"})
        if cell.distances:
            distances = add(made, "distances")
            for other, value in enumerate(cell.distances):
                add(distances, "sibling", {"id": other, "value": value})


def _is_host_cpu(root: Element) -> bool:
    return root.find("cpu[@mode='host-passthrough']") is not None


# -- devices ---------------------------------------------------------------------------------------------


def _disks(devices: Element, disks: Sequence[str], *, has_iothread: bool, is_confidential: bool) -> None:
    if disks:
        remove(devices, "disk")
    for number, path in enumerate(disks):
        is_block = path.startswith(_BLOCK)
        disk = Element("disk", {"type": "block" if is_block else "file", "device": "disk"})
        kind = "qcow2" if path.endswith(".qcow2") else "raw"
        add(disk, "driver", {"name": "qemu", "type": kind, "cache": "none", "io": "native", "discard": "unmap"})
        add(disk, "source", {"dev" if is_block else "file": path})
        add(disk, "target", {"dev": f"vd{_letters(number)}", "bus": "virtio"})
        insert(devices, disk)
        if is_confidential:
            disk[0].set("iommu", "on")  # its virtio devices cannot read the guest's memory otherwise
    for disk in devices.findall("disk[@device='disk']"):
        target, driver = disk.find("target"), disk.find("driver")
        if has_iothread and target is not None and driver is not None and target.get("bus") == "virtio":
            driver.set("iothread", "1")


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
