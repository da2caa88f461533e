"""Writes a layout into a template's or domain's XML; the rest stays. Pure. Reasons: docs/how-to/build-a-domain.md."""

from __future__ import annotations

from copy import deepcopy
from xml.etree.ElementTree import Element

from vfioctl.domain.build.guest import add_own_devices, is_host_x86, use_iothreads, write_vcpus
from vfioctl.domain.build.guest_pci import add_pci
from vfioctl.domain.document.architecture import MEANT_FOR_X86, ONLY_X86
from vfioctl.domain.document.needs import least_hard_limit
from vfioctl.domain.document.reader import Domain
from vfioctl.domain.document.tree import add, child, insert, remove
from vfioctl.domain.document.values import ballooned, is_element, plugged, size_of
from vfioctl.domain.document.xml import MARK, Document
from vfioctl.domain.model.layout import Layout
from vfioctl.domain.model.spec import BUILD_OPTIONS, DomainSpec, options_of
from vfioctl.errors import BadSpec
from vfioctl.units import CpuSet, format_cpu_list

_PREALLOCATORS = 8
"""The most threads that fill hugepages."""
_ARM = "virt"
"""The machine for Arm; a release of it is called virt-7.2."""
_CELL = dict.fromkeys(("id", "cpus", "memory", "unit"), "")
"""What is written of a cell, in this order."""
_OVERHEAD, _OWN = 64, 1 << 30
"""What QEMU takes besides what VFIO locks: page tables in proportion to the guest's memory, and its own (bytes)."""


def composed(template: Document, spec: DomainSpec, layout: Layout, *, edits: bool = False) -> Document:
    """Return the domain: the template with the layout's vCPUs, memory and devices. `edits`: the template is an existing
    domain, not one from which domains are made. Raises BadSpec for a machine that has no PCI Express."""
    document = Document(deepcopy(template.root), prefixes=template.prefixes)
    root = document.root
    if not edits:
        remove(root, "uuid")  # each domain has its own
        _for_arch(root, layout)
    _refuse_machine(root)
    child(root, "name", text=spec.name)
    _metadata(root, spec, edits=edits)
    _memory(root, layout, edits=edits)
    add_own_devices(root, spec, layout, edits=edits)
    write_vcpus(root, layout)
    _nodes(root, layout)
    _processor(root, layout, edits=edits)
    if layout.pins:
        use_iothreads(root)
    add_pci(child(root, "devices"), layout)
    _hard_limit(document, edits=edits)
    return document


def _machine(root: Element) -> str:
    kind = root.find("os/type")
    return "" if kind is None else kind.get("machine", "")


def _refuse_machine(root: Element) -> None:
    machine = _machine(root)
    if machine and "q35" not in machine and not machine.startswith(_ARM):
        raise BadSpec(
            f"the machine {machine[:40]} has no PCI Express: a domain with GPUs needs machine q35 (virt on Arm)",
            hint="change machine= of <os><type>, and remove the guest's PCI controllers and addresses, or build anew",
        )


def _for_arch(root: Element, layout: Layout) -> None:
    """Make a template one for this machine. One whose machine is `virt` is for Arm already."""
    kind = root.find("os/type")
    if not layout.is_x86 and not _machine(root).startswith(_ARM):
        _for_arm(root, layout.arch)
    elif kind is not None and "machine" not in kind.attrib:
        kind.set("machine", "q35")  # libvirt would take one without PCI Express


def _for_arm(root: Element, arch: str) -> None:
    has_console = root.find("devices/serial") is not None
    for path in (*ONLY_X86, *MEANT_FOR_X86):
        remove(root, path)
    if has_console:
        _serial_console(child(root, "devices"))
    kind = child(child(root, "os"), "type", text="hvm")
    kind.set("arch", arch)
    kind.set("machine", _ARM)
    remove(root, "os/firmware")
    if root.find("os[@firmware]") is not None:
        add(child(child(root, "os"), "firmware"), "feature", {"enabled": "no", "name": "secure-boot"})


def _serial_console(devices: Element) -> None:
    """Add the serial port that QEMU's `virt` machine has, a PL011 (libvirt, formatdomain.html, serial port)."""
    target = add(child(devices, "serial", {"type": "pty"}), "target", {"type": "system-serial", "port": 0})
    add(target, "model", {"name": "pl011"})
    add(child(devices, "console", {"type": "pty"}), "target", {"type": "serial", "port": 0})


