"""What the machine shows of claimed devices, CPUs and hugepages, in one look. May not write."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from vfioctl.binding.model.conditions import GPU_SERVICES
from vfioctl.claims.lifecycle.device_plans import MissingVgpus, vgpus_of
from vfioctl.claims.lifecycle.lifecycle import followers
from vfioctl.claims.lifecycle.liveness import is_settled, stale_claims
from vfioctl.claims.lifecycle.liveness import now as time_now
from vfioctl.claims.model.claim import LABEL, Claim, ClaimState
from vfioctl.claims.model.difference import DifferenceKind, LostVgpu, Seen, Use
from vfioctl.claims.probe.owners import URI, read_containers, read_domains
from vfioctl.errors import BadSpec, VfioctlError
from vfioctl.inventory.api import InventoryApi
from vfioctl.kernel.lenient import number_of
from vfioctl.placement.api import PlacementApi
from vfioctl.placement.model.claims import PROVISIONAL, Owner
from vfioctl.units import Uuid
from vfioctl.vgpu.api import VgpuApi
from vfioctl.vgpu.model.kinds import MDEV

if TYPE_CHECKING:
    from vfioctl.claims.ledger.ledger import ClaimLedger
    from vfioctl.claims.model.claim import Stale
    from vfioctl.inventory.model.functions import Function, Inventory
    from vfioctl.inventory.model.holders import Holder
    from vfioctl.session import Session
    from vfioctl.vgpu.model.vgpu import Vgpu


class Look:
    """One look at the machine. `inventory`: of the whole host, if it has just been read."""

    def __init__(
        self, session: Session, ledger: ClaimLedger, claims: Sequence[Claim], inventory: Inventory | None = None
    ) -> None:
        self._session, self._ledger, self._claims, self._kernel = session, ledger, claims, session.kernel
        self._devices, self._placement = InventoryApi(session), PlacementApi(session)
        self._processes = self._devices.processes()  # its workers scan meanwhile
        named = any(share.uuid for claim in claims for share in claim.shares)  # by NVML, which takes long
        self._inventory = inventory or self._devices.inventory(nvml=named)
        vgpus = VgpuApi(session)
        dialects = None if vgpus_of(claims) else (MDEV,)  # VFs are functions of the inventory too
        existing = vgpus.vgpus(inventory=self._inventory, dialects=dialects)
        self._vgpus = existing.instances
        self._lost = MissingVgpus(vgpus, self._inventory, claims, existing)
        self._domains = read_domains(self._kernel)
        self._containers = read_containers(self._kernel)
        self._silent: set[str] = set()
        """The libvirts that did not answer."""
        self._unknown = [*([self._domains.unknown] if self._domains.unknown else []), *self._containers.unknown]

    def seen(self) -> Seen:
        inventory = self._inventory
        uses = tuple(self._uses())
        cdi = [found for follower in followers(self._session) for found in follower.differences(inventory, self._mdevs)]
        now, boot_id = time_now(), self._session.known_boot_id
        if not boot_id:
            self._unknown.append("whether the host was booted again is not known: it reports no boot id")
        return Seen(
            now=now,
            boot_id=boot_id,
            functions={f.address: f for f in inventory.functions},
            not_viable=frozenset(member for g in inventory.groups if g.viable is False for member in g.members),
            mdevs={vgpu.id: vgpu.parent for vgpu in self._mdevs},
            lost={name: LostVgpu(self._lost.words(name), self._lost.why_not(name)) for name in self._lost.names},
            definitions=frozenset(vgpu.id for vgpu in self._vgpus if vgpu.state == "defined"),
            uses=uses,
            host_uses=tuple(self._on_host()),
            online=self._online(),
            pages=self._pages(),
            cdi=tuple(cdi),
            stale=self._stale(now, uses),
            changing=self._ledger.changing(),
            unknown=tuple(dict.fromkeys(self._unknown)),
        )

    @cached_property
    def _mdevs(self) -> tuple[Vgpu, ...]:
        return tuple(vgpu for vgpu in self._vgpus if vgpu.dialect == MDEV and vgpu.state != "defined")

    @cached_property
    def _nodes(self) -> dict[str, frozenset[str]]:
        nodes = {str(f.address): (f.vfio_group, f.vfio_cdev) for f in self._inventory.functions if f.serves_guests}
        nodes |= {vgpu.id: (vgpu.vfio_group, vgpu.vfio_cdev) for vgpu in self._mdevs}
        return {device: frozenset(filter(None, either)) for device, either in nodes.items()}

    def _uses(self) -> Iterator[Use]:
        """Yield who has a GPU or vGPU on VFIO, or a claimed device."""
        claimed = {device.subject for claim in self._claims for device in claim.devices}
        on_vfio = [f for f in self._inventory.functions if f.serves_guests and (f.is_gpu or f.address in claimed)]
        watched = {f.address for f in on_vfio} | {vgpu.id for vgpu in self._mdevs}
        yield from self._open(on_vfio)
        for name, devices in self._domains.running.items():
            for device in watched.intersection(devices):
                yield Use(device, f"guest {name} (libvirt)", name, _owner(f"vm/{name}"), is_domain=True)
        yield from self._of_containers(watched)

    def _open(self, functions: Sequence[Function]) -> Iterator[Use]:
        holders = self._devices.holders_of(functions, self._inventory, self._processes)
        yield from map(_use, filter(_has_open, holders.holders))
        if mdevs := self._devices.perhaps_open([Uuid(vgpu.id) for vgpu in self._mdevs]):
            held = self._devices.holders_of_mdevs(mdevs, self._processes)
            yield from map(_use, filter(_has_open, held.holders))
        if (functions or mdevs) and (why := holders.unknown or holders.hidden):
            self._unknown.append(f"who has devices open may not be known: {why}")

    def _on_host(self) -> Iterator[Use]:
        """Yield who has a claimed GPU with its host driver; services that only monitor it do not count."""
        owners = {str(device.subject): claim.owner for claim in self._claims for device in claim.devices}
        claimed = [f for f in self._inventory.functions if f.is_gpu and f.address in owners and not f.serves_guests]
        if not claimed:
            return
        for holder in self._devices.holders_of(claimed, self._inventory, self._processes).holders:
            may_be_owner = holder.container is not None and owners[holder.address].kind != "vm"
            if holder.kind in ("process", "guest") and holder.unit not in GPU_SERVICES and not may_be_owner:
                yield _use(holder)

    def _online(self) -> Collection[int] | None:
        online = self._placement.online_cpus() if any(claim.cpus for claim in self._claims) else ()
        if online is None:
            self._unknown.append("which CPUs are online is not known")
        return online

    def _pages(self) -> Mapping[tuple[int, int], int]:
        claimed = {(pages.node, pages.size) for claim in self._claims for pages in claim.hugepages}
        totals = {pool: self._placement.total_pages(*pool) for pool in sorted(claimed)}
        self._unknown += [
            f"the hugepages of node {node} cannot be read" for (node, _), n in totals.items() if n is None
        ]
        return {pool: total for pool, total in totals.items() if total is not None}

    def _of_containers(self, watched: set[str]) -> Iterator[Use]:
        known = [(device, nodes) for device, nodes in sorted(self._nodes.items()) if device in watched]
        numbered = [(device, nodes, {number_of(self._kernel, node) for node in nodes}) for device, nodes in known]
        for container in self._containers.found:
            owner = _owner(f"pod/{container.pod}") if container.pod else "user/root"
            for device, nodes, numbers in numbered:
                if not nodes.isdisjoint(container.nodes) or not numbers.isdisjoint(container.numbers):
                    yield Use(device, f"container {container.id[:64]}", "", owner)

    def _stale(self, now: str, uses: Sequence[Use]) -> Stale:
        """Return the stale claims: libvirt and the container runtimes know more than a listing."""
        stale = dict(stale_claims(self._session, self._claims, self._ledger))
        used = {use.guest for use in uses}
        pods = {container.pod for container in self._containers.found}
        is_known = bool(pods - {""}) and not self._containers.unknown  # else this may be no node of Kubernetes
        for claim in self._claims:
            kind, name = claim.owner.kind, claim.owner.name
            if kind == "vm" and (name in self._domains.running or name in used or self._domains.unknown):
                if claim.id in stale and stale[claim.id][0] is DifferenceKind.OWNER_GONE:
                    del stale[claim.id]
            elif claim.owner == PROVISIONAL:
                continue
            elif kind == "pod" and name not in pods and is_known and is_settled(claim, now):
                stale.setdefault(claim.id, (DifferenceKind.OWNER_GONE, f"no container {name} exists"))
        for claim in self._claims:
            if claim.id not in stale and is_settled(claim, now) and self._has_ended(claim):
                words = f"it was made for a run of {claim.owner.name}, which is over"
                stale[claim.id] = DifferenceKind.OWNER_GONE, words
        return stale

    def _has_ended(self, claim: Claim) -> bool:
        """Return whether a claim was made for a run of a domain, and its libvirt says that the domain does not run."""
        uri = claim.labels.get(LABEL)
        if claim.state is not ClaimState.HELD or claim.owner.kind != "vm" or not uri or uri in self._silent:
            return False
        if uri == URI and claim.owner.name in self._domains.running:
            return False
        try:
            return not self._kernel.ask_libvirt(uri, "is_running", claim.owner.name)
        except VfioctlError as error:
            self._silent.add(uri)
            self._unknown.append(f"whether domains of {uri} run is not known: {error.message}")
            return False


def _has_open(holder: Holder) -> bool:
    return holder.kind in ("process", "guest", "vfio group")


def _use(holder: Holder) -> Use:
    named = f"guest {holder.guest}" if holder.guest else holder.name
    who = f"{named} (process {holder.pid})" if holder.pid else "a process that could not be found"
    owner = _owner(f"vm/{holder.guest}") if holder.guest else _owner(f"user/{holder.user or 'root'}")
    return Use(str(holder.address), who, holder.guest or "", owner)


def _owner(text: str) -> str:
    """Return an owner that a command takes: a name may be one that no owner has."""
    try:
        return Owner(text)
    except BadSpec:
        return "user/root"
