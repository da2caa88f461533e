"""What the ledger records about vGPUs. May not do input or output. Does not import pydantic, which slows listings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from vfioctl.vgpu.model.vgpu import Created

TypeNames = Mapping[str, Mapping[str, str]]
"""Names of vGPU types, by card and type id. The kernel lists only types that can still be created."""


class Recorded(NamedTuple):
    """All records about vGPUs that are valid in the current boot."""

    wedged: Mapping[str, str]
    """Functions and mediated devices with a write that never returned, and that write."""
    created: Mapping[str, Created]
    """The vGPUs and VFs that vfioctl created in this boot, by id, and the persistent mdevs of any boot."""
    names: TypeNames
    """The names that types had when they were last listed."""


NOTHING = Recorded({}, {}, {})
