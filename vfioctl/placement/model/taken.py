"""What live claims take of a host. May not do input or output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import NamedTuple

from vfioctl.core.frozen import value_class
from vfioctl.placement.model.owner import Owner


class Hugepages(NamedTuple):
    """Hugepages of one size (bytes) on one NUMA node."""

    node: int
    size: int
    pages: int


@value_class
class Taken:
    """What claims take: their devices, CPUs and hugepages. Each device and CPU with the claim's id and owner."""

    whole: Mapping[str, tuple[str, Owner]] = field(default_factory=dict)
    """Functions and mediated devices, by address or UUID, that a claim has for itself."""
    shared: Mapping[str, tuple[tuple[str, Owner], ...]] = field(default_factory=dict)
    """Functions of which claims have parts: the PF of a claimed VF, the parent of a claimed mediated device."""
    cpus: Mapping[int, tuple[str, Owner]] = field(default_factory=dict)
    hugepages: Mapping[tuple[int, int], int] = field(default_factory=dict)
    """Pages by node and size in bytes."""
    owners: Mapping[Owner, int] = field(default_factory=dict)
    """The number of GPUs that each owner has, for quotas."""
    labels: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """The number of GPUs that claims with each label have."""
    releases: Mapping[str, str] = field(default_factory=dict)
    """The command that ends each claim, by its id."""
