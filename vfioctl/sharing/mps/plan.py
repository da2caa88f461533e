"""Plans MPS daemons: start, stop, and apply what they are to be. May not do input or output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from vfioctl.core.change import Change, Draft, Fact
from vfioctl.errors import BadSpec, ClaimConflict, DeviceInUse, HostError, VfioctlError
from vfioctl.inventory.model.functions import Function, Inventory
from vfioctl.inventory.model.preconditions import refuse_marked
from vfioctl.inventory.model.scope import function_fact, named
from vfioctl.placement.model.share import Enforcement
from vfioctl.sharing.mps.daemon import EXCLUSIVE, Told, file_of, is_uuid, name_of, unit_of
from vfioctl.sharing.mps.intents import (
    ACTIVE,
    DAEMON,
    ENVIRONMENT,
    INACTIVE,
    LIMIT,
    MODE,
    SILENT,
    UNKNOWN,
    MpsApplyIntent,
    MpsStartIntent,
    MpsStopIntent,
)
from vfioctl.sharing.mps.share import DIFFERS, MEMORY, THREADS, Limits, checked_limits
from vfioctl.sharing.mps.status import SYSTEMD_SILENT, Daemon, differences, wanted_limits

if TYPE_CHECKING:
    from vfioctl.claims.model.claim import Claim
    from vfioctl.inventory.model.values import PciAddress

NO_LIMITS = ("", "")
_USED_WITHOUT = "a program that uses {} without MPS keeps the server from starting until it ends"
_NOT_ENFORCED = "a client that drops its environment gets the daemon's limits, not its claim's"


def plan_start(inventory: Inventory, intent: MpsStartIntent, limits: Limits, daemons: Sequence[Daemon]) -> Draft:
    """Plan a daemon for one GPU with these limits. `daemons`: those that there are.

    Raises BadSpec, HostError, DeviceDead, ClaimConflict; DeviceInUse if another daemon has the GPU."""
    gpu = inventory.by_address[intent.devices[0]]
    uuid, mode = _usable(inventory, gpu, intent.claim)
    told = Told(name_of(gpu.address, intent.claim), gpu.address, uuid, mode, limits)
    for daemon in daemons:
        if daemon.told.gpu == gpu.address or daemon.told.name == told.name:
            return _started(intent, gpu, daemon, told)
    changes = (
        Change(kind=ENVIRONMENT, name=told.file, subject=gpu.address, before="", after=told.text),
        *_mode_change(gpu, mode, EXCLUSIVE),
        Change(kind=DAEMON, name=told.name, subject=gpu.address, before=INACTIVE, after=ACTIVE),
        *_limit_changes(told, NO_LIMITS, limits),
    )
    notes = (_USED_WITHOUT.format(gpu.address), *([_NOT_ENFORCED] if limits != Limits() else []))
    return Draft(intent, facts=(function_fact(gpu),), changes=changes, notes=notes)


def refuse_claims(gpu: PciAddress, whose: str, claims: Sequence[Claim]) -> None:
    """Raise BadSpec, ClaimConflict if a daemon would be of no use to a claim. `claims`: the live ones on the GPU.
    `whose`: the claim that it is for; empty for all."""
    if whose and whose not in {claim.id for claim in claims}:
        show = f"vfioctl claim show {whose}"
        raise BadSpec(f"claim {whose} has no part of {gpu} now", hint="name its GPU", next_command=show)
    for claim in claims:
        if claim.id == whose and len(claim.shares) > 1:
            raise BadSpec(
                f"claim {whose} has several GPUs, and a daemon for it alone would hide all but {gpu} from its programs",
                hint="leave out --claim: a daemon for all claims serves it",
            )
        why = ""
        if whose and claim.id != whose:
            why = f"has a part of {gpu} too, and could not use it beside a daemon for claim {whose} alone"
        elif any(share.address == gpu and share.enforce == Enforcement.NONE for share in claim.shares):
            why = f"was made with --enforce none, and MPS limits each client of {gpu}"
        if why:
            show, hint = f"vfioctl claim show {claim.id}", "release it first, or choose another GPU"
            raise ClaimConflict(f"claim {claim.id} of {claim.owner} {why}", hint=hint, next_command=show)


def refuse_unknown_file(name: str, unknown: Sequence[str]) -> None:
    """Raise HostError if what a daemon was told is not known. `unknown`: each file, and why."""
    for why in unknown:
        if why.startswith(f"{file_of(name)} "):
            raise HostError(
                f"whether there is an MPS daemon is not known: {why}",
                hint=f"systemctl stop {unit_of(name)}, and remove the file; nvidia-smi -c sets the compute mode",
            )


def _started(intent: MpsStartIntent, gpu: Function, daemon: Daemon, wanted: Told) -> Draft:
    """Return the empty plan if the daemon is there already. Raises DeviceInUse if it is another, or was told else."""
    now = daemon.told
    if (now.name, now.gpu) != (wanted.name, wanted.gpu):
        whose = f"for claim {now.claim}" if now.claim else "for all claims"
        raise DeviceInUse(
            f"{now.gpu} has an MPS daemon already, {whose}",
            hint="a GPU has one: in the mode Exclusive_Process only one server can use it",
            next_command=f"vfioctl mps stop {now.gpu}",
        )
    _refuse_unknown(daemon)
    if daemon.state != ACTIVE or now.limits != wanted.limits:
        why = f"was told {now.limits.words}" if daemon.state == ACTIVE else f"is {daemon.state}"
        raise DeviceInUse(
            f"the MPS daemon of {now.gpu} was started before, and {why}",
            hint="apply starts it again, and sets other limits",
            next_command=f"vfioctl mps apply {now.gpu}",
        )
    if differing := next(differences(daemon), None):
        raise DeviceInUse(
            f"the MPS daemon of {now.gpu} was started before, and is not as it should be: {differing.words}",
            hint="vfioctl mps status shows all that differs",
            next_command=differing.remedy,
        )
    return Draft(intent, facts=(function_fact(gpu),))


def _usable(inventory: Inventory, gpu: Function, claim: str) -> tuple[str, str]:
    """Return NVML's UUID of a GPU and its compute mode. Raises the reason why it cannot be shared by MPS."""
    refuse_marked(gpu)
    reservation = inventory.reserved.get(gpu.address)
    if reservation and not reservation.shared and reservation.claim != claim:
        raise reservation.conflict()
    if not gpu.is_gpu or gpu.is_vf:
        raise BadSpec(f"{named(gpu)} is no physical GPU", hint="MPS shares a whole GPU of NVIDIA's")
    if gpu.on_vfio:
        raise HostError(
            f"{named(gpu)} is bound for guests: no program of this host can use it",
            hint="MPS needs NVIDIA's driver on the host",
            next_command=f"vfioctl unbind {gpu.address}",
        )
    if gpu.driver != "nvidia":
        raise HostError(f"{named(gpu)} is not on NVIDIA's driver", hint="MPS is a part of it")
    if gpu.nvml is None or not is_uuid(gpu.nvml.uuid) or gpu.nvml.compute_mode is None:
        why = gpu.unknown.get("nvml", "NVML does not report its UUID and compute mode")
        raise HostError(f"{named(gpu)} cannot be shared by MPS: {why}", hint="vfioctl doctor says more")
    if gpu.nvml.mig_mode:
        raise HostError(
            f"{named(gpu)} is in MIG mode: vfioctl does not use MPS with MIG",
            hint="MIG divides the GPU already; nvidia-smi -mig 0 switches it off",
        )
    return str(gpu.nvml.uuid), gpu.nvml.compute_mode


