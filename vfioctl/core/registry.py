"""The registry of what the subsystems contribute, with the protocols of checks, facts and records. May not name one."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

from pydantic import ValidationError

from vfioctl.core.action import Action, Context, ReplaceFile, ReplaceLink, Write
from vfioctl.core.change import VERSION, Change, Draft, Fact, Intent, JournalState, Phase, Plan, Step
from vfioctl.core.locations import import_object
from vfioctl.core.resource import Resource
from vfioctl.core.value import first_problem
from vfioctl.errors import BadDocument, Stuck
from vfioctl.kernel.protocol import Reader
from vfioctl.untrusted_text import parse_json

_PHASES = {phase: number for number, phase in enumerate(Phase)}
T = TypeVar("T")


class FactSource(Protocol):
    """Reads and compares facts of one kind."""

    kind: ClassVar[str]

    def read(self, kernel: Reader, facts: Sequence[Fact]) -> Mapping[str, Fact]:
        """Return the current facts by subject, but for devices that are gone. Raises Stuck if one does not answer."""

    def holds(self, fact: Fact, now: Fact | None) -> bool:
        """Return whether the current fact `now` still fits `fact`; `now` is None if the device is gone."""

    def relatives(self, kernel: Reader, fact: Fact) -> Iterable[str]:
        """Return related devices: while a change of one of them is unfinished, the fact's device may not be changed."""

    def describe(self, fact: Fact) -> Sequence[str]:
        """Return the fact's columns on the plan's page; empty if the fact is not shown."""


class Check(Protocol):
    """Verifies one kind of condition after the last step."""

    kind: ClassVar[str]

    def verify(self, context: Context, plan: Plan, subjects: Sequence[str]) -> Mapping[str, Any]:
        """Verify the condition; return entries for the outcome's report. Raises VerifyError, KernelRefused."""

    def dead(self, context: Context, subjects: Sequence[str]) -> Mapping[str, str]:
        """Return the dead devices, each with the evidence, to be marked. Raises Stuck if a read never returned."""
        return {}

    def describe(self, plan: Plan, subjects: Sequence[str]) -> Sequence[str]:
        """Return lines for the plan's page that say what is verified."""

    def conclude(self, subjects: Sequence[str], report: Mapping[str, Any]) -> Sequence[str]:
        """Return lines to show below the outcome of a finished change."""
        return ()


class Records(Protocol):
    """Rows of a subsystem's own tables that must stay consistent with the journal."""

    def begin(self, db: sqlite3.Connection, entry: int, plan: Plan, *, boot_id: str, now: str, acting_for: str) -> None:
        """Write what recovery must know if this process dies; called before the first write to the host.

        `acting_for`: the reservation that the change is made for (`vfioctl.core.reservations`), if any. May raise to
        refuse the change."""

    def end(
        self, db: sqlite3.Connection, entry: int, plan: Plan, state: JournalState, *, boot_id: str, now: str
    ) -> None:
        """Update the rows when the change ends; not called for a stuck change."""


@dataclass(frozen=True)
class Parts:
    """What one subsystem registers with the core. The order of the resources is the order of release."""

    resources: tuple[Resource, ...] = ()
    actions: tuple[Action, ...] = ()
    checks: tuple[Check, ...] = ()
    facts: tuple[FactSource, ...] = ()
    intents: tuple[type[Intent], ...] = ()
    records: tuple[Records, ...] = ()
    explain_stuck: Callable[[Context, Stuck, str], None] | None = None
    """Adds the holders of the device to a Stuck error."""


class Row(Protocol):
    """The attributes that the registry reads from a row of the table of subsystems."""

    @property
    def name(self) -> str: ...
    @property
    def parts(self) -> str:
        """Location of the subsystem's `Parts` as `module:name`; empty if it registers none."""


class Owned(NamedTuple):
    """A step with the change that it belongs to."""

    step: Step
    change: Change


