"""Reads the parts of an overview. A part that cannot be read is empty, and its reason is kept: none costs another."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from vfioctl.errors import VfioctlError
from vfioctl.inventory.api import InventoryApi
from vfioctl.inventory.model.holders import Holders
from vfioctl.inventory.model.scope import scope_of
from vfioctl.overview.model.overview import Part
from vfioctl.units import Uuid

if TYPE_CHECKING:
    from vfioctl.claims.model.claim import Claim
    from vfioctl.core.published import BeingChanged
    from vfioctl.domain.model.listing import ListedDomain
    from vfioctl.inventory.api import Processes
    from vfioctl.inventory.model.functions import Function, Inventory
    from vfioctl.inventory.model.usage import Usage
    from vfioctl.inventory.model.values import PciAddress
    from vfioctl.session import Session
    from vfioctl.vgpu.model.vgpu import Vgpus

T = TypeVar("T")


class Parts:
    """The parts of one host. `missing`: why those that failed did."""

    def __init__(self, session: Session, without: Collection[Part]) -> None:
        self._session, self._without = session, without
        self.devices = InventoryApi(session)
        self.missing: dict[Part, str] = {}

    def read(self, part: Part, read: Callable[[], T], empty: T) -> T:
        """Return what `read` returns; `empty` if the part is not wanted or cannot be read."""
        if part in self._without:
            return empty
        try:
            return read()
        except VfioctlError as error:
            self.missing[part] = error.message
        except OSError as error:
            self.missing[part] = str(error)
        return empty

    def claims(self) -> tuple[Claim, ...]:
        """Return the live claims."""
        from vfioctl.claims.api import ClaimsApi

        none: tuple[Claim, ...] = ()
        return self.read(Part.CLAIMS, ClaimsApi(self._session).claims, none)

    def unfinished(self) -> tuple[BeingChanged, ...]:
        """Return the changes that have begun and not ended."""
        none: tuple[BeingChanged, ...] = ()
        return self.read(Part.CHANGES, self._session.being_changed, none)

    def usage(self, addresses: Collection[PciAddress]) -> Mapping[PciAddress, Usage]:
        """Return how busy GPUs are."""
        none: Mapping[PciAddress, Usage] = {}
        return self.read(Part.USAGE, lambda: self.devices.usage(addresses), none)

    def vgpus(self, cards: Collection[str] | None = None) -> Vgpus:
        """Return the cards that offer vGPUs, and all vGPUs. `cards`: only those of these cards."""
        from vfioctl.vgpu.api import VgpuApi
        from vfioctl.vgpu.model.vgpu import Vgpus

        return self.read(Part.VGPUS, lambda: VgpuApi(self._session).vgpus(cards), Vgpus())

    def domains(self) -> tuple[ListedDomain, ...]:
        """Return libvirt's domains."""
        from vfioctl.domain.api import DomainApi

        none: tuple[ListedDomain, ...] = ()
        return self.read(Part.DOMAINS, lambda: DomainApi(self._session).listing().domains, none)

    def holders(
        self, functions: Iterable[Function], inventory: Inventory, vgpus: Vgpus, processes: Processes | None
    ) -> Holders:
        """Return the holders of these functions and of the mediated devices, from one scan of the processes."""
        none = Holders(devices=())
        return self.read(Part.HOLDERS, lambda: self._holders(functions, inventory, vgpus, processes), none)

    def _holders(
        self, functions: Iterable[Function], inventory: Inventory, vgpus: Vgpus, processes: Processes | None
    ) -> Holders:
        processes = processes or self.devices.processes()
        held = self.devices.holders_of([*functions], inventory, processes)
        groups: Mapping[str, int | None] = {
            vgpu.id: vgpu.iommu_group for vgpu in vgpus.instances if vgpu.dialect == "mdev" and vgpu.state != "defined"
        }
        if not groups:
            return held
        of_mdevs = self.devices.holders_of_mdevs([*map(Uuid, groups)], processes, groups)
        return replace(held, devices=(*held.devices, *of_mdevs.devices), holders=(*held.holders, *of_mdevs.holders))


def scope_of_gpus(inventory: Inventory) -> tuple[Function, ...]:
    """Return the GPUs, and the rest of their cards and groups without bridges: what holders are looked for of."""
    scope = scope_of(inventory, [gpu.address for gpu in inventory.gpus])
    return tuple(inventory.by_address[address] for address in (*scope.own, *scope.foreign))
