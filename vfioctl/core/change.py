"""The plan document: the intent, the facts it relies on, the changes (resource, before, after) and the steps.

May not do input or output, and knows no kind of resource. A plan's id is the digest of its other fields, so an edited
or truncated plan file is detected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, ClassVar, Self

from pydantic import Field, SerializeAsAny, ValidationInfo, field_validator, model_validator

from vfioctl.core.frozen import value_class
from vfioctl.core.value import Value

VERSION = 2
"""Version of the plan document. vfioctl 0.1 wrote version 1."""

Key = tuple[str, str]
"""Identifies a resource: its kind and its name."""


class Phase(StrEnum):
    """Phase of a step. The steps of a plan are sorted by phase, in this order."""

    LOAD = "load"
    RELEASE = "release"
    """Services, consoles and driver modes release the device; in the order of the resource table."""
    CHECK = "check"
    """Preconditions are verified again, before the first unbinding or removal."""
    FORGET = "forget"
    """A persistent definition is deleted before the resource itself."""
    AIM = "aim"
    LOCK = "lock"
    UNBIND = "unbind"
    RESET = "reset"
    PROBE = "probe"
    CLEAR = "clear"
    REMOVE = "remove"
    PREPARE = "prepare"
    """A value that is set only while something is created."""
    COUNT = "count"
    RESUME = "resume"
    CREATE = "create"
    SET = "set"
    SETTLE = "settle"
    """The remaining settings are written; in the reverse order of the resource table."""
    PERSIST = "persist"
    """What applies at every boot is written, after everything else was verified."""


class Change(Value):
    """The value of one resource before and after. `during`: its value only while the change is under way."""

    kind: str
    name: str = Field(max_length=255, description="a file, an address, a unit, ..., depending on the kind")
    subject: str = Field(description="the device concerned")
    before: str
    after: str
    during: str | None = None
    may_fail: bool = Field(default=False, description="if it fails, the rest still runs; reported at the end")

    @property
    def key(self) -> Key:
        return self.kind, self.name

    def to(self, after: str, *, found: str, may_fail: bool | None = None) -> Change:
        """Return a change of the same resource from `found` to `after`."""
        may_fail = self.may_fail if may_fail is None else may_fail
        return self.model_copy(update={"before": found, "after": after, "during": None, "may_fail": may_fail})


class Step(Value):
    """One operation: load a module, write a value to a kernel file, stop a unit, ..."""

    phase: Phase
    action: str = Field(default="write", description="name of a registered action")
    target: str = Field(description="the file, module, unit or GPU; for a check its subjects")
    value: str = Field(default="", description="what is written; a lone newline clears driver_override")
    alternatives: tuple[str, ...] = Field(
        default=(), description="other spellings of the driver's name; the registered one is written"
    )
    why: str
    subject: str = Field(default="", description="the device concerned")
    may_fail: bool = Field(default=False, description="if it fails, the rest still runs; reported at the end")


class Fact(Value):
    """A fact that a plan relies on. The plan is stale when the fact has changed."""

    kind: str
    subject: str
    values: Mapping[str, str | int | None]


class CheckRequest(Value):
    """A check that runs after the last step: the kind of check and its subjects."""

    kind: str
    subjects: tuple[str, ...]


class Intent(Value):
    """The request that a plan was made for. One frozen class for each verb, defined beside the verb."""

    verb: str
    done: ClassVar[str] = "changed"
    """The verb's past participle, for messages, such as `bound`."""

    def serves(self, claim: str, changes: Sequence[Change], *, shared: bool) -> bool:
        """Return whether these changes of a device serve the claim that has it, so that its reservation permits them.
        `shared`: it has a share of the device."""
        return False

    def title(self) -> str:
        """Return the request in one line, such as `bind 0000:41:00.0 to vfio-pci`."""
        raise NotImplementedError

    def permits(self, plan: Plan) -> bool:
        """Return whether every change of the plan is one that this verb may make on the devices that it names."""
        raise NotImplementedError

    def undone_by(self, plan: Plan) -> tuple[str, ...]:
        """Return lines that say how to undo the plan; the first is a command if one exists. None by default."""
        return ()


@value_class
class Draft:
    """A plan without steps and id: the result of planning. `Registry.plan` completes it."""

    intent: Intent
    facts: tuple[Fact, ...] = ()
    changes: tuple[Change, ...] = ()
    checks: tuple[CheckRequest, ...] = ()
    notes: tuple[str, ...] = ()

    def noting(self, *notes: str) -> Draft:
        """Return a copy with more notes."""
        return Draft(self.intent, self.facts, self.changes, self.checks, (*self.notes, *notes))


