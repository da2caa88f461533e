"""The use cases of vGPUs, as a library: what they take, what they refuse before planning, what they try again."""

from __future__ import annotations

import errno
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.machines import copy, machine
from tests.hosts.vgpu_machines import A2, BOOT_ID, L40S, NEXT_BOOT, T4, UUIDS, XE, beginning, ours, rows
from vfioctl.core.change import Plan, Result
from vfioctl.errors import BadSpec, Foreign, NoCapacity, StalePlan, UnknownDevice, VfioctlError
from vfioctl.host import Host
from vfioctl.kernel.protocol import NvmlAnswer
from vfioctl.kernel.recorded.tree import Tree
from vfioctl.kernel.simulated.faults import Fault
from vfioctl.vgpu.api import VgpuApi
from vfioctl.vgpu.ledger.reading import recorded
from vfioctl.vgpu.model.persistent import definition_text
from vfioctl.vgpu.model.report import left_in, vgpus_in
from vfioctl.vgpu.model.vgpu import Strategy


@pytest.fixture
def a2(fast_folder: Path) -> Host:
    return machine(copy(beginning("a2")), fast_folder / "a2.db")


@pytest.fixture
def l40s(fast_folder: Path) -> Host:
    return machine(copy(beginning("l40s")), fast_folder / "l40s.db")


# -- arguments -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method", [method for name, method in inspect.getmembers(VgpuApi, inspect.isfunction) if name[0] != "_"]
)
def test_every_keyword_is_named(method: Callable[..., object]) -> None:
    """So that mypy, and Python, catch a wrong one."""
    kinds = {parameter.kind for parameter in inspect.signature(method).parameters.values()}
    assert not kinds & {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}


