"""The use cases of `vfioctl reconcile`: looks at the machine, compares, and fixes what is safe to fix.

May not write to the host by itself: a fix is a release, an end or a journaled plan made for the claim.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from vfioctl.claims.lifecycle.lifecycle import Lifecycle, followers
from vfioctl.claims.lifecycle.liveness import moment_of
from vfioctl.claims.model.claim import LABEL, Claim, ClaimState
from vfioctl.claims.model.difference import (
    Difference,
    DifferenceKind,
    Fix,
    LostVgpu,
    Reconciled,
    Seen,
    SeenFunction,
    Use,
)
from vfioctl.claims.reconcile.staleness import is_settled, stale_claims
from vfioctl.errors import BadSpec, VfioctlError
from vfioctl.placement.model.owner import Owner

if TYPE_CHECKING:
    from vfioctl.claims.ledger.ledger import ClaimLedger
    from vfioctl.claims.model.documents import Stale
    from vfioctl.claims.probe.container_states import Containers
    from vfioctl.claims.probe.domains import Domains
    from vfioctl.core.action import Progress
    from vfioctl.core.change import Plan
    from vfioctl.inventory.model.functions import Inventory
    from vfioctl.inventory.model.holders import Holder
    from vfioctl.session import Session
    from vfioctl.vgpu.model.vgpu import Vgpu


class Fixed(NamedTuple):
    """A difference that was fixed, or why it could not be."""

    difference: Difference
    error: VfioctlError | None = None


class Reconciling:
    """Compares the claims of one host with the host."""

    def __init__(self, session: Session, ledger: ClaimLedger) -> None:
        self._session, self._ledger, self._lifecycle = session, ledger, Lifecycle(session, ledger)

    def compare(self) -> Reconciled:
        """Return the differences between the ledger and the machine. Raises StoreDamaged."""
        from vfioctl.claims.reconcile.compare import compare

        claims = self._ledger.claims()
        seen = _Look(self._session, self._ledger, claims).seen()
        return Reconciled(compare(claims, seen), seen.unknown)

    def fix(self, differences: Sequence[Difference], *, progress: Progress | None = None) -> tuple[Fixed, ...]:
        """Fix what is safe to fix, each once, and say what could not be. CDI files are written after claims changed."""
        fixed = self._fixed([difference for difference in differences if difference.fix is not Fix.RENEW], progress)
        changed = any(repair.error is None for repair in fixed)
        files = self.compare().differences if changed else differences
        return (*fixed, *self._fixed([file for file in files if file.fix is Fix.RENEW], progress))

    def _fixed(self, differences: Iterable[Difference], progress: Progress | None) -> tuple[Fixed, ...]:
        done: dict[tuple[str, Fix], VfioctlError | None] = {}  # fixing one fixes the others of the same claim
        wanted = [difference for difference in differences if difference.fix is not Fix.NOTHING]
        for difference in wanted:
            if (difference.claim, difference.fix) not in done:
                done[difference.claim, difference.fix] = self._error_of(difference, progress)
        return tuple(Fixed(difference, done[difference.claim, difference.fix]) for difference in wanted)

    def restore(self, name: str, *, progress: Progress | None = None) -> Claim:
        """Bind again what a claim had bound, create the vGPUs that it has lost, and record this boot.

        Its devices, and the parents of its vGPUs, must be the same. Raises ClaimConflict, and what
        `BindingApi.plan_bind`, `VgpuApi.plan_create` and `Session.apply` raise; what is still wrong is reported again
        then.
        """
        claim = self._ledger.claim(name)
        session = self._lifecycle.acting_for(claim)
        plans = self.plans(claim)
        for plan in plans:
            session.apply(plan, progress=progress)
        if not plans and claim.boot_id != session.boot_id:
            return self._ledger.restored(claim.id, moment_of(session))
        return self._ledger.claim(claim.id)

    def plans(self, claim: Claim) -> tuple[Plan, ...]:
        """Return what `restore` would change. Raises what it raises before it changes anything."""
        return self._lifecycle.plans_again(claim)

    def _error_of(self, difference: Difference, progress: Progress | None) -> VfioctlError | None:
        """Fix a difference; return why it could not be."""
        try:
            if difference.fix is Fix.RESTORE:
                self.restore(difference.claim, progress=progress)
            elif difference.fix is Fix.RENEW:
                for follower in followers(self._session):
                    follower.renew(progress=progress)
            else:  # the release of a claim whose process died before any change ends it
                self._lifecycle.release(difference.claim, progress=progress)
        except VfioctlError as error:
            return error
        return None


class _Look:
    """One look at the machine."""

    def __init__(self, session: Session, ledger: ClaimLedger, claims: Sequence[Claim]) -> None:
        from vfioctl.claims.lifecycle.device_plans import MissingVgpus
        from vfioctl.claims.probe.container_states import read_containers
        from vfioctl.claims.probe.domains import read_domains
        from vfioctl.inventory.api import InventoryApi
        from vfioctl.vgpu.api import VgpuApi

        self._session, self._ledger, self._claims, self._kernel = session, ledger, claims, session.kernel
        self._devices = InventoryApi(session)
        self._processes = self._devices.processes()  # its workers scan meanwhile
        self._inventory: Inventory = self._devices.inventory(nvml=False)
        vgpus = VgpuApi(session)
        found = vgpus.vgpus()
        self._vgpus: tuple[Vgpu, ...] = found.instances
        self._lost = MissingVgpus(vgpus, self._inventory, claims, found)
        self._domains: Domains = read_domains(self._kernel)
        self._containers: Containers = read_containers(self._kernel)
        self._silent: set[str] = set()
        """The libvirts that did not answer."""
        self._unknown = [*([self._domains.unknown] if self._domains.unknown else []), *self._containers.unknown]

    def seen(self) -> Seen:
        inventory = self._inventory
        uses = tuple(self._uses())
        moment = moment_of(self._session)
        return Seen(
            now=moment.now,
            boot_id=moment.boot_id,
            functions={
                f.address: SeenFunction(
                    f.identity,
                    f.driver or "",
                    f.on_vfio,
                    self._is_viable(f.iommu_group),
                    f.physfn or "",
                )
                for f in inventory.functions
            },
            mdevs={vgpu.id: vgpu.parent for vgpu in self._mdevs},
            lost={name: LostVgpu(self._lost.words(name), self._lost.why_not(name)) for name in self._lost.names},
            definitions=frozenset(vgpu.id for vgpu in self._vgpus if vgpu.state == "defined"),
            uses=uses,
            cdi=tuple(
                difference
                for follower in followers(self._session)
                for difference in follower.differences(inventory, self._mdevs)
            ),
            stale=self._stale(moment.now, uses),
            changing=frozenset(claim.id for claim in self._claims if self._ledger.is_changing(claim.id)),
            unknown=tuple(dict.fromkeys(self._unknown)),
        )

    def _is_viable(self, group: int | None) -> bool | None:
        known = self._inventory.group_by_id
        return known[group].viable if group is not None and group in known else None

    @cached_property
    def _mdevs(self) -> tuple[Vgpu, ...]:
        return tuple(vgpu for vgpu in self._vgpus if vgpu.dialect == "mdev" and vgpu.state != "defined")

    @cached_property
    def _running(self) -> frozenset[str]:
        return frozenset(domain.name for domain in self._domains.running)

    @cached_property
    def _nodes(self) -> dict[str, frozenset[str]]:
        found: dict[str, frozenset[str]] = {}
        for function in self._inventory.functions:
            nodes = (function.vfio_group, function.vfio_cdev) if function.serves_guests else ()
            found[function.address] = frozenset(node for node in nodes if node)
        for vgpu in self._mdevs:
            found[vgpu.id] = frozenset(node for node in (vgpu.vfio_group, vgpu.vfio_cdev) if node)
        return found

    # -- who uses what -----------------------------------------------------------------------------

    def _uses(self) -> Iterator[Use]:
        """Yield who has a GPU or vGPU on VFIO, or a claimed device."""
        claimed = {device.subject for claim in self._claims for device in claim.devices}
        on_vfio = [f for f in self._inventory.functions if f.serves_guests and (f.is_gpu or f.address in claimed)]
        watched = {f.address for f in on_vfio} | {vgpu.id for vgpu in self._mdevs}
        yield from self._open(on_vfio)
        for domain in self._domains.running:
            owner = _owner(f"vm/{domain.name}")
            for device in domain.devices:
                if device in watched:
                    yield Use(device, f"guest {domain.name} (libvirt)", domain.name, owner)
        yield from self._of_containers(watched)

    def _open(self, on_vfio: Sequence[object]) -> Iterator[Use]:
        from vfioctl.inventory.model.functions import Function
        from vfioctl.units import Uuid

        functions = [function for function in on_vfio if isinstance(function, Function)]
        holders = self._devices.holders_of(functions, self._inventory, self._processes)
        yield from map(_use, filter(_has_open, holders.holders))
        if mdevs := self._devices.perhaps_open([Uuid(vgpu.id) for vgpu in self._mdevs]):
            held = self._devices.holders_of_mdevs(mdevs, self._processes)
            yield from map(_use, filter(_has_open, held.holders))
        if (functions or mdevs) and (why := holders.unknown or holders.hidden):
            self._unknown.append(f"who has devices open may not be known: {why}")

    def _of_containers(self, watched: set[str]) -> Iterator[Use]:
        from vfioctl.kernel.lenient import number_of

        none: frozenset[str] = frozenset()
        known = [(device, self._nodes.get(device, none)) for device in sorted(watched)]
        numbered = [
            (device, nodes, {number_of(self._kernel, node) for node in nodes} - {""}) for device, nodes in known
        ]
        for container in self._containers.found:
            for device, nodes, numbers in numbered:
                if nodes.intersection(container.nodes) or numbers.intersection(container.numbers):
                    owner = _owner(f"pod/{container.pod}") if container.pod else "user/root"
                    yield Use(device, f"container {container.id[:64]}", "", owner)

    # -- stale claims -------------------------------------------------------------------------

    def _stale(self, now: str, uses: Sequence[Use]) -> Stale:
        """Return the stale claims: libvirt and the container runtimes know more than a listing."""
        stale = dict(stale_claims(self._session, self._claims, self._ledger))
        used = {use.guest for use in uses}
        pods = {container.pod for container in self._containers.found}
        is_known = bool(pods - {""}) and not self._containers.unknown  # else this may be no node of Kubernetes
        for claim in self._claims:
            kind, name = claim.owner.kind, claim.owner.name
            if kind == "vm" and (name in self._running or name in used or self._domains.unknown):
                if claim.id in stale and stale[claim.id][0] is DifferenceKind.OWNER_GONE:
                    del stale[claim.id]
            elif kind == "pod" and name not in pods and is_known and is_settled(claim, now):
                stale.setdefault(claim.id, (DifferenceKind.OWNER_GONE, f"no container {name} exists"))
        for claim in self._claims:
            if claim.id not in stale and is_settled(claim, now) and self._has_ended(claim):
                words = f"it was made for a run of {claim.owner.name}, which is over"
                stale[claim.id] = DifferenceKind.OWNER_GONE, words
        return stale

    def _has_ended(self, claim: Claim) -> bool:
        """Return whether a claim was made for a run of a domain, and its libvirt says that the domain does not run."""
        from vfioctl.claims.probe.domains import URI

        uri = claim.labels.get(LABEL)
        if claim.state is not ClaimState.HELD or claim.owner.kind != "vm" or not uri or uri in self._silent:
            return False
        if uri == URI and claim.owner.name in self._running:
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
