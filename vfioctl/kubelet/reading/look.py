"""Looks at the devices of all resources once: who has them, and which of them a pod may get. May not write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from vfioctl.claims.api import ClaimsApi
from vfioctl.errors import VfioctlError
from vfioctl.inventory.api import InventoryApi
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kubelet.choosing.health import Facts, devices_of, lost_of
from vfioctl.kubelet.choosing.members import Member, members, problem_of
from vfioctl.kubelet.choosing.shares import parts_of, problem_of_parts
from vfioctl.kubelet.ledger.cordons import cordons
from vfioctl.kubelet.model.device import LABEL, Resource
from vfioctl.kubelet.model.settings import DeviceKind, KubeletSettings, ResourceSettings
from vfioctl.kubelet.model.units import BESIDE
from vfioctl.placement.api import PlacementApi
from vfioctl.placement.model.claims import Owner, Taken
from vfioctl.placement.model.share import by_gpu
from vfioctl.units import Uuid
from vfioctl.vgpu.model.vgpu import Vgpus, VgpuState

if TYPE_CHECKING:
    from vfioctl.claims.model.claim import Claim
    from vfioctl.inventory.model.functions import Function, Inventory
    from vfioctl.session import Session


class Look:
    """One look at a host. Reads the devices once, whatever number of resources there is."""

    def __init__(self, session: Session, settings: KubeletSettings) -> None:
        """Raises StoreDamaged, KernelRefused, BadSpec."""
        self._session, self._placement, api = session, PlacementApi(session), ClaimsApi(session)
        self._claims = api.labelled(LABEL)
        self._published = api.claims() if session.reads_published else ()
        self._ledger, self._cordons = api.ledger, cordons(session)
        devices = InventoryApi(session)
        self._marks = devices.marks()
        is_shared = any(resource.is_shared for resource in settings.resources)
        self._inventory: Inventory = devices.inventory(nvml=is_shared)  # which takes long: it reports memory
        self._vgpus = self._read_vgpus(settings.resources)

    def _read_vgpus(self, resources: Sequence[ResourceSettings]) -> Vgpus:
        if not any(resource.devices in (DeviceKind.MDEV, DeviceKind.VGPU) for resource in resources):
            return Vgpus()
        from vfioctl.vgpu.api import VgpuApi

        return VgpuApi(self._session).vgpus(inventory=self._inventory)

    def resource(self, settings: ResourceSettings) -> Resource:
        """Return a resource with its devices. What cannot be read costs this resource only."""
        try:
            matching = self._placement.are_of(settings.match, self._inventory.functions)
            ours = [claim for claim in self._claims if settings.name in (claim.labels[LABEL], claim.labels.get(BESIDE))]
            if settings.is_shared:
                return self._parts(settings, [f for f in matching.values() if f.is_gpu and not f.is_vf], ours)
            found = members(settings, matching, self._inventory, self._vgpus)
            refusals = self._refusals(settings, found, ours)
            facts = Facts(self._inventory, self._marks, self._cordons, ours, refusals)
            devices = (*devices_of(settings, found, facts), *lost_of(settings, found, ours))
            return Resource(settings, devices, problem_of(settings, found, self._vgpus))
        except VfioctlError as error:
            return Resource(settings, problem=error.message)

    def _parts(self, settings: ResourceSettings, gpus: Sequence[Function], ours: Sequence[Claim]) -> Resource:
        ask = {"cores" if settings.devices is DeviceKind.CORES else "memory": settings.size}
        gpus = [gpu for gpu in gpus if settings.match or not gpu.boot_vga]
        taken = self._taken(())
        refusals = self._placement.why_no_share(gpus, self._inventory, taken, **ask)
        facts = Facts(
            self._inventory, self._marks, self._cordons, ours, {str(gpu): why for gpu, why in refusals.items()}
        )
        devices = parts_of(settings, gpus, facts, taken.shares)
        return Resource(settings, devices, problem_of_parts(settings, gpus, devices, ours))

    def gpus_with_vgpus(self) -> tuple[PciAddress, ...]:
        """Return the GPUs on NVIDIA's driver that have vGPUs: they stay on it. NVML reports errors of no others, for it
        would have them open, and keep them from being bound."""
        cards = {vgpu.card for vgpu in self._vgpus.instances if vgpu.state is VgpuState.LIVE}
        return tuple(f.address for f in self._inventory.functions if f.address in cards and f.driver == "nvidia")

    def _refusals(
        self, settings: ResourceSettings, found: Sequence[Member], ours: Sequence[Claim]
    ) -> Mapping[str, str]:
        """Return why a claim would not get those that none of our claims has."""
        held = {device.subject for claim in ours for device in claim.devices}
        free = [member for member in found if member.subject not in held and not member.problem]
        taken = self._taken([claim.id for claim in ours])
        by_address = self._inventory.by_address
        if settings.devices in (DeviceKind.PASSTHROUGH, DeviceKind.VF):
            functions = [by_address[PciAddress(member.parent)] for member in free]
            bind = settings.bind
            return dict(self._placement.why_not(functions, self._inventory, taken, bind=bind).items())
        if settings.devices is DeviceKind.MDEV:
            mdevs = {Uuid(member.subject): member.parent for member in free}
            return dict(self._placement.why_not_mdevs(mdevs, self._inventory, taken).items())
        parents = [function for function in self._inventory.functions if function.address in {m.parent for m in free}]
        why = self._placement.why_not_on(parents, settings.type, self._inventory, taken)
        names = {str(parent): reason for parent, reason in why.items()}
        refusals = {str(member.subject): names[member.parent] for member in free if member.parent in names}
        whole = {m.subject: taken.whole.get(m.subject) or taken.whole.get(m.parent) for m in free}
        return refusals | {str(subject): f"claimed by {has[1]} ({has[0]})" for subject, has in whole.items() if has}

    def _taken(self, but: Sequence[str]) -> Taken:
        if not self._session.reads_published:
            return self._ledger.taken(but=but)
        reserved = [r for r in self._inventory.reservations if r.whole and not r.shared and r.claim not in but]
        shares = by_gpu(share for claim in self._published for share in claim.shares)
        whole = {r.subject: (r.claim, Owner(r.owner)) for r in reserved}
        return Taken(whole=whole, shares=shares)
