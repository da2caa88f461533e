"""A PCI controller of a domain's document. May not judge it."""

from __future__ import annotations

from dataclasses import dataclass
from xml.etree.ElementTree import Element

from vfioctl.domain.document.values import GuestAddress, number, text_in

_EXPANDERS = ("pci-expander-bus", "pcie-expander-bus")


@dataclass(frozen=True)
class PciController:
    """A PCI controller. `index`: None if libvirt chooses it. `address`: where it is plugged in, likewise."""

    element: Element
    index: int | None
    model: str
    address: GuestAddress | None

    @property
    def is_expander(self) -> bool:
        return self.model in _EXPANDERS

    @property
    def bus_number(self) -> int | None:
        """Of an expander bus in the guest; None if libvirt chooses it."""
        target = self.element.find("target")
        return None if target is None else number(target.get("busNr"))

    @property
    def cell(self) -> int | None:
        """The NUMA cell that the guest sees for the devices below an expander bus."""
        return number(text_in(self.element.find("target/node")))