def plan_stop(inventory: Inventory, intent: MpsStopIntent, daemons: Sequence[Daemon]) -> Draft:
    """Plan the end of these daemons.

    Raises HostError; DeviceInUse for one that has clients, unless the intent forces it."""
    changes: list[Change] = []
    notes: list[str] = []
    for daemon in daemons:
        _refuse_unknown(daemon)
        told, gpu = daemon.told, inventory.by_address.get(daemon.told.gpu)
        if not intent.force:
            _refuse_clients(daemon)
            _refuse_unknown_mode(daemon)
        if daemon.state != INACTIVE:
            changes.append(Change(kind=DAEMON, name=told.name, subject=told.gpu, before=daemon.state, after=INACTIVE))
        if daemon.state == ACTIVE:
            changes += _ended_limits(told, _reported(daemon))
        if gpu and daemon.compute_mode == EXCLUSIVE:
            changes += _mode_change(gpu, EXCLUSIVE, told.mode_before)
        else:
            notes.append(f"the compute mode of {told.gpu} is left as it is: {daemon.compute_mode or 'it is unknown'}")
        changes.append(Change(kind=ENVIRONMENT, name=told.file, subject=told.gpu, before=told.text, after=""))
        if parts := [share.claim for share in daemon.shares if not share.is_whole]:
            notes.append(f"nothing enforces the shares of {told.gpu} after it: those of claims {', '.join(parts)}")
    return Draft(intent, changes=tuple(changes), notes=tuple(notes))


def _refuse_clients(daemon: Daemon) -> None:
    gpu, clients = daemon.told.gpu, daemon.clients
    if clients is None:
        raise DeviceInUse(
            f"the clients of the MPS daemon of {gpu} are not known: it does not answer as it should",
            hint="they lose the GPU with it: try again, or --force",
            next_command=f"vfioctl mps status {gpu}",
        )
    if clients:
        raise DeviceInUse(
            f"the MPS daemon of {gpu} has clients: processes {', '.join(str(c.pid) for c in clients[:8])}",
            hint="they lose the GPU with it: end them first, or --force",
            next_command=f"vfioctl mps status {gpu}",
        )


