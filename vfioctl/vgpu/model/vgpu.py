"""vGPUs as values: cards, their types, the parents that vGPUs are created on, vGPUs. May not do input or output. Plain
dataclasses: listing ten thousand type directories takes less time than importing pydantic and building models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum

from vfioctl.core.frozen import value_class
from vfioctl.core.reservations import Reservation


class Dialect(StrEnum):
    """The kernel interface through which a card offers vGPUs."""

    MDEV = "mdev"
    VENDOR = "vendor-vfio"
    """NVIDIA's vendor-specific VFIO: `nvidia/creatable_vgpu_types` on a VF."""
    SRIOV = "sriov"
    XE = "xe"
    """SR-IOV with the profiles of `sriov_admin`."""


class Sharing(StrEnum):
    """How the types of a card limit one another: the rule for computing the remaining capacity."""

    SIZES = "sizes"
    """NVIDIA: a fixed number of one framebuffer size; different sizes only in mixed-size mode."""
    POOL = "pool"
    """Each type states the amounts of a resource that it uses, and all types share one pool of it."""
    VFS = "vfs"
    """All VFs are created at once, and no more while some exist."""
    UNKNOWN = "unknown"
    """The kernel does not report it."""


class SizeMode(StrEnum):
    """Whether a card can have vGPUs of several sizes at a time; unknown when neither NVML nor the kernel shows it."""

    SAME = "same-size"
    MIXED = "mixed-size"
    UNKNOWN = "unknown"


class VgpuState(StrEnum):
    LIVE = "live"
    DEFINED = "defined"
    """mdevctl has a definition of it, but it does not exist now."""
    ORPHAN = "orphan"
    """It lost its driver: it uses no capacity, and can only be removed."""
    ZOMBIE = "zombie"
    """It was removed while it was open: the kernel hides it, but it still uses its share."""
    WEDGED = "wedged"
    """The write that creates or removes it never returned, so its state is unknown: `unknown["state"]` says which."""
    NO_DRIVER = "no driver"
    """A VF without a driver."""


@value_class
class Count:
    """How many more vGPUs can be created, as a range. `at_most` is None when there is no known upper bound."""

    at_least: int
    at_most: int | None

    @property
    def is_exact(self) -> bool:
        return self.at_least == self.at_most


NONE, UNKNOWN = Count(0, 0), Count(0, None)
TypeNames = Mapping[str, Mapping[str, str]]
"""Names of vGPU types, by card and type id. The kernel lists only types that can still be created."""
OURS, FOREIGN = "vfioctl", "foreign"
"""The owner of vGPUs that vfioctl created, and the owner of all others."""


@value_class
class VgpuType:
    """A vGPU type of one card. An unknown fact is None or empty; `unknown` has the reason, by field."""

    id: str
    """The kernel's name for it: `nvidia-742`, `1145`, `i915-GVTg_V5_4`, `vf`."""
    name: str = ""
    profile: str = ""
    """The short name, such as `A2-4C`."""
    description: str = ""
    device_api: str = ""
    framebuffer_bytes: int | None = None
    heads: int | None = None
    max_resolution: str = ""
    max_instances: int | None = None
    """The maximum number on one card without vGPUs of other types."""
    mig_slices: int | None = None
    """The number of MIG slices of the GPU instance that backs it; None for a type that shares the GPU by time."""
    takes: Mapping[str, int] = field(default_factory=dict)
    """The amounts that it uses of a pool that all types share, by resource."""
    existing: int = 0
    available: Count = UNKNOWN
    unknown: Mapping[str, str] = field(default_factory=dict)

    @property
    def size(self) -> tuple[int | None, int | None]:
        """The MIG slices and the framebuffer, which all vGPUs of a card have in common in same-size mode."""
        return self.mig_slices, self.framebuffer_bytes

    def is_called(self, word: str) -> bool:
        """Whether `word` is its id, name or profile."""
        return word in (self.id, self.name) or (word.lower() == self.profile.lower() and bool(word))


@value_class
class Profile:
    """Scheduling and memory limits of the PF or a VF of an xe card. Values as the kernel shows them."""

    of: str
    """`pf`, `vf1`, ..."""
    values: Mapping[str, str] = field(default_factory=dict)


@value_class
class VgpuParent:
    """A device that vGPUs are created on: a PF, a VF, or a device that is no PCI function."""

    name: str
    offers: Mapping[str, int] = field(default_factory=dict)
    """How many more vGPUs this parent reports it can create now, by type id."""
    instances: int = 0
    unknown: Mapping[str, str] = field(default_factory=dict)


