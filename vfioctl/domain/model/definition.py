"""A domain's definition as a change: its name in a plan, and the requests to define and to undefine one.

May not do input or output.
"""

from __future__ import annotations

from shlex import quote
from typing import ClassVar

from pydantic import Field, model_validator

from vfioctl.core.change import Intent, Key, Plan
from vfioctl.domain.model.libvirt import checked_uri
from vfioctl.domain.model.storage import IMAGE, SEED, Storage
from vfioctl.errors import BadSpec

DEFINITION = "domain"
"""The kind of resource."""
_LONGEST = 200
_FORBIDDEN = frozenset("/\0\n")


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
