"""The phases of the changes, and what was found to differ. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from vfioctl.core.frozen import value_class
from vfioctl.inventory.model.functions import Function
from vfioctl.state.model.difference import Difference
from vfioctl.state.model.document import NONE, DeviceState, HostState, Presence
from vfioctl.state.model.facts import HostFacts
from vfioctl.state.plan import compare
from vfioctl.state.plan.places import Places

REMOVE, UNBIND, COUNT, BIND, CREATE, KEEP, FORGET = range(7)
"""The order of the changes."""
VFS_OF = "VFs of "
"""Marks, before the address of a PF, what a change of their number is about."""


@value_class
class Found:
    """A host, and how it differs from a document."""

    facts: HostFacts
    places: Places
    differences: Mapping[str, Mapping[str, Difference]]
    """By the names of the document, then by setting."""

    def of(self, name: str, *settings: str) -> bool:
        """Whether one of these settings differs."""
        return any(setting in self.differences.get(name, ()) for setting in settings)

    def function(self, device: DeviceState) -> Function | None:
        """The function of a device; None if it is not found."""
        address = self.places[device.address].address
        return self.facts.inventory.by_address[address] if address else None

    def forgotten(self, state: HostState) -> Iterator[tuple[str, str]]:
        """Yield what is restored at boot and is not to be, where nothing else of it changes: its name in the document,
        and the name of its definition."""
        for device in state.devices:
            function = self.function(device)
            if function is None:
                continue
            at_boot = self.facts.devices_at_boot.get(function.address)
            stays = not self.of(device.address, compare.DRIVER)
            if at_boot and device.driver_at_boot == NONE and stays:
                yield device.address, at_boot.name
            counted = function.address in self.facts.vfs_at_boot and not self.of(device.address, compare.VFS)
            if device.vfs_at_boot == 0 and counted:
                yield device.address, function.address
        for vgpu in state.vgpus:
            name = compare.id_of(vgpu, self.places)
            going = vgpu.state is Presence.ABSENT and self.of(vgpu.name, compare.STATE)
            if vgpu.at_boot is False and name in self.facts.vgpus_at_boot and name and not going:
                yield vgpu.name, name
