"""Rules about the guest's NUMA cells, and where the host has their memory. May not do input or output."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from vfioctl.domain.check.rules.rule import Fault, more_than_one, repeats, warning
from vfioctl.domain.document.reader import Domain
from vfioctl.domain.document.values import attribute, cpuset, number, shown
from vfioctl.domain.model.layout import is_distance

_MOST_CELLS = 256


def cell_id(domain: Domain) -> Iterator[Fault]:
    if domain.one("cpu/numa") is not None and not domain.cells:
        yield Fault(domain.at("cpu/numa"), "<numa> has no cells", "add a <cell>, or remove <numa>")
    good = [(cell.element, cell.id) for cell in domain.cells if cell.id is not None and cell.id < len(domain.cells)]
    for cell in domain.cells:
        if (cell.element, cell.id) not in good:
            text = cell.element.get("id", "")[:40]
            yield Fault(cell.element, f"id='{text}' of {len(domain.cells)} cells", "count them from 0 without a gap")
    for element, id_, _ in repeats(good):
        yield Fault(element, f"two cells have the id {id_}", "give each its own")


def cell_cpus(domain: Domain) -> Iterator[Fault]:
    """Each vCPU is in one cell. libvirt puts those in no cell into cell 0."""
    taken: set[int] = set()
    for cell in domain.cells[:_MOST_CELLS]:
        text = cell.element.get("cpus")
        if text is not None and text.strip() and cell.cpus is None:
            yield Fault(cell.element, f"cpus='{text[:40]}' is no list of vCPUs", "such as 0-3,8")
        mine = cell.cpus or frozenset()
        if taken & mine:
            yield Fault(cell.element, f"vCPU {shown(taken & mine)} is in two cells", "name each vCPU in one cell")
        taken |= mine
    if domain.vcpus is None or not domain.cells or domain.vcpus > 1 << 16:
        return
    if above := {vcpu for vcpu in taken if vcpu >= (domain.vcpus or 0)}:
        yield Fault(domain.at("cpu/numa"), f"there is no vCPU {shown(above)}", "name vCPUs that there are")
    elif missing := set(range(domain.vcpus)) - taken:
        reason = f"vCPU {shown(missing)} is in no cell"
        yield warning(domain.at("cpu/numa"), reason, "name it in a cell: libvirt puts it into cell 0")


def cell_distance(domain: Domain) -> Iterator[Fault]:
    known: dict[tuple[int, int], int] = {}
    for cell in domain.cells[:_MOST_CELLS]:
        element = cell.element.find("distances")
        if element is not None and element.find("sibling") is None:
            yield Fault(element, "<distances> without a <sibling>", "<sibling id='0' value='10'/> and so on")
        for sibling in islice(cell.element.findall("distances/sibling"), _MOST_CELLS):
            other, value = number(sibling.get("id")), number(sibling.get("value"))
            if other is None or other >= len(domain.cells):
                yield Fault(sibling, f"there is no cell {(sibling.get('id') or '')[:40]}", "name a cell of the guest")
            elif value is None or not is_distance(value, local=other == cell.id):
                text = (sibling.get("value") or "")[:40]
                remedy = "10 for the cell itself, 11 to 254 for another, 255 if it cannot be reached"
                yield Fault(sibling, f"'{text}' is no distance from cell {cell.id} to cell {other}", remedy)
            elif cell.id is not None:
                known[cell.id, other] = value
    for (source, target), value in known.items():
        if source < target and known.get((target, source), value) != value:
            reason = f"the distance from cell {source} to {target} differs from that back"
            yield warning(domain.at("cpu/numa"), reason, "make them equal, as the hosts' firmware does")


def cell_interconnect(domain: Domain) -> Iterator[Fault]:
    """How fast cells reach each other's memory. Source: virDomainNumaDefValidate."""
    by_id = {cell.id: cell for cell in domain.cells}
    for path in ("latency", "bandwidth"):
        for element in domain.all(f"cpu/numa/interconnects/{path}"):
            gone = [name for name in ("initiator", "target") if number(element.get(name)) not in by_id]
            for name in gone:
                text = (element.get(name) or "")[:40]
                yield Fault(element, f"{name}= names no cell: '{text}'", "name a cell of the guest")
            initiator = number(element.get("initiator"))
            if not gone and initiator and not by_id[initiator].cpus:  # those in no cell, libvirt puts into cell 0
                yield Fault(element, "initiator= is a cell without vCPUs", "name one with vCPUs")


