"""What each container of a pod uses of which GPU, and has claimed, with the names and labels of gpu-manager. ::

    container_gpu_utilization{gpu}                 percent of the time of a GPU; of all: gpu="total"
    container_gpu_memory_total{gpu_memory}         MiB that it has of a GPU's memory; of all: gpu_memory="total"
    container_request_gpu_utilization{req_of_gpu}  GPUs that it has claimed, as 0.4; req_of_gpu="total"
    container_request_gpu_memory{req_of_gpu_memory}  MiB that it has claimed; req_of_gpu_memory="total"

All have pod_name, namespace, node and container_name. Source: pkg/services/display/display.go of gpu-manager."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeGuard

from vfioctl.claims.api import ClaimsApi
from vfioctl.placement.model.claims import PROVISIONAL
from vfioctl.placement.model.share import WHOLE

if TYPE_CHECKING:
    from prometheus_client import Metric

    from vfioctl.claims.model.claim import Claim
    from vfioctl.session import Session
    from vfioctl.sharing.serving.totals import Counted

_MIB = 1 << 20
_LABELS = ("pod_name", "namespace", "node", "container_name")
_TOTAL = "total"
Name = tuple[str, str, str]
"""Namespace, pod and container."""


class Known(NamedTuple):
    """What is known of the host's containers at one time."""

    names: Mapping[str, Name] = {}
    """By the id of a container."""
    claimed: Mapping[Name, tuple[int, int]] = {}
    """Hundredths of a GPU, and bytes."""
    gpus: Mapping[str, str] = {}
    """The names of GPUs by address, as gpu0."""


def read_known(session: Session, gpus: Mapping[str, str]) -> Known:
    """Return what is known now. Raises StoreDamaged, KernelRefused."""
    api = ClaimsApi(session)
    names = {one.id: tuple(one.pod.split("/")) for one in api.containers()}
    return Known({id_: name for id_, name in names.items() if _is_name(name)}, _claimed(api.claims()), gpus)


def _is_name(parts: tuple[str, ...]) -> TypeGuard[Name]:
    """Return whether it is one: whoever may start containers without Kubernetes writes what is there."""
    return len(parts) == 3 and all(parts)


def _claimed(claims: Iterable[Claim]) -> dict[Name, tuple[int, int]]:
    sums: dict[Name, tuple[int, int]] = {}
    for claim in claims:
        if claim.owner.kind == "pod" and claim.owner != PROVISIONAL and claim.shares:
            cores = sum(WHOLE if share.is_whole else share.cores for share in claim.shares)
            memory = sum(share.held_memory for share in claim.shares)
            before = sums.get(_name(claim.owner.name), (0, 0))
            sums[_name(claim.owner.name)] = before[0] + cores, before[1] + memory
    return sums


def _name(text: str) -> Name:
    namespace, pod, container = text.split("/")
    return namespace, pod, container


def container_metrics(known: Known, counted: Counted) -> Iterator[Metric]:
    """Yield the metrics of all containers that use a GPU or have claimed some of one."""
    from prometheus_client.metrics_core import GaugeMetricFamily

    node = os.environ.get("VFIOCTL_NODE_NAME") or socket.gethostname()
    used = {
        "container_gpu_utilization": ("gpu", "Percent of a GPU's time.", counted.busy, 0.01),
        "container_gpu_memory_total": ("gpu_memory", "MiB of a GPU's memory that are in use.", counted.memory, _MIB),
    }
    for title, (label, words, values, unit) in used.items():
        family = GaugeMetricFamily(title, words, labels=(*_LABELS, label))
        for (name, gpu), value in sorted(_by_container(known, values).items()):
            family.add_metric((*_labels(name, node), gpu), value / unit)
        yield family
    cores = GaugeMetricFamily("container_request_gpu_utilization", "Claimed GPUs.", labels=(*_LABELS, "req_of_gpu"))
    memory = GaugeMetricFamily(
        "container_request_gpu_memory", "MiB of claimed memory.", labels=(*_LABELS, "req_of_gpu_memory")
    )
    for name, claimed in sorted(known.claimed.items()):
        cores.add_metric((*_labels(name, node), _TOTAL), claimed[0] / WHOLE)
        memory.add_metric((*_labels(name, node), _TOTAL), claimed[1] / _MIB)
    yield from (cores, memory)


def _labels(name: Name, node: str) -> tuple[str, ...]:
    namespace, pod, container = name
    return pod, namespace, node, container


def _by_container(known: Known, values: Mapping[tuple[str, str], float]) -> dict[tuple[Name, str], float]:
    """Return the sums by container, for each GPU by its name, and for all."""
    sums: dict[tuple[Name, str], float] = {}
    for (group, address), value in values.items():
        if name := _container_of(group, known.names):
            for gpu in (known.gpus.get(address, address), _TOTAL):
                sums[name, gpu] = sums.get((name, gpu), 0.0) + value
    return sums


def _container_of(group: str, names: Mapping[str, Name]) -> Name | None:
    """Return the container whose control group this is or is below: cri-containerd-ID.scope, crio-ID.scope, ID. Who may
    make groups in a container, or in a session, chooses their names."""
    if group.startswith("/user.slice/"):
        return None
    for part in group.split("/"):
        if name := names.get(part.removesuffix(".scope").rpartition("-")[2]):
            return name
    return None
