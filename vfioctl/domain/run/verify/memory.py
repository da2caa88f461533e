"""Compares where QEMU's memory is with <numatune> and <hugepages>. May not do input or output. Only pages that are
there count: a policy is a promise for others, by libvirt for each guest cell (mbind) or all of QEMU (cgroup)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from vfioctl.domain.document.needs import pages_of
from vfioctl.domain.document.reader import Domain
from vfioctl.domain.document.values import cpuset, number
from vfioctl.domain.model.verification import Area, Qemu, VerifiedFact, judged, unknown
from vfioctl.domain.model.verification import Mapping as Part
from vfioctl.domain.run.verify.subject import Subject
from vfioctl.units import format_cpu_list, format_size

_POLICIES: Mapping[str, tuple[str, ...]] = {
    "strict": ("bind",),
    "preferred": ("prefer", "prefer (many)"),
    "interleave": ("interleave",),
    "restrictive": (),
}
"""The kernel's policies for libvirt's modes; `restrictive` is a matter of the control group alone."""
_SMALLEST_PAGE = 4096
"""libvirt takes <page> with the size of the host's normal pages for no hugepages."""
ANY = "any NUMA node"


class _Cell(NamedTuple):
    """A guest cell; `id` is None for a guest without cells."""

    id: int | None
    size: int
    mode: str
    nodes: frozenset[int] | None
    page: int | None
    """The size of its hugepages: 0 for the host's default size, None for none."""


def memory_facts(subject: Subject, qemu: Qemu) -> Iterator[VerifiedFact]:
    """Yield facts for the cells of each host node, and for each size of hugepages."""
    cells = list(_cells(subject.domain))
    if qemu.memory_unknown or not qemu.memory:
        why = qemu.memory_unknown or "/proc does not show it"
        yield unknown(Area.MEMORY, "memory", ", ".join(map(_where, cells)), why)
        return
    remedy = f"free memory there, stop {subject.name} and start it again: memory that a device uses does not move"
    places = defaultdict[tuple[str, frozenset[int] | None], list[_Cell]](list)
    for cell in cells:
        places[cell.mode, cell.nodes].append(cell)
    for (mode, nodes), group in places.items():
        size = sum(cell.size for cell in group)
        yield _placed(subject, _named("memory", group), mode, nodes, size, qemu, remedy)
    base = min((mapping.page for mapping in qemu.memory if not mapping.huge), default=_SMALLEST_PAGE)
    sizes = defaultdict[int, list[_Cell]](list)
    for cell in cells:
        if cell.page is not None and not 0 < cell.page <= base:
            sizes[cell.page].append(cell)
    for page, group in sizes.items():
        yield _on_hugepages(subject, _named("hugepages", group), page, sum(cell.size for cell in group), qemu)


def _placed(
    subject: Subject, what: str, mode: str, nodes: frozenset[int] | None, size: int, qemu: Qemu, remedy: str
) -> VerifiedFact:
    if nodes is None:
        return judged(Area.MEMORY, what, ANY, _usage(qemu.memory), "", ok=True)
    wanted = f"{format_size(size)} on {_node(nodes)} ({mode})"
    parts = [mapping for mapping in qemu.memory if mapping.policy in _POLICIES[mode] and cpuset(mapping.nodes) == nodes]
    promised = sum(part.size for part in parts) >= size
    if not promised and (cpuset(qemu.allowed_nodes) or frozenset({-1})) <= nodes:
        parts, promised = list(qemu.memory), True
    if not promised and not _POLICIES[mode]:
        return _by_amount(subject, what, wanted, nodes, size, qemu, remedy)
    if not promised:
        policies = sorted({f"{mapping.policy}{mapping.nodes and ':'}{mapping.nodes}" for mapping in qemu.memory})
        actual = f"{format_size(sum(part.size for part in parts))} has this policy; there are {', '.join(policies[:8])}"
        return judged(Area.MEMORY, what, wanted, actual, f"stop {remedy.partition(', stop ')[2]}", ok=False)
    if not sum(_by_node(parts).values()) and any(":" in device for device in subject.domain.host_devices):
        why = "no page of it is in use, although VFIO pins all memory of a guest with a PCI device"
        return unknown(Area.MEMORY, what, wanted, why)
    elsewhere = {node for part in parts for node, used in part.used if used and node not in nodes}
    return judged(Area.MEMORY, what, wanted, _usage(parts), remedy, ok=not elsewhere)