@value_class
class VgpuCard:
    """A card that offers vGPUs, with its types and parents."""

    id: str
    """The PF's address, or the name of a device that is no PCI function."""
    dialect: Dialect
    sharing: Sharing = Sharing.UNKNOWN
    size_mode: SizeMode = SizeMode.UNKNOWN
    numa_node: int | None = None
    driver: str | None = None
    memory_bytes: int | None = None
    """From NVML, in bytes; excludes the memory that error correction uses."""
    total_vfs: int | None = None
    types: tuple[VgpuType, ...] = ()
    parents: tuple[VgpuParent, ...] = ()
    profiles: tuple[Profile, ...] = ()

    def called(self, word: str) -> tuple[VgpuType, ...]:
        """The types whose id is `word`; if there is none, those with that name or profile."""
        types = [kind for kind in self.types if kind.is_called(word)]
        return tuple(kind for kind in types if kind.id == word) or tuple(types)


@value_class
class Definition:
    """mdevctl's definition of a mediated device, in /etc/mdevctl.d/PARENT/UUID."""

    path: str
    type: str
    start: str = "manual"
    attributes: tuple[tuple[str, str], ...] = ()


@value_class
class Vgpu:
    """A vGPU: an mdev, or a VF. `id` is the UUID of the mdev, or the address of the VF."""

    id: str
    dialect: Dialect
    card: str
    parent: str
    state: VgpuState = VgpuState.LIVE
    type: str = ""
    type_name: str = ""
    profile: str = ""
    owner: str = FOREIGN
    """Who created it: `vfioctl`, or `foreign` for anyone else."""
    driver: str | None = None
    iommu_group: int | None = None
    vfio_group: str | None = None
    """/dev/vfio/N; None when the node does not exist."""
    vfio_cdev: str | None = None
    """/dev/vfio/devices/vfioN; None when the node does not exist."""
    numa_node: int | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)
    """Attributes of the vendor driver: vgpu_params, placement_id, gpu_instance_id, vm_name, ..."""
    definition: Definition | None = None
    unknown: Mapping[str, str] = field(default_factory=dict)

    @property
    def parameters(self) -> Mapping[str, str]:
        """The parameters that it has now, by the file below its folder in sysfs."""
        listed = self.attributes.get("vgpu_params", "").strip()
        return {"nvidia/vgpu_params": listed} if listed else {}


@value_class
class Created:
    """The ledger's record of a vGPU that vfioctl created, or of the VFs of a PF."""

    id: str
    """The UUID of an mdev, the address of a VF, or the address of the PF whose VFs were created."""
    card: str
    place: str
    """`PARENT/TYPE` for a vGPU; the number of VFs for a PF."""
    since: str
    """ISO 8601, UTC."""
    persistent: bool
    """Whether it is also created at boot."""


@value_class
class Made:
    """How a vGPU was created, as the journal has it."""

    parent: str
    type: str
    """The type's id."""
    parameters: tuple[tuple[str, str], ...] = ()
    identity: str = ""
    """The ids and class of its parent, to recognize the device; empty if that is no PCI function."""


@value_class
class Left:
    """How many more vGPUs of a type fit on a card after a change."""

    card: str
    type: str
    profile: str
    available: Count


@value_class
class VgpuWarning:
    """A fact that could not be read, and why."""

    subject: str
    text: str


@value_class
class Vgpus:
    """All cards of a host that offer vGPUs, and all vGPUs, in address order."""

    cards: tuple[VgpuCard, ...] = ()
    instances: tuple[Vgpu, ...] = ()
    warnings: tuple[VgpuWarning, ...] = ()


@value_class
class Forecast:
    """The capacity that would remain on a card if the requested vGPUs were created."""

    card: str
    made: Mapping[str, int]
    """The number of vGPUs to create, by type id."""
    certain: bool
    """Whether all of them certainly fit. False: they may fit, but the kernel does not report enough to be sure."""
    available: Mapping[str, Count]
    """How many more could be created afterwards, by type id."""


@value_class
class VgpuTypesDocument:
    """The document of `vfioctl vgpu types --json`. `after` has one forecast for each card with a type in `--after`."""

    cards: tuple[VgpuCard, ...]
    after: tuple[Forecast, ...]
    warnings: tuple[VgpuWarning, ...]


@value_class
class VgpuListDocument:
    """The document of `vfioctl vgpu list --json`."""

    instances: tuple[Vgpu, ...]
    warnings: tuple[VgpuWarning, ...]
    reservations: tuple[Reservation, ...] = ()
    """What the ledger reserves of them."""


class Strategy(StrEnum):
    BINPACK = "binpack"
    """Keep the largest types creatable for as long as possible."""
    SPREAD = "spread"
    """Place each vGPU on the card with the fewest vGPUs."""
    NUMA = "numa"
    """Place all vGPUs on as few NUMA nodes as possible."""
