"""A domain's definition as a change: its name in a plan, and the requests to define and to undefine one.

May not do input or output.
"""

from __future__ import annotations

from shlex import quote
from typing import ClassVar

from pydantic import Field, model_validator

from vfioctl.core.change import Intent, Plan
from vfioctl.domain.model.libvirt import checked_uri
from vfioctl.errors import BadSpec

DEFINITION = "domain"
"""The kind of resource."""
_LONGEST = 200
_FORBIDDEN = frozenset("/\0\n")


def checked_name(text: str) -> str:
    """Return a domain's name that a change may have. Raises BadSpec."""
    if not text.isprintable() or _FORBIDDEN & set(text) or not 0 < len(text) <= _LONGEST or text in (".", ".."):
        raise BadSpec(f"not a domain's name: {text[:60]!r}", hint="it has no / and no line break")
    return text


def resource_name(uri: str, name: str) -> str:
    """Return the name of a definition in a plan. The URI is part of it, so that recovery asks the same libvirt."""
    return f"{uri} {name}"


def subject_of(name: str) -> str:
    """Return what a change of a definition concerns."""
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

    def _concerns_only_this(self, plan: Plan) -> bool:
        own = (DEFINITION, resource_name(self.uri, self.name))
        return all((each.kind, each.name) == own for each in plan.changes)


class DefineIntent(_Intent):
    """Define a domain, or change its definition."""

    done: ClassVar[str] = "defined"

    verb: str = "domain define"
    uuid: str = Field(description="the UUID of the domain if the document has none, and none is defined")
    document: str = Field(description="the document as it was given")
    claim: str = Field(default="", description="the claim whose devices it has")
    replace: bool = Field(default=False, description="also if vfioctl did not define what is there")

    def permits(self, plan: Plan) -> bool:
        """Return whether the plan only defines this domain."""
        return self._concerns_only_this(plan) and all(each.after for each in plan.changes)

    def undone_by(self, plan: Plan) -> tuple[str, ...]:
        if all(each.before for each in plan.changes):
            return ("defining its earlier document again, which is in the plan: vfioctl history show",)
        return (f"vfioctl domain undefine {quote(self.name)} --connect {quote(self.uri)}",)


class UndefineIntent(_Intent):
    """Remove a domain's definition."""

    done: ClassVar[str] = "undefined"

    verb: str = "domain undefine"
    foreign: bool = Field(default=False, description="also if vfioctl did not define it")

    def permits(self, plan: Plan) -> bool:
        """Return whether the plan only removes this definition."""
        return self._concerns_only_this(plan) and not any(each.after for each in plan.changes)

    def undone_by(self, plan: Plan) -> tuple[str, ...]:
        del plan
        return ("defining its document again, which is in the plan: vfioctl history show",)
