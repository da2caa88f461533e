"""What MPS daemons are and do now, and where that differs from what they were told. May not do input or output."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from vfioctl.core.frozen import value_class
from vfioctl.placement.model.share import WHOLE
from vfioctl.sharing.mps.daemon import EXCLUSIVE, Told, gpus_without_daemon, name_of
from vfioctl.sharing.mps.intents import ACTIVE, INACTIVE, SILENT
from vfioctl.sharing.mps.share import ClientEdits, Limits, MpsShare, daemon_limits

if TYPE_CHECKING:
    from vfioctl.claims.model.claim import Claim
    from vfioctl.inventory.model.values import PciAddress

SYSTEMD_SILENT = "systemd does not say whether it runs"


@value_class
class Client:
    """A process that uses the GPU through a server."""

    pid: int
    claim: str
    """by its environment as it was started, if the ledger knows the claim; empty otherwise"""
    limits: Limits
    """by the same environment; the server's own count as well"""


@value_class
class Server:
    """An MPS server, which runs as the user of its clients."""

    pid: int
    status: str
    """as the daemon has it: ACTIVE, FAULT, ...; `unknown` for no sensible answer"""
    limits: Limits
    clients: tuple[Client, ...] | None
    """None if the daemon does not list them"""


@value_class
class Daemon:
    """A control daemon that vfioctl has started."""

    told: Told
    state: str
    """active, inactive (it died), silent (it does not answer), or unknown (systemd does not answer)"""
    problem: str
    """why something of it is unknown; empty if nothing is"""
    compute_mode: str | None
    """of its GPU now; None if NVML does not say"""
    limits: Limits
    """the defaults, as the daemon reports them"""
    servers: tuple[Server, ...]
    shares: tuple[MpsShare, ...]
    """the ledger's, of this GPU"""
    memory: int | None = None
    """bytes of its GPU's memory, whole MiB; None if NVML does not say"""
    gone_to: str = ""
    """what its GPU is with in the place of NVIDIA's driver; empty if it is with that"""
    is_orphan: bool = False
    """whether it is for one claim, which has ended"""

    @property
    def clients(self) -> tuple[Client, ...] | None:
        """The clients of all servers; None if some are not known. A daemon that died has none."""
        lists = [server.clients for server in self.servers]
        if self.state == INACTIVE:
            return ()
        if self.state != ACTIVE or self.problem or None in lists:
            return None
        return tuple(client for clients in lists for client in clients or ())


@value_class
class MpsDifference:
    """One difference between what a daemon was told, or the ledger says, and what is. `remedy`: a command."""

    daemon: str
    words: str
    remedy: str


@value_class
class MpsStatus:
    """The daemons of a host, and the differences."""

    daemons: tuple[Daemon, ...]
    differences: tuple[MpsDifference, ...]
    unknown: tuple[str, ...] = ()
    """what could not be read, and why"""


def wanted_limits(daemon: Daemon) -> Limits:
    """Return the limits that a daemon is to have: those of the ledger's shares, and where these say nothing, as for a
    whole GPU, those that it was told. One that is not wanted any more becomes the most that the GPU has, as MPS has no
    command that takes it away. Raises BadSpec for shares that no GPU has."""
    parts, told = [share for share in daemon.shares if not share.is_whole], daemon.told.limits
    if not parts:
        return told
    wanted = daemon_limits(parts)
    threads = WHOLE if wanted.threads is None and told.threads is not None else wanted.threads
    return Limits(threads, daemon.memory if wanted.memory is None and told.memory is not None else wanted.memory)