def test_a_wrong_keyword_fails(a2: Host) -> None:
    wrong: Any = {"shun": ("0000:08:00.4",)}
    with pytest.raises(TypeError, match="shun"):
        a2.vgpu.plan_create("A2-4C", **wrong)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"count": 2, "uuids": UUIDS[:1]}, "1 UUIDs for 2 vGPUs"),
        ({"count": 2, "uuids": (UUIDS[0], UUIDS[0].upper())}, "a UUID is given twice"),
        ({"uuids": ("x",)}, "not a UUID"),
        ({"count": 0}, "count must be at "),
        ({"count": 70_000}, "count must be at "),
        ({"placement": "best"}, "placement must be binpack, spread or numa"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_planning(a2: Host, arguments: Any, said: str) -> None:
    with pytest.raises(BadSpec, match=said):
        a2.vgpu.plan_create("A2-4C", **arguments)


def test_a_vf_takes_no_uuid(l40s: Host) -> None:
    with pytest.raises(BadSpec, match="is created on a VF"):
        l40s.vgpu.plan_create("L40S-12Q", uuids=UUIDS[:1])


def test_a_parent_may_be_numbered(a2: Host) -> None:
    (change,) = a2.vgpu.plan_create("A2-4C", parent="gpu0").changes
    assert change.after.startswith("0000:08:00.")
    assert a2.vgpu.parent_called("gpu0") == A2
    assert a2.vgpu.parent_called("mtty") == "mtty"
    with pytest.raises(UnknownDevice):
        a2.vgpu.plan_create("A2-4C", parent="gpu9")


def test_a_beginning_of_a_uuid_will_do(a2: Host) -> None:
    a2.vgpu.create("A2-4C", uuids=UUIDS[:1])
    (change,) = a2.vgpu.plan_remove([UUIDS[0][:6]]).changes
    assert change.subject == UUIDS[0]
    with pytest.raises(UnknownDevice):
        a2.vgpu.plan_remove(["abcdef"])


# -- creating ----------------------------------------------------------------------------------------------


class TestCreating:
    def test_reports_what_there_is_then(self, a2: Host) -> None:
        outcome = a2.vgpu.create("A2-4C", uuids=UUIDS[:1], placement=Strategy.SPREAD)
        assert outcome.result == Result.DONE
        (vgpu,) = vgpus_in(outcome.report)
        assert (vgpu.id, vgpu.profile, vgpu.owner) == (UUIDS[0], "A2-4C", "vfioctl")
        assert vgpu.vfio_group
        (left,) = left_in(outcome.report)
        assert (left.card, left.profile) == (A2, "A2-4C")
        assert (vgpus_in({}), left_in({})) == ((), ())

    def refused(self, folder: Path, times: int) -> Host:
        faults = [Fault(at, "errno", errno.EIO) for at in range(1, times + 1)]
        return machine(copy(beginning("l40s")), folder / "x.db", faults)

    def test_somebody_is_faster_so_other_places_are_tried(self, fast_folder: Path) -> None:
        host, plans, told = self.refused(fast_folder, 3), list[Plan](), list[VfioctlError]()
        outcome = host.vgpu.create("L40S-12Q", confirm=plans.append, elsewhere=told.append)
        assert outcome.result == Result.DONE
        places = [plan.changes[0].subject for plan in plans]
        assert len(set(places)) == 4
        assert [error.facts["place"] for error in told] == places[:3]
        assert outcome.plan == plans[-1]
        assert set(rows(host)) == {places[-1]}

    def test_four_times_at_most(self, fast_folder: Path) -> None:
        host, plans = self.refused(fast_folder, 4), list[Plan]()
        with pytest.raises(NoCapacity):
            host.vgpu.create("L40S-12Q", confirm=plans.append)
        assert len(plans) == 4
        assert rows(host) == {}

    def test_a_parent_is_the_only_place(self, fast_folder: Path) -> None:
        host, plans = self.refused(fast_folder, 1), list[Plan]()
        with pytest.raises(NoCapacity, match=r"0000:41:00\.6"):
            host.vgpu.create("L40S-12Q", parent="0000:41:00.6", confirm=plans.append)
        assert len(plans) == 1

    def test_who_says_no_ends_it(self, l40s: Host) -> None:
        class Declined(VfioctlError):
            pass

        def decline(_: Plan) -> None:
            raise Declined("no")

        with pytest.raises(Declined):
            l40s.vgpu.create("L40S-12Q", confirm=decline)
        assert l40s.history() == ()


# -- NVML ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ask", "types"),
    [
        (lambda host: host.vgpu.plan_vfs(L40S, 0, foreign=True), False),
        (lambda host: host.vgpu.plan_create("L40S-12Q", parent="gpu0"), True),
        (lambda host: host.vgpu.vgpus(), True),
        (lambda host: host.inventory(), False),
    ],
)
def test_a_command_asks_nvml_once_and_for_types_only_if_it_needs_them(
    fast_folder: Path, monkeypatch: pytest.MonkeyPatch, ask: Callable[[Host], object], types: bool
) -> None:
    host = machine(copy(beginning("l40s")), fast_folder / "x.db")
    kernel, asked = host.session.kernel, []
    answering = kernel.nvml

    def nvml(gpus: Sequence[str], *, types: bool = False) -> Callable[[], NvmlAnswer]:
        asked.append((list(gpus), types))
        return answering(gpus, types=types)

    monkeypatch.setattr(kernel, "nvml", nvml)
    ask(host)
    assert asked == [([L40S], types)]


def test_a_plan_says_what_nvml_did_not(fast_folder: Path) -> None:
    tree = copy(beginning("l40s"))
    tree.properties["sim:nvml"] = {"error": "driver and library versions differ"}
    plan = machine(tree, fast_folder / "x.db").vgpu.plan_create("L40S-12Q")
    assert "unknown: NVML: no facts from the NVIDIA driver: driver and library versions differ" in plan.notes


# -- names of types ------------------------------------------------------------------------------------


