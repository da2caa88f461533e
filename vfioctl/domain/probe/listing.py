"""The domains of one libvirt as values: what `domain list` and the overview show. May not ask libvirt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from vfioctl.domain.model.listing import DomainListDocument, DomainPin, DomainShowDocument, ListedDomain
from vfioctl.units import format_cpu_list

if TYPE_CHECKING:
    from vfioctl.domain.model.libvirt import Libvirt
    from vfioctl.domain.probe.domains import Known

Held = Mapping[str, Sequence[str]]
"""The ids of the claims that domains hold, by the domain's name."""


def listed(known: Known, held: Held) -> ListedDomain:
    """Return a domain as `list --json` has it. `held`: the claims of domains; one that runs shows all of its own."""
    domain, says, unknown = known
    claims = held.get(domain.name, ()) if domain.is_active else ()
    named = says.mark.claim if says else ""
    pins = sorted(says.pins.items()) if says else ()
    return ListedDomain(
        name=domain.name,
        uuid=domain.uuid,
        state=domain.state,
        ours=bool(says and says.mark.is_own),
        claim=" ".join(dict.fromkeys(filter(None, (named, *claims)))),
        template=says.mark.template if says else "",
        devices=says.host_devices if says else (),
        vcpus=(says.vcpus or 0) if says else 0,
        memory_bytes=(says.memory or 0) if says else 0,
        cells=len(says.cells) if says else 0,
        nodes=format_cpu_list(says.host_nodes) if says else "",
        pins=tuple(DomainPin(vcpu=vcpu, cpus=format_cpu_list(cpus)) for vcpu, cpus in pins),
        unknown=unknown,
    )


def list_document(libvirt: Libvirt, known: Sequence[Known], held: Held) -> DomainListDocument:
    """Return the document of `list --json`."""
    domains = tuple(listed(domain, held) for domain in known)
    return DomainListDocument(uri=libvirt.uri, libvirt=libvirt.version, hypervisor=libvirt.hypervisor, domains=domains)


def show_document(known: Known, held: Held) -> DomainShowDocument:
    """Return the document of `show --json`."""
    return DomainShowDocument(domain=listed(known, held), live=known.domain.live, defined=known.domain.defined)