def differences(daemon: Daemon) -> Iterator[MpsDifference]:
    """Yield where a daemon differs from what it is to be."""
    told = daemon.told
    apply = f"vfioctl mps apply {told.gpu}"

    def difference(words: str, remedy: str = apply) -> MpsDifference:
        return MpsDifference(told.name, words, remedy)

    if daemon.gone_to:
        words = f"{told.gpu} is {daemon.gone_to}, and not with NVIDIA's driver: the daemon is of no use"
        yield difference(words, f"vfioctl mps stop {told.gpu}")
        return
    if daemon.is_orphan:
        yield difference(f"claim {told.claim}, which alone it is for, has ended", f"vfioctl mps stop {told.gpu}")
        return
    if daemon.state == SILENT:
        yield difference("the daemon does not answer", f"{apply} --force")
    if daemon.state == INACTIVE:
        yield difference("the daemon has died: it was started, and does not run")
    if daemon.compute_mode not in (EXCLUSIVE, None):
        yield difference(f"the compute mode of {told.gpu} is {daemon.compute_mode}, and should be {EXCLUSIVE}")
    if daemon.state == ACTIVE and not daemon.problem:
        wanted = wanted_limits(daemon)
        yield from (difference(f"the default {words}") for words in _lacking(daemon.limits, wanted))
        for server in daemon.servers:
            yield from (difference(f"server {server.pid}: {words}") for words in _lacking(server.limits, wanted))
            if server.status == "FAULT":
                yield difference(f"server {server.pid} is in FAULT: a client made a fatal error", "vfioctl mps status")
            yield from (difference(words, again) for words, again in _clients(server, daemon.shares))


def unserved(claims: Sequence[Claim], daemons: Sequence[Told], gpus: Collection[PciAddress]) -> Iterator[MpsDifference]:
    """Yield shares that MPS is to enforce and that no daemon serves, as after a reboot. `gpus`: of these; empty for all
    GPUs."""
    for claim in claims:
        for gpu in gpus_without_daemon(claim, daemons):
            if not gpus or gpu in gpus:
                words = f"no daemon enforces the share of claim {claim.id} on {gpu}"
                yield MpsDifference(name_of(gpu), words, f"vfioctl mps start {gpu}")


def _lacking(found: Limits, wanted: Limits) -> Iterator[str]:
    if wanted.threads is not None and found.threads != wanted.threads:
        is_now = "no percentage" if found.threads is None else f"{found.threads} %"
        yield f"limit of threads is {is_now}, and should be {wanted.threads} %"
    if wanted.memory is not None and found.memory != wanted.memory:
        is_now = "none" if found.memory is None else Limits(memory=found.memory).words
        yield f"limit of memory is {is_now}, and should be {Limits(memory=wanted.memory).words}"


def _clients(server: Server, shares: Sequence[MpsShare]) -> Iterator[tuple[str, str]]:
    """Yield clients that were started with other limits than their claim has, and what to do."""
    by_claim = {share.claim: share for share in shares if not share.is_whole}
    for client in server.clients or ():
        share = by_claim.get(client.claim)
        if share and client.limits != (wanted := Limits(share.cores or None, share.memory or None)):
            words = f"client {client.pid} of claim {client.claim} has {client.limits.words}, not {wanted.words}"
            yield words, f"vfioctl mps env {client.claim}"


def status_document(
    status: MpsStatus,
    protocol: int | None,
    edits: Callable[[MpsShare], ClientEdits],
    on_this_host: Callable[[str], str],
) -> dict[str, object]:
    """Return the JSON document of a status. `edits`: of a client with a share."""
    return {
        "protocol": protocol,
        "daemons": [_daemon_document(daemon, edits) for daemon in status.daemons],
        "differences": [
            asdict(difference) | {"remedy": on_this_host(difference.remedy)} for difference in status.differences
        ],
        "unknown": list(status.unknown),
    }


def _daemon_document(daemon: Daemon, edits: Callable[[MpsShare], ClientEdits]) -> dict[str, object]:
    told = daemon.told
    return {
        "name": told.name,
        "gpu": told.gpu,
        "uuid": told.uuid,
        "claim": told.claim or None,
        "state": daemon.state,
        "problem": daemon.problem,
        "compute_mode": daemon.compute_mode,
        "compute_mode_before": told.mode_before,
        "pipes": told.pipes,
        "unit": told.unit,
        "told": asdict(told.limits),
        "limits": asdict(daemon.limits),
        "servers": [asdict(server) for server in daemon.servers],
        "shares": [asdict(share) | asdict(edits(share)) for share in daemon.shares],
    }
