"""Runs the rules on a document. May not do input or output."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from vfioctl.domain.check.rules import host_cpus, host_devices, host_memory
from vfioctl.domain.check.rules.document import is_domain, too_much
from vfioctl.domain.check.rules.fault import Fault
from vfioctl.domain.check.rules.host import HostRule
from vfioctl.domain.check.rules.table import RULES
from vfioctl.domain.document.reader import Domain
from vfioctl.domain.document.xml import Document
from vfioctl.domain.model.finding import Finding

if TYPE_CHECKING:
    from vfioctl.domain.check.rules.host import HostFacts

MOST = 20
"""Findings of one rule: a document that has more is repaired before it is read to the end."""


def check(
    document: Document, *, version: tuple[int, ...] | None = None, host: HostFacts | None = None
) -> tuple[Finding, ...]:
    """Return what is wrong with a document, in its order: by itself, and on a host if one is given.

    `version`: of the libvirt that will get it, such as (9, 0); None if it is not known.
    """
    domain = Domain(document, version)
    for name, rule in (("domain", is_domain), ("domain-size", too_much)):
        if wrong := tuple(_findings(document, name, rule(domain))):
            return wrong
    findings = [finding for name, rule in RULES.items() for finding in _findings(document, name, rule(domain))]
    if host is not None:
        findings += [
            finding for name, rule in HOST_RULES.items() for finding in _findings(document, name, rule(domain, host))
        ]
    return tuple(sorted(findings, key=lambda finding: finding.line or 0))


def _findings(document: Document, name: str, faults: Iterable[Fault]) -> Iterator[Finding]:
    return map(partial(_finding, document, name), islice(faults, MOST))


def _finding(document: Document, name: str, fault: Fault) -> Finding:
    return Finding(
        rule=name,
        severity=fault.severity,
        path=document.path(fault.element),
        line=document.line(fault.element),
        reason=fault.reason,
        remedy=fault.remedy,
    )


HOST_RULES: Mapping[str, HostRule] = {
    "host-architecture": host_cpus.architecture,
    "host-address-bits": host_cpus.address_bits,
    "host-cpu": host_cpus.online,
    "host-cpu-claimed": host_cpus.claimed,
    "host-cpu-shared": host_cpus.shared,
    "host-cpu-count": host_cpus.enough,
    "host-cpu-node": host_cpus.near_memory,
    "host-cpu-threads": host_cpus.threads,
    "host-cpu-topoext": host_cpus.topoext,
    "host-node": host_memory.nodes,
    "host-memory": host_memory.fits,
    "host-hugepages": host_memory.hugepages,
    "host-iommu": host_devices.translated,
    "host-device": host_devices.exist,
    "host-driver": host_devices.driver,
    "host-group": host_devices.group,
    "host-card": host_devices.companions,
    "host-device-claimed": host_devices.claimed,
    "host-device-busy": host_devices.busy,
    "host-mdev": host_devices.mdevs,
    "host-device-node": host_devices.node,
    "host-disk-image": host_devices.images,
    "host-pci-hole": host_devices.hole,
}