def cell_memory(domain: Domain) -> Iterator[Fault]:
    """A cell with CPUs and no memory works, but all its accesses are remote."""
    has_memory = any(cell.memory for cell in domain.cells)
    for cell in domain.cells if has_memory else ():
        if cell.memory == 0 and cell.cpus:
            yield warning(cell.element, f"cell {cell.id} has vCPUs and no memory", "give it memory of its node")


def numa_nodeset(domain: Domain) -> Iterator[Fault]:
    yield from more_than_one(domain, "numatune")
    for element in (*domain.all("numatune/memory"), *domain.all("numatune/memnode")):
        text = element.get("nodeset")
        if text is None and element.tag == "memnode":
            yield Fault(element, "the memnode has no nodeset", "nodeset= with a node of the host")
        elif text is None or cpuset(text):
            continue
        elif element.tag == "memory" and element.get("placement") == "auto":
            yield warning(element, "the nodeset is ignored with placement='auto'", "remove nodeset=")
        else:
            yield Fault(element, f"nodeset='{text[:40]}' names no node", "nodes of the host, such as 0-1")


def numa_placement(domain: Domain) -> Iterator[Fault]:
    element = domain.one("numatune/memory")
    if element is None:
        return
    mode = element.get("placement")
    is_static = mode == "static" or (mode is None and domain.at("vcpu").get("placement") != "auto")
    if is_static and element.get("nodeset") is None:
        yield Fault(element, "there is no nodeset", "nodeset= with nodes of the host, or placement='auto'")


def memnode(domain: Domain) -> Iterator[Fault]:
    elements, seen = domain.all("numatune/memnode"), set[int | None]()
    if elements and not domain.cells:
        yield Fault(elements[0], "a memnode, and the guest has no cells", "add <cpu><numa> with cells, or use <memory>")
        return
    whole = domain.one("numatune/memory")
    mode = attribute(whole, "placement")
    is_open = mode is None and attribute(whole, "nodeset") is None
    if elements and (mode == "auto" or (is_open and domain.at("vcpu").get("placement") == "auto")):
        remedy = "<memory mode='strict' nodeset='...'/> beside the memnodes"
        yield Fault(elements[0], "memnode does not go with automatic placement", remedy)
    for element in elements:
        cell = number(element.get("cellid"))
        if cell is None or cell >= len(domain.cells):
            text = (element.get("cellid") or "")[:40]
            yield Fault(element, f"the guest has no cell {text}".rstrip(), "cellid= names a NUMA cell of the guest")
        elif cell in seen:
            yield Fault(element, f"two memnodes for cell {cell}", "keep one of them")
        seen.add(cell)


def memnode_restrictive(domain: Domain) -> Iterator[Fault]:
    """`restrictive` for all or for none."""
    whole = domain.one("numatune/memory")
    mode = "" if whole is None else whole.get("mode", "strict")
    for element in domain.all("numatune/memnode"):
        own = element.get("mode", "strict")
        if (own == "restrictive") != (mode == "restrictive"):
            reason = f"mode='{own[:40]}' of the cell with '{mode[:40] or 'no mode'}' of the whole memory"
            yield Fault(element, reason, "restrictive for both, or for neither")


def memnode_missing(domain: Domain) -> Iterator[Fault]:
    """Cells that have no memnode while others have one."""
    named = {number(memnode.get("cellid")) for memnode in domain.all("numatune/memnode")}
    free = [cell for cell in domain.cells if cell.id not in named and cell.memory]
    if named and free and domain.one("numatune/memory") is None:
        reason = f"the memory of cell {shown({cell.id for cell in free if cell.id is not None})} may be on any node"
        yield warning(domain.at("numatune"), reason, "add a <memnode> for it")
