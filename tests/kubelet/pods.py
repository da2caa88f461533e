"""Pods as the kubelet gets them, and what becomes of them. May not do input or output."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

_NUMBERS = itertools.count(1)


class Phase(StrEnum):
    PENDING = "Pending"
    RUNNING = "Running"
    FAILED = "Failed"
    SUCCEEDED = "Succeeded"


@dataclass(frozen=True)
class Container:
    """A container that needs so many devices of each resource."""

    name: str
    needs: Mapping[str, int] = field(default_factory=dict)
    init: bool = False
    """A plain init container: it ends before those of the pod start."""
    refused: str = ""
    """Why another part of the kubelet (for CPUs, memory) refuses the container after its devices were allocated."""
    numa_node: int | None = None
    """The one that the topology manager (single-numa-node) has chosen for the container."""


@dataclass(frozen=True)
class Pod:
    """A pod. The uid is the kubelet's key: a pod that is made anew with the same name has another one."""

    name: str
    containers: Sequence[Container]
    namespace: str = "default"
    static: bool = False
    """From a file of the node: it does not wait for the API server after a start of the kubelet."""
    uid: str = field(default_factory=lambda: f"{next(_NUMBERS):08d}-0000-4000-8000-000000000000")

    @property
    def in_order(self) -> Sequence[Container]:
        """Init containers first, as the kubelet admits them."""
        return sorted(self.containers, key=lambda container: not container.init)

    @property
    def listed(self) -> Sequence[Container]:
        """Those that PodResources shows: plain init containers are not among them."""
        return [container for container in self.containers if not container.init]

    def container(self, name: str) -> Container:
        return next(container for container in self.containers if container.name == name)


def pod(name: str, namespace: str = "default", *, static: bool = False, **needs: Mapping[str, int]) -> Pod:
    """A pod of plain containers: `pod("one", app={"nvidia.com/gpu": 1})`."""
    containers = [Container(container, needed) for container, needed in needs.items()]
    return Pod(name, containers, namespace, static=static)


@dataclass(frozen=True)
class Options:
    """What a container is started with: of all its resources, without what the release drops."""

    envs: Mapping[str, str] = field(default_factory=dict)
    devices: Sequence[tuple[str, str, str]] = ()
    """In the container, on the host, permissions."""
    mounts: Sequence[tuple[str, str, bool]] = ()
    """In the container, on the host, whether it is read-only."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    cdi: Sequence[str] = ()


class Rejected(Exception):
    """The pod was not admitted, and has failed for good. The text is the message that its user reads."""

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(f"Pod Allocate failed due to {why}, which is unexpected")


class NotStarted(Exception):
    """A container could not be started; the kubelet tries again later."""
