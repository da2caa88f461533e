"""Plans as documents: read back as written, and told apart by their content."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.hosts.machines import SCREEN, STOPPABLE, TRAINING, copy, in_use, machine, original, unhurried
from vfioctl.core.change import (
    Binding,
    Change,
    Fact,
    Intent,
    JournalEntry,
    JournalState,
    Outcome,
    Plan,
    Result,
    Step,
    StepKind,
    Verb,
    VgpuRequest,
)
from vfioctl.core.setting import VGPU_KINDS, Setting, SettingKind
from vfioctl.errors import BadDocument, StalePlan
from vfioctl.host import Host
from vfioctl.inventory.model.values import PciAddress, Subject, Uuid
from vfioctl.kernel.protocol import PCI_DEVICES
from vfioctl.vgpu.model.strategy import Strategy

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
SLICINGS = st.builds(
    VgpuRequest,
    type=NAMES,
    parent=NAMES,
    numa=st.none() | st.integers(0, 9),
    count=st.integers(1, 99),
    placement=st.sampled_from(Strategy),
    uuids=st.lists(UUIDS, max_size=2).map(tuple),
    parameters=st.lists(st.tuples(TEXT, TEXT), max_size=2).map(tuple),
    persistent=st.booleans(),
    exclude=st.lists(TEXT, max_size=2).map(tuple),
    instances=st.lists(ADDRESSES | UUIDS, max_size=2).map(tuple),
    vfs=st.none() | st.integers(0, 99),
    foreign=st.booleans(),
)
INTENTS = st.builds(
    Intent,
    verb=st.sampled_from(Verb),
    devices=st.lists(ADDRESSES, max_size=3).map(tuple),
    driver=NAMES,
    vgpu_request=st.none() | SLICINGS,
    with_group=st.booleans(),
    allow_boot_vga=st.booleans(),
    stop_services=st.lists(TEXT, max_size=2).map(tuple),
    force_holders=st.booleans(),
    method=NAMES,
)
FACTS = st.builds(Fact, address=ADDRESSES, identity=TEXT, iommu_group=st.none() | st.integers(0, 999), binding=BINDINGS)
VALUES = st.text("abcz01_ -", max_size=8)
SETTING_NAMES = {
    SettingKind.POWER: "/sys/bus/pci/devices/{}/power/control",
    SettingKind.D3COLD: "/sys/bus/pci/devices/{}/d3cold_allowed",
    SettingKind.CONSOLE: "/sys/class/vtconsole/vtcon1/bind",
    SettingKind.FRAMEBUFFER: "efi-framebuffer.0",
    SettingKind.LOCK: "/proc/driver/nvidia/gpus/{}/unbindLock",
    SettingKind.PERSISTENCE: "{}",
    SettingKind.SERVICE: "nvidia-persistenced.service",
    SettingKind.RESET_METHOD: "/sys/bus/pci/devices/{}/reset_method",
    SettingKind.MDEV: "{}",
    SettingKind.VGPU_TYPE: "/sys/bus/pci/devices/{}/nvidia/current_vgpu_type",
    SettingKind.PARAMETER: "/sys/bus/pci/devices/{}/nvidia/vgpu_params",
    SettingKind.VF_COUNT: "/sys/bus/pci/devices/{}/sriov_numvfs",
    SettingKind.AUTOPROBE: "/sys/bus/pci/devices/{}/sriov_drivers_autoprobe",
    SettingKind.NVIDIA_VFS: "{}",
    SettingKind.PROFILE: "/sys/bus/pci/devices/{}/sriov_admin/vf1/profile/exec_quantum_ms",
    SettingKind.KEPT: "/etc/vfioctl/vgpu.d/{}.json",
}
NUMBERS = st.integers(0, 99).map(str)
VALUES_OF = {
    SettingKind.FRAMEBUFFER: st.sampled_from(["", "simpledrm"]),
    SettingKind.MDEV: st.sampled_from(["", "mtty/mtty-1", "0000:08:00.4/nvidia-754"]),
    SettingKind.AUTOPROBE: st.sampled_from(["0", "1"]),
    **dict.fromkeys((SettingKind.VGPU_TYPE, SettingKind.VF_COUNT, SettingKind.NVIDIA_VFS), NUMBERS),
}


@st.composite
def any_settings(draw: st.DrawFn) -> Setting:
    kind = draw(st.sampled_from(SettingKind))
    address: Subject = draw(UUIDS) if kind == SettingKind.MDEV else draw(ADDRESSES)
    values = VALUES_OF.get(kind, VALUES)
    return Setting(
        kind=kind,
        name=SETTING_NAMES[kind].format(address),
        address=address,
        before=draw(values),
        after=draw(values),
        during=draw(st.none() | values),
    )


CONTENT = {
    "intent": INTENTS,
    "facts": st.lists(FACTS, max_size=3).map(tuple),
    "changes": st.lists(st.builds(Change, address=ADDRESSES, before=BINDINGS, after=BINDINGS), max_size=3).map(tuple),
    "settings": st.lists(any_settings(), max_size=3).map(tuple),
    "reset": NAMES,
    "steps": st.lists(
        st.builds(
            Step,
            kind=st.sampled_from(StepKind),
            target=TEXT,
            value=TEXT,
            why=TEXT,
            address=st.none() | ADDRESSES,
            may_fail=st.booleans(),
        ),
        max_size=3,
    ).map(tuple),
    "viable_groups": st.lists(st.integers(0, 99), max_size=3).map(tuple),
    "cards": st.lists(TEXT, max_size=2).map(tuple),
    "notes": st.lists(TEXT, max_size=2).map(tuple),
}
PLANS = st.builds(Plan.make, **CONTENT)


@unhurried
@given(PLANS)
def test_a_plan_survives_being_written_and_read(plan: Plan) -> None:
    for text in (plan.model_dump_json(), plan.canonical(), json.dumps(plan.model_dump(mode="json"), indent=4)):
        found = Plan.model_validate_json(text)
        assert found == plan
        assert found.canonical() == plan.canonical()


@unhurried
@given(PLANS, PLANS)
def test_plans_have_the_same_id_when_they_say_the_same(one: Plan, other: Plan) -> None:
    assert (one.id == other.id) == (one == other)
    assert Plan.make(**{name: getattr(one, name) for name in CONTENT}).id == one.id


@unhurried
@given(PLANS, st.data())
def test_any_change_of_content_changes_the_id(plan: Plan, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(CONTENT)))
    value: object = data.draw(CONTENT[name])
    other = Plan.make(**{key: getattr(plan, key) for key in CONTENT} | {name: value})
    assert (other.id == plan.id) == (value == getattr(plan, name))
    if value != getattr(plan, name):
        forged = plan.model_copy(update={name: value})
        with pytest.raises(ValidationError, match="edited or cut short"):
            Plan.model_validate_json(forged.model_dump_json())


def test_a_plan_without_steps_has_nothing_to_do() -> None:
    intent = Intent(verb=Verb.BIND, devices=(), driver=None)
    assert Plan.make(intent=intent, facts=(), changes=(), steps=()).nothing_to_do
    step = Step(kind=StepKind.LOAD, target="vfio-pci", value="", why="")
    assert not Plan.make(intent=intent, facts=(), changes=(), steps=(step,)).nothing_to_do


@unhurried
@given(PLANS, st.sampled_from(JournalState), st.sampled_from(Result))
def test_what_became_of_a_plan_survives_being_written_and_read(plan: Plan, state: JournalState, result: Result) -> None:
    entry = JournalEntry(id=1, plan=plan, state=state, boot_id="x", began="y", ended=None, why="")
    assert JournalEntry.model_validate_json(entry.model_dump_json()) == entry
    outcome = Outcome(plan=plan, result=result, found=plan.facts, seconds=0.5)
    assert Outcome.model_validate_json(outcome.model_dump_json()) == outcome


class TestMadeAgain:
    """A saved plan is never done unless planning makes the very same one now."""

    @pytest.fixture
    def host(self, fast_folder: Path) -> Host:
        return machine(copy(original("workstation")), fast_folder / "x.db")

    def test_it_is_the_same_while_nothing_has_changed(self, host: Host) -> None:
        plan = host.plan_bind(["05:00.0"], driver="vfio-pci", with_group=True)
        assert plan.settings
        assert host.plan_again(plan) == plan
        host.apply(plan)
        back = host.plan_unbind(["05:00.0"])
        assert back.settings
        assert host.plan_again(back) == back

    def test_a_reset_is_the_same_however_often_it_is_done(self, host: Host) -> None:
        plan = host.plan_reset("0a:00.0", method="flr", force_holders=True)
        assert plan.reset
        for _ in range(2):
            assert host.plan_again(plan) == plan
            host.apply(plan)

    def test_a_change_that_stops_services_and_takes_a_console_is_made_again_whole(self, fast_folder: Path) -> None:
        host = machine(copy(in_use()), fast_folder / "x.db")
        plans = [
            host.plan_bind([gpu], stop_services=STOPPABLE, allow_boot_vga=True, force_holders=True)
            for gpu in (TRAINING, SCREEN)
        ]
        kinds = {setting.kind for plan in plans for setting in plan.settings}
        assert kinds == {*SettingKind} - VGPU_KINDS - {SettingKind.RESET_METHOD}
        for plan in plans:
            assert Plan.model_validate_json(plan.model_dump_json()) == plan
            assert host.plan_again(plan) == plan

    def test_it_is_stale_when_a_fact_has_changed_or_it_was_done(self, host: Host) -> None:
        plan = host.plan_bind(["05:00.0"])
        host.kernel.write(f"{PCI_DEVICES}/0000:05:00.1/driver_override", "none")
        with pytest.raises(StalePlan, match=r"0000:05:00\.1 changed"):
            host.plan_again(plan)
        host.kernel.write(f"{PCI_DEVICES}/0000:05:00.1/driver_override", "\n")
        host.apply(plan)
        with pytest.raises(StalePlan):
            host.plan_again(plan)

    def test_it_is_stale_when_a_setting_has_changed(self, host: Host) -> None:
        plan = host.plan_bind(["05:00.0"])
        host.kernel.write(f"{PCI_DEVICES}/0000:05:00.0/d3cold_allowed", "0")
        with pytest.raises(StalePlan, match="the host changed"):
            host.plan_again(plan)

    @pytest.mark.parametrize("part", ["changes", "steps", "notes", "viable_groups", "reset"])
    def test_it_is_refused_when_it_says_anything_else(self, host: Host, part: str) -> None:
        plan, other = host.plan_bind(["05:00.0"]), host.plan_bind(["0b:00.0"])
        parts = {name: getattr(plan, name) for name in CONTENT}
        content = {"notes": (*other.notes, "trust me"), "reset": f"{PCI_DEVICES}/0000:05:00.0/reset"}
        with pytest.raises(BadDocument, match="not what planning makes"):
            host.plan_again(Plan.make(**parts | {part: content.get(part, getattr(other, part))}))
