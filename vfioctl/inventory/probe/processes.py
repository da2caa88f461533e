"""Scans processes: open device files, identities, remedies. May not write, nor import a model: workers run it."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from shlex import quote
from typing import Any, NamedTuple

from vfioctl.errors import KernelRefused
from vfioctl.inventory.probe.owners import Membership, guest_name, is_vmm, membership, passthrough_names
from vfioctl.kernel.lenient import link_name, names_in, text_of
from vfioctl.kernel.open_nodes import OpenNode
from vfioctl.kernel.protocol import Reader, Unanswered, per_subject

_ENDED = ("ENOENT", "ESRCH")
_KVM = "c 10:232"  # KVM_MINOR, linux/miscdevice.h: a process that has it open runs a guest
_INITIAL = "pid:[4026531836]"  # PROC_PID_INIT_INO, linux/proc_ns.h: the PID namespace that has every process in it
_USERS = re.compile(r"^Uid:((?:[ \t]+[0-9]{1,10}){4})", re.M)
_EFFECTIVE = 1
WHOLE_SCAN = 30.0
"""Seconds after which a scan of all processes goes on with what it has. Users can start processes that take long."""
MOST_SUSPECTS = 100


class Process(NamedTuple):
    """A running process and its open device files."""

    pid: str
    name: str
    nodes: tuple[OpenNode, ...] = ()
    given: tuple[str, ...] = ()
    """PCI addresses and mdevs on a believed VMM's command line, which is readable even if open files are not."""
    is_vmm: bool = False
    unread: str = ""
    """Why its open files are not all known; empty if they are."""


class Running(NamedTuple):
    """The running processes, and how many of them could be read."""

    processes: Sequence[Process]
    read: int
    unread: int
    hidden: str
    """Why some processes may be hidden; empty if all are visible."""
    unknown: str
    """Why nothing is known about processes; empty if they can be read."""
    suspects: Sequence[Process]
    """Those that may have any device open: they could not be read whole although the reader may read all. No more than
    `MOST_SUSPECTS`."""


class Identity(NamedTuple):
    """The identity of a process: name, user, membership, guest."""

    name: str
    user: str | None
    belongs: Membership
    guest: str | None
    """The name on a believed VMM's command line."""

    @property
    def in_session(self) -> bool:
        """Whether it is part of a login session."""
        return self.belongs.user_unit or (self.belongs.unit or "").startswith("session-")


_UNKNOWN = Identity("", None, Membership(), None)


class Processes:
    """A scan of all processes, started by the constructor; `running` waits for it."""

    def __init__(self, kernel: Reader, *, timeout: float | None = None) -> None:
        pids = [name for name in names_in(kernel, "/proc") if name.isdecimal()]
        self._hidden, self._unknown = hidden(kernel, pids), kernel.processes_unknown
        self._reads_all = kernel.reads_all_processes
        self._answers = kernel.survey(look, pids, timeout=timeout, total=WHOLE_SCAN)

    @cached_property
    def running(self) -> Running:
        """The running processes, waited for. One that blocks, such as by a file on a dead server, counts as unread."""
        running = []
        for pid, seen in self._answers:
            if isinstance(seen, Unanswered):
                running.append(Process(pid, "", unread=f"its open files could not be read: {seen.reason}"))
            elif seen is not None:
                name, nodes, arguments, vmm, unread = seen
                running.append(
                    Process(pid, name, tuple(OpenNode(*node) for node in nodes), tuple(arguments), vmm, unread)
                )
        unread = [process for process in running if process.unread]
        # this process opens no device for itself; with threads its descriptors change all the time
        suspects = [process for process in unread if process.pid != str(os.getpid())][:MOST_SUSPECTS]
        suspects = suspects if self._reads_all else []
        return Running(running, len(running) - len(unread), len(unread), self._hidden, self._unknown, suspects)


def identities(kernel: Reader, pids: Iterable[str]) -> Mapping[str, Identity]:
    """Return the identities of processes; only the pid of one that has ended or does not answer."""
    names = {}
    for pid, said in kernel.survey(who, pids, total=WHOLE_SCAN):
        if isinstance(said, Unanswered):
            names[pid] = _UNKNOWN
        else:
            name, user, belongs, guest = said
            names[pid] = Identity(name, user, Membership(*belongs), guest)
    return names


