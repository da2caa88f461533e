"""The table `[domain]` of the configuration. May not do input or output."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from vfioctl.core.value import Value
from vfioctl.domain.model.libvirt import URI, checked_uri


def _uri(text: str) -> str:
    from vfioctl.errors import BadSpec

    try:
        return checked_uri(text)
    except BadSpec as error:
        raise ValueError(error.message) from None


class DomainSettings(Value):
    """The settings of domains."""

    connect: Annotated[str, AfterValidator(_uri)] = Field(default=URI, description="the libvirt that has the domains")
