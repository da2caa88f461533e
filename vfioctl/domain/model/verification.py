"""A running domain: its QEMU process as /proc shows it, and the comparison with its document. May not do I/O."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from vfioctl.core.frozen import record_class


class State(StrEnum):
    """Whether what was found is as wanted."""

    OK = "ok"
    DIFFERS = "differs"
    UNKNOWN = "unknown"


class Area(StrEnum):
    """What a fact is about."""

    CPUS = "cpus"
    MEMORY = "memory"
    DEVICES = "devices"
    DEFINITION = "definition"
    GUEST = "guest"


@record_class
class VerifiedFact:
    """One thing that was looked at."""

    area: Area
    what: str
    """such as `vCPU 3`, or `memory of cells 0-1`"""
    wanted: str
    found: str
    """empty if it is unknown"""
    state: State
    remedy: str = ""
    """what to do if it differs"""
    why: str = ""
    """why it is unknown"""


@record_class
class Verification:
    """A running domain, compared with its document: `vfioctl domain verify --json`."""

    name: str
    uuid: str
    pid: int | None
    """of its QEMU; null if it was not found"""
    state: State
    """differs if a fact differs; unknown if neither its CPUs nor its memory can be seen; else ok"""
    facts: tuple[VerifiedFact, ...]


def judged(area: Area, what: str, wanted: str, found: str, remedy: str, *, ok: bool) -> VerifiedFact:
    """Return a fact that is as wanted, or has a remedy."""
    state = State.OK if ok else State.DIFFERS
    return VerifiedFact(area=area, what=what, wanted=wanted, found=found, state=state, remedy="" if ok else remedy)


def unknown(area: Area, what: str, wanted: str, why: str) -> VerifiedFact:
    """Return a fact that could not be looked at."""
    return VerifiedFact(area=area, what=what, wanted=wanted, found="", state=State.UNKNOWN, why=why)


class Thread(NamedTuple):
    """A thread of QEMU."""

    id: int
    name: str
    cpus: str
    """The CPUs on which it may run, as the kernel lists them; empty if that is not known."""


class Mapping(NamedTuple):
    """A part of QEMU's memory that can be the guest's: without program files, and not small."""

    size: int
    policy: str
    """`default`, `bind`, `prefer`, `prefer (many)`, `interleave`, ...: mpol_to_str, mm/mempolicy.c."""
    nodes: str
    """Of the policy, as the kernel lists them; empty if it names none."""
    page: int
    """The bytes of its pages."""
    huge: bool
    """Whether they are hugepages of hugetlbfs."""
    used: tuple[tuple[int, int], ...]
    """NUMA nodes, each with the bytes that are there."""


class Qemu(NamedTuple):
    """The QEMU process of a domain. Lists are empty if they cannot be read."""

    pid: int
    arguments: tuple[str, ...]
    threads: tuple[Thread, ...] = ()
    memory: tuple[Mapping, ...] = ()
    allowed_nodes: str = ""
    """The NUMA nodes that its control group permits."""
    started: str = ""
    """When the process started, as /proc/PID/stat says it."""
    memory_unknown: str = ""
    """Why its memory could not be read."""