class TestNamesOfTypes:
    """The kernel stops listing types that cannot be created any more; a plan brings what it has seen."""

    def renamed(self, tree: Tree) -> None:
        """As after an update of the driver, with nobody else to tell of the types."""
        for path, text in list(tree.files.items()):
            if path.endswith("/creatable_vgpu_types"):
                tree.put(path, text.replace("NVIDIA L40S", "NVIDIA X"))
        tree.properties.pop(f"nvml:{L40S}", None)

    def names(self, plan: Plan) -> dict[str, object]:
        return {fact.subject: fact.values for fact in plan.facts_of("vGPU types")}

    def test_of_two_plans_each_remembers_its_own(self, fast_folder: Path) -> None:
        """The first is applied after the second was made."""
        tree = copy(beginning("l40s"))
        host = machine(tree, fast_folder / "x.db")
        first = host.vgpu.plan_create("L40S-12Q")
        self.renamed(tree)
        second = host.vgpu.plan_create("1153")
        assert self.names(second) != self.names(first)
        assert host.apply(first).result == Result.DONE
        assert recorded(host.session).names == self.names(first)

    def test_they_make_no_plan_stale(self, fast_folder: Path) -> None:
        tree = copy(beginning("l40s"))
        host = machine(tree, fast_folder / "x.db")
        plan = host.vgpu.plan_create("1153", parent="0000:41:00.6")
        self.renamed(tree)
        again = host.replan(plan)
        assert again.changes == plan.changes
        assert self.names(again) != self.names(plan), "and what a file says of them is not believed"
        assert host.apply(plan).result == Result.DONE


# -- what is refused when a plan is carried out --------------------------------------------------------


class TestForeign:
    def test_one_that_is_not_vfioctls_any_more(self, a2: Host) -> None:
        """It was removed, and somebody else created another of its name, place and type."""
        a2.vgpu.create("A2-4C", uuids=UUIDS[:1])
        plan = a2.vgpu.plan_remove(UUIDS[:1])
        a2.vgpu.plan_remove(UUIDS[:1])
        a2.apply(a2.vgpu.plan_remove(UUIDS[:1]))
        (change,) = plan.changes
        parent, _, kind = change.before.partition("/")
        a2.session.kernel.write(f"/sys/class/mdev_bus/{parent}/mdev_supported_types/{kind}/create", UUIDS[0])
        entries = len(a2.history())
        with pytest.raises((Foreign, StalePlan)) as caught:
            a2.apply(plan)
        assert isinstance(caught.value, Foreign)
        assert len(a2.history()) == entries
        assert a2.session.kernel.has(f"/sys/bus/mdev/devices/{UUIDS[0]}")


# -- after a boot --------------------------------------------------------------------------------------


class TestRestoring:
    @pytest.fixture
    def booted(self, fast_folder: Path) -> Host:
        tree = copy(beginning("t4"))
        host = machine(tree, fast_folder / "x.db")
        host.vgpu.create("T4-4C", count=2, uuids=UUIDS[:2], persistent=True)
        fresh = copy(beginning("t4"))
        fresh.put(BOOT_ID, NEXT_BOOT)
        for path, text in tree.files.items():
            if path.startswith("/etc/"):
                fresh.put(path, text)
        return machine(fresh, fast_folder / "x.db")

    def test_says_what_became_of_each(self, booted: Host) -> None:
        files = tuple(f"/etc/mdevctl.d/{T4}/{uuid}" for uuid in UUIDS[:2])
        planned = booted.vgpu.restore(dry_run=True)
        assert (planned.files, len(planned.plans), planned.outcomes) == (files, 2, ())
        assert ours(booted) == set()
        restored = booted.vgpu.restore()
        assert (restored.files, restored.plans, restored.failures) == (files, (), {})
        assert [outcome.result for outcome in restored.outcomes] == [Result.DONE, Result.DONE]
        assert ours(booted) == set(UUIDS[:2])
        again = booted.vgpu.restore()
        assert (again.files, again.outcomes, again.failures) == (files, (), {})

    def test_one_that_fails_keeps_no_other(self, booted: Host) -> None:
        path = f"/etc/mdevctl.d/{T4}/{UUIDS[0]}"
        booted.session.kernel.replace_file(path, "{")
        restored = booted.vgpu.restore()
        assert [*restored.failures] == [path]
        assert ours(booted) == {UUIDS[1]}


