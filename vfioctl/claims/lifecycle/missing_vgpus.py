"""Finds the vGPUs that claims have lost, to a reboot or by hand, and whether they can be created as they were.

Nothing is guessed: parent and type are those of the journal, and the parent must be the same device. Reads only.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING

from vfioctl.claims.model.claim import Claim, ClaimedDevice, Undo
from vfioctl.inventory.model.values import PciAddress

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vfioctl.inventory.model.functions import Inventory
    from vfioctl.vgpu.api import VgpuApi
    from vfioctl.vgpu.model.vgpu import Made, Vgpus


class MissingVgpus:
    """The vGPUs that do not exist. `found`: the vGPUs that do, if they were just read."""

    def __init__(self, api: VgpuApi, inventory: Inventory, claims: Iterable[Claim], vgpus: Vgpus | None = None) -> None:
        self._api, self._functions, self._vgpus = api, inventory.by_address, vgpus
        self._of_claims = {
            str(device.subject): device for claim in claims for device in claim.devices if _is_vgpu(device)
        }

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Their UUIDs, and the addresses of VFs that are no vGPUs any more."""
        if not self._of_claims:
            return ()
        existing = {vgpu.id for vgpu in self._found.instances if vgpu.state != "defined"}
        return tuple(
            name for name, device in self._of_claims.items() if name not in existing and self._may_be_made(device)
        )

    @cached_property
    def made(self) -> Mapping[str, Made]:
        """How they were created, by name."""
        return self._api.made(self.names)

    def words(self, name: str) -> str:
        """Return what it was."""
        made = self.made.get(name)
        return f"{made.type} on {made.parent}" if made else ""

    def why_not(self, name: str) -> str:
        """Return why a vGPU cannot be created again as it was; empty if it can."""
        made = self.made.get(name)
        if made is None:
            return "the journal does not say how it was created"
        function = self._functions.get(PciAddress(made.parent)) if made.identity else None
        if made.parent != self._of_claims[name].address:
            return f"the journal has it on {made.parent}, and the claim on {self._of_claims[name].address}"
        if made.identity and function is None:
            return f"{made.parent}, on which it was, is gone"
        if function and function.identity != made.identity:
            return f"another device is at {made.parent}: {function.identity}, which was {made.identity}"
        offers = [parent.offers for card in self._found.cards for parent in card.parents if parent.name == made.parent]
        if not any(offered.get(made.type) for offered in offers):
            return f"{made.parent} offers no {made.type} now"
        return ""

    @cached_property
    def _found(self) -> Vgpus:
        return self._vgpus or self._api.vgpus()

    def _may_be_made(self, device: ClaimedDevice) -> bool:
        """Return whether it is more than a VF that is gone: VFs are created before claims."""
        return bool(device.mdev) or device.address in self._functions


def _is_vgpu(device: ClaimedDevice) -> bool:
    return bool(device.mdev) or device.undo is Undo.REMOVE
