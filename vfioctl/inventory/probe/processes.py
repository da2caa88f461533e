"""The processes of a host: what each has open of device files, and for some of them who they are. Reads only.

Imports no model: its children look while the caller still imports those.
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
_KVM = "c 10:232"  # KVM_MINOR, linux/miscdevice.h: whoever has it open runs a guest, whatever it calls itself
_INITIAL = "pid:[4026531836]"  # PROC_PID_INIT_INO, linux/proc_ns.h: the PID namespace that has every process in it
_EFFECTIVE_USER = re.compile(r"^Uid:\s+\d+\s+(\d+)", re.M)


class Process(NamedTuple):
    """A process that is there, and what it has of devices."""

    pid: str
    name: str
    nodes: tuple[OpenNode, ...]
    given: tuple[str, ...]
    """PCI addresses and mdevs on its command line, for a VMM; that can be read where open files cannot."""
    is_vmm: bool
    readable: bool
    """Whether its open files could be read."""


class Running(NamedTuple):
    """The processes that are there, and of how many the open files could be read."""

    processes: Sequence[Process]
    read: int
    unread: int
    hidden: str
    """Why there may be others; empty where all are seen."""


class Identity(NamedTuple):
    """Who a process is."""

    user: str | None
    belongs: Membership
    guest: str | None
    """The name on a VMM's command line."""


_UNKNOWN = Identity(None, Membership(), None)


class Processes:
    """All processes, being looked at from the moment it is made; `results` waits for them."""

    def __init__(self, kernel: Reader, *, timeout: float | None = None) -> None:
        pids = [name for name in names_in(kernel, "/proc") if name.isdecimal()]
        self._hidden = _hidden(kernel, pids)
        self._answers = kernel.survey(look, pids, timeout=timeout)

    def results(self) -> Running:
        """Those that are there. One that does not answer, for a file on a dead server say, is unread like any other."""
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
        return Running(found, len(found) - unread, unread + silent, self._hidden)


def identities(kernel: Reader, pids: Iterable[str]) -> Mapping[str, Identity]:
    """Who the processes are. One that ended meanwhile, or does not answer, is known by its pid only."""
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
    """What it has of devices, as plain data; None for a process that has ended."""
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
    """The user, the membership and the guest of a process, as plain data."""
    effective = _EFFECTIVE_USER.search(text_of(kernel, f"/proc/{pid}/status"))
    return (
        kernel.user(int(effective[1])) if effective else None,
        tuple(membership(text_of(kernel, f"/proc/{pid}/cgroup"))),
        guest_name(text_of(kernel, f"/proc/{pid}/cmdline")),
    )
