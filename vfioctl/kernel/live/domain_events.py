"""The feed of libvirt's domains: starts the program that asks libvirt, and reads its lines. May not import libvirt."""

from __future__ import annotations

from vfioctl.kernel.program_feed import ProgramFeed


class DomainEvents(ProgramFeed):
    """Events of the domains of one libvirt. It ends when libvirt does, or cannot be asked."""

    def __init__(self, uri: str) -> None:
        """Raises Lost if the program cannot be started."""
        super().__init__("vfioctl.kernel.libvirt.events", uri, what="libvirt's events")
