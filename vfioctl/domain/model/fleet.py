"""A fleet: several domains that one file describes, and the document of applying it. May not do input or output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from vfioctl.core.change import Plan
from vfioctl.core.frozen import record_class
from vfioctl.core.limits import Several
from vfioctl.core.value import Value
from vfioctl.domain.model.definition import CloudInit, Image, PoolName
from vfioctl.domain.model.spec import DomainSpec

MOST_DOMAINS = 256


@record_class
class FleetDomain(DomainSpec):
    """A domain of a fleet: a spec, whether it runs, and what libvirt's storage has for it."""

    running: bool | None = None
    """whether it runs; not given: as it is"""
    pool: PoolName = "default"
    """the storage pool of its images and its seed"""
    images: Annotated[tuple[Image, ...], Several(32)] = ()
    """disk images, before its disks"""
    cloud_init: CloudInit | None = None
    """what cloud-init does in the guest"""

    @property
    def spec(self) -> DomainSpec:
        """The spec alone."""
        return DomainSpec(**{field.name: getattr(self, field.name) for field in fields(DomainSpec)})


class FleetSpec(Value):
    """Several domains. Only those that carry the fleet's name are ever removed for it."""

    fleet: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")] = Field(
        description="the fleet's name, which its domains carry in their metadata"
    )
    defaults: Mapping[str, Any] = Field(default_factory=dict, description="settings of every domain that has no other")
    domains: tuple[FleetDomain, ...] = Field(max_length=MOST_DOMAINS)

    @field_validator("defaults")
    @classmethod
    def _refuse_unknown(cls, defaults: Mapping[str, Any]) -> Mapping[str, Any]:
        """Only the names: each domain checks the values that it gets."""
        known = {field.name for field in fields(FleetDomain)} - {"name"}
        if unknown := next((name for name in defaults if name not in known), ""):
            raise ValueError(f"{unknown[:60]} is no setting that domains have in common")
        return defaults

    @model_validator(mode="after")
    def _refuse_same_names_and_unclear(self) -> FleetSpec:
        names = [domain.name for domain in self.domains]
        if twice := next((name for name in names if names.count(name) > 1), ""):
            raise ValueError(f"two domains are called {twice}")
        for domain in self.domains:
            if not domain.is_clear:
                raise ValueError(f"domain {domain.name} needs a claim, or any of gpus, devices and vgpu")
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
    volumes: tuple[str, ...] = Field(default=(), description="what is created for it in its storage pool")
    plan: Plan | None = Field(default=None, description="the plan of the change; null if there is none")


class FleetDocument(Value):
    """The document of `vfioctl domain apply --json`."""

    fleet: str
    uri: str
    result: Literal["done", "nothing to do", "dry run"]
    domains: tuple[FleetItem, ...]