def _refuse_unknown_mode(daemon: Daemon) -> None:
    """Only the daemon's file says which mode there was before, and it goes with the daemon."""
    if daemon.compute_mode is None and not daemon.gone_to:
        raise HostError(
            f"NVML does not report the compute mode of {daemon.told.gpu}, which was {daemon.told.mode_before} before",
            hint="try again; vfioctl doctor says more; --force leaves the mode as it is",
        )


def plan_apply(inventory: Inventory, intent: MpsApplyIntent, daemons: Sequence[Daemon]) -> Draft:
    """Plan what brings daemons to the limits wanted of each.

    Raises BadSpec; HostError for what MPS cannot use, and DeviceInUse for a daemon that does not answer, unless the
    intent forces it to be started again; not if the intent skips such daemons, of which a note says why."""
    checked_limits(intent.threads, intent.memory)
    changes, facts, notes = list[Change](), list[Fact](), list[str]()
    for daemon in daemons:
        gpu = inventory.by_address.get(daemon.told.gpu)
        try:
            changes += _applied(gpu, inventory, daemon, intent)
        except VfioctlError as error:
            if not intent.skip:
                raise
            notes.append(f"the MPS daemon of {daemon.told.gpu} is left as it is: {error.message}")
        else:
            facts += [function_fact(gpu)] if gpu else []
    return Draft(intent, facts=tuple(facts), changes=tuple(changes), notes=tuple(notes))


def _applied(gpu: Function | None, inventory: Inventory, daemon: Daemon, intent: MpsApplyIntent) -> tuple[Change, ...]:
    told = daemon.told
    if gpu is None:
        raise HostError(f"{told.gpu} is gone", next_command=f"vfioctl mps stop {told.gpu}")
    if daemon.is_orphan:
        why = f"claim {told.claim}, which alone it is for, has ended"
        raise HostError(why, hint="end the daemon", next_command=f"vfioctl mps stop {told.gpu}")
    if daemon.state == SILENT and not intent.force:
        _refuse_clients(daemon)
    _refuse_unknown(daemon)
    _, mode = _usable(inventory, gpu, told.claim)
    limits = _wanted(daemon, intent)
    if told.limits.memory is not None and limits.memory is None:
        raise HostError(
            f"the limit of memory of {told.gpu} is to be all of it, and NVML does not report how much it has",
            hint="try again; vfioctl doctor says more",
        )
    new = Told(told.name, told.gpu, told.uuid, told.mode_before, limits)
    environment = Change(kind=ENVIRONMENT, name=told.file, subject=told.gpu, before=told.text, after=new.text)
    started = Change(kind=DAEMON, name=told.name, subject=told.gpu, before=daemon.state, after=ACTIVE)
    return (
        *((environment,) if new.text != told.text else ()),
        *_mode_change(gpu, mode, EXCLUSIVE),
        *((started,) if daemon.state != ACTIVE else ()),
        *_limit_changes(told, _reported(daemon), limits),
    )


def _wanted(daemon: Daemon, intent: MpsApplyIntent) -> Limits:
    known = wanted_limits(daemon)
    threads = known.threads if intent.threads is None else intent.threads
    return checked_limits(threads, known.memory if intent.memory is None else intent.memory)


def _refuse_unknown(daemon: Daemon) -> None:
    if daemon.state == UNKNOWN:
        raise HostError(
            f"the MPS daemon of {daemon.told.gpu}: {SYSTEMD_SILENT}",
            hint=f"try again; systemctl status {daemon.told.unit} says more",
        )


def _mode_change(gpu: Function, before: str, after: str) -> Iterator[Change]:
    if before != after:
        yield Change(kind=MODE, name=gpu.address, subject=gpu.address, before=before, after=after)


def _limit_changes(told: Told, before: tuple[str, str], after: Limits) -> Iterator[Change]:
    """Yield the changes of limits that are wanted."""
    for what, now, limit in zip((THREADS, MEMORY), before, (after.threads, after.memory), strict=True):
        if limit is not None and now != str(limit):
            yield _limit(told, what, now, str(limit))


def _ended_limits(told: Told, before: tuple[str, str]) -> Iterator[Change]:
    """Yield the limits that end with the daemon: a rollback, which starts it again, sets them again."""
    for what, now, limit in zip((THREADS, MEMORY), before, (told.limits.threads, told.limits.memory), strict=True):
        if limit is not None and now:
            yield _limit(told, what, now, "")


def _limit(told: Told, what: str, before: str, after: str) -> Change:
    return Change(kind=LIMIT, name=f"{told.name}/{what}", subject=told.gpu, before=before, after=after)


def _reported(daemon: Daemon) -> tuple[str, str]:
    """Return the limits of threads and memory as the resource reads them: of the default and all servers."""
    every = (daemon.limits, *(server.limits for server in daemon.servers))
    kinds = ({limits.threads for limits in every}, {limits.memory for limits in every})
    threads, memory = (DIFFERS if len(found) > 1 else str(*(limit or "" for limit in found)) for found in kinds)
    return threads, memory
