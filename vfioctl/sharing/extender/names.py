"""The resources and annotations of gpushare, those of vfioctl beside them, and units of memory. May not do I/O."""

from __future__ import annotations

from enum import StrEnum

MEMORY = "aliyun.com/gpu-mem"
"""Memory of GPUs in units: what a container asks for, and what a node has of all its GPUs together."""
COUNT = "aliyun.com/gpu-count"
"""How many GPUs a node has."""
INDEX = "ALIYUN_COM_GPU_MEM_IDX"
"""The index of the GPU of a whole pod; -1 if its containers are on several, which only the others can tell."""
OF_POD = "ALIYUN_COM_GPU_MEM_POD"
"""What the pod asks for, in units."""
OF_CONTAINER = "ALIYUN_COM_GPU_MEM_CONTAINER"
"""What each of the pod's containers asks for, in units; only if it is the same for all of them."""
OF_GPU = "ALIYUN_COM_GPU_MEM_DEV"
"""The units that the GPU has."""
ASSIGNED = "ALIYUN_COM_GPU_MEM_ASSIGNED"
"""`false` until gpushare's device plugin has given the GPU to the pod."""
ASSUMED = "ALIYUN_COM_GPU_MEM_ASSUME_TIME"
"""When the GPU was selected: nanoseconds since 1970."""
ALLOCATION = "scheduler.framework.gpushare.allocation"
"""JSON: position of a container, index of the GPU, units. Gpushare's tools read it before the others."""
SHARES = "vfioctl.io/gpu-shares"
"""JSON: name of a container, then `idx`, `mem` in units, and `gpu`, the GPU's identity if its node reports one."""
REPORT = "vfioctl.io/gpus"
"""On a node: JSON of what its own service knows from the kubelet. `unit`: bytes of one of MEMORY there. `gpus`: a list,
by index, of `id`, which stays when the index changes, and `memory` in bytes. `containers`: `NAMESPACE/POD/CONTAINER`,
and `id` of the GPU it has `since` a time in ISO 8601, or only the id."""


class Unit(StrEnum):
    """The unit in which the resource counts memory; one for a whole cluster, as with gpushare."""

    GIB = "GiB"
    MIB = "MiB"

    @property
    def bytes(self) -> int:
        """Bytes in it."""
        return 1 << 30 if self is Unit.GIB else 1 << 20
