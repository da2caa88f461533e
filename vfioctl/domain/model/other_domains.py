"""What other domains have, as far as it is known. May not do input or output."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import NamedTuple


class Others(NamedTuple):
    """CPUs and devices, each with the domain that has it: `domain web1`, `running domain web1`."""

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
    """The disk images that they write to, each with the domain; see `written_images`."""


NOBODY = Others({}, {})