def _metadata(root: Element, spec: DomainSpec, *, edits: bool) -> None:
    metadata = child(root, "metadata")
    if not edits:
        remove(metadata, MARK)
    attributes = {"id": spec.claim} if spec.claim else {}
    options = dict(options_of(spec))
    if root.find("launchSecurity") is not None:  # such a guest has none, whatever is asked for
        options.pop("hugepages", None)
    mark = child(metadata, MARK, attributes if edits else {**attributes, "template": spec.template})
    for name in BUILD_OPTIONS:
        mark.attrib.pop(name, None)
    mark.attrib.update(options)


def _memory(root: Element, layout: Layout, *, edits: bool) -> None:
    total = layout.memory + plugged(root)
    if not edits:
        remove(root, "currentMemory")
    elif root.find("currentMemory") is not None and not 0 < ballooned(root) < total:
        child(root, "currentMemory", {"unit": "KiB"}, str(total >> 10))
    child(root, "memory", {"unit": "KiB"}, str(total >> 10))
    most = root.find("maxMemory")
    if most is not None and (size_of(most) or 0) < total:
        child(root, "maxMemory", {"unit": "KiB"}, str(total >> 10))
    remove(root, "memoryBacking/hugepages")
    if layout.page_size is None:
        return
    backing = child(root, "memoryBacking")
    cells = format_cpu_list(number for number, cell in enumerate(layout.cells) if cell.memory)
    add(child(backing, "hugepages"), "page", {"size": layout.page_size >> 10, "unit": "KiB", "nodeset": cells})
    remove(backing, "source[@type='anonymous']")  # with which libvirt refuses hugepages, as with those on demand
    remove(backing, "allocation[@mode='ondemand']")
    if backing.find("allocation") is None:
        child(backing, "allocation", {"mode": "immediate", "threads": min(_PREALLOCATORS, layout.vcpus)})


def _hard_limit(document: Document, *, edits: bool) -> None:
    """Write the hard limit of the memory, if there is one; one that is large enough stays."""
    domain = Domain(document)
    limit = domain.one("memtune/hard_limit")
    needed = least_hard_limit(domain) + (domain.memory or 0) // _OVERHEAD + _OWN
    if limit is not None and not (edits and (size_of(limit) or 0) >= needed):
        limit.set("unit", "KiB")
        limit.text = str(needed >> 10)


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


def _processor(root: Element, layout: Layout, *, edits: bool) -> None:
    cpu = child(root, "cpu")
    shape = layout.shape
    topology = child(cpu, "topology", shape._asdict())
    if "clusters" in topology.attrib:
        topology.set("clusters", "1")
    if not edits:
        remove(cpu, "cache")
    remove(cpu, "cache[@mode='passthrough']")  # it describes the CPUs that the guest has had
    if layout.shares_cache and is_host_x86(root, layout) and cpu.find("cache") is None:
        child(cpu, "cache", {"mode": "passthrough"})
    if layout.wide_addresses and cpu.find("maxphysaddr") is None:
        child(cpu, "maxphysaddr", {"mode": "passthrough"})
    if layout.is_amd and shape.threads > 1 and cpu.find("feature[@name='topoext']") is None:
        insert(cpu, Element("feature", {"policy": "require", "name": "topoext"}))
    _cells(child(cpu, "numa"), layout)


def _cells(numa: Element, layout: Layout) -> None:
    """Write the cells. One that is there keeps its other settings; a further one has the attributes of the last."""
    existing = {element.get("id", str(number)): element for number, element in enumerate(numa.findall("cell"))}
    _interconnects(numa, layout)
    last = next((dict(cell.items()) for cell in reversed(existing.values())), {})
    remove(numa, "cell")
    for number, cell in enumerate(layout.cells):
        cell_element = existing.get(str(number), Element("cell", {**_CELL, **last}))
        remove(cell_element, "distances")
        numa.insert(number, cell_element)
        attributes = {"id": number, "cpus": cell.vcpus, "memory": cell.memory >> 10, "unit": "KiB"}
        cell_element.attrib.update({name: str(value) for name, value in attributes.items()})
        if not cell.vcpus:
            cell_element.attrib.pop("cpus", None)
        if cell.distances:
            distances = Element("distances")
            cell_element.insert(0, distances)
            for other, value in enumerate(cell.distances):
                add(distances, "sibling", {"id": other, "value": value})


def _interconnects(numa: Element, layout: Layout) -> None:
    """Remove those of cells that are no longer there, or no longer have vCPUs, which an initiator needs."""
    cells = {str(number): cell for number, cell in enumerate(layout.cells)}
    for parent in numa.findall("interconnects"):
        for link in [connection for connection in parent if is_element(connection)]:
            initiator = cells.get((link.get("initiator") or "").lstrip())
            if not (initiator and initiator.vcpus and (link.get("target") or "").lstrip() in cells):
                parent.remove(link)
        if not len(parent):
            numa.remove(parent)
