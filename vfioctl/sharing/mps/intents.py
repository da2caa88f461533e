"""The intents of MPS: start, stop, apply. One frozen class per verb. May not do input or output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

from pydantic import Field

from vfioctl.console.words import listed
from vfioctl.core.change import Change, Intent, Plan
from vfioctl.inventory.model.values import PciAddress
from vfioctl.sharing.mps.daemon import EXCLUSIVE

ENVIRONMENT, MODE, DAEMON, LIMIT = "mps environment", "compute mode", "mps daemon", "mps limit"
"""The kinds of resource."""
ACTIVE, INACTIVE, SILENT, UNKNOWN = "active", "inactive", "silent", "unknown"
"""The states of a daemon. Silent: its unit is active, and it does not answer. Unknown: systemd does not answer."""
_KINDS = frozenset({ENVIRONMENT, MODE, DAEMON, LIMIT})


class MpsIntent(Intent):
    """A change of the MPS daemons of these GPUs."""

    devices: tuple[PciAddress, ...]

    ends: ClassVar[bool]
    """Whether the daemons run no more afterwards."""

    def serves(self, claim: str, changes: Sequence[Change], *, shared: bool) -> bool:
        """Return true for shares, for the end of a daemon, and for the daemon of a claim that has a whole GPU."""
        own = all(f"claim-{claim}" in change.name for change in changes if change.kind != MODE)
        return shared or self.ends or own

    def permits(self, plan: Plan) -> bool:
        """Return whether the plan changes only what MPS needs of the GPUs asked for, and towards the verb's goal."""
        known = {change.kind for change in plan.changes} <= _KINDS
        return known and all(change.subject in self.devices and self._leads_to(change) for change in plan.changes)

    def _leads_to(self, change: Change) -> bool:
        if self.ends:
            goals: Mapping[str, bool] = {
                ENVIRONMENT: not change.after,
                MODE: change.before == EXCLUSIVE,
                DAEMON: change.after == INACTIVE,
                LIMIT: not change.after,
            }
        else:
            goals = {
                ENVIRONMENT: bool(change.after),
                MODE: change.after == EXCLUSIVE,
                DAEMON: change.after == ACTIVE,
                LIMIT: bool(change.after),
            }
        return goals.get(change.kind, False)


class MpsStartIntent(MpsIntent):
    """Start an MPS daemon for one GPU."""

    done: ClassVar[str] = "started"
    ends: ClassVar[bool] = False

    verb: Literal["mps start"] = "mps start"
    claim: str = Field(default="", description="the claim whose daemon it is; empty for all claims of the GPU")
    threads: int | None = Field(default=None, description="percent of the GPU's threads for each client")
    memory: int | None = Field(default=None, description="bytes of the GPU's memory for each client")

    def title(self) -> str:
        return f"start MPS on {listed(self.devices)}{f' for claim {self.claim}' if self.claim else ''}"

    def undone_by(self, plan: Plan) -> tuple[str, ...]:
        return (f"vfioctl mps stop {' '.join(self.devices)}",)


class MpsStopIntent(MpsIntent):
    """Stop the MPS daemons of GPUs."""

    done: ClassVar[str] = "stopped"
    ends: ClassVar[bool] = True

    verb: Literal["mps stop"] = "mps stop"
    force: bool = Field(default=False, description="although clients run")

    def title(self) -> str:
        return f"stop MPS on {listed(self.devices)}"


class MpsApplyIntent(MpsIntent):
    """Bring the MPS daemons of GPUs to what they were told, or to new limits."""

    done: ClassVar[str] = "applied"
    ends: ClassVar[bool] = False

    verb: Literal["mps apply"] = "mps apply"
    threads: int | None = Field(default=None, description="percent of the GPU's threads for each client")
    memory: int | None = Field(default=None, description="bytes of the GPU's memory for each client")
    skip: bool = Field(default=False, description="leave alone what cannot be corrected")
    force: bool = Field(default=False, description="also start a daemon again whose clients are not known")

    def title(self) -> str:
        return f"apply the limits of MPS on {listed(self.devices)}"
