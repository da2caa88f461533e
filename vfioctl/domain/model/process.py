"""A QEMU process as /proc shows it. May not do input or output."""

from __future__ import annotations

from typing import NamedTuple


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
