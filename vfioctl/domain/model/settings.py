"""The table `[domain]` of the configuration. May not do input or output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from vfioctl.core.limits import FORBID, Checked
from vfioctl.domain.model.libvirt import URI, checked_uri


def _uri(text: str) -> str:
    from vfioctl.errors import BadSpec

    try:
        return checked_uri(text)
    except BadSpec as error:
        raise ValueError(error.message) from None


@dataclass(frozen=True, kw_only=True)
class DomainSettings:
    """The settings of domains."""

    __pydantic_config__: ClassVar = FORBID

    connect: Annotated[str, Checked(_uri)] = URI
    """The libvirt that has the domains."""
