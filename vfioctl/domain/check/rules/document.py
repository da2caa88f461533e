"""Rules about the domain as a whole, and memory devices. May not do input or output."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from xml.etree.ElementTree import Element

from vfioctl.domain.check.rules.rule import Fault, more_than_one, refused_before, repeats, warning, with_child
from vfioctl.domain.document.reader import Domain
from vfioctl.domain.document.values import attribute, count_of, is_uuid, number, size_of, text_in, total
from vfioctl.units import exact_size

_QEMU = ("kvm", "qemu")
_OTHER = ("xen", "lxc", "vz", "bhyve", "vmware", "hyperv", "vbox", "openvz", "test", "parallels", "uml", "kqemu")
_MOST_BUSES, _MOST_CELLS = 256, 128
"""Sources: libvirt's largest index of a PCI controller, 255; QEMU's MAX_NODES."""
_WITHOUT_SLOTS = (9, 5)
"""Source: libvirt's NEWS.rst."""
_SETS = ("cpuset", "nodeset", "cpus", "vcpus", "iothreads")
_MOST_NAMED = 1 << 21
"""Numbers in all sets of a document: 4096 vCPUs, each pinned to the 512 CPUs of its node."""
_ELSEWHERE = ("hvf", "mshv")


def is_domain(domain: Domain) -> Iterator[Fault]:
    if domain.root.tag != "domain":
        yield Fault(domain.root, f"the document is a <{str(domain.root.tag)[:40]}>", "a <domain>, as libvirt writes it")


def too_much(domain: Domain) -> Iterator[Fault]:
    """More than a guest can have. The rules do not look at such a document: they would take long."""
    controllers = [device for device in domain.devices if device.tag == "controller" and device.get("type") == "pci"]
    if len(controllers) > _MOST_BUSES:
        reason = f"{len(controllers)} PCI controllers, and a guest has {_MOST_BUSES} buses"
        yield Fault(controllers[_MOST_BUSES], reason, "remove those that nothing is on")
    cells = domain.all("cpu/numa/cell")
    if len(cells) > _MOST_CELLS:
        reason = f"{len(cells)} NUMA cells, and QEMU has at most {_MOST_CELLS}"
        yield Fault(cells[_MOST_CELLS], reason, "fewer and larger cells")
    named = 0
    for element in domain.root.iter():
        named += sum(count_of(element.get(attribute)) for attribute in _SETS) if element.attrib else 0
        if named > _MOST_NAMED:
            reason = f"up to here sets name {named} CPUs and nodes, more than any host has use for"
            yield Fault(element, reason, "leave out pins to all CPUs: a thread that is not pinned may run on any")
            return


def domain_name(domain: Domain) -> Iterator[Fault]:
    element = domain.one("name")
    text = text_in(element)
    if not text.strip():
        yield Fault(domain.root if element is None else element, "the domain has no name", "<name>vm1</name>")
    elif element is not None and ("/" in text or "\n" in text):
        yield Fault(element, "the name has a / or a new line", "a name that can be the name of a file")


def domain_uuid(domain: Domain) -> Iterator[Fault]:
    for part in ("uuid", "hwuuid"):
        element = domain.one(part)
        if element is not None and not is_uuid(text_in(element)):
            yield Fault(element, f"'{text_in(element)[:40]}' is no UUID", "remove it: libvirt makes one")


def domain_type(domain: Domain) -> Iterator[Fault]:
    value = domain.root.get("type")
    if value in _ELSEWHERE:
        yield Fault(domain.root, f"type='{value}' is not for Linux hosts", "type='kvm'")
    elif value in _OTHER:
        yield warning(domain.root, f"type='{value}': only domains of QEMU are judged", "type='kvm' for QEMU with KVM")
    elif value not in _QEMU:
        yield Fault(domain.root, f"type='{(value or '')[:40]}' of the domain is unknown", "type='kvm'")


def domain_machine(domain: Domain) -> Iterator[Fault]:
    element = domain.one("os/type")
    if element is None and domain.root.get("type") in _QEMU:
        remedy = "<type arch='x86_64' machine='q35'>hvm</type>"
        yield Fault(domain.at("os"), "the domain has no <os> with a <type>", remedy)
    elif element is not None and not element.get("machine") and domain.passed_through:
        remedy = "machine='q35'"
        yield warning(element, "no machine is named: libvirt chooses i440fx on x86, which has no PCI Express", remedy)


