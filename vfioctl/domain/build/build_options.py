"""Reads from a domain's document what was asked for when it was built. Pure.

The metadata of a domain that vfioctl built say what was asked for otherwise than by default. For any other domain it is
what its document looks like.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

from vfioctl.domain.build.layout.memory import SIZES
from vfioctl.domain.document.values import scaled
from vfioctl.domain.model.spec import DomainSpec, PageSize, Policy, Smt
from vfioctl.errors import BadAddress
from vfioctl.inventory.model.values import PciAddress

if TYPE_CHECKING:
    from vfioctl.domain.document.reader import Domain

_Word = TypeVar("_Word", bound=StrEnum)


def options_of(domain: Domain, width: Callable[[], int], cpus: int = 0) -> DomainSpec:
    """Return the spec of a domain, for the devices that it has.

    `width`: the threads of a core of the host. `cpus`: the vCPUs that it is to have; 0 for those that it has.
    """
    options, is_built = dict(domain.mark.options), bool(domain.mark.template)
    vcpus = 0 if domain.one("vcpu") is None else domain.vcpus or 0
    return DomainSpec(
        name=domain.name,
        devices=domain.host_devices,
        cpus=vcpus,
        memory=(domain.memory or 0) >> 20 << 20,
        nodes=dict(_nodes(options.get("nodes", ""))),
        hugepages=_word(options.get("hugepages"), PageSize.AUTO if is_built else _pages(domain)),
        policy=_word(options.get("policy"), Policy.STRICT if is_built else _policy(domain)),
        smt=_word(options.get("smt"), Smt.TOGETHER if is_built else _smt((vcpus, cpus or vcpus), domain, width)),
    )


def completed(asked: DomainSpec, named: Collection[str], had: DomainSpec) -> DomainSpec:
    """Return the spec of an edit: what it does not name is as the domain has it. A claim brings its CPUs and memory."""
    kept = {name: getattr(had, name) for name in ("hugepages", "policy", "smt") if name not in named}
    if not asked.claim:
        kept |= {"cpus": asked.cpus or had.cpus, "memory": asked.memory or had.memory}
    return replace(asked, **kept, nodes={**had.nodes, **asked.nodes})


def _word(text: str | None, otherwise: _Word) -> _Word:
    """Return the value of a text that may come from anybody."""
    return next((member for member in type(otherwise) if member == text), otherwise)


def _nodes(text: str) -> Iterator[tuple[PciAddress, int]]:
    for part in text.split(",") if text else ():
        device, _, node = part.partition("=")
        if node.isascii() and node.isdecimal() and len(node) < 5:
            try:
                yield PciAddress(device), int(node)
            except BadAddress:
                continue


def _pages(domain: Domain) -> PageSize:
    """Return the size that all pages have; AUTO if they have several, or one that no option names."""
    if domain.one("memoryBacking/hugepages") is None:
        return PageSize.NONE
    pages = {scaled(page.get("size"), page.get("unit")) for page in domain.all("memoryBacking/hugepages/page")}
    return next((name for name, size in SIZES.items() if pages == {size}), PageSize.AUTO)


def _policy(domain: Domain) -> Policy:
    preferred = any(memnode.get("mode") == "preferred" for memnode in domain.all("numatune/*"))
    return Policy.PREFERRED if preferred else Policy.STRICT


def _smt(vcpus: Sequence[int], domain: Domain, width: Callable[[], int]) -> Smt:
    """A guest without threads has cores of its own; so has one whose vCPUs fill no cores, neither now nor then."""
    topology = domain.one("cpu/topology")
    without = topology is not None and topology.get("threads", "1") == "1"
    if not (without or all(number % 2 for number in vcpus)):
        return Smt.TOGETHER
    threads = width()
    isolates = threads > 1 and (without or all(number % threads for number in vcpus))
    return Smt.ISOLATE if isolates else Smt.TOGETHER
