"""What a claim asks for. May not do input or output, nor import pydantic, which slows the command that claims."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, field
from typing import ClassVar, Literal

from vfioctl.core.frozen import record_class
from vfioctl.core.limits import FORBID
from vfioctl.errors import BadSpec
from vfioctl.inventory.model.values import Subject
from vfioctl.placement.model.claims import Hugepages, Owner
from vfioctl.placement.model.share import WHOLE, Enforcement, cores_in, memory_in
from vfioctl.units import Uuid, exact_size

MOST_GPUS, MOST_CPUS, MOST_BYTES, MOST_SECONDS = 1024, 8192, 1 << 50, 10 * 365 * 24 * 3600
_LONGEST, _LONGEST_LABEL = 255, 253
_ADDED = frozenset({"parent", "uuids", "cores", "gpu_memory", "enforce", "spread"})
_RANGES = (
    ("gpus", 0, MOST_GPUS),
    ("vgpus", 1, MOST_GPUS),
    ("memory_min", 0, MOST_BYTES),
    ("cores", 0, MOST_GPUS * WHOLE),
    ("gpu_memory", 0, MOST_BYTES),
    ("cpus", 0, MOST_CPUS),
    ("hugepages", 0, MOST_BYTES),
)


@record_class
class ClaimRequest:
    """The request for a claim. It names devices, a number of GPUs or both, or a type of vGPU.

    A request for exact CPUs or hugepages may have no devices. Raises BadSpec for what is beyond its limits."""

    __pydantic_config__: ClassVar = FORBID

    owner: str
    devices: tuple[Subject, ...] = ()
    """These functions and mediated devices."""
    gpus: int = 0
    """Number of GPUs, which are selected."""
    virtual: bool = False
    """Whether these are VFs of GPUs."""
    vgpu: str = ""
    """vGPUs of this type, which are created."""
    vgpus: int = 1
    """Number of them."""
    parent: str = ""
    """The parent, or the card, that these vGPUs are created on."""
    uuids: tuple[Uuid, ...] = ()
    """The UUIDs of those that are mediated devices; generated if empty."""
    numa: Literal["any", "same"] | int = "any"
    """A node, one node for all of them, or any."""
    model: str = ""
    """A part of the GPU's name, its ids, or an alias."""
    memory_min: int = 0
    """Bytes of memory of each GPU."""
    cpus: int = 0
    """Number of CPUs, in whole cores of the devices' nodes."""
    realtime: bool = False
    """Whether they are for a guest with a realtime scheduler: isolated CPUs come first, and are left alone else."""
    hugepages: int = 0
    """Bytes in hugepages of the devices' nodes."""
    exact_cpus: tuple[int, ...] = ()
    """These CPUs, and no others."""
    exact_hugepages: tuple[Hugepages, ...] = ()
    """These, and no others."""
    ttl: float | None = None
    """Seconds until it may be released."""
    labels: Mapping[str, str] = field(default_factory=dict)
    bind: bool = True
    """Whether the devices are bound to VFIO."""
    cores: int = 0
    """Hundredths of a GPU that stays with its host driver, for a container; from 100 on whole GPUs."""
    gpu_memory: int = 0
    """Bytes of that GPU's memory, in whole units of 256 MiB: a request is rounded up."""
    enforce: str = ""
    """What must keep the client within its share, an `Enforcement`; empty for the strongest that the host has."""
    spread: bool = False
    """Whether the GPU with the most free gives the share, not the one with the least."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "owner", Owner(self.owner))
        for name, least, most in _RANGES:
            if not least <= (value := getattr(self, name)) <= most:
                highest = exact_size(most) if most == MOST_BYTES else most
                raise BadSpec(f"{name} must be " + (f"at least {least}" if value < least else f"at most {highest}"))
        if max(len(self.vgpu), len(self.model), len(self.parent)) > _LONGEST:
            raise BadSpec(f"the name of a type, a model or a parent is longer than {_LONGEST} characters")
        if max(map(len, (self.devices, self.exact_cpus, self.exact_hugepages))) > MOST_CPUS:
            raise BadSpec("a claim cannot have that many devices, CPUs or hugepages")
        if self.ttl is not None and not 0 < self.ttl <= MOST_SECONDS:
            raise BadSpec(f"ttl must be more than 0 and at most {MOST_SECONDS} seconds")
        if any(len(text) > _LONGEST_LABEL for label in self.labels.items() for text in label):
            raise BadSpec(f"a label is longer than {_LONGEST_LABEL} characters")
        object.__setattr__(self, "gpu_memory", memory_in(self.gpu_memory))
        self._refuse_unclear_share()

    def _refuse_unclear_share(self) -> None:
        if self.enforce and self.enforce not in set(Enforcement):
            raise BadSpec(f"no enforcement: {self.enforce[:40]!r}", hint=f"one of {', '.join(Enforcement)}")
        if self.is_native:
            object.__setattr__(self, "bind", False)
        else:
            if self.enforce or self.spread:
                raise BadSpec("enforce and spread are for shares of a GPU", hint="ask for cores or memory of a GPU")
            return
        if Owner(self.owner).kind == "vm":
            raise BadSpec("a virtual machine cannot have a GPU with its host driver", hint="--gpus N or --vgpu TYPE")
        if self.gpus or self.virtual or self.vgpu:
            raise BadSpec("a share of a GPU is not claimed with whole GPUs, VFs or vGPUs", hint="make two claims")
        if cores_in(self.cores) >= WHOLE and (self.gpu_memory or self.enforce or self.spread):
            raise BadSpec(f"{self.cores} cores are whole GPUs, with all of their memory", hint="ask for cores only")
        most = max(1, self.cores // WHOLE)
        if len(self.devices) not in (0, most):
            raise BadSpec(
                f"{self.cores} cores are of {most} GPUs, and {len(self.devices)} are named",
                hint=f"name {most}, or none",
            )

    @property
    def is_native(self) -> bool:
        """Whether it asks for GPUs that stay with their host driver: a share of one, or whole ones."""
        return bool(self.cores or self.gpu_memory)

    @property
    def is_share(self) -> bool:
        """Whether it asks for a part of one GPU."""
        return self.is_native and self.cores < WHOLE

    @property
    def names_all(self) -> bool:
        """Whether it names all devices that it gets, and asks for nothing near them: no other part of a host counts."""
        asks = self.gpus or self.vgpu or self.model or self.memory_min or self.cpus or self.hugepages or self.is_native
        return bool(self.devices) and not (asks or self.exact_cpus or self.exact_hugepages)

    def canonical(self) -> str:
        """Return JSON with sorted keys and no spaces: equal requests give equal text, in each release: what was added
        after the first is left out if it asks for nothing."""
        values = {**asdict(self), "labels": dict(self.labels)}
        asked = {name: value for name, value in values.items() if value or name not in _ADDED}
        return json.dumps(asked, sort_keys=True, separators=(",", ":"))
