"""Guests that are planned on a host, as far as their memory and devices are known. May not do input or output."""

from __future__ import annotations

from typing import NamedTuple

LOCK_EXTRA = 1 << 30
"""Bytes that may be locked besides the guest's memory (libvirt's qemu_domain.c, qemuDomainGetMemLockLimitBytes)."""


class PlannedGuest(NamedTuple):
    """A guest that has devices of the host, or will have them when it starts."""

    memory: int
    """in bytes"""
    domain: str = ""
    """The name of libvirt's domain, if that plans it."""
    claim: str = ""
    """The id of the claim, if that plans it."""
    piece: int = 0
    """Bytes of the smallest piece of memory that VFIO maps by a call of its own; 0 if it maps RAM as a whole, or by
    iommufd, which has no limit of mappings."""
    pieces_for: str = ""
    """What makes VFIO map such pieces, such as virtio-mem."""
    security: str = ""
    """Its launchSecurity, such as sev-snp; empty if its memory is not encrypted."""

    @property
    def title(self) -> str:
        """What plans it, in words."""
        return f"domain {self.domain}" if self.domain else f"claim {self.claim}"