class Registry:
    """The registered parts of all subsystems, imported on first use."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = tuple(rows)

    @cached_property
    def parts(self) -> Mapping[str, Parts]:
        """The parts by name of the subsystem."""
        return {row.name: import_object(row.parts) for row in self._rows if row.parts}

    @cached_property
    def _resources(self) -> Mapping[str, Resource]:
        return {resource.kind: resource for parts in self.parts.values() for resource in parts.resources}

    @cached_property
    def _ranks(self) -> Mapping[str, int]:
        return {kind: number for number, kind in enumerate(self._resources)}

    @cached_property
    def _actions(self) -> Mapping[str, Action]:
        registered = (action for parts in self.parts.values() for action in parts.actions)
        actions: list[Action] = [Write(), ReplaceFile(), ReplaceLink(), *registered]
        return {action.name: action for action in actions}

    @cached_property
    def _checks(self) -> Mapping[str, Check]:
        return {check.kind: check for parts in self.parts.values() for check in parts.checks}

    @cached_property
    def _facts(self) -> Mapping[str, FactSource]:
        return {fact.kind: fact for parts in self.parts.values() for fact in parts.facts}

    @cached_property
    def intents(self) -> Mapping[str, type[Intent]]:
        """The intent classes by verb."""
        intents = (intent for parts in self.parts.values() for intent in parts.intents)
        return {intent.model_fields["verb"].default: intent for intent in intents}

    @property
    def records(self) -> Iterator[Records]:
        """Yield the records kept beside the journal, in the order of the table of subsystems."""
        return (record for parts in self.parts.values() for record in parts.records)

    def resource(self, change: Change) -> Resource:
        """Return the resource class of a change. Raises BadDocument if its kind is not registered."""
        return _known(self._resources, change.kind, "resource")

    def action(self, step: Step) -> Action:
        return _known(self._actions, step.action, "action")

    def check(self, kind: str) -> Check:
        return _known(self._checks, kind, "check")

    def source(self, kind: str) -> FactSource:
        return _known(self._facts, kind, "fact")

    def subsystem_of(self, intent: Intent) -> str:
        """Return the name of the subsystem that defines the intent's verb."""
        return next(name for name, parts in self.parts.items() if type(intent) in parts.intents)

    def steps(self, changes: Iterable[Change]) -> tuple[Owned, ...]:
        """Return the steps of the changes, sorted by phase, then by the table of resources, then by change."""
        steps = [
            (self._place(step, change), number, nth, Owned(step, change))
            for number, change in enumerate(changes)
            for nth, step in enumerate(self.resource(change).steps(change))
        ]
        steps.sort(key=lambda entry: entry[:3])
        return tuple(self._merged(owned for *_, owned in steps))

    def _place(self, step: Step, change: Change) -> tuple[int, int]:
        rank = self._ranks[change.kind]
        return _PHASES[step.phase], -rank if step.phase == Phase.SETTLE else rank

    def _merged(self, owned: Iterable[Owned]) -> Iterator[Owned]:
        for merges, alike in groupby(owned, key=lambda own: self._alike(own.step)):
            first, *others = alike
            if merges and others:
                targets = dict.fromkeys(word for other in (first, *others) for word in other.step.target.split())
                yield Owned(first.step.model_copy(update={"target": " ".join(targets)}), first.change)
            else:
                yield from (first, *others)

    def _alike(self, step: Step) -> tuple[object, ...]:
        if not self.action(step).merges:
            return ()
        return step.phase, step.action, step.value, step.why, step.may_fail

    def plan(self, draft: Draft) -> Plan:
        """Return the plan of a draft: its steps and its id are added."""
        return Plan.of(draft, (owned.step for owned in self.steps(draft.changes)))

    def intent(self, document: Any) -> Intent:
        """Return the intent of a JSON object. Raises ValueError."""
        verb = document.get("verb") if isinstance(document, Mapping) else None
        if not isinstance(verb, str) or verb not in self.intents:
            raise ValueError(f"no verb {str(verb)[:40]!r} is known here")
        return self.intents[verb].model_validate(document)

    def read_plan(self, text: str | bytes) -> Plan:
        """Read a plan from JSON. Raises BadDocument if it is invalid or has another version."""
        try:
            return Plan.model_validate_json(text, context={"registry": self})
        except ValidationError as error:
            version = _version(text)
            if version is not None and version != VERSION:
                raise BadDocument(
                    f"the plan is of version {version}, and this vfioctl reads version {VERSION}",
                    hint="make a new plan with this vfioctl",
                ) from None
            raise BadDocument(f"not a plan: {first_problem(error)}") from None

    def read_plans(self, text: str | bytes) -> tuple[Plan, ...] | None:
        """Read the plans of a dry run that makes several; None for any other document. Raises BadDocument."""
        document = _document(text)
        plans = document.get("plans") if "steps" not in document else None
        if not isinstance(plans, list):
            return None
        return tuple(self.read_plan(json.dumps(plan)) for plan in plans)

    def is_forged(self, plan: Plan) -> bool:
        """Return whether the steps do not follow from the changes, or the verb does not permit the changes."""
        if len({change.key for change in plan.changes}) < len(plan.changes):
            return True
        try:
            for change in plan.changes:
                self.resource(change).validate(change)
            for request in plan.checks:
                self.check(request.kind)
            steps = tuple(owned.step for owned in self.steps(plan.changes))
            permitted = plan.intent.permits(plan)
        except (ValueError, LookupError, BadDocument):  # a fact may lack what every fact of its kind has
            return True
        return not permitted or [_effect(step) for step in plan.steps] != [_effect(step) for step in steps]


def _known(table: Mapping[str, T], name: str, what: str) -> T:
    if name not in table:
        raise BadDocument(f"no {what} {name[:40]!r} is known here", hint="a plan of another release? make a new one")
    return table[name]


def _effect(step: Step) -> tuple[object, ...]:
    return step.phase, step.action, step.target, step.value, step.alternatives, step.subject, step.may_fail


def _version(text: str | bytes) -> int | None:
    document = _document(text)
    version = document.get("version") if "steps" in document else None
    return version if isinstance(version, int) else None


def _document(text: str | bytes) -> Mapping[str, object]:
    try:
        document = parse_json(text)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
