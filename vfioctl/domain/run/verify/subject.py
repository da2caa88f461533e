"""What is verified: a running domain. May not do input or output."""

from __future__ import annotations

from typing import NamedTuple

from vfioctl.domain.document.reader import Domain


class Subject(NamedTuple):
    """A running domain."""

    domain: Domain
    """Its document as it runs."""
    name: str
    """Quoted for the shell."""
    virsh: str
    """The command, with the libvirt that has the domain."""
