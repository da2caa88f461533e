"""Rules about memory: its size, cells' sums, hugepages, locking. May not do input or output."""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree.ElementTree import Element

from vfioctl.domain.check.rules.rule import Fault, warning
from vfioctl.domain.document.needs import least_hard_limit, vfio_locks
from vfioctl.domain.document.reader import Domain
from vfioctl.domain.document.values import cpuset, scaled, shown, size_of, text_in, total
from vfioctl.units import exact_size

_MOST = 1 << 52
"""Bytes that an x86 CPU can address at most."""
_ALIGNED = 1 << 20
_X86_PAGES = (4096, 2 << 20, 1 << 30)


def memory_missing(domain: Domain) -> Iterator[Fault]:
    if domain.one("memory") is None and not domain.cells:
        yield Fault(domain.root, "the domain has no <memory>", "add <memory unit='GiB'>4</memory>")


def memory_size(domain: Domain) -> Iterator[Fault]:
    for path in ("memory", "currentMemory", "maxMemory", "memtune/hard_limit", "memtune/soft_limit"):
        for element in domain.all(path):
            if size_of(element) is None:
                unit = f" {element.get('unit')}" if element.get("unit") else ""
                reason = f"'{text_in(element)[:40]}{unit[:20]}' is no size"
                yield Fault(element, reason, "a whole number, and a unit such as MiB or GiB")
    for cell in domain.cells:
        if cell.element.get("memory") is None:
            yield Fault(cell.element, "the cell has no memory=", "say its size; 0 for a cell without memory")
        elif cell.memory is None:
            yield Fault(cell.element, "memory= of the cell is no size", "a whole number, with unit='GiB' beside it")


def memory_zero(domain: Domain) -> Iterator[Fault]:
    element = domain.one("memory")
    if element is not None and domain.memory == 0 and not any(cell.memory for cell in domain.cells):
        yield Fault(element, "the domain has no memory at all", "say its size, such as <memory unit='GiB'>4</memory>")


def memory_too_large(domain: Domain) -> Iterator[Fault]:
    for path in ("memory", "maxMemory"):
        element = domain.one(path)
        size = size_of(element)
        if element is not None and size is not None and size > _MOST and domain.is_x86:
            yield Fault(element, "it is more than an x86 CPU can address (4 PiB)", "check the unit")


def memory_sum(domain: Domain) -> Iterator[Fault]:
    """libvirt accepts a different sum, and uses that of the cells (and of memory devices)."""
    memory, in_cells = domain.memory, total(cell.memory for cell in domain.cells)
    plugged = total(size_of(size) for size in domain.all("devices/memory/target/size"))
    if not domain.cells or memory is None or in_cells is None or plugged is None:
        return
    if abs(memory - in_cells - plugged) >= _ALIGNED and abs(memory - in_cells) >= _ALIGNED:
        reason = f"the cells have {exact_size(in_cells)}, but <memory> says {exact_size(memory)}"
        yield warning(domain.at("memory"), reason, "make them equal: libvirt uses the sum of the cells")


def memory_current(domain: Domain) -> Iterator[Fault]:
    element, current = domain.one("currentMemory"), size_of(domain.one("currentMemory"))
    if element is not None and current and domain.memory and current > domain.memory + _ALIGNED and not domain.cells:
        reason = "<currentMemory> is more than <memory>"
        yield warning(element, reason, "make it at most as large: libvirt lowers it to <memory>")


def memory_locked(domain: Domain) -> Iterator[Fault]:
    element = domain.one("memoryBacking/locked")
    if element is not None and domain.one("memtune/hard_limit") is None:
        reason = "<locked/> without a hard limit: QEMU may then lock all memory of the host"
        yield warning(element, reason, "add <memtune><hard_limit>, or remove <locked/>: VFIO locks memory by itself")


