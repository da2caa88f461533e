"""Rules about the host's CPUs, memory and hugepages. May not do input or output."""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree.ElementTree import Element

from vfioctl.domain.check.rules.controllers import beyond
from vfioctl.domain.check.rules.rule import Fault, HostFacts, is_own, warning
from vfioctl.domain.document.needs import backed
from vfioctl.domain.document.reader import Domain
from vfioctl.domain.document.values import attribute, cpuset, number, shown, total
from vfioctl.units import exact_size

_PINS = ("cputune/vcpupin", "cputune/emulatorpin", "cputune/iothreadpin", "vcpu")
_BARE = ("host-passthrough", "maximum")
"""The models of which the guest's processor is the host's, with what QEMU leaves of it."""
_NARROWER = {"x86_64": "i686", "aarch64": "armv7l", "ppc64le": "ppc64"}
"""The other architecture of which KVM runs guests, by that of the host."""
_OFF = ("disable", "forbid")
_AT_BOOT = 1 << 30
"""The least size of pages that a running kernel hardly finds: memory is too fragmented."""
_STRICT = ("strict", None)


def _pinned(domain: Domain) -> Iterator[tuple[Element, frozenset[int]]]:
    for path in _PINS:
        for element in domain.all(path):
            if cpus := cpuset(element.get("cpuset")):
                yield element, cpus


def host_cpu(domain: Domain, host: HostFacts) -> Iterator[Fault]:
    for element, cpus in _pinned(domain):
        if host.cpus and (absent := cpus - host.cpus):
            reason = f"CPU {shown(absent)} does not exist on this host, or is offline"
            yield Fault(element, reason, f"CPUs of {shown(host.cpus)}")


def host_cpu_claimed(domain: Domain, host: HostFacts) -> Iterator[Fault]:
    taken = host.capacity.taken.cpus
    for element, cpus in _pinned(domain):
        others = {cpu: taken[cpu] for cpu in sorted(cpus & taken.keys()) if not is_own(domain, taken[cpu][1])}
        if others:
            claim, owner = next(iter(others.values()))
            reason = f"CPU {shown(set(others))} belongs to claim {claim} of {owner}"
            yield warning(element, reason, "other CPUs: vfioctl place shows which are free")


def host_cpu_shared(domain: Domain, host: HostFacts) -> Iterator[Fault]:
    """A CPU that one vCPU has for itself is no other domain's."""
    users: dict[str, tuple[Element, set[int]]] = {}
    for element in domain.all("cputune/vcpupin"):
        cpus = cpuset(element.get("cpuset")) or frozenset()
        if len(cpus) == 1 and cpus <= host.pinned.keys():
            users.setdefault(host.pinned[min(cpus)], (element, set()))[1].update(cpus)
    for who, (element, both) in users.items():
        remedy = "other CPUs: vfioctl domain build leaves those of other domains out"
        yield warning(element, f"CPU {shown(both)} is pinned by {who} too", remedy)


def host_cpu_count(domain: Domain, host: HostFacts) -> Iterator[Fault]:
    if host.cpus and domain.vcpus is not None and domain.vcpus > len(host.cpus):
        reason = f"{domain.vcpus} vCPUs on a host with {len(host.cpus)} CPUs"
        yield warning(domain.at("vcpu"), reason, "no more vCPUs than CPUs, or they wait for each other")


def host_cpu_node(domain: Domain, host: HostFacts) -> Iterator[Fault]:
    """The vCPUs of a cell run on the nodes that have its memory."""
    node_of = {cpu: core.node for cpu, core in host.capacity.topology.core_of.items()}
    pins = {number(pin.get("vcpu")): cpuset(pin.get("cpuset")) for pin in domain.all("cputune/vcpupin")}
    for element in domain.all("numatune/memnode"):
        nodes = cpuset(element.get("nodeset")) or frozenset()
        cells = [cell for cell in domain.cells if cell.id == number(element.get("cellid"))]
        for vcpu in sorted(cells[0].cpus or ()) if cells else ():
            nodes_of_vcpu = {node_of[cpu] for cpu in pins.get(vcpu) or () if cpu in node_of}
            if nodes_of_vcpu - nodes and nodes <= host.nodes.keys() and len(host.nodes) > 1:
                reason = f"vCPU {vcpu} may run on node {shown(nodes_of_vcpu)}, and its memory is on node {shown(nodes)}"
                yield warning(element, reason, "pin it to CPUs of the node that has its memory")
                break