def _by_amount(
    subject: Subject, what: str, wanted: str, nodes: frozenset[int], size: int, qemu: Qemu, remedy: str
) -> VerifiedFact:
    """Judge cells without a policy of their own, for which /proc does not show which mapping belongs to which."""
    used = _by_node(qemu.memory)
    present = sum(count for node, count in used.items() if node in nodes)
    domain = subject.domain
    whole = max(domain.memory or 0, sum(cell.size for cell in _cells(domain)))
    if present < size and sum(used.values()) < whole:
        why = "libvirt sets no policy for it, and not all memory of the guest is in use"
        return unknown(Area.MEMORY, what, wanted, why)
    return judged(Area.MEMORY, what, wanted, _usage(qemu.memory), remedy, ok=present >= size)


def _on_hugepages(subject: Subject, what: str, page: int, size: int, qemu: Qemu) -> VerifiedFact:
    parts = [mapping for mapping in qemu.memory if mapping.huge and page in (0, mapping.page)]
    mapped, used = sum(part.size for part in parts), sum(used for part in parts for _, used in part.used)
    domain = subject.domain
    whole = domain.one("memoryBacking/allocation[@mode='immediate']") is not None or bool(domain.hostdevs_of("pci"))
    wanted = f"{format_size(size)} in pages of {format_size(page)}" if page else f"{format_size(size)} in hugepages"
    remedy = f"free hugepages (vfioctl place says how many there are), stop {subject.name} and start it again"
    enough = mapped >= size and (used >= size or not whole)
    actual = f"{format_size(used)} in use, {format_size(mapped)} mapped"
    return judged(Area.MEMORY, what, wanted, actual, remedy, ok=enough)


def _cells(domain: Domain) -> Iterator[_Cell]:
    pages = [(size or 0, cells) for _, size, cells in pages_of(domain, 0)]
    rest = next((size for size, cells in pages if cells is None), None)
    for cell, size in [(cell.id, cell.memory) for cell in domain.cells] or [(None, domain.memory)]:
        page = next((page for page, cells in pages if cells is not None and (cell or 0) in cells), rest)
        yield _Cell(cell, size or 0, *_tuned(domain, cell), page)


def _tuned(domain: Domain, cell: int | None) -> tuple[str, frozenset[int] | None]:
    """Return a cell's mode and nodes: its own, or those of all."""
    own = (memnode for memnode in domain.all("numatune/memnode") if number(memnode.get("cellid")) == cell)
    element = next(own, None) if cell is not None else None
    element = domain.one("numatune/memory") if element is None else element
    mode = "" if element is None else element.get("mode", "strict")
    return (mode, cpuset(element.get("nodeset"))) if element is not None and mode in _POLICIES else ("strict", None)


def _named(what: str, cells: Iterable[_Cell]) -> str:
    ids = [cell.id for cell in cells if cell.id is not None]
    return f"{what} of cell{'s' if ids[1:] else ''} {format_cpu_list(ids)}" if ids else what


def _where(cell: _Cell) -> str:
    return f"{format_size(cell.size)} on {_node(cell.nodes)}" if cell.nodes else ANY


def _by_node(parts: Iterable[Part]) -> Mapping[int, int]:
    by_node: Counter[int] = Counter()
    for part in parts:
        for node, used in part.used:
            by_node[node] += used
    return by_node


def _usage(parts: Iterable[Part]) -> str:
    by_node = sorted(_by_node(parts).items())
    return ", ".join(f"{format_size(used)} on node {node}" for node, used in by_node if used) or "none in use"


def _node(nodes: frozenset[int] | None) -> str:
    return f"node{'s' if len(nodes or ()) > 1 else ''} {format_cpu_list(nodes or ())}"
