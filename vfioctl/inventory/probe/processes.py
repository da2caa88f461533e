"""Scans the processes of a host: their open device files, and the identity of some of them.

May not write, nor import a model: its workers run while the caller imports those.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from vfioctl.errors import KernelRefused
from vfioctl.inventory.probe.cgroups import Membership, membership
from vfioctl.inventory.probe.guests import guest_name, handed_over, is_vmm
from vfioctl.kernel.lenient import link_name, names_in, text_of
from vfioctl.kernel.protocol import OpenNode, Reader, Unanswered, per_subject

_ENDED = ("ENOENT", "ESRCH")
_KVM = "c 10:232"  # KVM_MINOR, linux/miscdevice.h: a process that has it open runs a guest
_INITIAL = "pid:[4026531836]"  # PROC_PID_INIT_INO, linux/proc_ns.h: the PID namespace that has every process in it
_EFFECTIVE_USER = re.compile(r"^Uid:\s+\d+\s+(\d+)", re.M)


class Process(NamedTuple):
    """A running process and its open device files."""

    pid: str
    name: str
    nodes: tuple[OpenNode, ...]
    given: tuple[str, ...]
    """PCI addresses and mdevs on a VMM's command line, which is readable even if open files are not."""
    is_vmm: bool
    readable: bool
    """Whether its open files could be read."""


class Running(NamedTuple):
    """The running processes, and how many of them could be read."""

    processes: Sequence[Process]
    read: int
    unread: int
    hidden: str
    """Why some processes may be hidden; empty if all are visible."""
    unknown: str
    """Why nothing is known about processes; empty if they can be read."""


class Identity(NamedTuple):
    """The identity of a process: name, user, membership, guest."""

    user: str | None
    belongs: Membership
    guest: str | None
    """The name on a VMM's command line."""


_UNKNOWN = Identity(None, Membership(), None)


class Processes:
    """A scan of all processes, started by the constructor; `results` waits for it."""

    def __init__(self, kernel: Reader, *, timeout: float | None = None) -> None:
        pids = [name for name in names_in(kernel, "/proc") if name.isdecimal()]
        self._hidden, self._unknown = _hidden(kernel, pids), kernel.processes_unknown
        self._answers = kernel.survey(look, pids, timeout=timeout)

    def results(self) -> Running:
        """Return the running processes. One that blocks, such as by a file on a dead server, counts as unread."""
        return self._running

    @cached_property
    def _running(self) -> Running:
        found, unread, silent = [], 0, 0
        for pid, seen in self._answers:
            if isinstance(seen, Unanswered):
                silent += 1
            elif seen is not None:
                name, nodes, given, vmm, readable = seen
                unread += not readable
                found.append(Process(pid, name, tuple(OpenNode(*node) for node in nodes), tuple(given), vmm, readable))
        return Running(found, len(found) - unread, unread + silent, self._hidden, self._unknown)


def identities(kernel: Reader, pids: Iterable[str]) -> Mapping[str, Identity]:
    """Return the identities of processes; only the pid of one that has ended or does not answer."""
    found = {}
    for pid, said in kernel.survey(who, pids):
        if isinstance(said, Unanswered):
            found[pid] = _UNKNOWN
        else:
            user, belongs, guest = said
            found[pid] = Identity(user, Membership(*belongs), guest)
    return found


def _hidden(kernel: Reader, pids: Sequence[str]) -> str:
    if link_name(kernel, "/proc/self/ns/pid") not in ("", _INITIAL):
        return "this is a container, which sees the processes in it and no others"
    return "/proc shows the reader's own processes only (hidepid)" if pids and "1" not in pids else ""


@per_subject
def look(kernel: Reader, pid: str) -> tuple[Any, ...] | None:
    """Return a process's device files as plain data; None if the process has ended."""
    nodes, readable = [], True
    try:
        nodes = [tuple(node) for node in kernel.open_nodes(pid)]
    except KernelRefused as error:
        if error.symbol in _ENDED:
            return None
        readable = False
    name = text_of(kernel, f"/proc/{pid}/comm")
    vmm = is_vmm(name) or any(number == _KVM for _, _, number, _ in nodes)
    given = handed_over(text_of(kernel, f"/proc/{pid}/cmdline")) if vmm else []
    return name, nodes, given, vmm, readable


@per_subject
def who(kernel: Reader, pid: str) -> tuple[Any, ...]:
    """Return the name, user, membership and guest of a process as plain data."""
    effective = _EFFECTIVE_USER.search(text_of(kernel, f"/proc/{pid}/status"))
    return (
        kernel.user(int(effective[1])) if effective else None,
        tuple(membership(text_of(kernel, f"/proc/{pid}/cgroup"))),
        guest_name(text_of(kernel, f"/proc/{pid}/cmdline")),
    )
