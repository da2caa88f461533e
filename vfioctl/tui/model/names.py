"""Remembers the product names of devices: a driver that goes takes the names that only it knows along."""

from __future__ import annotations

from vfioctl.inventory.model.functions import Function, Inventory
from vfioctl.inventory.render import phrases


class Names:
    """The best name known of each function, while the same device is in its slot."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, str]] = {}

    def learn(self, inventory: Inventory) -> None:
        """Remember the names that drivers report now."""
        for function in inventory.functions:
            if function.nvml and function.nvml.name:
                self._known[function.address] = function.identity, phrases.name_of(function)

    def of(self, function: Function) -> str:
        """Return the name of a function, as its driver reports it or reported it last."""
        identity, name = self._known.get(function.address, ("", ""))
        return name if identity == function.identity else phrases.name_of(function)
