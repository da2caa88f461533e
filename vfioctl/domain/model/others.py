"""What other domains have, as far as it is known. May not do input or output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Others(NamedTuple):
    """CPUs and devices, each with the domain that has it: `domain web1`, `running domain web1`."""

    cpus: Mapping[int, str]
    devices: Mapping[str, str]
    unknown: str = ""
    """Why it is not known."""


NOBODY = Others({}, {})
