"""The domain that is wanted, as options or a file say it. May not do input or output, nor import pydantic."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from vfioctl.core.frozen import plain
from vfioctl.core.limits import FORBID, Several, Text, Whole
from vfioctl.errors import BadSpec
from vfioctl.inventory.model.values import PciAddress, parse_size

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
    MIB = "2MiB"
    NONE = "none"


class Smt(StrEnum):
    """How vCPUs use the threads of cores."""

    TOGETHER = "together"
    """The threads of a core are the threads of a guest's core."""
    ISOLATE = "isolate"
    """Each vCPU has a core, whose other threads stay idle."""


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
    found = {name: str(getattr(spec, name)) for name, unsaid in _DEFAULTS.items() if getattr(spec, name) != unsaid}
    nodes = ",".join(f"{device}={node}" for device, node in spec.nodes.items())
    return {**found, "nodes": nodes} if nodes else found


class Size:
    """Bytes, in whole MiB; also as a text such as 64GiB."""

    def read(self, value: Any) -> int:
        """Return the bytes. Raises ValueError."""
        try:
            number = parse_size(value) if isinstance(value, str) else value
        except BadSpec as error:
            raise ValueError(error.message) from None
        return _whole_mib(Whole(0, MOST_BYTES).read(number))

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        from pydantic_core import core_schema

        number = core_schema.int_schema(ge=0, le=MOST_BYTES)
        whole = core_schema.no_info_after_validator_function(_whole_mib, number)
        return core_schema.no_info_before_validator_function(_bytes, whole)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: Any) -> Mapping[str, Any]:
        return {"anyOf": [{"type": "integer"}, {"type": "string"}]}


def _bytes(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("a size is needed, such as 64GiB")  # noqa: TRY004 - pydantic takes only this for a refusal
    try:
        return parse_size(value) if isinstance(value, str) else value
    except BadSpec as error:
        raise ValueError(error.message) from None


def _whole_mib(size: int) -> int:
    if size % MIB:
        raise ValueError("a whole number of MiB is needed")
    return size


@plain
class DomainSpec:
    """A domain with GPUs. It names a claim, devices, or a number of GPUs: exactly one of these."""

    __pydantic_config__: ClassVar = FORBID

    name: Name
    """the domain's name"""
    template: Name = "compute-linux"
    """the template that it is made from"""
    claim: Annotated[str, Text(64)] = ""
    """the claim whose devices, CPUs and hugepages it has"""
    gpus: Annotated[int, Whole(0, 1024)] = 0
    """so many GPUs, which are chosen"""
    devices: Annotated[tuple[str, ...], Several(1024)] = ()
    """these functions and mediated devices"""
    numa: Annotated[Literal["any", "same"] | int, Node("any", "same")] = "any"
    """a node, one node for all, or any"""
    model: Annotated[str, Text(255)] = ""
    """a part of the GPU's name, its ids, or an alias"""
    nodes: Mapping[PciAddress, Annotated[int, Whole(0, 1023)]] = field(default_factory=dict)
    """the NUMA nodes of devices whose node the firmware does not tell"""
    cpus: Annotated[int, Whole(0, MOST_CPUS)] = 0
    """vCPUs; 0: the claim's, or the template's"""
    smt: Smt = Smt.TOGETHER
    """how vCPUs use the threads of cores"""
    memory: Annotated[int, Size()] = 0
    """bytes of memory, or a size such as 64GiB; 0: the template's"""
    hugepages: PageSize = PageSize.AUTO
    """the size of the memory's pages on the host"""
    policy: Policy = Policy.STRICT
    """what happens if something cannot be had"""
    disks: Annotated[tuple[DiskPath, ...], Several(64)] = ()
    """images and block devices, in order"""
    seed: DiskPathOrNone = ""
    """an image with a seed for cloud-init, read-only"""
    networks: Annotated[tuple[Name, ...], Several(16)] = ()
    """libvirt networks, in order"""
    display: bool | None = None
    """whether the first mediated device shows the guest's display; not given: if the template has graphics"""
