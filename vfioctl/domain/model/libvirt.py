"""A libvirt, its domains, and what they have; and which libvirt is asked. May not do input or output."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, ClassVar, NamedTuple

from vfioctl.core.frozen import record_class
from vfioctl.core.limits import FORBID, Checked
from vfioctl.errors import BadSpec

URI = "qemu:///system"
"""Where domains are, unless the user names another place."""
_RUN_PROGRAMS = {"command", "netcat"}
"""Parameters that name a program, which libvirt's client runs (https://libvirt.org/uri.html)."""
_URI = re.compile(r"[a-z][a-z0-9+.-]{0,30}:[!-~]{1,150}", re.ASCII)


def checked_uri(text: str) -> str:
    """Return the URI of a libvirt. Raises BadSpec for what is none."""
    if _URI.fullmatch(text) is None:
        raise BadSpec(f"not the URI of a libvirt: {text[:80]!r}", hint="write it as qemu:///system or test:///default")
    scheme, _, place = text.partition(":")
    names = {word.partition("=")[0] for word in place.partition("?")[2].replace(";", "&").split("&")}
    if scheme.endswith("+ext") or not names.isdisjoint(_RUN_PROGRAMS):
        raise BadSpec(
            f"this URI lets libvirt run a program that it names: {text[:80]!r}", hint="use ssh or tls without"
        )
    return text


def _setting(text: str) -> str:
    try:
        return checked_uri(text)
    except BadSpec as error:
        raise ValueError(error.message) from None


@dataclass(frozen=True, kw_only=True)
class DomainSettings:
    """The table `[domain]` of the configuration."""

    __pydantic_config__: ClassVar = FORBID

    connect: Annotated[str, Checked(_setting)] = URI
    """The libvirt that has the domains."""


def place_of(name: str, parts: int) -> tuple[str, ...]:
    """Return the URI in a change's name, and the parts after it; the last may have spaces. Empty for those it lacks."""
    words = name.split(" ", parts)
    return (*words, *[""] * (parts + 1 - len(words)))


def known_as(uri: str) -> str:
    """Return the URI under which claims know a libvirt: the one in URI may be written in several ways."""
    scheme, _, place = uri.partition("://")
    return URI if scheme in ("qemu", "qemu+unix") and place.partition("?")[0].rstrip("/") == "/system" else uri


def is_elsewhere(uri: str) -> bool:
    """Return whether the URI names a libvirt on another machine, as in qemu+ssh://host/system."""
    return not uri.partition("://")[2].startswith("/")


@record_class
class DomainXml:
    """One domain of libvirt. Its name and its XML may come from anybody."""

    name: str
    uuid: str
    is_active: bool
    is_defined: bool = True
    """Whether it stays when it has stopped."""
    live: str = ""
    """The XML as it runs; empty if it does not run."""
    defined: str = ""
    """The XML as it is defined; empty if it is not."""

    @property
    def state(self) -> str:
        """`running`; `transient` if it is gone when it stops; `defined` if it does not run."""
        return "defined" if not self.is_active else "running" if self.is_defined else "transient"

    @property
    def xml(self) -> str:
        """The XML as it runs, or as it is defined if it does not run."""
        return self.live or self.defined


@record_class
class Libvirt:
    """One libvirt and its domains, sorted by name. Versions are 1000000 * major + 1000 * minor + release."""

    uri: str
    version: int | None = None
    """Of libvirt; None if it cannot be asked."""
    hypervisor: int | None = None
    """Of QEMU; None if it is not known."""
    domains: tuple[DomainXml, ...] = ()
    unknown: str = ""
    """Why libvirt cannot be asked; empty if it answered."""

    def find(self, name: str) -> DomainXml | None:
        """Return the domain of this name, or of this UUID."""
        by_name = (domain for domain in self.domains if domain.name == name)
        return next(by_name, None) or next((domain for domain in self.domains if domain.uuid == name.lower()), None)


class Others(NamedTuple):
    """What other domains have, as far as it is known: CPUs, devices and images, each with its domain, in words."""

    cpus: Mapping[int, str]
    devices: Mapping[str, str]
    unknown: str = ""
    """Why it is not known."""
    own: Collection[str] = ()
    """The ids of the claims of the domain itself: what they hold is not for others."""
    running: Collection[str] = ()
    """The names of all domains that run, the domain itself too."""
    own_cpus: Collection[int] = ()
    """The CPUs to which the domain itself is pinned while it runs."""
    own_memory: Mapping[tuple[int, int], int] = MappingProxyType({})
    """Bytes of memory that the domain itself has while it runs, by node and size of the pages; 0: ordinary ones."""
    images: Mapping[str, str] = MappingProxyType({})
    """The disk images that they write to; see `written_images`."""


NOBODY = Others({}, {})