def domain_part_twice(domain: Domain) -> Iterator[Fault]:
    """Parts of which libvirt reads only the first."""
    parts = ("memory", "vcpu", "memoryBacking", "cputune", "cpu", "features", "os", "devices", "memtune")
    return more_than_one(domain, *parts, remedy="keep one of them: libvirt reads the first")


def memory_maximum(domain: Domain) -> Iterator[Fault]:
    """The most memory that can be plugged in. Its slots are optional since libvirt 9.5."""
    element, most = domain.one("maxMemory"), size_of(domain.one("maxMemory"))
    if element is None:
        return
    memory = total(cell.memory for cell in domain.cells) if domain.cells else None
    memory = domain.memory if memory is None else memory
    if most is not None and memory is not None and most < memory:
        reason = f"<maxMemory> is {exact_size(most)}, less than the {exact_size(memory)} that there are"
        yield Fault(element, reason, "at least as much as <memory>")
    if element.get("slots") is not None and number(element.get("slots")) is None:
        yield Fault(element, "slots= is no number", "slots='16'")
    elif not number(element.get("slots")):
        reason = "no slots for memory devices, which libvirt before {} refuses"
        yield from refused_before(domain, _WITHOUT_SLOTS, element, reason, "slots='16'")


def boot_order(domain: Domain) -> Iterator[Fault]:
    """The place of each device among those that the guest boots from."""
    boots = [boot for _, boot in with_child(domain.devices, "boot")]
    for element in boots:
        if not number(element.get("order")):
            text = (element.get("order") or "")[:40]
            yield Fault(element, f"order='{text}' is no place in the boot order", "order='1' and so on")
    for element, order, other in repeats((element, number(element.get("order")) or None) for element in boots):
        reason = f"order='{order}' is also that of {domain.document.path(other).removesuffix('/boot')}"
        yield Fault(element, reason, "give each device its own")
    if boots and domain.one("os/boot") is not None:
        yield Fault(domain.at("os/boot"), "<boot> both in <os> and in devices", "keep those in devices")


def memory_device(domain: Domain) -> Iterator[Fault]:
    """They need slots, a guest with NUMA cells, and addresses that do not overlap."""
    elements = domain.all("devices/memory")
    if (domain.one("maxMemory") is not None) and domain.is_x86 and not domain.cells:
        yield Fault(domain.at("maxMemory"), "<maxMemory> without NUMA cells", "add <cpu><numa> with a cell")
    if elements and domain.one("maxMemory") is None:
        remedy = "<maxMemory slots='16'>: the most that it may have"
        yield Fault(elements[0], "memory devices without <maxMemory>", remedy)
    for _, node in with_child(elements, "target/node"):
        value = number(text_in(node))
        if value is None or value >= len(domain.cells):
            yield Fault(node, f"the guest has no cell {text_in(node)[:40]}", "the id of a NUMA cell")


def memory_device_address(domain: Domain) -> Iterator[Fault]:
    placed = []
    for module in domain.all("devices/memory"):
        where = module.find("target/address")
        if where is None:
            where = module.find("address")
        base, size = _place(attribute(where, "base")), _mapped(module)
        if base is not None and size:
            placed.append((base, base + size, module))
    placed.sort(key=lambda address: address[:2])
    for (_, end, _), (start, _, element) in pairwise(placed):
        if start < end:
            reason = f"its address {start:#x} is inside another memory device"
            yield Fault(element, reason, "leave addresses to libvirt")


def _mapped(element: Element) -> int:
    """The bytes of a memory device that the guest sees: an NVDIMM without its label, in whole alignments."""
    size, label = size_of(element.find("target/size")) or 0, size_of(element.find("target/label/size")) or 0
    unit = size_of(element.find("source/alignsize")) or 1
    return (size - label) // unit * unit if label else size


def _place(text: str | None) -> int | None:
    try:
        return int(text or "", 16 if (text or "").startswith("0x") else 10) if len(text or "") <= 20 else None
    except ValueError:
        return None
