"""What a pod is annotated with when it is bound: gpushare's annotations, and vfioctl's for each container. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping

from vfioctl.sharing.extender.names import (
    ALLOCATION,
    ASSIGNED,
    ASSUMED,
    INDEX,
    OF_CONTAINER,
    OF_GPU,
    OF_POD,
    SHARES,
)
from vfioctl.sharing.extender.reading import Pod
from vfioctl.sharing.extender.table import Gpus


def annotations_of(pod: Pod, gpus: Gpus) -> Mapping[str, str]:
    """Return the annotations of a pod whose containers all have places on these GPUs.

    Each of gpushare's is always there, so that none that somebody else has written stays."""
    indexes = sorted({place.index for place in pod.places.values()})
    memories = {container.memory for container in pod.containers}
    shares = {
        container.name: {
            "idx": pod.places[container.name].index,
            "mem": container.memory,
            **({"gpu": gpu} if (gpu := pod.places[container.name].gpu) else {}),
        }
        for container in pod.containers
    }
    return {
        SHARES: _text(shares),
        ALLOCATION: _text(_allocation(pod)),
        INDEX: str(indexes[0]) if len(indexes) == 1 else "-1",
        OF_POD: str(sum(container.memory for container in pod.containers if not container.is_first)),
        OF_CONTAINER: str(*memories) if len(memories) == 1 else "",
        OF_GPU: str(gpus.sizes[indexes[0]]),
        ASSIGNED: "false",
        ASSUMED: str(pod.assumed),
    }


def _allocation(pod: Pod) -> Mapping[str, Mapping[str, int]]:
    """Gpushare numbers the pod's containers without those that run first."""
    main = (container for container in pod.containers if not container.is_first)
    return {str(item.position): {str(pod.places[item.name].index): item.memory} for item in main}


def _text(document: object) -> str:
    return json.dumps(document, separators=(",", ":"), sort_keys=True)
