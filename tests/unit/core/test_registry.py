"""The registry: in which order steps are taken, what is read as a plan, and which plans are forged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.hosts.machines import REGISTRY, copy, machine, original
from vfioctl.binding.model.binding import Binding
from vfioctl.binding.model.intents import BindIntent
from vfioctl.binding.resources.driver import binding_change
from vfioctl.core.change import VERSION, Change, CheckRequest, Draft, Phase, Plan, Step
from vfioctl.core.registry import Parts, Registry
from vfioctl.core.resource import FileResource
from vfioctl.errors import BadDocument
from vfioctl.inventory.model.values import PciAddress
from vfioctl.subsystems import SUBSYSTEMS, Subsystem

GPU = PciAddress("0000:0b:00.0")
HOME = f"/sys/bus/pci/devices/{GPU}"


class First(FileResource):
    """Released, and taken back."""

    kind: ClassVar[str] = "first"

    def steps(self, change: Change) -> Iterator[Step]:
        for phase in Phase:
            if phase.value in change.after.split():
                yield self.write(change, "1", phase=phase)


class Second(First):
    kind: ClassVar[str] = "second"


class Asking(FileResource):
    """One whose steps ask who holds its subject."""

    kind: ClassVar[str] = "asking"

    def steps(self, change: Change) -> Iterator[Step]:
        yield Step(phase=Phase.CHECK, action="unheld", target=change.subject, why=change.after)


PARTS = Parts(resources=(First(), Second(), Asking()))
OWN = Subsystem("own", cli="", commands={}, parts=f"{__name__}:PARTS")


@pytest.fixture
def registry() -> Registry:
    return Registry((*SUBSYSTEMS, OWN))


def change(kind: str, name: str, *phases: Phase) -> Change:
    return Change(kind=kind, name=name, subject=name, before="", after=" ".join(phases))


def order(registry: Registry, *changes: Change) -> list[tuple[str, str]]:
    return [(owned.step.phase, owned.step.target) for owned in registry.steps(changes)]


class TestOrder:
    def test_is_by_phase_whatever_the_order_of_the_changes(self, registry: Registry) -> None:
        one, two = change("first", "a", *Phase), change("first", "b", *Phase)
        for changes in ((one, two), (two, one)):
            found = order(registry, *changes)
            assert [phase for phase, _ in found] == [phase for phase in Phase for _ in range(2)]
            assert [target for _, target in found] == [each.name for _ in Phase for each in changes]

    def test_in_a_phase_is_that_of_the_table_and_then_of_the_changes(self, registry: Registry) -> None:
        changes = [
            change("second", "a", Phase.RELEASE),
            change("first", "b", Phase.RELEASE),
            change("second", "c", Phase.RELEASE),
            change("first", "d", Phase.RELEASE),
        ]
        assert [target for _, target in order(registry, *changes)] == ["b", "d", "a", "c"]

    def test_is_the_reverse_of_the_table_when_all_is_in_its_place(self, registry: Registry) -> None:
        """A service, the first to go, is the last to find its device there again."""
        changes = [change("first", "a", Phase.SETTLE), change("second", "b", Phase.SETTLE)]
        changes += [change("first", "c", Phase.SETTLE), change("second", "d", Phase.SETTLE)]
        assert [target for _, target in order(registry, *changes)] == ["b", "d", "a", "c"]

    def test_of_one_change_is_its_own(self) -> None:
        moving = binding_change(GPU, Binding("nvidia"), Binding("vfio-pci", "vfio-pci"))
        phases = [owned.step.phase for owned in REGISTRY.steps([moving])]
        assert phases == [Phase.CHECK, Phase.AIM, Phase.UNBIND, Phase.PROBE]

    def test_has_every_phase_of_all_functions_before_the_next(self) -> None:
        moving = [
            binding_change(f"0000:0b:00.{number}", Binding("nvidia"), Binding("vfio-pci", "vfio-pci"))
            for number in range(3)
        ]
        phases = [owned.step.phase for owned in REGISTRY.steps(moving)]
        assert phases == [Phase.CHECK, *[Phase.AIM] * 3, *[Phase.UNBIND] * 3, *[Phase.PROBE] * 3]


class TestMerging:
    def test_asks_once_for_all(self, registry: Registry) -> None:
        changes = [change("asking", name) for name in ("a", "b", "c", "b")]
        (owned,) = registry.steps(changes)
        assert (owned.step.target, owned.change) == ("a b c", changes[0])

    def test_keeps_apart_what_is_asked_for_other_reasons(self, registry: Registry) -> None:
        changes = [Change(kind="asking", name=n, subject=n, before="", after=why) for n, why in ("ax", "by", "cy")]
        assert [owned.step.target for owned in registry.steps(changes)] == ["a", "b c"]

    def test_is_not_for_writes(self, registry: Registry) -> None:
        assert len(registry.steps([change("first", "a", Phase.SET)] * 2)) == 2


class TestParts:
    def test_are_imported_when_they_are_asked_for(self) -> None:
        missing = Registry([Subsystem("odd", cli="", commands={}, parts="vfioctl.no_such_module:PARTS")])
        with pytest.raises(ModuleNotFoundError):
            missing.parts  # noqa: B018 - it is the question that imports

    def test_of_a_subsystem_without_any_are_none(self) -> None:
        assert Registry([Subsystem("odd", cli="", commands={})]).parts == {}

    def test_have_one_class_for_each_verb(self) -> None:
        assert [*REGISTRY.intents] == [
            "bind",
            "unbind",
            "reset",
            "rom",
            "vgpu create",
            "vgpu remove",
            "sriov set",
            "sriov profile",
            "access",
            "cdi generate",
            "domain define",
            "domain undefine",
            "hook install",
            "hook remove",
            "persist remove",
            "persist import",
            "install",
            "uninstall",
            "allow",
            "disallow",
            "mps start",
            "mps stop",
            "mps apply",
        ]
        for verb, intent in REGISTRY.intents.items():
            assert intent.model_fields["verb"].default == verb
        assert REGISTRY.subsystem_of(BindIntent(devices=(GPU,))) == "binding"

    def test_have_no_kind_twice(self) -> None:
        for what in ("resources", "checks", "facts"):
            kinds = [each.kind for parts in REGISTRY.parts.values() for each in getattr(parts, what)]
            assert len(kinds) == len(set(kinds))
        actions = [each.name for parts in REGISTRY.parts.values() for each in parts.actions]
        assert len(actions) == len({*actions, "write"}) - 1

    @pytest.mark.parametrize("what", ["action", "check", "source", "resource"])
    def test_that_nobody_registers_are_not_known(self, what: str) -> None:
        asked: dict[str, Any] = {
            "action": Step(phase=Phase.SET, action="odd", target="x", why=""),
            "resource": Change(kind="odd", name="x", subject="x", before="", after=""),
        }
        with pytest.raises(BadDocument, match="'odd' is known here") as caught:
            getattr(REGISTRY, what)(asked.get(what, "odd"))
        assert "another release" in caught.value.hint


class TestIntents:
    @pytest.mark.parametrize(
        "document",
        [None, [], "bind", {}, {"verb": None}, {"verb": "odd"}, {"verb": ["bind"]}, {"verb": "bind", "devices": 7}],
        ids=str,
    )
    def test_that_no_verb_has_are_refused(self, document: Any) -> None:
        with pytest.raises(ValueError, match=r"is known here|devices"):
            REGISTRY.intent(document)

    def test_come_back_as_they_were(self) -> None:
        intent = BindIntent(devices=(GPU,), driver="vfio-pci", stop_services=("a.service",))
        assert REGISTRY.intent(json.loads(intent.model_dump_json())) == intent


@pytest.fixture
def plan(fast_folder: Path) -> Plan:
    return machine(copy(original("workstation")), fast_folder / "x.db").binding.plan_bind([GPU])


class TestReading:
    def test_gives_the_plan_that_was_written(self, plan: Plan) -> None:
        for text in (plan.model_dump_json(), plan.model_dump_json().encode(), plan.canonical()):
            read = REGISTRY.read_plan(text)
            assert read == plan
            assert isinstance(read.intent, BindIntent)
            assert not REGISTRY.is_forged(read)

    def test_refuses_plans_of_the_first_release_by_their_version(self, plan: Plan) -> None:
        text = plan.model_dump_json().replace(f'"version":{VERSION}', '"version":1')
        with pytest.raises(BadDocument) as caught:
            REGISTRY.read_plan(text)
        assert caught.value.message == f"the plan is of version 1, and this vfioctl reads version {VERSION}"
        assert caught.value.hint == "make a new plan with this vfioctl"

    def test_refuses_plans_of_later_releases_by_their_version(self, plan: Plan) -> None:
        text = plan.model_dump_json().replace(f'"version":{VERSION}', '"version":99')
        with pytest.raises(BadDocument, match=f"of version 99, and this vfioctl reads version {VERSION}"):
            REGISTRY.read_plan(text)

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "{}",
            "[]",
            "null",
            "7",
            "not json",
            b"\xff\xfe",
            "[" * 100_000,
            '{"version": 1}',
            '{"version": "2", "steps": []}',
            '{"version": true, "steps": []}',
            '{"steps": {}, "intent": {"verb": "odd"}}',
        ],
        ids=lambda text: repr(text)[:30],
    )
    def test_refuses_what_is_no_plan(self, text: str | bytes) -> None:
        with pytest.raises(BadDocument, match=r"^not a plan: |^the plan is of version") as caught:
            REGISTRY.read_plan(text)
        assert len(caught.value.message) < 400

    @pytest.mark.parametrize("part", ["id", "intent", "facts", "changes", "steps", "checks", "notes", "version"])
    def test_refuses_what_was_cut_short(self, plan: Plan, part: str) -> None:
        document = json.loads(plan.model_dump_json())
        del document[part]
        if part == "version":
            assert REGISTRY.read_plan(json.dumps(document)) == plan, "it says nothing else"
        else:
            with pytest.raises(BadDocument, match="not a plan: "):
                REGISTRY.read_plan(json.dumps({**document, "notes": ["x"]} if part == "notes" else document))

    def test_refuses_what_was_edited_by_hand(self, plan: Plan) -> None:
        text = plan.model_dump_json().replace("d3cold_allowed", "remove", 1)
        with pytest.raises(BadDocument, match="id does not fit its content"):
            REGISTRY.read_plan(text)

    def test_refuses_verbs_that_nobody_registers(self, plan: Plan) -> None:
        text = plan.model_dump_json().replace('"verb":"bind"', '"verb":"odd"')
        with pytest.raises(BadDocument, match="no verb 'odd' is known here"):
            REGISTRY.read_plan(text)

    def test_is_only_for_those_who_know_the_verbs(self, plan: Plan) -> None:
        with pytest.raises(ValueError, match=r"read by Registry\.read_plan"):
            Plan.model_validate_json(plan.model_dump_json())


class TestForged:
    def test_is_no_plan_of_ours(self, plan: Plan) -> None:
        assert not REGISTRY.is_forged(plan)
        assert len(plan.id) == 12

    def test_is_one_with_other_steps(self, plan: Plan) -> None:
        for number, step in enumerate(plan.steps):
            for edit in (
                {"target": "/etc/passwd"},
                {"value": "x"},
                {"may_fail": True},
                {"phase": Phase.SET},
                {"action": "persistence"},
                {"subject": "0000:05:00.0"},
                {"alternatives": ("x",)},
            ):
                steps = [*plan.steps]
                steps[number] = step.model_copy(update=edit)
                assert REGISTRY.is_forged(forged(plan, steps=tuple(steps))), (step, edit)
        assert REGISTRY.is_forged(forged(plan, steps=plan.steps[1:]))
        assert REGISTRY.is_forged(forged(plan, steps=(*plan.steps, plan.steps[-1])))

    def test_is_none_with_another_reason_given(self, plan: Plan) -> None:
        steps = tuple(step.model_copy(update={"why": "because"}) for step in plan.steps)
        assert not REGISTRY.is_forged(forged(plan, steps=steps)), "that is for people"

    @pytest.mark.parametrize("kind", ["odd", "mdev", "VFs", "reset", "rom", "reset method"])
    def test_is_one_with_changes_that_the_verb_does_not_make(self, plan: Plan, kind: str) -> None:
        names = {"VFs": "sriov_numvfs", "reset": "reset", "rom": "rom", "reset method": "reset_method"}
        more = Change(kind=kind, name=f"{HOME}/{names.get(kind, 'x')}", subject=GPU, before="", after="")
        assert REGISTRY.is_forged(with_changes(plan, more))

    @pytest.mark.parametrize("name", ["/etc/passwd", f"{HOME}/../power/control", f"{HOME}/power/control\n"])
    def test_is_one_with_names_that_lead_elsewhere(self, plan: Plan, name: str) -> None:
        assert REGISTRY.is_forged(
            with_changes(plan, Change(kind="d3cold", name=name, subject=GPU, before="1", after="0"))
        )

    def test_is_one_with_a_subject_that_leads_elsewhere(self, plan: Plan) -> None:
        for subject in ("../..", "..", "/", "", "a/b", "x" * 65, "a\nb"):
            name = f"/sys/bus/pci/devices/{subject}/d3cold_allowed"
            fact = plan.facts[0].model_copy(update={"subject": subject})
            more = Change(kind="d3cold", name=name, subject=subject, before="1", after="0")
            draft = Draft(plan.intent, (*plan.facts, fact), (*plan.changes, more), plan.checks)
            steps = tuple(owned.step for owned in REGISTRY.steps(draft.changes))
            assert REGISTRY.is_forged(Plan.of(draft, steps)), subject

    def test_is_one_with_checks_that_nobody_registers(self, plan: Plan) -> None:
        assert REGISTRY.is_forged(forged(plan, checks=(CheckRequest(kind="odd", subjects=()),)))


def forged(plan: Plan, **parts: object) -> Plan:
    """The plan with other parts, and an id that fits."""
    other = plan.model_copy(update={**parts, "id": ""})
    return other.model_copy(update={"id": other.digest()})


def with_changes(plan: Plan, *more: Change) -> Plan:
    """The plan with more changes, and all steps that these take, where they are known."""
    changes = (*plan.changes, *more)
    try:
        return REGISTRY.plan(Draft(plan.intent, plan.facts, changes, plan.checks))
    except BadDocument:
        return forged(plan, changes=changes)
