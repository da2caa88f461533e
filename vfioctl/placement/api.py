"""The use cases of placement: reads what a request needs of the host once; `place` then decides purely. The ledger
calls `place` inside a transaction, so that what is taken cannot change before the claim is recorded."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from shlex import quote
from typing import TYPE_CHECKING

from vfioctl.console.words import counted
from vfioctl.core.locations import import_object
from vfioctl.errors import BadSpec, NoCapacity, VfioctlError, some_of
from vfioctl.inventory.api import InventoryApi
from vfioctl.inventory.model.numa_affinity import on_nodes
from vfioctl.inventory.model.values import PciAddress, Subject
from vfioctl.placement.choosing.preconditions import exceeded, is_called, refusal, refusal_of_mdev
from vfioctl.placement.choosing.preferred import on_few_nodes
from vfioctl.placement.choosing.shares import why_no_share
from vfioctl.placement.explaining.reasons import no_capacity, why_not_isolated
from vfioctl.placement.model.capacity import Capacity, Context, VgpuCreation
from vfioctl.placement.model.request import ClaimRequest
from vfioctl.placement.model.settings import Missing, missing_in
from vfioctl.placement.model.share import WHOLE, why_unnamed
from vfioctl.placement.place import candidates, place, preferred, refused
from vfioctl.placement.probe.capacity import read_capacity, read_total_pages
from vfioctl.placement.probe.topology import read_online
from vfioctl.placement.probe.users import holders, in_use
from vfioctl.units import Uuid
from vfioctl.vgpu.model.kinds import MDEV

if TYPE_CHECKING:
    from vfioctl.inventory.model.functions import Function, Inventory
    from vfioctl.inventory.model.holders import Holder
    from vfioctl.placement.model.claims import Taken
    from vfioctl.placement.model.settings import ClaimSettings
    from vfioctl.session import Session
    from vfioctl.vgpu.api import VgpuApi

__all__ = ["NO_CONTEXT", "PlacementApi", "exceeded", "place", "why_not_isolated"]
NO_CONTEXT = Context()
_CLAIMS = "claims"
_NOT_OF_IT = "the resource does not have it, or it is cordoned"
_ANYBODY = "user/anybody"
"""Who asks where no quota counts."""
_TOO_FEW = "it has room for one, but not for all"


class PlacementApi:
    """What requests would get on one host. May not write to it."""

    def __init__(self, session: Session) -> None:
        self._session, self._devices = session, InventoryApi(session)

    def over_quota(self, taken: Taken, owner: str, labels: Mapping[str, str], gpus: int) -> str:
        """Return the quota that this number of additional GPUs or vGPUs would exceed; empty if none."""
        return exceeded(self._session.settings(_CLAIMS).quotas, taken, owner, labels, gpus)

    def capacity(self, taken: Taken, *, cpus: bool = False) -> Capacity:
        """Return the host's capacity. `cpus`: whether all processes are looked at for pinned guests."""
        inventory, settings = self._devices.inventory(nvml=False), self._session.settings(_CLAIMS)
        return read_capacity(self._session.kernel, inventory, taken, settings, cpus=cpus)

    def read(
        self, request: ClaimRequest, taken: Taken, context: Context = NO_CONTEXT, *, near: bool = False
    ) -> Capacity:
        """Return what `place` decides a request from; vGPUs are planned already. `near`: only the devices that it names
        and what is near them, if it asks for nothing else. Raises BadSpec for an unknown NUMA node, NoCapacity if the
        vGPUs do not fit."""
        # NVML takes long, and reports no more of the devices than their memory and names
        nvml = bool(request.memory_min or request.model or request.is_native)
        alone = near and request.names_all
        read_of = self._devices.inventory(nvml=nvml, near=request.devices if alone else None)
        inventory = on_nodes(read_of, context.nodes)
        _refuse_unknown_node(request, inventory)
        settings, links = self._session.settings(_CLAIMS), request.gpus > 1 or request.cores > WHOLE
        if alone:
            read = Capacity(inventory=inventory, taken=taken, settings=settings)
        else:
            read = read_capacity(self._session.kernel, inventory, taken, settings, links=links, cpus=request.cpus > 0)
        guests = {cpu: guest for cpu, guest in read.pinned.items() if cpu not in context.own_cpus}
        capacity = replace(
            read,
            parents=self._parents(request),
            pinned={**guests, **context.pinned},
            held={**self._unfit(request, inventory), **context.held},
            realtime=request.realtime,
            previews=context.previews,
        )
        if request.vgpu:
            return replace(capacity, creation=self._creation(request, capacity))
        if request.gpus or request.cores >= WHOLE:
            return replace(capacity, held={**capacity.held, **self._held(request, capacity)})
        return capacity

    def _unfit(self, request: ClaimRequest, inventory: Inventory) -> Mapping[PciAddress, str]:
        """Return what later subsystems say against GPUs for this request."""
        session, reasons = self._session, dict[PciAddress, str]()
        for row in session.subsystems:
            if row.unfit and request.is_native:
                reasons.update(import_object(row.unfit)(session, request, inventory))
            if row.occupied:
                reasons.update(import_object(row.occupied)(session, request))
        return reasons

    def online_cpus(self) -> Collection[int] | None:
        """Return the CPUs that are online; None if they cannot be read."""
        return read_online(self._session.kernel)

    def total_pages(self, node: int, size: int) -> int | None:
        """Return the number of hugepages of a node, free or not; None if it cannot be read. `size`: in bytes."""
        return read_total_pages(self._session.kernel, node, size)

    def holders(
        self, functions: Sequence[Function], mdevs: Sequence[Uuid], inventory: Inventory, *, drivers: bool
    ) -> tuple[Holder, ...]:
        """See `vfioctl.placement.probe.users.holders`."""
        return holders(self._devices, functions, mdevs, inventory, drivers=drivers)

    def _held(self, request: ClaimRequest, capacity: Capacity) -> Mapping[PciAddress, str]:
        """Return which GPUs that could be chosen are in use, each with by whom: their change would be refused."""
        refusals = refused(request, capacity)
        free = [gpu for gpu in candidates(capacity) if gpu.address not in refusals]
        native = request.is_native
        return in_use(self._devices, free, capacity.inventory, drivers=request.bind or native, alone=native)

    def why_not(
        self, functions: Sequence[Function], inventory: Inventory, taken: Taken, *, bind: bool
    ) -> Mapping[PciAddress, str]:
        """Return why a claim that names one of these functions would not get it now; those that it would get are left
        out. `bind`: whether the claim would bind it to VFIO."""
        capacity = Capacity(inventory=inventory, taken=taken, settings=self._session.settings(_CLAIMS))
        request = ClaimRequest(owner=_ANYBODY, gpus=1, bind=bind)
        reasons = {f.address: why for f in functions if (why := refusal(f, request, capacity, [f.address]))}
        free = [function for function in functions if function.address not in reasons]
        return {**reasons, **in_use(self._devices, free, inventory, drivers=bind)}

    def why_no_share(
        self, gpus: Sequence[Function], inventory: Inventory, taken: Taken, *, cores: int = 0, memory: int = 0
    ) -> Mapping[PciAddress, str]:
        """Return why `native_gpus` would not choose these GPUs for so much of one."""
        unfit = self._unfit(ClaimRequest(owner=_ANYBODY, cores=cores, gpu_memory=memory), inventory)
        capacity = Capacity(inventory=inventory, taken=taken, settings=self._session.settings(_CLAIMS), held=unfit)
        reasons = {}
        for gpu in gpus:
            asked = ClaimRequest(owner=_ANYBODY, devices=(gpu.address,), cores=cores, gpu_memory=memory)
            reasons[gpu.address] = why_no_share(gpu, asked, capacity) or why_unnamed(gpu)
        return {gpu: why for gpu, why in reasons.items() if why}

    def native_gpus(
        self, request: ClaimRequest, match: Collection[str], taken: Taken, but: Collection[str] = ()
    ) -> tuple[PciAddress, ...]:
        """Return the GPUs that a request for GPUs with their host driver would get. `match`: words of which one means
        each of them, as in `are_of`; a boot display is chosen only by them. `but`: GPUs that are not chosen. Nor are
        those that NVIDIA's container toolkit cannot name. Raises NoCapacity, BadSpec."""
        capacity = self.read(request, taken)
        functions = capacity.inventory.functions
        ours = self.are_of(match, functions)
        others = {f.address: _NOT_OF_IT for f in functions if f.address not in ours or f.address in but}
        unnamed = {gpu.address: why for gpu in capacity.inventory.gpus if (why := why_unnamed(gpu))}
        if match:
            functions = tuple(replace(f, boot_vga=f.boot_vga and f.address not in ours) for f in functions)
        inventory = replace(capacity.inventory, functions=functions)
        placement = place(request, replace(capacity, inventory=inventory, held={**capacity.held, **unnamed, **others}))
        return tuple(PciAddress(share.address) for share in placement.shares)

    def why_not_mdevs(self, mdevs: Mapping[Uuid, str], inventory: Inventory, taken: Taken) -> Mapping[Uuid, str]:
        """Return why a claim would not get mediated devices that exist, as `why_not` does. `mdevs`: with parents."""
        capacity = Capacity(inventory=inventory, taken=taken, settings=self._session.settings(_CLAIMS))
        functions: Mapping[str, Function] = {f.address: f for f in inventory.functions}
        parents: Mapping[Uuid, Function | str] = {mdev: functions.get(name, name) for mdev, name in mdevs.items()}
        reasons = {m: why for m, parent in parents.items() if (why := refusal_of_mdev(m, parent, capacity))}
        held = self.holders((), [m for m in mdevs if m not in reasons], inventory, drivers=False)
        return {**reasons, **{Uuid(holder.address): f"held by {holder.name}" for holder in held}}

    def why_not_on(
        self, parents: Sequence[Function], kind: str, inventory: Inventory, taken: Taken
    ) -> Mapping[PciAddress, str]:
        """Return why a claim would not get vGPUs of a type that are created on these functions, as `why_not` does."""
        capacity = Capacity(inventory=inventory, taken=taken, settings=self._session.settings(_CLAIMS))
        request = ClaimRequest(owner=_ANYBODY, vgpu=kind)
        gpus = {f.address: inventory.by_address.get(f.physfn, f) if f.physfn else f for f in parents}
        reasons = {parent: refusal(gpu, request, capacity) for parent, gpu in gpus.items()}
        return {parent: why for parent, why in reasons.items() if why}

    def are_of(self, words: Collection[str], functions: Sequence[Function]) -> Mapping[PciAddress, Function]:
        """Return the functions that one of these words means: an address, `vendor:device`, an alias of the settings,
        or a part of the name; all of them if there are no words."""
        settings = self._session.settings(_CLAIMS)
        return {f.address: f for f in functions if not words or any(is_called(f, word, settings) for word in words)}

    def prefer(
        self,
        available: Sequence[Subject],
        must: Sequence[Subject],
        count: int,
        taken: Taken,
        nodes: Mapping[Subject, int | None],
    ) -> tuple[Subject, ...]:
        """Return the `count` of these devices that a claim of that number would choose, with those of `must`: on few
        NUMA nodes, close by PCIe, of one model. `nodes`: their NUMA nodes, for what is no whole GPU."""
        functions = [device for device in available if isinstance(device, PciAddress)]
        wanted = count - len(must)
        if wanted > 0 and len(functions) == len(available):
            with suppress(VfioctlError):  # such as a GPU that was claimed a moment ago: this is only advice
                return self._best(functions, [m for m in must if isinstance(m, PciAddress)], wanted, taken)
        return on_few_nodes(available, must, count, nodes)

    def _best(
        self, available: Sequence[PciAddress], must: Sequence[PciAddress], wanted: int, taken: Taken
    ) -> tuple[Subject, ...]:
        inventory = self._devices.inventory(nvml=False)
        if gone := {*available, *must}.difference(inventory.by_address):
            raise NoCapacity(f"{some_of(sorted(gone), 3)} cannot be chosen: it is gone")
        virtual = all(inventory.by_address[device].is_vf for device in available)
        request = ClaimRequest(owner=_ANYBODY, devices=tuple(must), gpus=wanted, virtual=virtual, bind=False)
        capacity = Capacity(inventory=inventory, taken=taken, settings=self._session.settings(_CLAIMS))
        chosen = preferred(request, capacity, tuple(device for device in available if device not in must))
        return (*must, *chosen)

    def free_vgpus(self, word: str, taken: Taken, exclude: Collection[str]) -> tuple[Subject, ...]:
        """Return existing vGPUs that no claim has and nobody has open, on as few NUMA nodes as possible. `word`: TYPE
        or TYPE=N. `exclude`: devices that others have. Raises BadSpec for an unknown type, NoCapacity."""
        from vfioctl.vgpu.model.lookup import type_and_number
        from vfioctl.vgpu.model.vgpu import VgpuState

        kind, count = type_and_number(word)
        vgpus, inventory = self._vgpus.vgpus(), self._devices.inventory(nvml=False)
        types = {(card.id, called.id) for card in vgpus.cards for called in card.called(kind)}
        if not types:
            raise BadSpec(f"no card has a vGPU type {kind[:80]!r}", hint="vfioctl vgpu types lists them")
        nodes: dict[int | None, list[Subject]] = {}
        for vgpu in vgpus.instances:
            is_taken = not {vgpu.id, vgpu.parent, vgpu.card}.isdisjoint({*taken.whole, *exclude})
            if (vgpu.card, vgpu.type) in types and vgpu.state is VgpuState.LIVE and not is_taken:
                subject = Uuid(vgpu.id) if vgpu.dialect == MDEV else PciAddress(vgpu.id)
                nodes.setdefault(vgpu.numa_node, []).append(subject)
        everything = [subject for subjects in sorted(nodes.values(), key=len, reverse=True) for subject in subjects]
        functions = [inventory.by_address[name] for name in everything if isinstance(name, PciAddress)]
        mdevs = [name for name in everything if isinstance(name, Uuid)]
        held = {holder.address for holder in self.holders(functions, mdevs, inventory, drivers=False)}
        free = tuple(subject for subject in everything if subject not in held)
        if len(free) < count:
            more = f" --count {count - len(free)}" if count - len(free) > 1 else ""
            raise NoCapacity(
                f"{counted(count, 'vGPU')} of type {kind} {'is' if count == 1 else 'are'} needed, "
                f"and {len(free) or 'none'} that nobody has {'exists' if len(free) < 2 else 'exist'}",
                next_command=f"vfioctl vgpu create {quote(kind)}{more}",
            )
        return free[:count]

    @property
    def _vgpus(self) -> VgpuApi:
        from vfioctl.vgpu.api import VgpuApi  # imported late: most requests are for whole GPUs

        return VgpuApi(self._session)

    def _parents(self, request: ClaimRequest) -> Mapping[Uuid, str]:
        if not any(isinstance(device, Uuid) for device in request.devices):
            return {}
        vgpus = self._vgpus.vgpus().instances
        return {Uuid(vgpu.id): vgpu.parent for vgpu in vgpus if vgpu.dialect == MDEV and vgpu.state != "defined"}

    def _creation(self, request: ClaimRequest, capacity: Capacity) -> VgpuCreation:
        from vfioctl.vgpu.model.lookup import why_none

        node = request.numa if isinstance(request.numa, int) else None
        refusals = refused(request, capacity)
        cards = [capacity.inventory.by_address[card] for card in refusals]
        exclude = (*capacity.taken.whole, *(parent for card in cards for parent in (card.address, *card.virtfns)))
        offers = {card.id: why_none(card, request.vgpu, numa=node) for card in self._vgpus.vgpus().cards}
        try:
            plan = self._vgpus.plan_create(
                request.vgpu,
                parent=request.parent or None,
                numa=node,
                count=request.vgpus,
                uuids=request.uuids,
                exclude=exclude,
            )
        except NoCapacity as error:
            if not refusals:
                raise
            gpus = candidates(capacity)
            none = {gpu.address: offers[gpu.address] or _TOO_FEW for gpu in gpus if gpu.address in offers}
            raise no_capacity(error.message, gpus, {**none, **refusals}) from None
        return VgpuCreation(plan, offers)


def _refuse_unknown_node(request: ClaimRequest, inventory: Inventory) -> None:
    nodes = [node.id for node in inventory.numa_nodes]
    if isinstance(request.numa, int) and nodes and request.numa not in nodes:
        raise BadSpec(f"there is no NUMA node {request.numa}", hint=f"this host has {', '.join(map(str, nodes))}")


def missing(session: Session, settings: ClaimSettings) -> Iterator[Missing]:
    """Return what the host does not have of the settings of claims."""
    api = InventoryApi(session)
    return missing_in(settings, api.inventory(nvml=False), api.online_cpus())
