"""The use cases of GPU sharing: what can enforce shares, and what applies to the shares of claims. May not write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from vfioctl.claims.api import ClaimsApi
from vfioctl.containers.api import ContainersApi
from vfioctl.errors import BadSpec, HostError
from vfioctl.inventory.api import InventoryApi
from vfioctl.placement.model.share import TOOLKIT_KIND, Enforcement, GpuShare, why_unnamed
from vfioctl.sharing.allowing.api import AllowApi
from vfioctl.sharing.enforcing.methods import plan_of, why_not
from vfioctl.sharing.model.enforcement import GpuFacts, SharePlan
from vfioctl.sharing.mps.api import MpsApi
from vfioctl.sharing.mps.daemon import gpus_without_daemon, name_of
from vfioctl.sharing.mps.intents import ACTIVE, INACTIVE
from vfioctl.sharing.mps.probe import state_of
from vfioctl.sharing.mps.told import read_told
from vfioctl.sharing.probe.facts import read_facts
from vfioctl.sharing.serving.gpu_time import GpuTime
from vfioctl.vgpu.api import VgpuApi

if TYPE_CHECKING:
    from collections.abc import Callable

    from vfioctl.claims.model.claim import Claim
    from vfioctl.core.change import Intent, Plan
    from vfioctl.inventory.model.functions import Function, Inventory
    from vfioctl.inventory.model.values import PciAddress
    from vfioctl.placement.model.request import ClaimRequest
    from vfioctl.session import Session
    from vfioctl.sharing.extender.reporting import NodeReport
    from vfioctl.sharing.extender.settings import ExtenderSettings
    from vfioctl.sharing.mps.daemon import Told

_MAKE_CDI = "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"


class SharingApi(GpuTime):
    """GPU sharing on one host."""

    @property
    def allowing(self) -> AllowApi:
        """Which GPUs the processes of a cgroup may open."""
        return AllowApi(self._session)

    @property
    def mps(self) -> MpsApi:
        """The MPS daemons."""
        return MpsApi(self._session)

    def replan(self, intent: Intent) -> Plan:
        """Plan an intent of this subsystem again. Raises what planning raises."""
        return (self.mps if intent.verb.startswith("mps ") else self.allowing).replan(intent)

    def plan(self, names: Sequence[str] = ()) -> SharePlan:
        """Return what can enforce shares of GPUs with a host driver, and what applies to each share. `names`: only
        these GPUs. Raises UnknownDevice, BadAddress, BadSpec for what is no GPU."""
        session, api = self._session, InventoryApi(self._session)
        inventory = api.inventory()
        chosen = api.chosen(inventory, names) if names else [gpu.address for gpu in inventory.gpus if not gpu.is_vf]
        gpus = [inventory.by_address[address] for address in chosen]
        if bad := next((gpu for gpu in gpus if not gpu.is_gpu or gpu.is_vf), None):
            raise BadSpec(f"{bad.address} is no physical GPU", hint="vfioctl inventory lists the GPUs")
        nothing: tuple[Claim, ...] = ()
        claims, problem = session.from_ledger(ClaimsApi(session).claims, nothing)
        host, offers = read_facts(session.kernel), {card.id for card in VgpuApi(session).vgpus().cards}
        told_of, unknown = read_told(session.kernel)
        daemons = {told.gpu: told for told in told_of}
        facts = (self._with_daemon(_facts_of(gpu, inventory, offers), daemons.get(gpu.address)) for gpu in gpus)
        plans = (plan_of(known, host, _shares(claims, gpu)) for known, gpu in zip(facts, gpus, strict=True))
        return SharePlan(tuple(plans), (*([problem] if problem else []), *unknown))

    def _with_daemon(self, gpu: GpuFacts, told: Told | None) -> GpuFacts:
        if told is None:
            return gpu
        state = state_of(self._session.kernel, told.name)
        return replace(gpu, mps=state == ACTIVE, mps_state=state, mps_claim=told.claim)


def node_report(session: Session, node: str, resource: str | None = None) -> NodeReport:
    """Return what this host reports to the extender as an annotation of its node. `resource`: another one than
    aliyun.com/gpu-mem. Raises BadSpec."""
    from vfioctl.sharing.extender.names import MEMORY
    from vfioctl.sharing.extender.reporting import NodeReport

    return NodeReport(session, node, resource or MEMORY)


def serve_extender(settings: ExtenderSettings, *, stop: Callable[[], bool], ready: Callable[[str], None]) -> None:
    """Answer the scheduler of a Kubernetes cluster until `stop` returns true; it needs no host. `ready`: called once
    the extender listens. Raises HostError for an address or a certificate that cannot be used."""
    from vfioctl.sharing.extender.service import ExtenderService

    ExtenderService(settings).run(stop, ready)


def _shares(claims: Sequence[Claim], gpu: Function) -> list[tuple[str, str, GpuShare]]:
    return [(c.id, c.owner, share) for c in reversed(claims) for share in c.shares if share.address == gpu.address]


def _facts_of(gpu: Function, inventory: Inventory, offers: set[str]) -> GpuFacts:
    return GpuFacts(
        address=gpu.address,
        name=inventory.gpu_names.get(gpu.address, ""),
        title=gpu.title,
        driver=gpu.driver or "",
        mig=gpu.nvml.mig_mode if gpu.nvml else None,
        vgpus=gpu.address in offers,
    )


def unfit(session: Session, request: ClaimRequest, inventory: Inventory) -> Mapping[PciAddress, str]:
    """Return why GPUs cannot serve a request for GPUs with their host driver: nothing enforces what it asks for, or
    nothing hands a whole GPU to containers."""
    gpus = [gpu for gpu in inventory.gpus if not gpu.is_vf and gpu.driver]
    if request.is_share and request.enforce:
        host, wanted = read_facts(session.kernel), Enforcement(request.enforce)
        offers = {card.id for card in VgpuApi(session).vgpus().cards} if wanted is Enforcement.VGPU else set()
        reasons = {gpu.address: why_not(_facts_of(gpu, inventory, offers), host, wanted) for gpu in gpus}
        return {gpu: why for gpu, why in reasons.items() if why}
    if request.is_share:
        return {}
    known = ContainersApi(session).cdi.names_of(TOOLKIT_KIND)
    return {gpu.address: _unnamed(gpu) for gpu in gpus if gpu.driver == "nvidia" and _uuid_of(gpu) not in known}


def client_edits(session: Session, claim: Claim) -> tuple[Mapping[str, str], tuple[str, ...]]:
    """Return the environment and the mounts of a client with this claim's share, if an MPS daemon serves its GPU; none
    of either if none does: nothing enforces the share then. Raises HostError for a daemon that has died or is not
    known, and without one if MPS is to enforce the share."""
    from vfioctl.sharing.mps import share as mps
    from vfioctl.sharing.mps.ledger import mps_shares
    from vfioctl.sharing.mps.plan import refuse_unknown_file

    daemons, unknown = read_told(session.kernel)
    shares = mps_shares(claim)
    pairs = ((share, told) for share in shares for told in daemons if told.serves(share.gpu, claim.id))
    share, told = next(pairs, (None, None))
    if share is None or told is None:
        for lacking in shares:
            refuse_unknown_file(name_of(lacking.gpu), unknown)
            refuse_unknown_file(name_of(lacking.gpu, claim.id), unknown)
        _refuse_unserved(claim, daemons)
        return {}, ()
    _refuse_dead(session, told)
    edits = mps.client_edits(share, told.name)
    return edits.environment, tuple(mount.path for mount in edits.mounts)


def _refuse_unserved(claim: Claim, daemons: Sequence[Told]) -> None:
    if gpu := next(gpus_without_daemon(claim, daemons), None):
        raise HostError(
            f"no MPS daemon serves {gpu}, and MPS is to enforce the share of claim {claim.id}",
            hint="start one",
            next_command=f"vfioctl mps start {gpu}",
        )


def _refuse_dead(session: Session, told: Told) -> None:
    """A client would have the GPU for itself, without a limit. One of a daemon that is only slow waits for it."""
    if state_of(session.kernel, told.name) == INACTIVE:
        raise HostError(
            f"the MPS daemon of {told.gpu} has died: nothing enforces shares of the GPU",
            hint=f"journalctl -u {told.unit} says why",
            next_command=f"vfioctl mps apply {told.gpu}",
        )


def _uuid_of(gpu: Function) -> str:
    return (gpu.nvml.uuid if gpu.nvml else None) or ""


def _unnamed(gpu: Function) -> str:
    return why_unnamed(gpu) or f"no CDI file names it for containers: {_MAKE_CDI}"
