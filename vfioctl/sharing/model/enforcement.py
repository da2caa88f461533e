"""What a host has to enforce shares of its GPUs, and what applies to each share. May not do input or output."""

from __future__ import annotations

from vfioctl.core.frozen import value_class
from vfioctl.placement.model.share import Enforcement


@value_class
class HostFacts:
    """What the host has for all of its GPUs."""

    mps: str = ""
    """The path of NVIDIA's program that controls MPS; empty if it was not found."""
    dmem: frozenset[str] | None = None
    """The regions of device memory that the kernel can limit; None without the dmem controller."""
    nvidia: int | None = None
    """The first number of the version of NVIDIA's driver; None if it is not loaded, or does not say."""
    unified: bool = False
    """Whether control groups of version 2 are mounted at /sys/fs/cgroup."""


@value_class
class GpuFacts:
    """What one GPU has."""

    address: str
    name: str
    """Such as gpu0."""
    title: str
    driver: str
    mig: bool | None = None
    """Whether MIG is on; None if the GPU has none, or it is not known."""
    vgpus: bool = False
    """Whether vGPUs can be created on it, or exist."""
    mps: bool = False
    """Whether an MPS daemon that vfioctl has started for it runs, and answers."""
    mps_state: str = ""
    """The daemon's state: active, inactive (it died), silent (it does not answer) or unknown; empty without one."""
    mps_claim: str = ""
    """The one claim that the daemon is for; empty if it is for all."""


@value_class
class Method:
    """One method of enforcement on one GPU."""

    enforcement: Enforcement
    available: bool
    words: str
    """What it enforces, or why it is not available."""
    next_command: str = ""
    """The command that uses it, or makes it available; empty if there is none."""


@value_class
class Enforced:
    """What applies to one share."""

    claim: str
    owner: str
    cores: int
    """Hundredths of the GPU; 100: the whole GPU, which nothing has to enforce."""
    memory: int
    """Bytes; 0 for none."""
    cores_by: Enforcement | None
    """None if the share has no cores, or is the whole GPU."""
    memory_by: Enforcement | None
    """None if the share has no memory, or is the whole GPU."""
    gaps: tuple[str, ...]
    """What is not enforced."""


@value_class
class GpuPlan:
    """The methods of one GPU, the strongest first, and what applies to each of its shares."""

    gpu: GpuFacts
    methods: tuple[Method, ...]
    shares: tuple[Enforced, ...]


@value_class
class SharePlan:
    """The document of `vfioctl share plan --json`."""

    gpus: tuple[GpuPlan, ...]
    warnings: tuple[str, ...]
    """Why claims, or MPS daemons, are not known."""
