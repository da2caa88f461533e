"""Plans as documents: read back as written, and told apart by their content."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.hosts.machines import REGISTRY, SCREEN, STOPPABLE, TRAINING, copy, in_use, machine, original, unhurried
from vfioctl.access.model.intents import AccessIntent
from vfioctl.binding.model.binding import Binding
from vfioctl.binding.model.intents import BindIntent, ResetIntent, RomIntent, UnbindIntent
from vfioctl.binding.resources.driver import binding_change
from vfioctl.claims.model.cdi import Node
from vfioctl.containers.cdi.intent import CdiIntent
from vfioctl.core.change import (
    Change,
    CheckRequest,
    Draft,
    Fact,
    Intent,
    JournalEntry,
    JournalState,
    Outcome,
    Phase,
    Plan,
    Result,
    Step,
)
from vfioctl.domain.model.definition import DefineIntent, UndefineIntent
from vfioctl.domain.model.hook import InstallHookIntent, RemoveHookIntent
from vfioctl.errors import BadDocument, StalePlan
from vfioctl.host import Host
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel.protocol import PCI_DEVICES
from vfioctl.units import Uuid
from vfioctl.vgpu.model.intents import CreateVgpuIntent, ProfileIntent, RemoveVgpuIntent, SetVfsIntent
from vfioctl.vgpu.model.vgpu import Strategy

TEXT = st.text(max_size=12)
NAMES = st.none() | TEXT
ADDRESSES = st.builds(
    lambda *parts: PciAddress("{:04x}:{:02x}:{:02x}.{}".format(*parts)),
    st.integers(0, 0xFFFFF),
    st.integers(0, 255),
    st.integers(0, 31),
    st.integers(0, 7),
)
BINDINGS = st.builds(Binding, driver=NAMES, driver_override=NAMES)
UUIDS = st.uuids().map(lambda uuid: Uuid(str(uuid)))
DEVICES = st.lists(ADDRESSES, max_size=3).map(tuple)
UNITS = st.lists(TEXT, max_size=2).map(tuple)
PAIRS = st.lists(st.tuples(TEXT, TEXT), max_size=2).map(tuple)
ONE: st.SearchStrategy[tuple[PciAddress]] = st.tuples(ADDRESSES)
INTENTS: st.SearchStrategy[Intent] = st.one_of(
    st.builds(
        BindIntent,
        devices=DEVICES,
        driver=NAMES,
        with_group=st.booleans(),
        allow_boot_vga=st.booleans(),
        stop_services=UNITS,
        force_holders=st.booleans(),
    ),
    st.builds(UnbindIntent, devices=DEVICES, driver=NAMES, with_group=st.booleans(), force_holders=st.booleans()),
    st.builds(ResetIntent, devices=DEVICES, method=NAMES, force_holders=st.booleans()),
    st.builds(RomIntent, devices=DEVICES),
    st.builds(
        CreateVgpuIntent,
        type=TEXT,
        parent=NAMES,
        numa=st.none() | st.integers(0, 9),
        count=st.integers(1, 99),
        placement=st.sampled_from(Strategy),
        uuids=st.lists(UUIDS, max_size=2).map(tuple),
        parameters=PAIRS,
        persistent=st.booleans(),
        exclude=UNITS,
    ),
    st.builds(
        RemoveVgpuIntent,
        vgpus=st.lists(ADDRESSES | UUIDS, max_size=2).map(tuple),
        foreign=st.booleans(),
        force_holders=st.booleans(),
    ),
    st.builds(
        SetVfsIntent,
        devices=ONE,
        vfs=st.integers(0, 99),
        foreign=st.booleans(),
        persistent=st.booleans(),
        force_holders=st.booleans(),
    ),
    st.builds(ProfileIntent, devices=ONE, parameters=PAIRS),
    st.builds(AccessIntent),
    st.builds(CdiIntent, node=st.sampled_from(Node), claim=NAMES, everything=st.booleans()),
    st.builds(
        DefineIntent,
        uri=st.just("qemu:///system"),
        name=st.just("web1"),
        uuid=UUIDS,
        document=TEXT,
        claim=TEXT,
        replace=st.booleans(),
    ),
    st.builds(UndefineIntent, uri=st.just("test:///default"), name=st.just("db"), foreign=st.booleans()),
    st.builds(InstallHookIntent, command=TEXT, ledger=TEXT),
    st.builds(RemoveHookIntent),
)
FACTS = st.builds(
    Fact,
    kind=TEXT,
    subject=TEXT,
    values=st.dictionaries(TEXT, st.none() | TEXT | st.integers(0, 999), max_size=4),
)
CHANGES = st.one_of(
    st.builds(binding_change, ADDRESSES, BINDINGS, BINDINGS),
    st.builds(
        Change,
        kind=TEXT,
        name=TEXT,
        subject=TEXT,
        before=TEXT,
        after=TEXT,
        during=NAMES,
        may_fail=st.booleans(),
    ),
)
CONTENT = {
    "intent": INTENTS,
    "facts": st.lists(FACTS, max_size=3).map(tuple),
    "changes": st.lists(CHANGES, max_size=3).map(tuple),
    "steps": st.lists(
        st.builds(
            Step,
            phase=st.sampled_from(Phase),
            action=TEXT,
            target=TEXT,
            value=TEXT,
            alternatives=UNITS,
            why=TEXT,
            subject=TEXT,
            may_fail=st.booleans(),
        ),
        max_size=3,
    ).map(tuple),
    "checks": st.lists(st.builds(CheckRequest, kind=TEXT, subjects=UNITS), max_size=3).map(tuple),
    "notes": UNITS,
}


def made(**content: Any) -> Plan:
    """A plan of any content, with the id that it then has."""
    steps = content.pop("steps")
    return Plan.of(Draft(**content), steps)


PLANS = st.builds(made, **CONTENT)


def parts_of(plan: Plan) -> dict[str, Any]:
    return {name: getattr(plan, name) for name in CONTENT}


def test_each_verb_is_drawn() -> None:
    of_vgpus = {"vgpu create", "vgpu remove", "sriov set", "sriov profile"}
    of_domains = {"domain define", "domain undefine", "hook install", "hook remove"}
    of_shares = {"allow", "disallow", "mps start", "mps stop", "mps apply"}
    of_boots = {"persist remove", "persist import", "install", "uninstall"}
    assert (
        REGISTRY.intents.keys()
        == {"bind", "unbind", "reset", "rom", "access", "cdi generate"} | of_vgpus | of_domains | of_boots | of_shares
    )


@unhurried
@given(PLANS)
def test_a_plan_survives_being_written_and_read(plan: Plan) -> None:
    for text in (plan.model_dump_json(), plan.canonical(), json.dumps(plan.model_dump(mode="json"), indent=4)):
        found = REGISTRY.read_plan(text)
        assert found == plan
        assert found.canonical() == plan.canonical()


@unhurried
@given(PLANS, PLANS)
def test_plans_have_the_same_id_when_they_say_the_same(one: Plan, other: Plan) -> None:
    assert (one.id == other.id) == (one == other)
    assert made(**parts_of(one)).id == one.id


@unhurried
@given(PLANS, st.data())
def test_any_change_of_content_changes_the_id(plan: Plan, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(CONTENT)))
    value: object = data.draw(CONTENT[name])
    other = made(**parts_of(plan) | {name: value})
    assert (other.id == plan.id) == (value == getattr(plan, name))
    if value != getattr(plan, name):
        forged = plan.model_copy(update={name: value})
        with pytest.raises(BadDocument, match="edited or cut short"):
            REGISTRY.read_plan(forged.model_dump_json())


def test_a_plan_without_steps_has_nothing_to_do() -> None:
    draft = Draft(intent=BindIntent(devices=()))
    assert Plan.of(draft, ()).nothing_to_do
    assert not Plan.of(draft, (Step(phase=Phase.LOAD, action="load", target="vfio-pci", why=""),)).nothing_to_do


@unhurried
@given(PLANS, st.sampled_from(JournalState), st.sampled_from(Result))
def test_what_became_of_a_plan_survives_being_written_and_read(plan: Plan, state: JournalState, result: Result) -> None:
    context = {"registry": REGISTRY}
    entry = JournalEntry(id=1, plan=plan, state=state, boot_id="x", began="y", ended=None, why="", reached=None)
    assert JournalEntry.model_validate_json(entry.model_dump_json(), context=context) == entry
    outcome = Outcome(plan=plan, result=result, found=plan.facts, changes=plan.changes, seconds=0.5)
    assert Outcome.model_validate_json(outcome.model_dump_json(), context=context) == outcome


def test_a_plan_is_read_by_the_registry_alone() -> None:
    plan = REGISTRY.plan(Draft(intent=BindIntent(devices=())))
    with pytest.raises(ValidationError, match=r"Registry\.read_plan"):
        Plan.model_validate_json(plan.model_dump_json())


class TestMadeAgain:
    """A saved plan is never done unless planning makes the very same one now."""

    @pytest.fixture
    def host(self, fast_folder: Path) -> Host:
        return machine(copy(original("workstation")), fast_folder / "x.db")

    def test_it_is_the_same_while_nothing_has_changed(self, host: Host) -> None:
        plan = host.binding.plan_bind(["05:00.0"], driver="vfio-pci", with_group=True)
        assert plan.changes_of("power", "d3cold")
        assert host.replan(plan) == plan
        host.apply(plan)
        back = host.binding.plan_unbind(["05:00.0"])
        assert back.changes_of("power", "d3cold")
        assert host.replan(back) == back

    def test_a_reset_is_the_same_however_often_it_is_done(self, host: Host) -> None:
        plan = host.binding.plan_reset("0a:00.0", method="flr", force_holders=True)
        assert plan.changes_of("reset")
        for _ in range(2):
            assert host.replan(plan) == plan
            host.apply(plan)

    def test_a_change_that_stops_services_and_takes_a_console_is_made_again_whole(self, fast_folder: Path) -> None:
        host = machine(copy(in_use()), fast_folder / "x.db")
        plans = [
            host.binding.plan_bind([gpu], stop_services=STOPPABLE, allow_boot_vga=True, force_holders=True)
            for gpu in (TRAINING, SCREEN)
        ]
        kinds = {change.kind for plan in plans for change in plan.changes}
        own = {resource.kind for resource in REGISTRY.parts["binding"].resources}
        assert kinds == own - {"reset method", "reset", "rom", "module", "device definition", "udev rule"}
        for plan in plans:
            assert host.read_plan(plan.model_dump_json()) == plan
            assert host.replan(plan) == plan

    def test_it_is_stale_when_a_fact_has_changed_or_it_was_done(self, host: Host) -> None:
        plan = host.binding.plan_bind(["05:00.0"])
        host.session.kernel.write(f"{PCI_DEVICES}/0000:05:00.1/driver_override", "none")
        with pytest.raises(StalePlan, match=r"0000:05:00\.1 changed"):
            host.replan(plan)
        host.session.kernel.write(f"{PCI_DEVICES}/0000:05:00.1/driver_override", "\n")
        host.apply(plan)
        with pytest.raises(StalePlan):
            host.replan(plan)

    def test_it_is_stale_when_a_setting_has_changed(self, host: Host) -> None:
        plan = host.binding.plan_bind(["05:00.0"])
        host.session.kernel.write(f"{PCI_DEVICES}/0000:05:00.0/d3cold_allowed", "0")
        with pytest.raises(StalePlan, match="the host changed"):
            host.replan(plan)

    def test_notes_alone_make_no_other_plan(self, host: Host) -> None:
        """They are for the reader: what is done is planned anew, and its own notes are printed."""
        plan = host.binding.plan_bind(["05:00.0"])
        noted = made(**parts_of(plan) | {"notes": (*plan.notes, "trust me")})
        assert host.replan(noted) == plan

    @pytest.mark.parametrize("part", ["changes", "steps", "checks", "reset"])
    def test_it_is_refused_when_it_says_anything_else(self, host: Host, part: str) -> None:
        plan, other = host.binding.plan_bind(["05:00.0"]), host.binding.plan_bind(["0b:00.0"])
        parts = parts_of(plan)
        if part == "reset":
            reset = Change(
                kind="reset",
                name=f"{PCI_DEVICES}/0000:05:00.0/reset",
                subject="0000:05:00.0",
                before="",
                after="0000:05:00.0",
            )
            parts["changes"] = (*plan.changes, reset)
            forged = REGISTRY.plan(Draft(**{name: value for name, value in parts.items() if name != "steps"}))
        else:
            forged = made(**parts | {part: getattr(other, part)})
        with pytest.raises(BadDocument, match=r"steps of the plan do not follow|not what planning makes"):
            host.replan(forged)


class TestTwoPlans:
    """A plan relies on its own facts alone: another one made, or done, beside it changes nothing."""

    ONE, OTHER = "05:00.0", "0b:00.0"

    @pytest.fixture
    def host(self, fast_folder: Path) -> Host:
        return machine(copy(original("workstation")), fast_folder / "x.db")

    def test_the_first_is_done_after_a_second_was_made(self, host: Host) -> None:
        first = host.binding.plan_bind([self.ONE])
        alone = first.model_dump_json()
        second = host.binding.plan_bind([self.OTHER])
        assert first.model_dump_json() == alone
        assert host.apply(first).result == Result.DONE
        assert host.apply(second).result == Result.DONE

    def test_they_can_be_done_in_the_other_order(self, host: Host) -> None:
        first, second = host.binding.plan_bind([self.ONE]), host.binding.plan_bind([self.OTHER])
        assert host.apply(second).result == Result.DONE
        assert host.apply(first).result == Result.DONE

    def test_of_the_same_devices_only_the_first_is(self, host: Host) -> None:
        first, second = host.binding.plan_bind([self.ONE]), host.binding.plan_bind([self.ONE])
        assert first == second
        assert host.apply(first).result == Result.DONE
        assert host.apply(second).result == Result.NOTHING

    def test_the_other_way_is_planned_from_what_the_first_has_left(self, host: Host) -> None:
        """Also by another process, which has seen nothing of the first."""
        bind, reset = host.binding.plan_bind([self.OTHER]), host.binding.plan_reset("0a:00.0", force_holders=True)
        host.apply(bind)
        assert host.apply(reset).result == Result.DONE
        heir = Host(host.session)
        back = heir.binding.plan_unbind([self.OTHER])
        assert heir.apply(back).result == Result.DONE
