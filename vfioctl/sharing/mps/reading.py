"""Reads the MPS daemons of a host: their files, units, answers and clients. May not change anything.

Answers and the environment of clients are others' text. One daemon that is silent costs its own facts only."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from vfioctl.errors import HostError, Stuck, VfioctlError
from vfioctl.inventory.model.functions import Function
from vfioctl.kernel.protocol import Reader
from vfioctl.sharing.mps import limits
from vfioctl.sharing.mps.answers import percent_in, pids_in, size_in, status_in
from vfioctl.sharing.mps.daemon import Told
from vfioctl.sharing.mps.intents import ACTIVE, UNKNOWN
from vfioctl.sharing.mps.probe import ask, state_of
from vfioctl.sharing.mps.share import CLAIM_VARIABLE, MEMORY, MIB, THREADS, Limits, MpsShare
from vfioctl.sharing.mps.status import SYSTEMD_SILENT, Client, Daemon, Server

_NOTHING = Limits()
_VARIABLE = re.compile(r"([A-Z_]{1,60})=([^\0]{0,100})", re.ASCII)
_MOST_CLIENTS = 64


def read_daemon(
    reader: Reader, told: Told, function: Function | None, shares: Sequence[MpsShare], live: Collection[str]
) -> Daemon:
    """Return one daemon as it is now. `function`: its GPU, if it is still there. `live`: the ids of live claims."""
    state = state_of(reader, told.name)
    nvml = function.nvml if function else None
    mode, memory = (nvml.compute_mode, nvml.memory_bytes) if nvml else (None, None)
    own = tuple(share for share in shares if told.serves(share.gpu, share.claim))
    found, problem = _NOTHING, SYSTEMD_SILENT if state == UNKNOWN else ""
    servers: tuple[Server, ...] = ()
    if state == ACTIVE:
        try:
            found = _limits(reader, told.name)
            servers = tuple(_servers(reader, told, {share.claim for share in own}))
        except (HostError, Stuck) as error:
            problem = f"{error.message}: {error.kernel_said}" if error.kernel_said else error.message
    return Daemon(
        told=told,
        state=state,
        problem=problem,
        compute_mode=mode,
        limits=found,
        servers=servers,
        shares=own,
        memory=memory and memory // MIB * MIB,
        gone_to=_gone_to(function),
        is_orphan=bool(told.claim) and told.claim not in live,
    )


def read_clients(reader: Reader, name: str) -> list[int] | None:
    """Return the processes that use a daemon now; None if some are not known. Raises HostError, Stuck."""
    if state_of(reader, name) != ACTIVE:
        return []
    lists = [_clients_of(reader, name, pid) for pid in limits.servers_of(reader, name)]
    return None if None in lists else [pid for pids in lists for pid in pids or ()]


def _clients_of(reader: Reader, name: str, server: int) -> Sequence[int] | None:
    return pids_in(ask(reader, name, f"get_client_list {server}"))


def _gone_to(function: Function | None) -> str:
    if function is None:
        return "gone"
    return "" if function.driver == "nvidia" else f"with {function.driver or 'no driver'}"


def _limits(reader: Reader, name: str) -> Limits:
    return Limits(*(limits.default_limit(reader, name, what) for what in (THREADS, MEMORY)))


def _servers(reader: Reader, told: Told, claims: Collection[str]) -> Iterator[Server]:
    for pid in limits.servers_of(reader, told.name):
        own = Limits(*(limits.server_limit(reader, told.name, what, pid) for what in (THREADS, MEMORY)))
        status = status_in(ask(reader, told.name, f"get_server_status {pid}"))
        pids = _clients_of(reader, told.name, pid)
        known = tuple(_client(reader, told, client, claims) for client in (pids or ())[:_MOST_CLIENTS])
        yield Server(pid, status, own, None if pids is None else known)


def _client(reader: Reader, told: Told, pid: int, claims: Collection[str]) -> Client:
    """A client says itself whose it is; that counts only for a claim that has a share of this GPU."""
    variables = _environment(reader, pid)
    claim = variables.get(CLAIM_VARIABLE, "")
    memory = variables.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "").removeprefix("0=")
    threads = percent_in(variables.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", ""))
    return Client(pid, told.claim or (claim if claim in claims else ""), Limits(threads, size_in(memory)))


def _environment(reader: Reader, pid: int) -> Mapping[str, str]:
    """The variables that matter, as the process was started with them; none if they cannot be read."""
    try:
        text = reader.read(f"/proc/{pid}/environ")
    except VfioctlError:
        return {}
    matches = (_VARIABLE.fullmatch(part) for part in text.split("\0"))
    return {match[1]: match[2] for match in matches if match}
