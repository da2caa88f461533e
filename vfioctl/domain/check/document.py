"""Rules about the domain as a whole, and memory devices. May not do input or output."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from xml.etree.ElementTree import Element

from vfioctl.domain.check.domain import Domain
from vfioctl.domain.check.fault import Fault, warning
from vfioctl.domain.check.values import number, size_of, text_in

_QEMU = ("kvm", "qemu")
_OTHER = ("xen", "lxc", "vz", "bhyve", "vmware", "hyperv", "vbox", "openvz", "test", "parallels", "uml", "kqemu")
_ELSEWHERE = ("hvf", "mshv")


def is_domain(domain: Domain) -> Iterator[Fault]:
    if domain.root.tag != "domain":
        yield Fault(domain.root, f"the document is a <{str(domain.root.tag)[:40]}>", "a <domain>, as libvirt writes it")


def name(domain: Domain) -> Iterator[Fault]:
    element = domain.one("name")
    text = text_in(element)
    if not text.strip():
        yield Fault(domain.root if element is None else element, "the domain has no name", "<name>vm1</name>")
    elif element is not None and ("/" in text or "\n" in text):
        yield Fault(element, "the name has a / or a new line", "a name that can be the name of a file")


def kind(domain: Domain) -> Iterator[Fault]:
    given = domain.root.get("type")
    if given in _QEMU:
        return
    if given in _ELSEWHERE:
        yield Fault(domain.root, f"type='{given}' is not for Linux hosts", "type='kvm'")
    elif given in _OTHER:
        yield warning(domain.root, f"type='{given}': only domains of QEMU are judged", "type='kvm' for QEMU with KVM")
    else:
        yield Fault(domain.root, f"type='{(given or '')[:40]}' of the domain is unknown", "type='kvm'")


def machine(domain: Domain) -> Iterator[Fault]:
    element = domain.one("os/type")
    if element is None and domain.one("os") is not None and domain.root.get("type") in _QEMU:
        yield Fault(domain.at("os"), "<os> has no <type>", "<type arch='x86_64' machine='q35'>hvm</type>")
    elif element is not None and not element.get("machine") and domain.passed_through:
        remedy = "machine='q35'"
        yield warning(element, "no machine is named: libvirt chooses i440fx on x86, which has no PCI Express", remedy)


def once(domain: Domain) -> Iterator[Fault]:
    """Parts of which libvirt reads only the first."""
    for part in ("memory", "vcpu", "memoryBacking", "cputune", "cpu", "features", "os", "devices", "memtune"):
        for extra in domain.all(part)[1:]:
            yield Fault(extra, f"there are two <{part}>", "keep one of them: libvirt reads the first")


def memory_devices(domain: Domain) -> Iterator[Fault]:
    """They need slots, a guest with NUMA cells, and addresses that do not overlap."""
    found = domain.all("devices/memory")
    if (domain.one("maxMemory") is not None) and domain.is_x86 and not domain.cells:
        yield Fault(domain.at("maxMemory"), "<maxMemory> without NUMA cells", "add <cpu><numa> with a cell")
    for each in found:
        node = each.find("target/node")
        value = None if node is None else number(text_in(node))
        if node is not None and (value is None or value >= len(domain.cells)):
            yield Fault(node, f"the guest has no cell {text_in(node)[:40]}", "the id of a NUMA cell")


def memory_addresses(domain: Domain) -> Iterator[Fault]:
    placed = []
    for each in domain.all("devices/memory"):
        where = each.find("target/address")
        if where is None:
            where = each.find("address")
        base = _place(None if where is None else where.get("base"))
        size = _mapped(each)
        if base is not None and size:
            placed.append((base, base + size, each))
    placed.sort(key=lambda each: each[:2])
    for (_, end, _), (start, _, element) in pairwise(placed):
        if start < end:
            yield Fault(
                element, f"its address {start:#x} is inside another memory device", "leave addresses to libvirt"
            )


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
