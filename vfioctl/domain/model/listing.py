"""The documents of `vfioctl domain list --json` and `show --json`. May not do input or output."""

from __future__ import annotations

from vfioctl.core.frozen import record_class


@record_class
class DomainPin:
    """One vCPU, and the host's CPUs that it may run on."""

    vcpu: int
    cpus: str


@record_class
class ListedDomain:
    """A domain of libvirt."""

    name: str
    uuid: str
    state: str
    """running, defined, or transient: it runs, and is gone when it stops"""
    ours: bool
    """whether vfioctl defined it"""
    claim: str
    """the claim whose devices it has; empty if its metadata names none"""
    template: str
    """the template that it was built from; empty if its metadata names none"""
    devices: tuple[str, ...]
    """the addresses of functions, and the UUIDs of mediated devices, that it hands to its guest"""
    vcpus: int
    memory_bytes: int
    cells: int
    """the guest's NUMA nodes; 0 if its document names none"""
    nodes: str
    """the host's NUMA nodes that its memory comes from, such as 0-1; empty if its document names none"""
    pins: tuple[DomainPin, ...]
    unknown: str
    """why its document cannot be read; empty if it can"""


@record_class
class DomainListDocument:
    """The domains of one libvirt, sorted by name. Versions are 1000000 * major + 1000 * minor + release."""

    uri: str
    libvirt: int | None
    hypervisor: int | None
    domains: tuple[ListedDomain, ...]


@record_class
class DomainShowDocument:
    """One domain, with its documents."""

    domain: ListedDomain
    live: str
    """the XML as it runs; empty if it does not run"""
    defined: str
    """the XML as it is defined; empty if it is not"""
