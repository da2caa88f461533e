"""The domain that is wanted, as options or a file say it. May not do input or output."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from vfioctl.core.value import Value
from vfioctl.errors import BadSpec
from vfioctl.inventory.model.values import PciAddress, parse_size

MOST_CPUS, MOST_BYTES = 4096, 1 << 46
MIB = 1 << 20
_Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.+-]*$")]
_SIZE_SCHEMA = {"anyOf": [{"type": "integer"}, {"type": "string"}]}
_Path = Annotated[str, Field(min_length=2, max_length=1024, pattern=r"^/[^\x00-\x1f]*$")]


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


def _size(value: object) -> object:
    try:
        return parse_size(value) if isinstance(value, str) else value
    except BadSpec as error:
        raise ValueError(error.message) from None


def _whole(size: int) -> int:
    if size % MIB:
        raise ValueError("a whole number of MiB is needed")
    return size


class DomainSpec(Value):
    """A domain with GPUs. It names a claim, devices, or a number of GPUs: exactly one of these."""

    name: _Name = Field(description="the domain's name")
    template: _Name = Field(default="compute-linux", description="the template that it is made from")
    claim: str = Field(default="", max_length=64, description="the claim whose devices, CPUs and hugepages it has")
    gpus: int = Field(default=0, ge=0, le=1024, description="so many GPUs, which are chosen")
    devices: tuple[str, ...] = Field(default=(), max_length=1024, description="these functions and mediated devices")
    numa: Literal["any", "same"] | int = Field(default="any", description="a node, one node for all, or any")
    model: str = Field(default="", max_length=255, description="a part of the GPU's name, its ids, or an alias")
    nodes: Mapping[PciAddress, Annotated[int, Field(ge=0, le=1023)]] = Field(
        default_factory=dict, description="the NUMA nodes of devices whose node the firmware does not tell"
    )
    cpus: int = Field(default=0, ge=0, le=MOST_CPUS, description="vCPUs; 0: the claim's, or the template's")
    smt: Smt = Field(default=Smt.TOGETHER, description="how vCPUs use the threads of cores")
    memory: Annotated[int, AfterValidator(_whole), BeforeValidator(_size), WithJsonSchema(_SIZE_SCHEMA)] = Field(
        default=0, ge=0, le=MOST_BYTES, description="bytes of memory, or a size such as 64GiB; 0: the template's"
    )
    hugepages: PageSize = Field(default=PageSize.AUTO, description="the size of the memory's pages on the host")
    policy: Policy = Field(default=Policy.STRICT, description="what happens if something cannot be had")
    disks: tuple[_Path, ...] = Field(default=(), max_length=64, description="disk images and block devices, in order")
    networks: tuple[_Name, ...] = Field(default=(), max_length=16, description="libvirt networks, in order")