def hidden(kernel: Reader, pids: Collection[str]) -> str:
    """Return why some processes may be hidden, of which these are visible; empty if all are."""
    if link_name(kernel, "/proc/self/ns/pid") not in ("", _INITIAL):
        return "this is a container, which sees the processes in it and no others"
    return "/proc shows the reader's own processes only (hidepid)" if pids and "1" not in pids else ""


@per_subject
def look(kernel: Reader, pid: str) -> tuple[Any, ...] | None:
    """Return a process's device files as plain data; None if the process has ended."""
    nodes: Sequence[OpenNode] = ()
    try:
        nodes, unread = kernel.open_nodes(pid)
    except KernelRefused as error:
        if error.symbol in _ENDED:
            return None
        unread = f"its open files could not be read ({error.symbol})"
    except Exception as error:  # noqa: BLE001 - no process may end the scan of all
        unread = f"its open files could not be read ({type(error).__name__})"
    name = text_of(kernel, f"/proc/{pid}/comm")
    vmm = is_vmm(name) or any(number == _KVM for _, _, number, _ in nodes)
    given: Sequence[str] = ()
    if vmm:
        with suppress(Exception):  # the open files are known all the same
            given = passthrough_names(_believed_command_line(kernel, pid))
    return name, [tuple(node) for node in nodes], list(given), vmm, unread


@per_subject
def who(kernel: Reader, pid: str) -> tuple[Any, ...]:
    """Return the name, user, membership and guest of a process as plain data; what cannot be understood is unknown."""
    name, user, guest, belongs = text_of(kernel, f"/proc/{pid}/comm"), None, None, Membership()
    with suppress(Exception):
        users = _users(kernel, pid)
        user = kernel.user(users[_EFFECTIVE]) if users else None
    with suppress(Exception):
        belongs = membership(text_of(kernel, f"/proc/{pid}/cgroup"), kernel.made_by_root)
    with suppress(Exception):
        guest = guest_name(_believed_command_line(kernel, pid))
    return name, user, tuple(belongs), guest


def _believed_command_line(kernel: Reader, pid: str) -> str:
    """Return the command line if all of a process's users are believed: a setuid one has that of an ordinary user."""
    users = _users(kernel, pid)
    believed = kernel.believed_users
    if not users or not all(uid == 0 or str(uid) in believed or kernel.user(uid) in believed for uid in set(users)):
        return ""
    return text_of(kernel, f"/proc/{pid}/cmdline")


def _users(kernel: Reader, pid: str) -> tuple[int, ...]:
    """Return the real, effective, saved and file system user; none if they are unknown."""
    line = _USERS.search(text_of(kernel, f"/proc/{pid}/status"))
    return tuple(map(int, line[1].split())) if line else ()


_STOP = {
    "docker": "docker stop {}",
    "libpod": "podman stop {}",
    "nerdctl": "nerdctl stop {}",
    "lxc": "lxc-stop --name {}",
    "machine": "machinectl poweroff {}",
}
"""Commands by container runtime. Containers of a pod end with the pod."""
_INIT = "1"
_FOR_SESSIONS = ("systemd-logind.service", "seatd.service")
"""Services that open devices for login sessions, and release them at logout."""


def remedy(process: Process, who: Identity) -> str:
    """Return one line that says how to end the process; a command if there is one. Quotes every name for the shell."""
    belongs = who.belongs
    runtime, _, name = (belongs.container or "").partition("/")
    if belongs.guest:
        return f"virsh shutdown {quote(belongs.guest)}"
    if belongs.pod:
        return "delete the pod, or let it go to another node"
    if runtime in _STOP:
        return _STOP[runtime].format(quote(name))
    if process.is_vmm or runtime:
        return f"crictl stop {quote(name)}" if runtime else "shut the guest down"
    if belongs.unit in _FOR_SESSIONS:
        return "log out the session that it has it open for: loginctl list-sessions"
    service = belongs.unit if belongs.unit and belongs.unit.endswith(".service") else None
    # a user's systemd instance runs more than this process
    ends_service = service and not belongs.user_unit
    otherwise = "it is init: only a reboot ends it" if process.pid == _INIT else f"end it: kill {process.pid}"
    return f"systemctl stop {quote(service or '')}" if ends_service else otherwise
