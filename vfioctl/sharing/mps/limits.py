"""The limits of a running daemon, of its default and of each of its servers: read and set by commands of MPS v2.

A default counts for servers that start later, so running servers are told as well."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from vfioctl.errors import HostError
from vfioctl.kernel.protocol import Kernel, Reader
from vfioctl.sharing.mps.answers import percent_in, pids_in, size_in
from vfioctl.sharing.mps.probe import ask
from vfioctl.sharing.mps.share import DIFFERS, MEMORY, THREADS, megabytes, pipes_of

DEVICE = 0
"""The one GPU that a daemon sees. By its UUID, the daemon accepts a limit and ignores it."""


class _Commands(NamedTuple):
    """Of one kind of limit. `{}` is a server's process id; a value follows when it is set."""

    default: str
    server: str
    number: Callable[[str], int | None]
    value: Callable[[int], str]


_COMMANDS = {
    THREADS: _Commands("default_active_thread_percentage", "active_thread_percentage {}", percent_in, str),
    MEMORY: _Commands(
        f"default_device_pinned_mem_limit {DEVICE}", f"device_pinned_mem_limit {{}} {DEVICE}", size_in, megabytes
    ),
}


def servers_of(reader: Reader, name: str) -> tuple[int, ...]:
    """Return the process ids of a daemon's servers. Raises HostError, also for an answer that is no list; Stuck."""
    servers = pids_in(ask(reader, name, "get_server_list"))
    if servers is None:
        raise HostError(f"the MPS daemon {name} does not answer with a list of its servers")
    return servers


def default_limit(reader: Reader, name: str, what: str) -> int | None:
    """Return a daemon's default limit; None if it has none, or says nothing sensible. Raises HostError, Stuck."""
    commands = _COMMANDS[what]
    return commands.number(ask(reader, name, f"get_{commands.default}"))


def server_limit(reader: Reader, name: str, what: str, server: int) -> int | None:
    """Return a server's limit; see `default_limit`."""
    commands = _COMMANDS[what]
    return commands.number(ask(reader, name, f"get_{commands.server.format(server)}"))


def read_limit(reader: Reader, name: str, what: str) -> str:
    """Return the limit that the default and all servers have, in percent or bytes; DIFFERS if they do not agree; empty
    for none. Raises HostError, Stuck."""
    found = {default_limit(reader, name, what)}
    found |= {server_limit(reader, name, what, server) for server in servers_of(reader, name)}
    if len(found) > 1:
        return DIFFERS
    (limit,) = found
    return "" if limit is None else str(limit)


def set_limit(kernel: Kernel, name: str, what: str, limit: int) -> None:
    """Set the default, and the limit of each server that runs. Raises HostError, Stuck."""
    for order in orders(what, limit, servers_of(kernel, name)):
        kernel.tell_mps(pipes_of(name), order)


def orders(what: str, limit: int, servers: tuple[int, ...]) -> Iterator[str]:
    """Yield the commands that set a limit."""
    commands = _COMMANDS[what]
    value = commands.value(limit)
    yield f"set_{commands.default} {value}"
    yield from (f"set_{commands.server.format(server)} {value}" for server in servers)