def host_cpu_threads(domain: Domain, host: HostFacts) -> Iterator[Fault]:
    """What the guest takes for threads of one core runs on one core. Its vCPUs are numbered thread by thread."""
    count, size = domain.vcpus or 0, _threads(domain)
    pins = {number(pin.get("vcpu")): pin for pin in domain.all("cputune/vcpupin")}
    if size < 2 or len(pins) < count:
        return
    cores = [_cores(pins.get(vcpu), host) for vcpu in range(count)]
    groups = [range(first, min(first + size, count)) for first in range(0, count, size)]
    split = [group for group in groups if len({core for vcpu in group for core in cores[vcpu]}) > 1]
    if split and all(len(core) == 1 for core in cores):
        others = f"; {len(split)} of the guest's {len(groups)} cores are split" if split[1:] else ""
        reason = f"vCPU {shown(set(split[0]))} are threads of one core in the guest, and run on different cores{others}"
        remedy = "pin them to the threads of one core, as lscpu -e shows them, or threads='1' with more cores"
        yield warning(pins[split[0][0]], reason, remedy)


def _threads(domain: Domain) -> int:
    return number(attribute(domain.one("cpu/topology"), "threads")) or 1


def _cores(pin: Element | None, host: HostFacts) -> set[tuple[int, ...]]:
    """The cores that a vCPU is pinned to; none if it is not pinned, or one of them is not known."""
    cpus = cpuset(attribute(pin, "cpuset")) or frozenset()
    core_of = host.capacity.topology.core_of
    return {core_of[cpu].cpus for cpu in cpus} if cpus <= core_of.keys() else set()


def host_cpu_topoext(domain: Domain, host: HostFacts) -> Iterator[Fault]:
    """AMD's guests see threads only with the feature topoext, which QEMU's `host` model leaves out unless it is named.
    libvirt's host-model has it: QEMU's models of AMD's processors with threads do."""
    cpu = domain.at("cpu")
    named = [feature.get("policy", "require") for feature in cpu.iterfind("feature[@name='topoext']")]
    off = named[0] in _OFF if named else cpu.get("mode") in _BARE
    if off and host.processor.is_amd and cpu.get("mode") in (*_BARE, "host-model") and _threads(domain) > 1:
        reason = "without topoext a guest on an AMD processor does not see which threads share a core"
        yield warning(domain.at("cpu/topology"), reason, "<feature policy='require' name='topoext'/> in <cpu>")


def host_architecture(domain: Domain, host: HostFacts) -> Iterator[Fault]:
    wanted, kind = domain.arch, domain.one("os/type")
    alike = (host.processor.arch, _NARROWER.get(host.processor.arch))
    if kind is not None and wanted and wanted not in alike and domain.root.get("type") == "kvm":
        yield Fault(kind, f"KVM runs no {wanted[:40]} guest on {host.processor.arch}", f"arch='{host.processor.arch}'")


def host_address_bits(domain: Domain, host: HostFacts) -> Iterator[Fault]:
    element, most = domain.one("cpu/maxphysaddr"), host.processor.address_bits
    bits = number(attribute(element, "bits"))
    if element is not None and bits is not None and most is not None and bits > most:
        yield Fault(element, f"{bits} bits of addresses, and this CPU has {most}", f"bits='{most}' or less")
    if bits is None and most is not None and (element is not None or domain.at("cpu").get("mode") in _BARE):
        yield from beyond(domain, most, "this CPU has")


