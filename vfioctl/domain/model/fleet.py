"""A fleet: several domains that one file describes, and the document of applying it. May not do input or output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from vfioctl.core.change import Plan
from vfioctl.core.value import Value
from vfioctl.domain.model.spec import DomainSpec

MOST_DOMAINS = 256


class FleetDomain(DomainSpec):
    """A domain of a fleet: a spec, and whether it runs."""

    running: bool | None = Field(default=None, description="whether it runs; not given: as it is")

    @property
    def spec(self) -> DomainSpec:
        """The spec alone."""
        return DomainSpec.model_validate(self.model_dump(exclude={"running"}))


class FleetSpec(Value):
    """Several domains. Only those that carry the fleet's name are ever removed for it."""

    fleet: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")] = Field(
        description="the fleet's name, which its domains carry in their metadata"
    )
    defaults: Mapping[str, Any] = Field(default_factory=dict, description="settings of every domain that has no other")
    domains: tuple[FleetDomain, ...] = Field(max_length=MOST_DOMAINS)

    @model_validator(mode="after")
    def _refuse_same_names(self) -> FleetSpec:
        names = [each.name for each in self.domains]
        if twice := next((name for name in names if names.count(name) > 1), ""):
            raise ValueError(f"two domains are called {twice}")
        return self


DefinitionChange = Literal["define", "change", "none", "undefine"]
Power = Literal["start", "stop", "none"]


class FleetItem(Value):
    """What applying a fleet does to one domain."""

    domain: str
    change: DefinitionChange = Field(description="of its definition")
    power: Power = Field(description="what is done to it after that")
    done: bool = Field(default=False, description="whether it was done")
    devices: tuple[str, ...] = Field(default=(), description="what it has, or will have")
    plan: Plan | None = Field(default=None, description="the plan of the change; null if there is none")


class FleetDocument(Value):
    """The document of `vfioctl domain apply --json`."""

    fleet: str
    uri: str
    result: Literal["done", "nothing to do", "dry run"]
    domains: tuple[FleetItem, ...]
