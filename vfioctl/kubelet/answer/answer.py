"""Makes the answer to an Allocate for each kind of consumer. Pure. Which nodes a container gets depends on who opens
them: one that gets both the group node and the cdev of a device has it twice (kubevirt-gpu-device-plugin#147)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import NamedTuple

from vfioctl.claims.model.cdi import CONTROL_NODE, Node, qualified_name
from vfioctl.claims.model.claim import Nodes
from vfioctl.core.frozen import value_class
from vfioctl.errors import HostError
from vfioctl.inventory.model.values import PciAddress, Subject
from vfioctl.kubelet.model.settings import CdiBy, Consumer, ResourceSettings
from vfioctl.placement.model.share import GpuShare
from vfioctl.units import Uuid

IOMMU_NODE = "/dev/iommu"
_VISIBLE = "NVIDIA_VISIBLE_DEVICES"
"""Which GPUs the toolkit's runtime adds; `void` for none, so that it and CDI do not both add one."""
_ANNOTATION = "cdi.k8s.io/vfioctl_{}"
_LONGEST = 63
"""Characters of the part of an annotation's key after the slash."""


class NodeSpec(NamedTuple):
    """A device node of the host that the container gets at the same path."""

    path: str
    permissions: str = "rw"


@value_class
class Answer:
    """The answer for one container."""

    environment: Mapping[str, str] = field(default_factory=dict)
    nodes: tuple[NodeSpec, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    cdi: tuple[str, ...] = ()
    """Qualified names of CDI devices."""
    mounts: tuple[str, ...] = ()
    """Directories of the host that the container gets at the same paths."""


class Edits(NamedTuple):
    """What a container with a share of a GPU needs besides the GPU."""

    environment: Mapping[str, str]
    mounts: Sequence[str]


def answer(resource: ResourceSettings, subjects: Sequence[Subject], nodes: Mapping[str, Nodes]) -> Answer:
    """Return the answer for a container that gets these devices, in this order, without their companions.
    `nodes`: their device files. Raises HostError if one has none."""
    return _ANSWERS[resource.consumer](resource, subjects, _paths(resource, subjects, nodes))


def _paths(resource: ResourceSettings, subjects: Sequence[Subject], nodes: Mapping[str, Nodes]) -> list[str]:
    paths = []
    for subject in subjects:
        known = nodes.get(subject, Nodes())
        path = known.group if resource.node is Node.GROUP else known.cdev
        if path is None:
            raise HostError(
                f"{subject} has no {resource.node} node of VFIO",
                hint="it is not on VFIO, or this kernel has no such nodes",
                next_command=f"vfioctl show {subject}" if isinstance(subject, PciAddress) else "vfioctl vgpu list",
            )
        paths.append(path)
    return paths


def _devices(resource: ResourceSettings, subjects: Sequence[Subject], paths: Sequence[str]) -> Answer:
    del subjects
    control = CONTROL_NODE if resource.node is Node.GROUP else IOMMU_NODE
    return Answer(nodes=tuple(NodeSpec(path) for path in dict.fromkeys((control, *paths))))


def _kubevirt(resource: ResourceSettings, subjects: Sequence[Subject], paths: Sequence[str]) -> Answer:
    """KubeVirt takes the functions, or the mediated devices, of a variable by position. Source: its
    pkg/virt-launcher/virtwrap/device/hostdevice, which also has the names of the variables."""
    by_kind: dict[str, list[str]] = {}
    for subject in subjects:
        by_kind.setdefault("MDEV_PCI_RESOURCE" if isinstance(subject, Uuid) else "PCI_RESOURCE", []).append(subject)
    suffix = re.sub("[/.]", "_", resource.name).upper()
    environment = {f"{kind}_{suffix}": ",".join(devices) for kind, devices in by_kind.items()}
    return Answer(environment, _devices(resource, subjects, paths).nodes)


def _kata(resource: ResourceSettings, subjects: Sequence[Subject], paths: Sequence[str]) -> Answer:
    del paths
    names = tuple(qualified_name(subject, resource.name) for subject in subjects)
    return _with_cdi(resource, names)


def _with_cdi(resource: ResourceSettings, names: tuple[str, ...]) -> Answer:
    if resource.cdi is CdiBy.FIELD or not names:
        return Answer(cdi=names)
    key = _ANNOTATION.format(re.sub("[^A-Za-z0-9_.-]", "-", resource.name)[-_LONGEST + len("vfioctl_") :].strip("-_."))
    return Answer(annotations={key: ",".join(names)})


def answer_with_share(
    resource: ResourceSettings, shares: Sequence[GpuShare], edits: Sequence[Edits], *, named: bool
) -> Answer:
    """Return the answer for a container that gets these shares of NVIDIA's GPUs. `named`: whether a CDI file of
    NVIDIA's toolkit names them; if not, the toolkit's own runtime reads the variable. Raises HostError for a GPU whose
    UUID is not known, by which both call it."""
    if unknown := next((share for share in shares if not share.uuid), None):
        raise HostError(
            f"the UUID of {unknown.address} is not known, by which NVIDIA's container toolkit calls it",
            next_command="vfioctl doctor",
        )
    environment = {_VISIBLE: "void" if named else ",".join(share.uuid for share in shares)}
    mounts: dict[str, None] = {}
    for edit in edits:
        environment |= edit.environment
        mounts |= dict.fromkeys(edit.mounts)
    cdi = _with_cdi(resource, tuple(share.cdi for share in shares) if named else ())
    return replace(cdi, environment=environment, mounts=tuple(mounts))


_ANSWERS: Mapping[Consumer, Callable[[ResourceSettings, Sequence[Subject], Sequence[str]], Answer]] = {
    Consumer.DEVICES: _devices,
    Consumer.KUBEVIRT: _kubevirt,
    Consumer.KATA: _kata,
}
