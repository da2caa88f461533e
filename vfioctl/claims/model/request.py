"""What a claim asks for. May not do input or output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, PlainValidator

from vfioctl.claims.model.claim import Hugepages
from vfioctl.claims.model.owner import Owner
from vfioctl.core.value import Value
from vfioctl.inventory.model.values import Subject

MOST_GPUS, MOST_CPUS, MOST_BYTES, MOST_SECONDS = 1024, 8192, 1 << 50, 10 * 365 * 24 * 3600
_LABEL = Annotated[str, Field(max_length=253)]


class ClaimRequest(Value):
    """The request for a claim. It names devices, a number of GPUs, or a type of vGPU: exactly one of these.

    A request for exact CPUs or hugepages may have no devices.
    """

    owner: Annotated[str, PlainValidator(Owner)]
    devices: tuple[Subject, ...] = Field(
        default=(), max_length=MOST_GPUS, description="these functions and mediated devices"
    )
    gpus: int = Field(default=0, ge=0, le=MOST_GPUS, description="so many GPUs, which are chosen")
    vgpu: str = Field(default="", max_length=255, description="vGPUs of this type, which are created")
    vgpus: int = Field(default=1, ge=1, le=MOST_GPUS, description="so many of them")
    numa: Literal["any", "same"] | int = Field(default="any", description="a node, one node for all of them, or any")
    model: str = Field(default="", max_length=255, description="a part of the GPU's name, its ids, or an alias")
    memory_min: int = Field(default=0, ge=0, le=MOST_BYTES, description="bytes of memory of each GPU")
    cpus: int = Field(default=0, ge=0, le=MOST_CPUS, description="so many CPUs, whole cores of the devices' nodes")
    hugepages: int = Field(default=0, ge=0, le=MOST_BYTES, description="bytes in hugepages of the devices' nodes")
    exact_cpus: tuple[int, ...] = Field(default=(), max_length=MOST_CPUS, description="these CPUs, and no others")
    exact_hugepages: tuple[Hugepages, ...] = Field(default=(), max_length=MOST_GPUS, description="these, and no others")
    ttl: float | None = Field(default=None, gt=0, le=MOST_SECONDS, description="seconds until it may be released")
    labels: Mapping[_LABEL, _LABEL] = Field(default_factory=dict)
    bind: bool = Field(default=True, description="whether the devices are bound to VFIO")
