"""What a node reports of its GPUs to the extender: the annotation `vfioctl.io/gpus`. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple


class ReportedGpu(NamedTuple):
    """A GPU of the node. Those that give no memory to pods are there too, as the others keep their index then."""

    address: str
    id: str
    """Its UUID, or its address if it has none."""
    memory: int = 0
    """Bytes that the resource has of it."""
    is_open: bool = False
    """Whether a pod could get some of it now."""


class Held(NamedTuple):
    """What a claim has of a GPU."""

    gpu: str
    """Its address."""
    memory: int
    """Bytes."""
    container: str = ""
    """NAMESPACE/POD/CONTAINER, if it has them through the resource; then the extender counts them itself."""
    is_of_pods: bool = False
    """Whether it has them through the resource, also while its container is not known yet."""
    since: str = ""
    """ISO 8601 with an offset."""


def report_of(gpus: Sequence[ReportedGpu], held: Iterable[Held], unit: int) -> str:
    """Return the value of the annotation. `gpus`: in the order of their indexes. `held`: the newest first: a pod may
    have the name of one that is not released yet. `unit`: bytes of one of the resource. What others than pods have of a
    GPU is not there for pods; of a GPU that gives nothing now, pods have what they were given."""
    of_others, of_pods = dict.fromkeys((gpu.address for gpu in gpus), 0), dict.fromkeys((g.address for g in gpus), 0)
    ids, containers = {gpu.address: gpu.id for gpu in gpus}, dict[str, Mapping[str, str]]()
    for one in held:
        if one.gpu not in ids:
            continue
        (of_pods if one.is_of_pods else of_others)[one.gpu] += one.memory
        if one.container:
            containers.setdefault(one.container, {"id": ids[one.gpu], "since": one.since})
    sizes: Mapping[str, int] = {
        gpu.address: max(0, gpu.memory - of_others[gpu.address]) if gpu.is_open else of_pods[gpu.address]
        for gpu in gpus
    }
    document = {
        "unit": unit,
        "gpus": [{"id": gpu.id, "memory": sizes[gpu.address]} for gpu in gpus],
        "containers": dict(sorted(containers.items())),
    }
    return json.dumps(document, separators=(",", ":"))
