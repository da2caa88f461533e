"""The use cases of MPS: start, stop, apply, status, what clients need. Writes to the host only through a plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from vfioctl.claims.api import ClaimsApi
from vfioctl.errors import BadSpec, DeviceInUse, HostError, Stuck, UnknownDevice
from vfioctl.inventory.api import InventoryApi
from vfioctl.inventory.model.values import PciAddress
from vfioctl.sharing.mps.ledger import shares_of

if TYPE_CHECKING:
    from vfioctl.claims.model.claim import Claim
    from vfioctl.core.change import Draft, Intent, Plan
    from vfioctl.inventory.model.functions import Inventory
    from vfioctl.session import Session
    from vfioctl.sharing.mps.daemon import Told
    from vfioctl.sharing.mps.intents import MpsApplyIntent, MpsStartIntent, MpsStopIntent
    from vfioctl.sharing.mps.share import ClientEdits, MpsShare
    from vfioctl.sharing.mps.status import Daemon, MpsStatus

Shares = Callable[["Session"], Sequence["MpsShare"]]


class MpsApi:
    """The MPS daemons of one host. `shares`: reads the ledger's shares of GPUs."""

    def __init__(self, session: Session, shares: Shares = shares_of) -> None:
        self._session, self._kernel, self._shares = session, session.kernel, shares
        self._devices, self._claims = InventoryApi(session), ClaimsApi(session)

    def plan_start(
        self, device: str, *, claim: str = "", threads: int | None = None, memory: int | None = None
    ) -> Plan:
        """Plan a daemon for one GPU, named as for `InventoryApi.find`. `claim`: its id, for a daemon of this claim
        only. `threads`: percent, `memory`: bytes, for each client; without both, the largest of the ledger's shares.

        Raises UnknownDevice, BadSpec, HostError, DeviceInUse, ClaimConflict."""
        from vfioctl.sharing.mps.intents import MpsStartIntent

        whose = self._claim(claim) if claim else ""
        inventory = self._devices.inventory()
        (gpu,) = self._devices.chosen(inventory, [device])
        return self._start(inventory, MpsStartIntent(devices=(gpu,), claim=whose, threads=threads, memory=memory))

    def plan_stop(self, devices: Sequence[str] = (), *, force: bool = False) -> Plan:
        """Plan the end of the daemons of these GPUs, or of all. `force`: although they have clients.

        Raises UnknownDevice, also for a GPU without a daemon; DeviceInUse."""
        from vfioctl.sharing.mps.intents import MpsStopIntent

        inventory, gpus = self._asked(devices)
        return self._stop(inventory, MpsStopIntent(devices=gpus, force=force))

    def plan_apply(
        self,
        devices: Sequence[str] = (),
        *,
        threads: int | None = None,
        memory: int | None = None,
        force: bool = False,
    ) -> Plan:
        """Plan what brings the daemons of these GPUs, or all, to the limits given, to the ledger's shares, or else to
        what they were told; see `plan_start`. A daemon that has died is started again; `force`: also one that
        does not answer. Of all, those that cannot be corrected are left alone, and
        notes say why.

        Raises UnknownDevice, BadSpec, HostError, DeviceInUse, ClaimConflict."""
        from vfioctl.sharing.mps.intents import MpsApplyIntent

        inventory, gpus = self._asked(devices)
        return self._apply(
            inventory, MpsApplyIntent(devices=gpus, threads=threads, memory=memory, skip=not devices, force=force)
        )

    def replan(self, intent: Intent) -> Plan:
        """Plan an intent on the host as it is now. Raises BadSpec, and what planning raises."""
        from vfioctl.sharing.mps.intents import MpsApplyIntent, MpsStartIntent, MpsStopIntent

        inventory = self._devices.inventory()
        if isinstance(intent, MpsStartIntent):
            return self._start(inventory, intent)
        if isinstance(intent, MpsStopIntent):
            return self._stop(inventory, intent)
        if isinstance(intent, MpsApplyIntent):
            return self._apply(inventory, intent)
        raise BadSpec(f"{intent.title()}: this plan is not of MPS")

    def status(self, devices: Sequence[str] = ()) -> MpsStatus:
        """Return the daemons of these GPUs, or all, as they are now, and where they differ from what they are to be.

        Raises UnknownDevice, StoreDamaged."""
        from vfioctl.sharing.mps.status import MpsStatus, differences, unserved
        from vfioctl.sharing.mps.told import read_told

        inventory = self._devices.inventory()
        chosen = self._devices.chosen(inventory, devices) if devices else ()
        (known, unknown), claims = read_told(self._kernel), self._claims.claims()
        daemons = tuple(self._daemons(inventory, [t for t in known if not devices or t.gpu in chosen], claims))
        without = unserved(claims, known, chosen)
        differing = tuple(difference for daemon in daemons for difference in differences(daemon))
        problems = tuple(f"{daemon.told.name}: {daemon.problem}" for daemon in daemons if daemon.problem)
        return MpsStatus(daemons, (*differing, *without), (*unknown, *problems))

    def protocol(self) -> int:
        """Return the newest protocol that this host's control program knows, 2 or 3: by the options in its usage.

        Raises HostError without the program."""
        from vfioctl.sharing.mps.answers import speaks_v3

        return 3 if speaks_v3(self._kernel.mps_usage()) else 2

    def known_protocol(self) -> int | None:
        """Return the same; None if the host does not say."""
        try:
            return self.protocol()
        except (HostError, Stuck):
            return None

    def share(self, claim: str) -> MpsShare:
        """Return the share of a claim: of several GPUs, that of the one with a daemon. `claim`: its id, or how it
        begins. Raises UnknownDevice if it has none, BadSpec."""
        from vfioctl.sharing.mps.told import read_told

        claim = self._claim(claim)
        found = [share for share in self._shares(self._session) if share.claim == claim]
        if not found:
            what = f"claim {claim} has no share of a GPU that MPS may enforce"
            raise UnknownDevice(what, next_command=f"vfioctl claim show {claim}")
        daemons, _ = read_told(self._kernel)
        served = (share for share in found if any(told.serves(share.gpu, claim) for told in daemons))
        return next(served, found[0])

    def made_up_share(self, claim: str, device: str, *, threads: int, memory: int = 0) -> MpsShare:
        """Return a share that is not in the ledger. Raises UnknownDevice."""
        from vfioctl.sharing.mps.share import MpsShare

        (gpu,) = self._devices.find([device])
        return MpsShare(claim, "", gpu, threads, memory)

    def edits(self, share: MpsShare, *, priority: int | None = None) -> ClientEdits:
        """Return the environment and mounts of a client with this share, also of a GPU without a daemon.

        Raises BadSpec; DeviceInUse if the GPU's daemon is for another claim."""
        from vfioctl.sharing.mps.daemon import name_of
        from vfioctl.sharing.mps.share import client_edits
        from vfioctl.sharing.mps.told import read_told

        daemons = [told for told in read_told(self._kernel)[0] if told.gpu == share.gpu]
        name = next((told.name for told in daemons if told.serves(share.gpu, share.claim)), "")
        if daemons and not name:
            raise DeviceInUse(
                f"the MPS daemon of {share.gpu} is for claim {daemons[0].claim} alone",
                hint="no other program can use the GPU meanwhile",
                next_command=f"vfioctl mps stop {share.gpu}",
            )
        return client_edits(share, name or name_of(share.gpu), priority=priority)

    def config(self, device: str) -> str:
        """Return the configuration of MPS v3 for the shares of a GPU. Raises HostError, UnknownDevice, BadSpec."""
        from vfioctl.sharing.mps.config import v3_config

        inventory = self._devices.inventory()
        (gpu,) = self._devices.chosen(inventory, [device])
        nvml = inventory.by_address[gpu].nvml
        if nvml is None or not nvml.uuid:
            raise HostError(f"NVML does not report the UUID of {gpu}", hint="vfioctl doctor says more")
        return v3_config(nvml.uuid, [share for share in self._shares(self._session) if share.gpu == gpu])

    def _start(self, inventory: Inventory, intent: MpsStartIntent) -> Plan:
        from vfioctl.sharing.mps.daemon import name_of, unit_of
        from vfioctl.sharing.mps.plan import plan_start, refuse_claims, refuse_unknown_file
        from vfioctl.sharing.mps.share import checked_limits, daemon_limits
        from vfioctl.sharing.mps.told import read_told

        gpu = intent.devices[0]
        if gpu not in inventory.by_address:
            raise UnknownDevice(f"{gpu} is not there", next_command="vfioctl inventory")
        (known, unknown), claims = read_told(self._kernel), self._claims.claims()
        refuse_claims(gpu, intent.claim, [claim for claim in claims if gpu in claim.gpu_addresses])
        limits = checked_limits(intent.threads, intent.memory)
        if (intent.threads, intent.memory) == (None, None):
            shares = self._shares(self._session)
            limits = daemon_limits(s for s in shares if s.gpu == gpu and intent.claim in ("", s.claim))
        refuse_unknown_file(name_of(gpu, intent.claim), unknown)
        draft = plan_start(inventory, intent, limits, self._daemons(inventory, known, claims))
        if draft.changes:
            self._kernel.mps_usage()
            unit = unit_of(name_of(gpu, intent.claim))
            if unit not in self._kernel.unit_states([unit]):
                why = "systemd does not know the unit vfioctl-mps@.service, or does not answer"
                raise HostError(why, hint="the unit keeps the daemon running", next_command="vfioctl install")
        return self._plan(draft)

    def _stop(self, inventory: Inventory, intent: MpsStopIntent) -> Plan:
        from vfioctl.sharing.mps.plan import plan_stop

        return self._plan(plan_stop(inventory, intent, self._daemons_of(inventory, intent.devices)))

    def _apply(self, inventory: Inventory, intent: MpsApplyIntent) -> Plan:
        from vfioctl.sharing.mps.plan import plan_apply

        return self._plan(plan_apply(inventory, intent, self._daemons_of(inventory, intent.devices)))

    def _plan(self, draft: Draft) -> Plan:
        """A part of the GPU may be reserved: those who have it are the daemon's clients. Whole GPUs were checked."""
        return self._session.registry.plan(draft)

    def _daemons_of(self, inventory: Inventory, gpus: Sequence[PciAddress]) -> list[Daemon]:
        from vfioctl.sharing.mps.told import read_told

        known = [told for told in read_told(self._kernel)[0] if told.gpu in gpus]
        return self._daemons(inventory, known, self._claims.claims())

    def _daemons(self, inventory: Inventory, known: Sequence[Told], claims: Sequence[Claim]) -> list[Daemon]:
        from vfioctl.sharing.mps.reading import read_daemon

        shares, live = self._shares(self._session), {claim.id for claim in claims}
        return [read_daemon(self._kernel, told, inventory.by_address.get(told.gpu), shares, live) for told in known]

    def _asked(self, devices: Sequence[str]) -> tuple[Inventory, tuple[PciAddress, ...]]:
        """Return the GPUs whose daemons are meant. Raises UnknownDevice for one without a daemon."""
        from vfioctl.sharing.mps.told import read_told

        inventory = self._devices.inventory()
        known = tuple(dict.fromkeys(told.gpu for told in read_told(self._kernel)[0]))
        chosen = self._gpus(inventory, devices, known) if devices else known
        for gpu in chosen:
            if gpu not in known:
                raise UnknownDevice(f"{gpu} has no MPS daemon", next_command=f"vfioctl mps start {gpu}")
        return inventory, chosen

    def _gpus(
        self, inventory: Inventory, devices: Sequence[str], known: Sequence[PciAddress]
    ) -> tuple[PciAddress, ...]:
        """Return the GPUs that these words mean; one that is gone by its address, too: its daemon can be stopped."""
        if set(devices) <= set(known):
            return tuple(map(PciAddress, devices))
        return self._devices.chosen(inventory, devices)

    def _claim(self, name: str) -> str:
        """Return the whole id of a claim. Raises BadSpec, UnknownDevice."""
        return self._claims.claim(name).id


def suggest_daemons(session: Session, _begun: str) -> list[tuple[str, str]]:
    """Return the GPUs that have a daemon, each with what it allows its clients."""
    from vfioctl.sharing.mps.told import read_told

    return [(str(told.gpu), told.limits.words) for told in read_told(session.kernel)[0]]