def memory_hard_limit(domain: Domain) -> Iterator[Fault]:
    """With VFIO all memory is locked, and a hard limit replaces the limit that libvirt computes."""
    element, limit = domain.one("memtune/hard_limit"), size_of(domain.one("memtune/hard_limit"))
    if element is None or limit is None or not domain.memory:
        return
    locks, needed = vfio_locks(domain), least_hard_limit(domain)
    if limit < domain.memory * locks.least:
        reason = f"hard_limit is {exact_size(limit)}, and VFIO locks all {exact_size(domain.memory)} of memory"
        yield Fault(element, reason + _for_each(locks.least), f"remove it, or make it at least {exact_size(needed)}")
    elif locks.most and limit < needed:
        reason = f"hard_limit leaves little: VFIO locks all memory{_for_each(locks.most)}, and QEMU needs more"
        yield warning(element, reason, f"remove it, or make it at least {exact_size(needed)}")
    elif limit < domain.memory:
        yield warning(element, "hard_limit is less than <memory>: the kernel may kill the guest", "raise or remove it")


def _for_each(times: int) -> str:
    """Each device behind a vIOMMU has its own address space, of all memory until the guest's driver takes over."""
    return f" for each of {times} devices behind the vIOMMU" if times > 1 else ""


def _pages(domain: Domain) -> list[tuple[Element, int | None]]:
    return [(page, scaled(page.get("size"), page.get("unit"))) for page in domain.all("memoryBacking/hugepages/page")]


def hugepage_size(domain: Domain) -> Iterator[Fault]:
    for element, size in _pages(domain):
        if not size:
            yield Fault(element, "the size of the page is no size", "size='1' unit='GiB', or size='2' unit='MiB'")
        elif domain.is_x86 and size not in _X86_PAGES:
            yield Fault(element, f"x86 has no pages of {exact_size(size)}", "2 MiB or 1 GiB")
        elif size & (size - 1):
            yield Fault(element, f"no CPU has pages of {exact_size(size)}", "a size that the host has")


def hugepage_cell(domain: Domain) -> Iterator[Fault]:
    """The nodeset of a page names cells of the guest."""
    count = max(len({cell.id for cell in domain.cells}), 1)
    for element, _ in _pages(domain):
        text = element.get("nodeset")
        named = cpuset(text)
        if text is not None and named is None:
            yield Fault(element, f"nodeset '{text[:40]}' is no list of numbers", "such as 0-1")
        elif above := {cell for cell in named or () if cell >= count}:
            reason = f"the guest has no cell {shown(above)}"
            yield Fault(element, reason, "nodeset= names NUMA cells of the guest, not nodes of the host")


def hugepage_clash(domain: Domain) -> Iterator[Fault]:
    """One size for each cell, and one for those that none names."""
    default: Element | None = None
    taken: set[int] = set()
    for element, _ in _pages(domain):
        cells = cpuset(element.get("nodeset"))
        if element.get("nodeset") is None or (cells == frozenset({0}) and not domain.cells and default is not None):
            if default is not None:
                yield Fault(element, "two page sizes for the same memory", "keep one, or give each a nodeset of cells")
            default = element
        elif cells and taken & cells:
            yield Fault(element, f"cell {shown(taken & cells)} has two page sizes", "name each cell once")
        taken |= cells or set()


def hugepage_fit(domain: Domain) -> Iterator[Fault]:
    for element, size in _pages(domain):
        named = cpuset(element.get("nodeset"))
        concerned = [cell for cell in domain.cells if named is None or cell.id in named]
        for part in [cell.memory for cell in concerned] or [domain.memory]:
            if size and part and part % size and size > 4096:
                reason = f"{exact_size(part)} is no multiple of pages of {exact_size(size)}"
                yield warning(element, reason, "use a multiple: the rest of the last page is lost")
                break


def hugepage_backing(domain: Domain) -> Iterator[Fault]:
    element = domain.one("memoryBacking/hugepages")
    if element is None:
        return
    if domain.at("memoryBacking/source").get("type") == "anonymous":
        yield Fault(element, "hugepages with anonymous memory", "remove <source type='anonymous'/>")
    if domain.at("memoryBacking/allocation").get("mode") == "ondemand":
        yield Fault(element, "hugepages that are allocated on demand", "<allocation mode='immediate'/>")
