"""Renders MPS daemons with their limits, servers, clients and differences. May not read the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.text import Text

from vfioctl.console.columns import Column, table
from vfioctl.console.words import plain
from vfioctl.sharing.mps.intents import ACTIVE, INACTIVE
from vfioctl.sharing.mps.share import ClientEdits
from vfioctl.sharing.mps.status import Daemon, MpsDifference, MpsStatus

NO_DAEMON = "No MPS daemon was started. vfioctl mps start GPU starts one."
_DAEMONS = (
    Column("GPU"),
    Column("DAEMON", optional=True),
    Column("STATE"),
    Column("CLIENTS", right=True),
    Column("LIMITS"),
)
_CLIENTS = (Column("CLIENT"), Column("SERVER"), Column("STATUS", optional=True), Column("CLAIM"), Column("LIMITS"))


def status_page(status: MpsStatus, on_this_host: Callable[[str], str], *, width: int) -> RenderableType:
    """Render the daemons of a host, for `width` columns. `on_this_host`: completes a suggested command."""
    parts: list[RenderableType] = [*table(_DAEMONS, [_daemon(daemon) for daemon in status.daemons], width)]
    if clients := [row for daemon in status.daemons for row in _clients(daemon)]:
        parts += ["", *table(_CLIENTS, clients, width)]
    if status.differences:
        parts += ["", *_differences(status.differences, on_this_host)]
    parts += [Text(f"Unknown: {plain(why)}") for why in status.unknown]
    return Stack(*parts)


def edits_page(edits: ClientEdits) -> RenderableType:
    """Render what a client needs: a line for each variable, as a shell sets it, and for each mount."""
    lines = [f"{name}={value}" for name, value in edits.environment.items()]
    lines += [f"mount {mount.path} ({','.join(mount.options)})" for mount in edits.mounts]
    return Stack(*(Text(line) for line in lines))


def _daemon(daemon: Daemon) -> tuple[str, ...]:
    is_known = daemon.state == ACTIVE and not daemon.problem
    return (
        daemon.told.gpu,
        daemon.told.name,
        "dead" if daemon.state == INACTIVE else daemon.state,
        "?" if daemon.clients is None or not is_known else str(len(daemon.clients)),
        daemon.limits.words if is_known else f"unknown; told {daemon.told.limits.words}",
    )


def _clients(daemon: Daemon) -> Iterator[tuple[str, ...]]:
    for server in daemon.servers:
        for client in server.clients or ():
            limits = f"asked for {client.limits.words}" if client.claim else server.limits.words
            yield str(client.pid), str(server.pid), server.status, client.claim or "-", limits


def _differences(differences: Sequence[MpsDifference], on_this_host: Callable[[str], str]) -> Iterator[Text]:
    for difference in differences:
        yield Text(f"{difference.daemon}: {plain(difference.words)}")
        yield Text(f"  -> {on_this_host(difference.remedy)}")
