"""Shares of GPUs that stay with their host driver: units, limits, and what claims have of a GPU. May not do I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from vfioctl.errors import BadSpec
from vfioctl.units import format_size

if TYPE_CHECKING:
    from vfioctl.inventory.model.functions import Function

WHOLE = 100
"""Cores of a GPU: they are counted in hundredths of it, as gpu-manager counts `vcuda-core`."""
MEMORY_UNIT = 256 << 20
"""Bytes of the unit in which a share's memory is counted, as gpu-manager counts `vcuda-memory`."""
COMPUTE_DRIVERS = frozenset({"nvidia", "amdgpu", "i915", "xe"})
"""The host drivers whose GPUs containers compute with, and which tell how long each process used a GPU: NVML, and
fdinfo (Documentation/gpu/drm-usage-stats.rst). Others only show a display."""
TOOLKIT_KIND = "nvidia.com/gpu"
"""The CDI kind of NVIDIA's container toolkit, whose devices have the names of GPUs' UUIDs, too."""


class Enforcement(StrEnum):
    """What keeps the client of a share within it, the strongest first."""

    MIG = "mig"
    """An instance of NVIDIA's MIG, which the hardware keeps apart."""
    VGPU = "vgpu"
    """A vGPU, which the hardware or the driver keeps apart."""
    MPS = "mps"
    """The limits of NVIDIA's MPS for threads and memory of each client."""
    DMEM = "dmem"
    """The kernel's limit for the device memory of a control group (cgroup-v2.rst, DMEM; Linux 6.14)."""
    NVML = "nvml"
    """The limit of NVIDIA's driver for the device memory of a control group (nvmlDeviceSetMemoryLimits_v1)."""
    FREEZER = "freezer"
    """Control groups are stopped in turn, so that each gets its part of the GPU's time."""
    NONE = "none"
    """Nothing: what is used is only reported."""


class GpuShare(NamedTuple):
    """What a claim has of one GPU that stays with its host driver."""

    address: str
    """The GPU's PCI address."""
    cores: int
    """Hundredths of the GPU; 100 is the whole GPU, 0 no part of its time."""
    memory: int = 0
    """Bytes; 0: none is reserved, or all of a whole GPU."""
    total: int = 0
    """Bytes of memory that the GPU has, in whole units; 0 if not known."""
    identity: str = ""
    """The GPU's ids and class, to recognize it after a reboot."""
    uuid: str = ""
    """NVIDIA's UUID of it; empty for others."""
    enforce: str = ""
    """The enforcement that was asked for; empty for the strongest that the host has."""

    @property
    def is_whole(self) -> bool:
        """Whether nobody else may have a share of the GPU."""
        return self.cores >= WHOLE

    @property
    def held_memory(self) -> int:
        """Bytes that nobody else can have: all of a whole GPU."""
        return self.total if self.is_whole else self.memory

    @property
    def words(self) -> str:
        """Its amounts: `40 cores, 8 GiB`, or `whole`."""
        if self.is_whole:
            return "whole"
        memory = format_size(self.memory) if self.memory else ""
        return ", ".join(filter(None, [f"{self.cores} cores" if self.cores else "", memory]))

    @property
    def cdi(self) -> str:
        """The name that NVIDIA's container toolkit gives to the GPU; empty if it has none."""
        return f"{TOOLKIT_KIND}={self.uuid}" if self.uuid else ""


def cores_in(cores: int) -> int:
    """Return a number of cores that a request may have. Raises BadSpec for a part of several GPUs."""
    if cores > WHOLE and cores % WHOLE:
        below, above = cores // WHOLE * WHOLE, (cores // WHOLE + 1) * WHOLE
        raise BadSpec(
            f"{cores} cores would be a part of several GPUs: {WHOLE} cores are one GPU",
            hint=f"ask for less than {WHOLE}, or for whole GPUs: {below} or {above}",
        )
    return cores


def memory_in(size: int) -> int:
    """Return the bytes of whole units that a size in bytes needs."""
    return -(-size // MEMORY_UNIT) * MEMORY_UNIT


def by_gpu(shares: Iterable[GpuShare]) -> Mapping[str, tuple[GpuShare, ...]]:
    """Return shares by the address of their GPU."""
    listed: dict[str, tuple[GpuShare, ...]] = {}
    for share in shares:
        listed[share.address] = (*listed.get(share.address, ()), share)
    return listed


def why_unnamed(gpu: Function) -> str:
    """Return why no container can be given a GPU with its host driver; empty if it can."""
    if gpu.nvml and gpu.nvml.uuid:
        return ""
    return "its UUID is not known, by which NVIDIA's container toolkit names it"
