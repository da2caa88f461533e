"""What libvirt's storage has for a domain: new disk images, and a seed for cloud-init. May not do input or output."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from vfioctl.core.value import Value
from vfioctl.domain.model.spec import DiskPath, DiskPathOrNone, Size
from vfioctl.errors import BadSpec

IMAGE, SEED = "disk image", "seed"
"""The kinds of resources."""
_LONGEST = 255
VolumeName = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.+-]*$")]
ImageName = Annotated[str, Field(max_length=200, pattern=r"^([A-Za-z0-9_][A-Za-z0-9_.+-]*\.qcow2)?$")]
PoolName = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.+-]*$")]
_Label = Annotated[str, Field(max_length=200, pattern=r"^([A-Za-z0-9][A-Za-z0-9_.-]*)?$")]


class Image(Value):
    """A disk image in qcow2, which is created if it is not there. What a guest writes never reaches its base."""

    name: ImageName = Field(default="", description="the volume, NAME.qcow2; by default after the domain")
    base: DiskPathOrNone = Field(default="", description="the image that it begins with, which must stay")
    base_format: Literal["qcow2", "raw"] = Field(default="qcow2", description="the format of the base")
    size: Annotated[int, Size()] = Field(default=0, description="a size such as 40GiB; 0: that of the base")

    @model_validator(mode="after")
    def _refuse_nothing(self) -> Image:
        if not (self.base or self.size):
            raise ValueError("a disk image needs a base or a size")
        return self


class CloudInit(Value):
    """What cloud-init does when the guest boots for the first time."""

    user_data: DiskPath = Field(description="the file that cloud-init calls user-data")
    network_config: DiskPathOrNone = Field(default="", description="the file that it calls network-config")
    instance_id: _Label = Field(default="", description="cloud-init runs again when it changes; by default the name")
    hostname: _Label = Field(default="", description="the guest's host name; by default the domain's name")


class Seed(Value):
    """A seed: the files that it is made from, and the digest of what a guest reads in it, see `digest_of`."""

    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    instance_id: _Label
    hostname: _Label
    user_data: DiskPath
    network_config: DiskPathOrNone = ""

    @property
    def words(self) -> tuple[str, ...]:
        """What libvirt's order takes, after the volume."""
        return self.sha256, self.instance_id, self.hostname, self.user_data, self.network_config


class Storage(Value):
    """The new volumes of one domain."""

    pool: PoolName
    images: tuple[Image, ...] = ()
    """Each with a name."""
    seed: Seed | None = None
    seed_name: str = ""


def seed_name(domain: str, digest: str) -> str:
    """Return the name of a seed's volume. The digest is part of it: a seed that a guest may use is never changed."""
    return f"{domain}-seed-{digest[:12]}.iso"


def volume_name(uri: str, pool: str, volume: str) -> str:
    """Return the name of a volume in a plan. Raises BadSpec if it is too long."""
    name = f"{uri} {pool} {volume}"
    if len(name) > _LONGEST:
        raise BadSpec(f"the name of the volume is too long: {name[:60]!r}...", hint="give the domain a shorter name")
    return name


def volume_subject(volume: str) -> str:
    """Return the subject of a change of a volume."""
    return f"volume/{volume}"
