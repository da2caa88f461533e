"""A change as a document: the facts it rests on, what becomes what, the steps, the proof.

May not do input or output. A plan's id is the digest of all the rest, so a plan file that was
edited by hand, or cut short, is not the plan that was reviewed.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

from vfioctl.core.setting import VGPU_KINDS, Setting
from vfioctl.inventory.model.functions import is_vfio_driver
from vfioctl.inventory.model.values import PciAddress, Subject, Uuid, Value
from vfioctl.vgpu.model.strategy import Strategy
from vfioctl.vgpu.model.vgpu import Count, Vgpu

KERNEL_CHOICE = "(kernel's choice)"
"""A goal driver: whatever the kernel binds by itself, or nothing."""


class Binding(Value):
    """To which driver a function is bound, and which one `driver_override` names."""

    driver: str | None
    driver_override: str | None

    def meets(self, goal: Binding) -> bool:
        """Whether this, as found, is what the goal asks for."""
        if goal.driver == KERNEL_CHOICE:
            chosen = self.driver is None or not is_vfio_driver(self.driver)
        else:
            chosen = same_driver(self.driver, goal.driver)
        return chosen and same_driver(self.driver_override, goal.driver_override)

    def settled(self, goal: Binding) -> bool:
        """Whether nothing is left to do for the goal: a device without a driver still awaits the kernel's choice."""
        return self.meets(goal) and not (goal.driver == KERNEL_CHOICE and self.driver is None)


def same_driver(one: str | None, other: str | None) -> bool:
    """Whether two names are one driver: a module's `_` may be a `-` in the name that it registers."""
    return one == other or (one or "").replace("_", "-") == (other or "").replace("_", "-")


class Fact(Value):
    """What a plan relies on for one function; the plan is stale when any of it has changed."""

    address: PciAddress
    identity: str = Field(description="vendor:device:subsystem vendor:subsystem device:class")
    iommu_group: int | None
    binding: Binding


class Change(Value):
    """One function, before and after."""

    address: PciAddress
    before: Binding
    after: Binding


class StepKind(StrEnum):
    LOAD = "load"
    WRITE = "write"
    CHECK = "check"
    """That nobody holds the devices, asked of the host once more."""
    PERSISTENCE = "persistence"
    SERVICE = "service"
    KEEP = "keep"
    """A file below /etc, replaced whole; removed where there is no value."""
    NVIDIA_VFS = "NVIDIA VFs"
    """All VFs of a GPU on nvidia on, or off, by NVIDIA's sriov-manage."""


class Step(Value):
    """One effect: a module to load, a value to write to a file of the kernel, a service to stop, ..."""

    kind: StepKind
    target: str = Field(description="the file, the module, the unit, the GPU; for a check what nobody may hold")
    value: str = Field(default="", description="what is written; a lone newline clears driver_override")
    why: str
    address: Subject | None = Field(default=None, description="the function or mediated device that it concerns")
    may_fail: bool = Field(default=False, description="the rest is done all the same, and the failure told at the end")


class Verb(StrEnum):
    BIND = "bind"
    UNBIND = "unbind"
    RESET = "reset"
    CREATE = "vgpu create"
    REMOVE = "vgpu remove"
    SRIOV = "sriov set"
    PROFILE = "sriov profile"


class VgpuRequest(Value):
    """What was asked for of vGPUs: which to make, which to remove, how many VFs."""

    type: str | None = Field(default=None, description="by id, name or profile, as it was asked")
    parent: str | None = Field(default=None, description="the only card or place to make them on")
    numa: int | None = Field(default=None, description="the only NUMA node to make them on")
    count: int = Field(default=1, ge=1, le=65_535)
    placement: Strategy = Strategy.BINPACK
    uuids: tuple[Uuid, ...] = Field(default=(), description="one for each mediated device, should they become such")
    parameters: tuple[tuple[str, str], ...] = ()
    persistent: bool = Field(default=False, description="made again at boot")
    exclude: tuple[str, ...] = Field(default=(), description="places that have just refused one")
    instances: tuple[Subject, ...] = Field(default=(), description="those to remove")
    vfs: int | None = Field(default=None, ge=0, le=65_535)
    foreign: bool = Field(default=False, description="also what vfioctl did not make")


def _is_nothing(value: object) -> bool:
    """What a change of drivers has no use for is not in its documents: their ids stay as they were."""
    return not value


