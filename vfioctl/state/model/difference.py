"""What differs, and what is to be done. May not do input or output."""

from __future__ import annotations

from vfioctl.core.change import Intent, Outcome, Plan
from vfioctl.core.frozen import record_class
from vfioctl.errors import VfioctlError
from vfioctl.inventory.model.functions import Inventory


@record_class
class Difference:
    """One setting of one device or vGPU that is not as the document says."""

    name: str
    """The device or vGPU, as the document names it."""
    setting: str
    wanted: str
    found: str


@record_class
class Comparison:
    """The document of `vfioctl state assert --json`. The exit code is 6 unless it is ok."""

    ok: bool
    differences: tuple[Difference, ...]
    notes: tuple[str, ...] = ()
    """Devices that have moved, and facts that could not be read."""


@record_class
class Step:
    """A change that settles some of the differences, made by one plan."""

    phase: int
    intent: Intent
    names: tuple[str, ...]
    """The devices and vGPUs, as the document names them."""
    own: frozenset[str]
    """What only one change of this phase may be about."""
    changes: frozenset[str]
    """What later phases find changed after it."""
    needs: frozenset[str]
    """What it must find as it is planned for."""


@record_class
class Refusal:
    """Something that cannot be made as the document says."""

    name: str
    error: VfioctlError


@record_class
class Later:
    """What is planned when other changes have been made."""

    name: str
    what: str


@record_class
class Steps:
    """How to settle all differences."""

    steps: tuple[Step, ...]
    refused: tuple[Refusal, ...]
    later: tuple[Later, ...]


@record_class
class Prepared:
    """The changes, planned on the host as it is now."""

    planned: tuple[tuple[Step, Plan], ...]
    refused: tuple[Refusal, ...]
    later: tuple[Later, ...]
    differences: tuple[Difference, ...]
    notes: tuple[str, ...]
    inventory: Inventory
    """In which the devices were found."""

    @property
    def plans(self) -> tuple[Plan, ...]:
        return tuple(plan for _, plan in self.planned)


@record_class
class Applied:
    """What was done."""

    outcomes: tuple[Outcome, ...]
    refused: tuple[Refusal, ...]
