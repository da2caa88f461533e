"""Reads which guests libvirt's domains plan: those with devices of the host. May not write."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from vfioctl.domain.document.needs import has_iommufd
from vfioctl.domain.document.reader import Domain
from vfioctl.domain.document.values import attribute, size_of
from vfioctl.domain.model.planned import PlannedGuest
from vfioctl.domain.probe.domains import Known

_PAGE, _BLOCK = 4096, 2 << 20
"""Bytes: of the pages that a guest makes shared or maps in a vIOMMU, and of virtio-mem's blocks unless set."""


def planned_guests(domains: Iterable[Known]) -> Iterator[PlannedGuest]:
    """Yield the domains that have devices of the host, each as it starts the next time. Those whose document cannot be
    read, or has no memory, are left out."""
    for known in domains:
        domain = known.says
        if domain is None or not domain.memory or not (domain.passed_through or domain.hostdevs_of("mdev")):
            continue
        security = attribute(domain.one("launchSecurity"), "type") or ""
        piece, why = (0, "") if domain.passed_through and has_iommufd(domain) else _pieces(domain, security)
        yield PlannedGuest(domain.memory, domain=known.domain.name, piece=piece, pieces_for=why, security=security)


def _pieces(domain: Domain, security: str) -> tuple[int, str]:
    """Return the bytes of the smallest pieces that QEMU maps, and for what: other memory takes a few calls of
    VFIO_IOMMU_MAP_DMA, each of which counts once (drivers/vfio/vfio_iommu_type1.c, vfio_dma_do_map)."""
    if security:
        return _PAGE, security
    if domain.one("devices/iommu") is not None:
        return _PAGE, "a vIOMMU"
    if blocks := domain.all("devices/memory[@model='virtio-mem']"):
        return min(size_of(memory.find("target/block")) or _BLOCK for memory in blocks), "virtio-mem"
    return 0, ""