class Intent(Value):
    """What was asked for, as it was asked."""

    verb: Verb
    devices: tuple[PciAddress, ...]
    vgpu_request: VgpuRequest | None = Field(default=None, exclude_if=_is_nothing)
    driver: str | None = Field(default=None, description="--driver, or --to")
    with_group: bool = False
    allow_boot_vga: bool = False
    stop_services: tuple[str, ...] = Field(default=(), description="units that may be stopped when they hold a device")
    force_holders: bool = Field(default=False, description="go on although somebody has the device open")
    method: str | None = Field(default=None, description="of a reset: flr, bus, pm, ...")


class Plan(Value):
    """A change that can be read, saved, compared and run later. Build it with `Plan.make`."""

    version: int = 1
    id: str
    intent: Intent
    facts: tuple[Fact, ...]
    changes: tuple[Change, ...]
    settings: tuple[Setting, ...] = ()
    reset: str | None = Field(default=None, description="the file whose writing resets the device")
    steps: tuple[Step, ...]
    viable_groups: tuple[int, ...] = Field((), description="groups that the kernel is asked to call viable")
    cards: tuple[str, ...] = Field(default=(), exclude_if=_is_nothing, description="the cards whose vGPUs change")
    notes: tuple[str, ...] = Field((), description="what a reader should know before saying yes")

    @classmethod
    def make(  # noqa: PLR0913 - a document has many parts, and each is named
        cls,
        *,
        intent: Intent,
        facts: tuple[Fact, ...],
        changes: tuple[Change, ...],
        steps: tuple[Step, ...],
        settings: tuple[Setting, ...] = (),
        reset: str | None = None,
        viable_groups: tuple[int, ...] = (),
        cards: tuple[str, ...] = (),
        notes: tuple[str, ...] = (),
    ) -> Self:
        """A plan with its id."""
        draft = cls.model_construct(
            version=1,
            id="",
            intent=intent,
            facts=facts,
            changes=changes,
            settings=settings,
            reset=reset,
            steps=steps,
            viable_groups=viable_groups,
            cards=cards,
            notes=notes,
        )
        return draft.model_copy(update={"id": draft.digest()})

    @model_validator(mode="after")
    def _check_id(self) -> Self:
        if self.version != 1:
            raise ValueError(f"plan version {self.version} is not known here")
        if self.id != self.model_copy(update={"id": ""}).digest():
            raise ValueError("the plan's id does not fit its content: it was edited or cut short")
        return self

    def noting(self, *notes: str) -> Self:
        """The same plan with more to say, and so with another id."""
        if not notes:
            return self
        draft = self.model_copy(update={"id": "", "notes": (*self.notes, *notes)})
        return draft.model_copy(update={"id": draft.digest()})

    @property
    def nothing_to_do(self) -> bool:
        return not self.steps

    @property
    def subjects(self) -> tuple[Subject, ...]:
        """What it changes: functions, vGPUs, the PFs of VFs. No second change of one may be under way."""
        of_settings = (setting.address for setting in self.settings if setting.kind in VGPU_KINDS)
        return tuple(dict.fromkeys((*(change.address for change in self.changes), *of_settings)))


class Result(StrEnum):
    DONE = "done"
    NOTHING = "nothing to do"
    BACK = "put back"
    REBOOTED = "undone by a reboot"


class Left(Value):
    """How many more of a type there is room for on a card, afterwards."""

    card: str
    type: str
    profile: str
    available: Count


class Outcome(Value):
    """What became of a plan: bindings found afterwards are in `found`, vGPUs in `vGPUs`."""

    plan: Plan
    result: Result
    found: tuple[Fact, ...]
    vgpus: tuple[Vgpu, ...] = Field(default=(), exclude_if=_is_nothing, description="those made, as found afterwards")
    left: tuple[Left, ...] = Field(default=(), exclude_if=_is_nothing, description="of the types that were made")
    seconds: float = Field(default=0.0, description="from the lock to the last word in the journal")


class JournalState(StrEnum):
    OPEN = "open"
    DONE = "done"
    BACK = "back"
    STUCK = "stuck"
    REBOOTED = "rebooted"


class JournalEntry(Value):
    """One change in the journal. Times are ISO 8601, UTC."""

    id: int
    plan: Plan
    state: JournalState
    boot_id: str
    began: str
    ended: str | None = None
    why: str = Field("", description="what went wrong, for a change that was not done")
