"""vGPUs of GPUs: the types that a card offers, the places they are made on, the instances that are there.

May not do input or output. Plain dataclasses, which pydantic takes as the fields of a document: `vfioctl vgpu` answers
for ten thousand type folders in less time than it takes to import pydantic and to make these its models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Dialect(StrEnum):
    """Which interface of the kernel divides a card."""

    MDEV = "mdev"
    VENDOR = "vendor-vfio"
    """NVIDIA's vendor-specific VFIO: `nvidia/creatable_vgpu_types` on a VF."""
    SRIOV = "sriov"
    XE = "xe"
    """SR-IOV with the profiles of `sriov_admin`."""


class Sharing(StrEnum):
    """How the types of a card limit one another: by what rule it is known what remains."""

    SIZES = "sizes"
    """NVIDIA's: so many of one size of frame buffer, other sizes only in mixed-size mode."""
    POOL = "pool"
    """Each type states the amounts that it takes, and all numbers fit one stock of them."""
    VFS = "vfs"
    """All VFs are made at once, and none while there are some."""
    UNKNOWN = "unknown"
    """The kernel does not tell."""


class SizeMode(StrEnum):
    """Whether a card may have instances of several sizes at a time, as far as what is there proves it."""

    SAME = "same-size"
    MIXED = "mixed-size"
    UNKNOWN = "unknown"


class VgpuState(StrEnum):
    LIVE = "live"
    DEFINED = "defined"
    """Only a definition of mdevctl; it is not there now."""
    ORPHAN = "orphan"
    """Its driver was taken from it: it counts for nothing and can only be removed."""
    ZOMBIE = "zombie"
    """It was removed while it was open: it cannot be seen any more, and still takes its share."""
    WEDGED = "wedged"
    """Its making never returned: whether it is there, the kernel does not say."""
    NO_DRIVER = "no driver"
    """A VF that no driver has."""


@dataclass(frozen=True, slots=True)
class Count:
    """How many more can be made. `at_most` is None where not even that is known."""

    at_least: int
    at_most: int | None

    @property
    def is_exact(self) -> bool:
        return self.at_least == self.at_most


NONE, UNKNOWN = Count(0, 0), Count(0, None)
OURS, FOREIGN = "vfioctl", "foreign"
"""Who had a vGPU made."""


@dataclass(frozen=True, slots=True)
class VgpuType:
    """A kind of vGPU of one card. What is unknown is None, empty or in `unknown` with its reason."""

    id: str
    """As the kernel calls it: `nvidia-742`, `1145`, `i915-GVTg_V5_4`, `vf`."""
    name: str = ""
    profile: str = ""
    """The short name: `A2-4C`."""
    description: str = ""
    device_api: str = ""
    framebuffer_bytes: int | None = None
    heads: int | None = None
    max_resolution: str = ""
    max_instances: int | None = None
    """On one card, with no others beside them."""
    mig_slices: int | None = None
    """How many vGPUs of a GPU instance it is; None for a type that shares by time."""
    takes: Mapping[str, int] = field(default_factory=dict)
    """The amounts that it says it takes of a stock which all types share."""
    existing: int = 0
    available: Count = UNKNOWN
    unknown: Mapping[str, str] = field(default_factory=dict)

    @property
    def size(self) -> tuple[int | None, int | None]:
        """What instances beside one another must have in common in same-size mode."""
        return self.mig_slices, self.framebuffer_bytes

    def is_called(self, word: str) -> bool:
        """Whether a person may mean it by that word."""
        return word in (self.id, self.name) or (word.lower() == self.profile.lower() and bool(word))


@dataclass(frozen=True, slots=True)
class Profile:
    """What a PF or a VF of an xe card may take of it. Values as the kernel shows them."""

    of: str
    """`pf`, `vf1`, ..."""
    values: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class VgpuParent:
    """A place that instances are made on: a function, one of its VFs, or a device that is no PCI function."""

    name: str
    offers: Mapping[str, int] = field(default_factory=dict)
    """By type, how many more of it could be made here now, as this place alone says."""
    instances: int = 0
    unknown: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class VgpuCard:
    """A card that can be sliced: what it offers as a whole."""

    id: str
    """The PF's address, or the name of a device that is no PCI function."""
    dialect: Dialect
    sharing: Sharing = Sharing.UNKNOWN
    size_mode: SizeMode = SizeMode.UNKNOWN
    numa_node: int | None = None
    driver: str | None = None
    memory_bytes: int | None = None
    """As NVML says it, without what error correction takes."""
    total_vfs: int | None = None
    types: tuple[VgpuType, ...] = ()
    parents: tuple[VgpuParent, ...] = ()
    profiles: tuple[Profile, ...] = ()

    def called(self, word: str) -> tuple[VgpuType, ...]:
        """The types that a person may mean by that word: by id before name."""
        found = [kind for kind in self.types if kind.is_called(word)]
        return tuple(kind for kind in found if kind.id == word) or tuple(found)


@dataclass(frozen=True, slots=True)
class Definition:
    """What mdevctl keeps of an instance, in /etc/mdevctl.d/PARENT/UUID."""

    path: str
    type: str
    start: str = "manual"
    attributes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Vgpu:
    """An instance: an mdev, or a VF. `id` is its UUID or its address."""

    id: str
    dialect: Dialect
    card: str
    parent: str
    state: VgpuState = VgpuState.LIVE
    type: str = ""
    type_name: str = ""
    profile: str = ""
    owner: str = FOREIGN
    """Who had it made; `foreign` when that was not vfioctl."""
    driver: str | None = None
    iommu_group: int | None = None
    vfio_group: str | None = None
    """/dev/vfio/N while it exists."""
    vfio_cdev: str | None = None
    """/dev/vfio/devices/vfioN while it exists."""
    numa_node: int | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)
    """The driver's own: vgpu_params, placement_id, gpu_instance_id, vm_name, ..."""
    definition: Definition | None = None
    unknown: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Made:
    """What the ledger says of a vGPU that vfioctl made, or of a card's VFs."""

    id: str
    """A UUID, the address of a VF, or of the PF whose VFs were made."""
    card: str
    place: str
    """`PARENT/TYPE`; of VFs, their count."""
    since: str
    """ISO 8601, UTC."""
    kept: bool
    """Whether it is made again at boot."""


@dataclass(frozen=True, slots=True)
class VgpuWarning:
    """A fact that could not be had."""

    subject: str
    text: str


@dataclass(frozen=True, slots=True)
class Vgpus:
    """All that can be sliced on a host, and all vGPUs, in address order."""

    cards: tuple[VgpuCard, ...] = ()
    instances: tuple[Vgpu, ...] = ()
    warnings: tuple[VgpuWarning, ...] = ()


@dataclass(frozen=True, slots=True)
class Forecast:
    """What would remain of one card."""

    card: str
    made: Mapping[str, int]
    """By type, how many would be made."""
    certain: bool
    """Whether all of these certainly fit; otherwise only nothing speaks against it."""
    available: Mapping[str, Count]
    """By type, how many more could then be made."""


@dataclass(frozen=True, slots=True)
class VgpuTypesDocument:
    """`vfioctl vgpu types --json`: one object. `after` is for each card that `--after` is about."""

    cards: tuple[VgpuCard, ...]
    after: tuple[Forecast, ...]
    warnings: tuple[VgpuWarning, ...]


@dataclass(frozen=True, slots=True)
class VgpuListDocument:
    """`vfioctl vgpu list --json`: one object."""

    instances: tuple[Vgpu, ...]
    warnings: tuple[VgpuWarning, ...]
