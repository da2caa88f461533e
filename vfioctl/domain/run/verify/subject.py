"""The domain that is compared: its document, and how commands name it. May not do input or output."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

MOST = 8192
"""No guest has more vCPUs, and no host more CPUs."""


class Subject(NamedTuple):
    """A running domain."""

    root: Element
    """Its document as it runs."""
    name: str
    """Quoted for the shell."""
    virsh: str
    """The command, with the libvirt that has the domain."""
