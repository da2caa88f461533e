"""The owners of claims, and what live claims take of a host. May not do input or output, nor import pydantic."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from typing import NamedTuple, Self

from vfioctl.core.frozen import value_class
from vfioctl.errors import BadSpec
from vfioctl.placement.model.share import GpuShare

_FORMS = {"vm": 1, "pod": 3, "user": 1}
"""The number of names that follow each kind."""
_LONGEST_NAME = 253  # of a Kubernetes object's name; libvirt and Linux allow less, or nothing that we refuse
_NAME = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.@:+-]*", re.ASCII)


class Owner(str):
    """The owner of a claim: ``vm/NAME``, ``pod/NAMESPACE/NAME/CONTAINER`` or ``user/NAME``. Raises BadSpec."""

    __slots__ = ()

    def __new__(cls, text: str) -> Self:
        kind, *names = text.split("/")
        if _FORMS.get(kind) != len(names) or not all(len(n) <= _LONGEST_NAME and _NAME.fullmatch(n) for n in names):
            raise BadSpec(
                f"not an owner: {text[:60]!r}", hint="write it as vm/NAME, pod/NAMESPACE/NAME/CONTAINER or user/NAME"
            )
        return super().__new__(cls, text)

    @property
    def kind(self) -> str:
        """``vm``, ``pod`` or ``user``."""
        return self.partition("/")[0]

    @property
    def name(self) -> str:
        """What follows the kind."""
        return self.partition("/")[2]


PROVISIONAL = Owner("pod/_/_/_")
"""The owner of a claim whose pod is not known yet, for which no quota counts. Kubernetes has no names with `_`."""


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
    shares: Mapping[str, tuple[GpuShare, ...]] = field(default_factory=dict)
    """Shares of GPUs that stay with their host driver, by the GPU's address."""
    owners: Mapping[Owner, int] = field(default_factory=dict)
    """The number of GPUs that each owner has, for quotas."""
    labels: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """The number of GPUs that claims with each label have."""
    releases: Mapping[str, str] = field(default_factory=dict)
    """The command that ends each claim, by its id."""
