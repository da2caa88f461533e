"""The domain that is wanted, as options or a file say it. May not do input or output, nor import pydantic."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from vfioctl.core.frozen import record_class
from vfioctl.core.limits import FORBID, Several, Text, Whole
from vfioctl.errors import BadSpec
from vfioctl.inventory.model.values import PciAddress
from vfioctl.units import exact_size, parse_size

if TYPE_CHECKING:
    from pydantic_core import CoreSchema

MOST_CPUS, MOST_BYTES = 4096, 1 << 46
MIB = 1 << 20
_NAMED = "have 1 to 200 of the characters A-Z a-z 0-9 _ . + -, and none of . + - first"
_WHOLE_PATH = "be a whole path, such as /var/lib/libvirt/images/a.qcow2"
Name = Annotated[str, Text(200, least=1, form=re.compile(r"^[A-Za-z0-9_][A-Za-z0-9_.+-]*$"), rule=_NAMED)]
DiskPath = Annotated[str, Text(1024, least=2, form=re.compile(r"^/[^\x00-\x1f]*$"), rule=_WHOLE_PATH)]
DiskPathOrNone = Annotated[str, Text(1024, form=re.compile(r"^(/[^\x00-\x1f]+)?$"), rule=_WHOLE_PATH)]


class Policy(StrEnum):
    """What happens if something cannot be had."""

    STRICT = "strict"
    """The build is refused."""
    PREFERRED = "preferred"
    """The domain does without it, and the build says what is weaker."""


class PageSize(StrEnum):
    """The memory's pages on the host."""

    AUTO = "auto"
    """The largest hugepages that are free in sufficient number; ordinary pages if there are none."""
    GIB = "1GiB"
    HALF_GIB = "512MiB"
    """Of kernels with pages of 64 KiB, as on Arm."""
    MIB = "2MiB"
    NONE = "none"


class Smt(StrEnum):
    """How vCPUs use the threads of cores."""

    TOGETHER = "together"
    """The threads of a core are the threads of a guest's core."""
    ISOLATE = "isolate"
    """Each vCPU has a core, whose other threads stay idle."""
    AUTO = "auto"
    """Isolate for a guest with a realtime scheduler, together for any other."""


class Viommu(StrEnum):
    """The IOMMU that the guest sees."""

    TEMPLATE = "template"
    """That of the template."""
    NONE = "none"
    INTEL = "intel"
    VIRTIO = "virtio"
    SMMUV3 = "smmuv3"


class Node:
    """A NUMA node's number, or one of some words."""

    def __init__(self, *words: str) -> None:
        self._words, self._number = words, Whole(0, 1023)

    def read(self, value: Any) -> str | int:
        """Return the number, also from text, or the word. Raises ValueError."""
        if isinstance(value, str) and value in self._words:
            return value
        try:
            return self._number.read(value)
        except ValueError:
            raise ValueError(f"{', '.join(self._words)} or the number of a NUMA node is needed") from None

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        from pydantic_core import core_schema

        return core_schema.no_info_before_validator_function(self.read, handler(source))


_DEFAULTS = {"hugepages": PageSize.AUTO, "policy": Policy.STRICT, "smt": Smt.TOGETHER}
BUILD_OPTIONS = (*_DEFAULTS, "nodes")
"""What a domain's document does not show for certain, and its metadata say: by these names."""


def options_of(spec: DomainSpec) -> Mapping[str, str]:
    """Return what the spec asks for otherwise than a spec that says nothing, as text."""
    options = {name: str(getattr(spec, name)) for name, unsaid in _DEFAULTS.items() if getattr(spec, name) != unsaid}
    nodes = ",".join(f"{device}={node}" for device, node in spec.nodes.items())
    return {**options, "nodes": nodes} if nodes else options


class Size:
    """Bytes in whole MiB, from a text with a unit such as 64GiB. 0 is that of the claim or the template."""

    def read(self, value: Any) -> int:
        """Return the bytes. Raises ValueError, also for a number without a unit."""
        if value == 0 and type(value) is int:
            return 0
        if not isinstance(value, str):
            raise ValueError("a size with a unit is needed, such as 64GiB")  # noqa: TRY004 - as pydantic takes it
        try:
            size = parse_size(value)
        except BadSpec as error:
            raise ValueError(error.message) from None
        if not MIB <= size <= MOST_BYTES:
            raise ValueError(f"must be at least 1 MiB and at most {exact_size(MOST_BYTES)}")
        return -(-size // MIB) * MIB  # decimal units are seldom whole MiB

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        from pydantic_core import core_schema

        as_text = core_schema.plain_serializer_function_ser_schema(_size_text)
        return core_schema.no_info_plain_validator_function(self.read, serialization=as_text)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: Any) -> Mapping[str, Any]:
        return {"anyOf": [{"const": 0}, {"type": "string"}]}


def _size_text(size: int) -> str | int:
    return exact_size(size).replace(" ", "") if size else 0


PLACEMENT, DEVICES = "Placement", "Disks and networks"
"""The panels of `vfioctl domain build --help` that hold options of their own."""
SOURCES = ("claim", "gpus", "devices", "vgpu")
"""What a spec names: a claim alone, or any of the others."""


