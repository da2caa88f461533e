"""The use cases of Kata: its settings for devices, and the check of all that must fit together."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vfioctl.claims.model.cdi import Node

if TYPE_CHECKING:
    from vfioctl.containers.cdi.choose import Passthrough
    from vfioctl.containers.kata.check import Finding
    from vfioctl.containers.model.claims import Claims
    from vfioctl.inventory.model.functions import Inventory
    from vfioctl.inventory.model.values import Subject
    from vfioctl.session import Session


class KataApi:
    """Kata Containers on one host. Any method may raise any VfioctlError; each documents its own errors."""

    def __init__(self, session: Session, claims: Claims) -> None:
        self._session, self._kernel, self._claims = session, session.kernel, claims

    def config(self, *, claim: str | None = None, mode: str = "guest-kernel", node: Node = Node.GROUP) -> str:
        """Return a drop-in for the devices of a claim, or for all on VFIO. Raises HostError for too many, BadSpec."""
        from vfioctl.containers.kata.settings import drop_in, needs_of

        inventory, _, subjects = self._devices(claim, node)
        return drop_in(needs_of(inventory, subjects, node), mode=mode)

    def check(
        self, config: Path | None = None, *, claim: str | None = None, node: Node = Node.GROUP
    ) -> tuple[Finding, ...]:
        """Return the lines of the check, for the devices of a claim, or for all on VFIO. Raises BadSpec."""
        from vfioctl.containers.cdi.files import read_cdi_files
        from vfioctl.containers.kata.check import Host, findings
        from vfioctl.containers.kata.read import read_kata
        from vfioctl.containers.kata.settings import needs_of
        from vfioctl.inventory.api import InventoryApi
        from vfioctl.kernel.lenient import number_of

        inventory, available, subjects = self._devices(claim, node)
        host = Host(
            inventory,
            subjects,
            needs_of(inventory, subjects, node),
            read_cdi_files(self._kernel),
            InventoryApi(self._session).processor().address_bits,
            available.nodes,
            {path: number_of(self._kernel, path).removeprefix("c ") for path in available.nodes.values()},
            node,
            claim is not None,
        )
        return findings(read_kata(self._kernel, config), host)

    def _devices(self, claim: str | None, node: Node) -> tuple[Inventory, Passthrough, tuple[Subject, ...]]:
        from vfioctl.containers.cdi.api import read_passthrough
        from vfioctl.containers.cdi.choose import claimed, every_device
        from vfioctl.inventory.api import InventoryApi

        inventory = InventoryApi(self._session).inventory(nvml=False)
        available = read_passthrough(self._session, node, inventory)
        if claim is not None:
            return inventory, available, claimed(self._claims.claim(claim), node)
        return inventory, available, tuple(device.subject for device in every_device(available, node))