class Plan(Value):
    """A plan that can be shown, saved, compared and applied later. See `Registry.plan` and `Registry.read_plan`."""

    version: int = VERSION
    id: str
    intent: SerializeAsAny[Intent]
    facts: tuple[Fact, ...] = ()
    changes: tuple[Change, ...] = ()
    checks: tuple[CheckRequest, ...] = Field((), description="what is verified after the last step")
    steps: tuple[Step, ...] = ()
    notes: tuple[str, ...] = Field((), description="warnings for the user before the plan is applied")

    @classmethod
    def of(cls, draft: Draft, steps: Iterable[Step]) -> Self:
        """Return the plan of a draft and its steps, with its id."""
        unnamed = cls.model_construct(id="", **vars(draft), steps=tuple(steps))
        return unnamed.model_copy(update={"id": unnamed.digest()})

    @field_validator("intent", mode="before")
    @classmethod
    def _read_intent(cls, value: Any, info: ValidationInfo) -> Any:
        """Validate the intent with its verb's class, which the registry in the validation context knows."""
        if isinstance(value, Intent):
            return value
        if not info.context:
            raise ValueError("a plan is read by Registry.read_plan, which knows the verbs")
        return info.context["registry"].intent(value)

    @model_validator(mode="after")
    def _check_id(self) -> Self:
        if self.version != VERSION:
            raise ValueError(f"plan version {self.version} is not known here")
        if self.id != self.model_copy(update={"id": ""}).digest():
            raise ValueError("the plan's id does not fit its content: it was edited or cut short")
        return self

    @property
    def nothing_to_do(self) -> bool:
        return not self.steps

    @property
    def subjects(self) -> tuple[str, ...]:
        """The devices that the plan changes. Only one change of a device may be under way."""
        return tuple(dict.fromkeys(change.subject for change in self.changes))

    @property
    def listed(self) -> str:
        """The devices that the plan changes, for messages."""
        return ", ".join(self.subjects)

    def facts_of(self, kind: str) -> tuple[Fact, ...]:
        """Return the facts of one kind."""
        return tuple(fact for fact in self.facts if fact.kind == kind)

    def changes_of(self, *kinds: str) -> tuple[Change, ...]:
        """Return the changes of these kinds of resource."""
        return tuple(change for change in self.changes if change.kind in kinds)


class Result(StrEnum):
    DONE = "done"
    NOTHING = "nothing to do"
    COMPLETE = "already complete, closed"
    BACK = "put back"
    REBOOTED = "undone by a reboot"


class Outcome(Value):
    """The result of applying or recovering a plan."""

    plan: Plan
    result: Result
    found: tuple[Fact, ...] = Field(description="the plan's facts as they are now")
    changes: tuple[Change, ...] = Field((), description="the plan's changes, done: `after` is what was found")
    report: Mapping[str, Any] = Field(default_factory=dict, description="what the checks found, by their own names")
    notes: tuple[str, ...] = Field(default=(), description="optional steps that failed, without consequence")
    seconds: float = Field(default=0.0, description="from the lock to the last entry in the journal")
    data: Mapping[str, bytes] = Field(default_factory=dict, exclude=True, description="what steps have read, by target")


class JournalState(StrEnum):
    OPEN = "open"
    DONE = "done"
    BACK = "back"
    STUCK = "stuck"
    REBOOTED = "rebooted"


class Caller(Value):
    """Who made a change. Empty texts and no pid: unknown, as in entries of releases that did not record it."""

    user: str = Field(default="", description="the user's name, or the number of a user without a name")
    sudo_user: str = Field(default="", description="the user who called sudo; empty without sudo")
    pid: int | None = None
    command: str = Field(default="", description="the command line, cut at 1000 characters")


class JournalEntry(Value):
    """One change in the journal. Times are ISO 8601 in UTC."""

    id: int
    plan: Plan
    state: JournalState
    boot_id: str
    began: str
    ended: str | None = None
    why: str = Field(default="", description="what went wrong, for a change that was not done")
    reached: int | None = Field(None, description="the last step that was begun, where it is recorded")
    caller: Caller = Field(default=Caller(), description="who made the change")
    made_for: str = Field(default="", description="the reservation that it was made for, as `claim 1a2b3c4d`")
    under_way: bool = Field(
        default=False, description="a living process is making it; an open change that is not under way was interrupted"
    )

    @property
    def devices(self) -> frozenset[str]:
        """The devices that the change changed or relied on."""
        return frozenset((*self.plan.subjects, *(fact.subject for fact in self.plan.facts)))


class Repair(Value):
    """What `recover` would do with one interrupted change, on the host as it is now."""

    entry: JournalEntry
    result: Result
    changes: tuple[Change, ...] = ()
    steps: tuple[Step, ...] = ()
    refused: str = Field(default="", description="why it cannot be recovered now; empty if it can")