def host_node(domain: Domain, host: HostFacts) -> Iterator[Fault]:
    for element in (*domain.all("numatune/memory"), *domain.all("numatune/memnode")):
        if element.get("placement") == "auto":  # then libvirt ignores the nodeset
            continue
        named = cpuset(element.get("nodeset")) or frozenset()
        if host.nodes and (absent := named - host.nodes.keys()):
            reason = f"this host has no NUMA node {shown(absent)}"
            yield Fault(element, reason, f"nodes of {shown(frozenset(host.nodes))}")


def host_memory(domain: Domain, host: HostFacts) -> Iterator[Fault]:
    """Memory that is strictly on some nodes is on them; that of a guest with devices of the host is all there."""
    needs: dict[frozenset[int], tuple[Element, int]] = {}
    for element, memory in _strict(domain):
        named = cpuset(element.get("nodeset")) or frozenset()
        if named <= host.nodes.keys():
            needs[named] = (element, memory + needs.get(named, (element, 0))[1])
    for named, (element, needed) in needs.items():
        yield from _fits(element, host, named, needed)
    if domain.memory and host.nodes and domain.passed_through:
        yield from _fits(domain.at("memory"), host, frozenset(host.nodes), domain.memory)


def _strict(domain: Domain) -> Iterator[tuple[Element, int]]:
    """What binds memory to nodes, and the memory in bytes: of a cell, or of all cells that have no memnode."""
    left = {cell.id: cell.memory or 0 for cell in domain.cells} or {None: domain.memory or 0}
    for element in domain.all("numatune/memnode"):
        memory = left.pop(number(element.get("cellid")), 0)
        if element.get("mode") in _STRICT:
            yield element, memory
    whole = domain.one("numatune/memory")
    if whole is not None and whole.get("mode") in _STRICT and whole.get("placement") != "auto":
        yield whole, sum(left.values())


def _fits(element: Element, host: HostFacts, named: frozenset[int], needed: int) -> Iterator[Fault]:
    size = total(host.nodes[node] for node in named)
    if size is not None and needed > size and named:
        reason = f"{exact_size(needed)}, and node {shown(named)} has {exact_size(size)}"
        yield Fault(element, reason, "less memory, or more nodes")


def host_hugepages(domain: Domain, host: HostFacts) -> Iterator[Fault]:
    """The pages are there, and free: on the nodes of each cell, or anywhere."""
    needs: dict[tuple[int, frozenset[int]], tuple[Element, int]] = {}
    for element, size, named, memory in backed(domain, host.huge_page):
        key = (size, frozenset(named & host.nodes.keys()) or frozenset(host.nodes))
        needs[key] = (element, needs.get(key, (element, 0))[1] - (-memory // size))
    for (size, named), (element, pages) in needs.items():
        yield from _enough(element, host, size, named, pages)


def _enough(element: Element, host: HostFacts, size: int, named: frozenset[int], pages: int) -> Iterator[Fault]:
    pools = [pool for pool in host.capacity.hugepages if pool.size == size and (pool.node in named or not named)]
    place = f"node {shown(named)}" if named else "this host"
    there, free = sum(pool.total for pool in pools), sum(pool.free for pool in pools)
    claimed = sum(host.capacity.taken.hugepages.get((pool.node, size), 0) for pool in pools)
    needed = f"{pages} pages of {exact_size(size)} are needed"
    if there < pages:
        yield Fault(element, f"{needed}, and {place} has {there}", _reserve(size, named, pages))
    elif not host.runs and free < pages:
        yield Fault(element, f"{needed}, and {free} are free on {place}", "free some, or wait")
    elif not host.runs and there - claimed < pages:
        yield warning(element, f"{needed}, and claims have {claimed} of {there} on {place}", "pages that no claim has")


def _reserve(size: int, named: frozenset[int], pages: int) -> str:
    if size >= _AT_BOOT:
        return f"reserve them at boot: hugepagesz={size // _AT_BOOT}G hugepages={pages} on the kernel's command line"
    place = f"/sys/devices/system/node/node{min(named)}" if len(named) == 1 else "/sys/kernel/mm"
    return f"reserve them: write {pages} to {place}/hugepages/hugepages-{size >> 10}kB/nr_hugepages"
