"""What a domain needs of its host: devices, CPUs and memory, some of it locked; and who owns its claims. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from shlex import quote
from typing import TYPE_CHECKING, NamedTuple

from vfioctl.claims.model.passthrough_devices import managed_devices_of, subject_of
from vfioctl.domain.document.reader import Domain, read_domain
from vfioctl.domain.document.values import attribute, cpuset, is_on, scaled
from vfioctl.domain.model.planned import LOCK_EXTRA
from vfioctl.errors import BadSpec, ClaimConflict
from vfioctl.inventory.model.values import Subject
from vfioctl.placement.model.claims import Hugepages, Owner

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    from vfioctl.claims.model.claim import Claim

_NORMAL = 4096
_TRANSLATING = ("intel", "amd", "smmuv3")


@dataclass(frozen=True)
class Needs:
    """What one domain needs, read from its document."""

    name: str
    ours: bool
    """Whether it has vfioctl's mark, also if that is the copy of another domain's."""
    bound: tuple[Subject, ...]
    """Devices that must be on VFIO, or exist, before libvirt starts it."""
    managed: tuple[Subject, ...]
    """Functions that libvirt binds to VFIO itself (managed='yes')."""
    cpus: tuple[int, ...]
    """CPUs that one vCPU has for itself. Those that several threads share are nobody's own."""
    hugepages: tuple[Hugepages, ...]
    """Hugepages of which the document says the node: one node."""

    @property
    def devices(self) -> tuple[Subject, ...]:
        return (*self.bound, *self.managed)

    @property
    def is_anything(self) -> bool:
        return bool(self.devices or self.cpus or self.hugepages)

    @property
    def owner(self) -> Owner:
        """The owner of its claims. Raises BadSpec for a name that no owner can have."""
        return owner_of(self.name)


def needs_nothing(name: str) -> Needs:
    """Return the needs of a domain whose document is gone."""
    return Needs(name, ours=False, bound=(), managed=(), cpus=(), hugepages=())


def needs_of(xml: str | bytes) -> Needs:
    """Return what a domain's document needs. Raises BadDocument."""
    domain = read_domain(xml)
    managed = set(managed_devices_of(domain.root))
    return Needs(
        name=domain.name,
        ours=domain.mark.is_there,
        bound=tuple(subject_of(name) for name in domain.host_devices if name not in managed),
        managed=tuple(subject_of(name) for name in domain.host_devices if name in managed),
        cpus=domain.exclusive_cpus,
        hugepages=hugepages_by_node(domain),
    )


def owner_of(name: str) -> Owner:
    """Return the owner of a domain's claims. Raises BadSpec for a name that no owner can have."""
    try:
        return Owner(f"vm/{name}")
    except BadSpec as error:
        raise BadSpec(
            f"domain {name!r} can hold no claim: no owner is called vm/{name[:60]}", hint=error.hint
        ) from None


def is_owner(name: str) -> bool:
    """Return whether a domain of this name can hold claims."""
    try:
        return bool(Owner(f"vm/{name}"))
    except BadSpec:
        return False


def refuse_foreign_claim(claim: Claim, name: str) -> None:
    """Raise BadSpec for a claim that has ended, ClaimConflict for one of another owner: the domain could not start."""
    if not claim.is_live:
        raise BadSpec(f"claim {claim.id} is {claim.state}: it holds nothing", next_command="vfioctl claim list")
    if claim.owner != f"vm/{name}":
        owner = f"call the domain {claim.owner.name}, or " if claim.owner.kind == "vm" else ""
        raise ClaimConflict(
            f"claim {claim.id} is of {claim.owner}, and not of vm/{name}",
            hint=f"{owner}give it the claim; vfioctl claim create --owner vm/NAME makes a new one",
            next_command=f"vfioctl claim transfer {claim.id} --to {quote(f'vm/{name}')}",
            facts={"claim": claim.id, "owner": str(claim.owner)},
        )


def backed(domain: Domain, default_page: int | None = None) -> Iterator[tuple[Element, int, frozenset[int], int]]:
    """Yield each part of the memory on hugepages: its element, the size of a page, host nodes if it has any, and bytes.
    `default_page`: the size where the document names none; None leaves such memory out."""
    default = cpuset(attribute(domain.one("numatune/memory"), "nodeset")) or frozenset()
    pages = pages_of(domain, default_page)
    parts = {cell.id: cell.memory for cell in domain.cells if cell.memory and cell.id is not None}
    rest = frozenset(parts).difference(*(cells for _, _, cells in pages if cells))
    for element, size, cells in pages:
        if not size or size <= _NORMAL:
            continue
        if not domain.cells:
            yield element, size, default, domain.memory or 0
        for cell in sorted(rest if cells is None else cells & parts.keys()):
            yield element, size, domain.memnodes.get(cell) or default, parts[cell]


def pages_of(domain: Domain, default_page: int | None) -> list[tuple[Element, int | None, frozenset[int] | None]]:
    """Return the pages that the document names, each with its size and cells; one for all memory if it names none."""
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


class VfioLocks(NamedTuple):
    """How often VFIO locks all memory of a guest: once for each address space of a device. Without a vIOMMU devices
    share one; behind it each has its own, of all memory until the guest's driver takes over. iommufd counts it once."""

    least: int
    """For the functions; 0 if the guest has none."""
    most: int
    """For mediated devices as well, whose drivers may lock less."""


def vfio_locks(domain: Domain) -> VfioLocks:
    """Return how often VFIO locks the memory of a guest."""
    functions, mediated = len(domain.passed_through), len(domain.hostdevs_of("mdev"))
    if locks_for_each(domain):
        return VfioLocks(functions, functions + mediated)
    return VfioLocks(min(functions, 1), min(functions + mediated, 1))


def least_hard_limit(domain: Domain) -> int:
    """Return the hard limit in bytes that a guest needs, also of its locked memory: what libvirt itself sets for VFIO
    without one, the memory, as often as it is locked, and LOCK_EXTRA."""
    return (domain.memory or 0) * max(vfio_locks(domain).most, 1) + LOCK_EXTRA


def locks_for_each(domain: Domain) -> bool:
    """Return whether a vIOMMU translates for each device by itself, so that VFIO locks all memory for each."""
    return any(iommu.get("model") in _TRANSLATING for iommu in domain.all("devices/iommu")) and not has_iommufd(domain)


def has_iommufd(domain: Domain) -> bool:
    """Return whether QEMU opens all of the guest's functions through iommufd."""
    whole = domain.one("iommufd")
    if whole is not None:
        return is_on(whole.get("enabled", "yes"))
    return all(is_on(attribute(device.find("driver"), "iommufd")) for device in domain.passed_through)
