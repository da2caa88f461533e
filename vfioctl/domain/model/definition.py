"""Definitions and volumes (images, seeds) as changes; requests to define and undefine. May not do input or output."""

from __future__ import annotations

from shlex import quote
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from vfioctl.core.change import Intent, Key, Plan
from vfioctl.core.value import Value
from vfioctl.domain.model.libvirt import checked_uri
from vfioctl.domain.model.spec import DiskPath, DiskPathOrNone, Size
from vfioctl.errors import BadSpec

DEFINITION, IMAGE, SEED = "domain", "disk image", "seed"
"""The kinds of resources."""
_LONGEST = 200
_FORBIDDEN = frozenset("/\0\n")
_LONGEST_VOLUME = 255
ImageName = Annotated[str, Field(max_length=200, pattern=r"^([A-Za-z0-9_][A-Za-z0-9_.+-]*\.qcow2)?$")]
PoolName = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.+-]*$")]
_Label = Annotated[str, Field(max_length=200, pattern=r"^([A-Za-z0-9][A-Za-z0-9_.-]*)?$")]


def checked_name(text: str) -> str:
    """Return a domain's name that a change may have. Raises BadSpec."""
    if text.startswith("-"):
        raise BadSpec(f"not a domain's name: {text[:60]!r}", hint="commands take what begins with - for an option")
    if not text.isprintable() or _FORBIDDEN & set(text) or not 0 < len(text) <= _LONGEST or text in (".", ".."):
        raise BadSpec(f"not a domain's name: {text[:60]!r}", hint="it has no / and no line break")
    return text


def resource_name(uri: str, name: str) -> str:
    """Return the name of a definition in a plan. The URI is part of it, so that recovery asks the same libvirt."""
    return f"{uri} {name}"


def subject_of(name: str) -> str:
    """Return the subject of a change of a definition."""
    return f"domain/{name}"


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
    if len(name) > _LONGEST_VOLUME:
        raise BadSpec(f"the name of the volume is too long: {name[:60]!r}...", hint="give the domain a shorter name")
    return name


def volume_subject(volume: str) -> str:
    """Return the subject of a change of a volume."""
    return f"volume/{volume}"


class _Intent(Intent):
    uri: str = Field(description="the libvirt that has the domain")
    name: str

    @model_validator(mode="after")
    def _check(self) -> _Intent:
        try:
            checked_uri(self.uri)
            checked_name(self.name)
        except BadSpec as error:
            raise ValueError(error.message) from None
        return self

    def title(self) -> str:
        return f"{self.verb} {self.name} at {self.uri}"


class DefineIntent(_Intent):
    """Define a domain, or change its definition."""

    done: ClassVar[str] = "defined"

    verb: str = "domain define"
    uuid: str = Field(description="the UUID of the domain if the document has none, and none is defined")
    document: str = Field(description="the document as it was given; empty: the definition stays")
    claim: str = Field(default="", description="the claim whose devices it has")
    replace: bool = Field(default=False, description="also if vfioctl did not define what is there")
    storage: Storage | None = Field(default=None, description="the volumes that it needs; null: it needs no new ones")

    def permits(self, plan: Plan) -> bool:
        """Return whether the plan only defines this domain, and creates its volumes."""
        own = {(DEFINITION, resource_name(self.uri, self.name)), *self._volumes()}
        return all(change.key in own and change.after for change in plan.changes)

    def _volumes(self) -> list[Key]:
        if self.storage is None:
            return []
        names = [*((IMAGE, image.name) for image in self.storage.images), (SEED, self.storage.seed_name)]
        return [(kind, f"{self.uri} {self.storage.pool} {name}") for kind, name in names]

    def undone_by(self, plan: Plan) -> tuple[str, ...]:
        made = [change.name.split(" ")[1:] for change in plan.changes if change.kind in (IMAGE, SEED)]
        volumes = tuple(f"virsh vol-delete --pool {pool} {name}, if nothing needs it" for pool, name in made)
        definition = next((change for change in plan.changes if change.kind == DEFINITION), None)
        if definition is None:
            return volumes
        if definition.before:
            return ("defining its earlier document again, which is in the plan: vfioctl history show", *volumes)
        return (f"vfioctl domain undefine {quote(self.name)} --connect {quote(self.uri)}", *volumes)


class UndefineIntent(_Intent):
    """Remove a domain's definition."""

    done: ClassVar[str] = "undefined"

    verb: str = "domain undefine"
    foreign: bool = Field(default=False, description="also if vfioctl did not define it")

    def permits(self, plan: Plan) -> bool:
        """Return whether the plan only removes this definition."""
        own = (DEFINITION, resource_name(self.uri, self.name))
        return all(change.key == own and not change.after for change in plan.changes)

    def undone_by(self, plan: Plan) -> tuple[str, ...]:
        return ("defining its document again, which is in the plan: vfioctl history show",)