# -- replanning ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host_name", "ask"),
    [
        ("a2", lambda host: host.vgpu.plan_create("A2-4C", uuids=UUIDS[:1], persistent=True)),
        ("l40s", lambda host: host.vgpu.plan_create("L40S-12Q", count=2)),
        ("xe", lambda host: host.vgpu.plan_vfs(XE, 2, persistent=True)),
        ("xe", lambda host: host.vgpu.plan_profile(XE, [("pf/sched_priority", "high")])),
        ("l40s", lambda host: host.vgpu.plan_vfs(L40S, 0, foreign=True)),
    ],
)
def test_an_intent_is_planned_again_alike(fast_folder: Path, host_name: str, ask: Callable[[Host], Plan]) -> None:
    host = machine(copy(beginning(host_name)), fast_folder / "x.db")
    plan = ask(host)
    assert host.vgpu.replan(plan.intent) == plan
    assert host.replan(host.read_plan(plan.model_dump_json())) == plan
    assert plan.intent.title()
    assert plan.intent.undone_by(plan)


# -- room for what is created at boot --------------------------------------------------------------------


class TestRoomForWhatIsCreatedAtBoot:
    LATER = "0d3f2c1a-0b4e-4f6d-8a7c-5e9b1f2a3c4d"

    def defined(self, tree: Tree, parent: str, kind: str, start: str = "auto") -> None:
        tree.put(f"/etc/mdevctl.d/{parent}/{self.LATER}", definition_text(kind, {}).replace("auto", start))

    def test_another_vf_is_taken_than_the_one_of_a_definition(self, fast_folder: Path) -> None:
        tree = copy(beginning("a2"))
        host = machine(tree, fast_folder / "a2.db")
        (usual,) = host.vgpu.plan_create("A2-4C").changes
        parent, _, kind = usual.after.partition("/")
        self.defined(tree, parent, kind, start="manual")
        assert host.vgpu.plan_create("A2-4C").changes[0].after == usual.after, "nothing starts that by itself"
        self.defined(tree, parent, kind)
        plan = host.vgpu.plan_create("A2-4C")
        assert plan.changes[0].after.partition("/")[0] != parent
        (note,) = (note for note in plan.notes if note.startswith("room is kept for "))
        assert f"{self.LATER} on {parent}" in note

    def test_it_is_taken_where_there_is_no_other_or_it_is_named(self, fast_folder: Path) -> None:
        tree = copy(beginning("t4"))
        host = machine(tree, fast_folder / "t4.db")
        self.defined(tree, T4, "nvidia-319")
        assert any("room is kept" in note for note in host.vgpu.plan_create("T4-4C", count=3).notes)
        plan = host.vgpu.plan_create("T4-4C", count=4)
        assert f"this takes the room of {self.LATER} on {T4}, which definitions create at boot" in plan.notes
        itself = host.vgpu.plan_create("T4-4C", uuids=(self.LATER,), parent=T4)
        assert not any("room" in note and "boot" in note for note in itself.notes)

    def test_a_vf_with_a_definition_of_vfioctl_is_left_too(self, fast_folder: Path) -> None:
        tree = copy(beginning("l40s"))
        host = machine(tree, fast_folder / "l40s.db")
        (usual,) = host.vgpu.plan_create("L40S-12Q").changes
        text = f'{{"device": "{usual.subject}", "card": "{L40S}", "type": "{usual.after}"}}'
        tree.put(f"/etc/vfioctl/vgpu.d/{usual.subject}.json", text)
        plan = host.vgpu.plan_create("L40S-12Q")
        assert plan.changes[0].subject != usual.subject
        assert any(f"room is kept for {usual.subject}" in note for note in plan.notes)
        (at_boot,) = host.vgpu.plan_create("L40S-12Q", parent=usual.subject).changes
        assert at_boot == usual
