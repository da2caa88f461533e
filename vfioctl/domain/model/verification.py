"""What a running domain is, compared with its document. May not do input or output."""

from __future__ import annotations

from enum import StrEnum

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