class Option:
    """A field's help, and its option (spec_options.py). `names`: if not the field's. `edits`: for `domain edit` too."""

    def __init__(self, text: str, metavar: str = "", *names: str, panel: str = "", edits: bool = False) -> None:
        self.text, self.metavar, self.names, self.panel, self.edits = text, metavar, names, panel, edits

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: Any) -> Mapping[str, Any]:
        return {**handler(schema), "description": self.text}


@record_class
class DomainSpec:
    """A domain with GPUs. It names a claim, or any of devices, a number of GPUs and a type of vGPU."""

    __pydantic_config__: ClassVar = FORBID

    name: Name
    """Name of the domain."""
    template: Annotated[
        Name, Option("Template in /etc/vfioctl/templates, or one that comes with vfioctl (compute-linux).", "TEMPLATE")
    ] = "compute-linux"
    claim: Annotated[
        str, Text(64), Option("Claim whose devices, CPUs and hugepages the domain gets.", "CLAIM", edits=True)
    ] = ""
    gpus: Annotated[int, Whole(0, 1024), Option("Number of GPUs; vfioctl selects them.", "N", edits=True)] = 0
    devices: Annotated[
        tuple[str, ...],
        Several(1024),
        Option("Device: 41:00.0, gpu0, or the UUID of a mediated device.", "DEVICE", "--device", "-d", edits=True),
    ] = ()
    vgpu: Annotated[
        str, Text(255), Option("vGPU of this type that exists and is free, or K of them.", "TYPE[=K]", edits=True)
    ] = ""
    cpus: Annotated[
        int,
        Whole(0, MOST_CPUS),
        Option(
            "Number of vCPUs, each pinned to a CPU near the devices; 0: as many as the claim or the template has.",
            "N",
            edits=True,
        ),
    ] = 0
    memory: Annotated[
        int,
        Size(),
        Option("Amount of memory, such as 64GiB; 0: that of the claim or the template.", "SIZE", edits=True),
    ] = 0
    hugepages: Annotated[
        PageSize,
        Option("Page size of the memory; auto: the largest with enough free pages.", panel=PLACEMENT, edits=True),
    ] = PageSize.AUTO
    policy: Annotated[
        Policy,
        Option(
            "If something is not available: fail (strict), or do without it and report what is weaker.",
            panel=PLACEMENT,
            edits=True,
        ),
    ] = Policy.STRICT
    smt: Annotated[
        Smt,
        Option(
            "Use all threads of a core as a guest core (together) or one of each (isolate); auto isolates realtime.",
            panel=PLACEMENT,
            edits=True,
        ),
    ] = Smt.AUTO
    numa: Annotated[
        Literal["any", "same"] | int,
        Node("any", "same"),
        Option("Take GPUs of one NUMA node, of node N, or of as few nodes as possible.", "same|N|any", panel=PLACEMENT),
    ] = "any"
    model: Annotated[
        str, Text(255), Option("Part of the GPU's name, or its IDs as in 10de:2330.", "MODEL", panel=PLACEMENT)
    ] = ""
    nodes: Annotated[
        Mapping[PciAddress, Annotated[int, Whole(0, 1023)]],
        Option(
            "NUMA node of a device for which the firmware reports none.",
            *("ADDRESS=N", "--node"),
            panel=PLACEMENT,
            edits=True,
        ),
    ] = field(default_factory=dict)
    roms: Annotated[
        Mapping[PciAddress, DiskPath],
        Option("File with the ROM of a device, as of the boot display.", "ADDRESS=PATH", "--rom", edits=True),
    ] = field(default_factory=dict)
    disks: Annotated[
        tuple[DiskPath, ...],
        Several(64),
        Option(
            "Disk image or block device; replaces the template's disks, not its CD-ROMs.",
            "PATH",
            "--disk",
            panel=DEVICES,
        ),
    ] = ()
    cdroms: Annotated[
        tuple[DiskPath, ...],
        Several(8),
        Option(
            "Image to install from, such as that of Windows or virtio-win; also adds a VNC display if there is none.",
            *("PATH", "--cdrom"),
            panel=DEVICES,
        ),
    ] = ()
    seed: Annotated[
        DiskPathOrNone, Option("Image with data for cloud-init, attached read-only.", "PATH", panel=DEVICES)
    ] = ""
    networks: Annotated[
        tuple[Name, ...],
        Several(16),
        Option("libvirt network; replaces the template's networks.", "NETWORK", "--network", panel=DEVICES),
    ] = ()
    viommu: Annotated[Viommu, Option("IOMMU that the guest sees; template: that of the template.", panel=DEVICES)] = (
        Viommu.TEMPLATE
    )
    display: Annotated[
        bool | None,
        Option(
            "Show the guest's display on the first mediated device; default: if the template has graphics.",
            *("", "--display/--no-display"),
            panel=DEVICES,
        ),
    ] = None

    @property
    def sources(self) -> tuple[str, ...]:
        """Those of SOURCES that the spec names."""
        return tuple(name for name in SOURCES if getattr(self, name))

    @property
    def is_clear(self) -> bool:
        """Whether it names a claim alone, or some of the others."""
        return len(self.sources) == 1 or bool(self.sources and not self.claim)
