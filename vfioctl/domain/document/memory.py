"""Which pages and NUMA nodes of the host the memory of a domain is on. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from vfioctl.domain.document.values import cpuset, scaled
from vfioctl.placement.model.taken import Hugepages

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    from vfioctl.domain.document.reader import Domain

_NORMAL = 4096


def backed(domain: Domain, default_page: int | None = None) -> Iterator[tuple[Element, int, frozenset[int], int]]:
    """Each part of the memory on hugepages: its element, the size of a page, host nodes if it has any, and bytes.

    `default_page`: the size where the document names none; None leaves such memory out.
    """
    whole = domain.one("numatune/memory")
    default = (cpuset(whole.get("nodeset")) or frozenset()) if whole is not None else frozenset[int]()
    pages = _pages(domain, default_page)
    parts = {cell.id: cell.memory for cell in domain.cells if cell.memory and cell.id is not None}
    rest = frozenset(parts).difference(*(cells for _, _, cells in pages if cells))
    for element, size, cells in pages:
        if not size or size <= _NORMAL:
            continue
        if not domain.cells:
            yield element, size, default, domain.memory or 0
        for cell in sorted(rest if cells is None else cells & parts.keys()):
            yield element, size, domain.memnodes.get(cell) or default, parts[cell]


def _pages(domain: Domain, default_page: int | None) -> list[tuple[Element, int | None, frozenset[int] | None]]:
    """The pages that the document names, each with its size and cells; one for all memory if it names none."""
    if needs_default_page(domain):
        return [(domain.at("memoryBacking/hugepages"), default_page, None)]
    pages = domain.all("memoryBacking/hugepages/page")
    return [(page, scaled(page.get("size"), page.get("unit")), cpuset(page.get("nodeset"))) for page in pages]


def needs_default_page(domain: Domain) -> bool:
    """Return whether memory is on hugepages of which the document does not name the size."""
    is_on = domain.one("memoryBacking/hugepages") is not None
    return is_on and domain.one("memoryBacking/hugepages/page") is None


def hugepages_by_node(domain: Domain) -> tuple[Hugepages, ...]:
    """Return the hugepages of which the document names the one node of the host that they are on."""
    pages: Counter[tuple[int, int]] = Counter()
    for _, size, nodes, memory in backed(domain):
        if len(nodes) == 1:
            pages[min(nodes), size] += -(-memory // size)
    return tuple(Hugepages(node, size, number) for (node, size), number in sorted(pages.items()))


def ordinary_by_node(domain: Domain) -> Iterator[tuple[int, int]]:
    """Yield the node and the bytes of each cell with ordinary pages of which the document names one node."""
    if domain.one("memoryBacking/hugepages") is not None:
        return
    for cell in domain.cells:
        nodes = domain.memnodes.get(cell.id) or frozenset()
        if cell.memory and len(nodes) == 1:
            yield min(nodes), cell.memory
