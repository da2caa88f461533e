"""`vfioctl persist import` of vGPUs that exist, over simulated boots: mediated devices, and VFs with a type."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.hosts.vgpu_machines import A2, UUIDS, BootableHost, beginning
from tests.unit.conftest import Run
from vfioctl.core.change import Result
from vfioctl.errors import BadSpec, DeviceInUse, Foreign, HostError, StalePlan, UnknownDevice
from vfioctl.persist.model.persistent import Owner, State
from vfioctl.vgpu.model.persistent import definition_text
from vfioctl.vgpu.model.vgpu import FOREIGN, OURS

PARENT, KIND = "0000:08:00.4", "nvidia-745"
NAME = UUIDS[0]
FILE = f"/etc/mdevctl.d/{PARENT}/{NAME}"
CREATE = f"/sys/class/mdev_bus/{PARENT}/mdev_supported_types/{{}}/create"


@pytest.fixture
def a2(fast_folder: Path) -> BootableHost:
    """One vGPU, which another program created."""
    machine = BootableHost(fast_folder, beginning("a2"))
    machine.edit(lambda tree: tree.remove("/etc/mdevctl.d"))
    machine.does(lambda host: host.vgpu.plan_vfs(A2, 16, persistent=True))
    machine.other(CREATE.format(kind_of(machine)), NAME)
    return machine


def kind_of(machine: BootableHost) -> str:
    (card,) = machine.host.vgpu.vgpus().cards
    return next(kind.id for kind in card.types if kind.profile == "A2-4C")


def owner_of(machine: BootableHost) -> str:
    return next(vgpu.owner for vgpu in machine.host.vgpu.vgpus().instances if vgpu.id == NAME)


def imported(machine: BootableHost, *names: str) -> list[str]:
    host = machine.host
    plan = host.persist.plan_import(names)
    assert host.apply(plan).result == Result.DONE
    return [change.kind for change in plan.changes]


class TestOneThatNobodyKeeps:
    def test_is_created_at_each_boot_and_belongs_to_vfioctl(self, a2: BootableHost) -> None:
        assert owner_of(a2) == FOREIGN
        with pytest.raises(Foreign):
            a2.host.vgpu.plan_remove([NAME])
        before = a2.all_but_boot()
        assert imported(a2, NAME[:6].upper()) == ["definition", "kept vGPU"]
        assert json.loads(a2.tree.files[FILE]) == {"mdev_type": kind_of(a2), "start": "auto", "attrs": []}
        written = {path for path, text in a2.all_but_boot().items() if before.get(path) != text}
        assert {path for path in written if path.startswith("/sys")} == set(), "the vGPU itself stays as it is"
        for _ in range(2):
            a2.boots()
            assert f"/sys/bus/mdev/devices/{NAME}/mdev_type" not in a2.tree.links
            assert not a2.host.persist.restore().failures
            assert owner_of(a2) == OURS
        a2.does(lambda host: host.vgpu.plan_remove([NAME]))
        assert FILE not in a2.tree.files

    def test_is_taken_over_once(self, a2: BootableHost) -> None:
        imported(a2, NAME)
        assert a2.host.persist.plan_import([NAME]).nothing_to_do

    def test_keeps_its_parameters(self, a2: BootableHost) -> None:
        a2.other(f"/sys/bus/mdev/devices/{NAME}/nvidia/vgpu_params", "frame_rate_limiter=0")
        imported(a2, NAME)
        a2.boots()
        assert not a2.host.persist.restore().failures
        assert a2.tree.text(f"/sys/bus/mdev/devices/{NAME}/nvidia/vgpu_params").strip() == "frame_rate_limiter=0"

    def test_that_goes_meanwhile_makes_the_plan_stale(self, a2: BootableHost) -> None:
        host = a2.host
        plan = host.persist.plan_import([NAME])
        a2.other(f"/sys/bus/mdev/devices/{NAME}/remove", "1")
        with pytest.raises(StalePlan):
            a2.host.apply(plan)
        assert FILE not in a2.tree.files

    def test_the_plan_says_whose_it_is(self, a2: BootableHost, run: Run) -> None:
        answer = run(f"persist import {NAME} --dry-run --simulate", str(a2.file))
        assert f"{NAME} is vfioctl's from now on: vfioctl vgpu remove needs no --foreign" in answer.out
        assert f"does {NAME} exist?" in answer.out
        assert answer.code == 0


class TestMdevctls:
    def defined(self, machine: BootableHost, start: str, kind: str = "") -> str:
        text = json.dumps({"mdev_type": kind or kind_of(machine), "start": start, "attrs": [{"a/b": "1"}]})
        machine.add(FILE, text)
        return text

    def test_are_taken_over_with_their_definitions_as_they_are(self, a2: BootableHost) -> None:
        text = self.defined(a2, "auto")
        (entry,) = [entry for entry in a2.host.persist.persistent() if entry.name == NAME]
        assert (entry.owner, entry.state) == (Owner.MDEVCTL, State.FOREIGN)
        plan = a2.host.persist.plan_import()
        assert plan.notes == (f"{NAME} and {FILE} are vfioctl's from now on: vfioctl vgpu remove deletes both",)
        assert plan.intent.undone_by(plan) == (), "persist remove would delete what mdevctl had"
        assert imported(a2) == ["kept vGPU"], "all that others restore"
        assert a2.tree.files[FILE] == text
        (entry,) = [entry for entry in a2.host.persist.persistent() if entry.name == NAME]
        assert (entry.owner, entry.state) == (Owner.VFIOCTL, State.READY)
        assert a2.host.persist.plan_import().nothing_to_do, "a second time there is nothing to take over"

    def test_that_start_by_hand_are_left_to_it_unless_named(self, a2: BootableHost) -> None:
        self.defined(a2, "manual")
        assert a2.host.persist.plan_import().nothing_to_do
        imported(a2, NAME)
        assert a2.tree.files[FILE] == definition_text(kind_of(a2), {"a/b": "1"})

    def test_of_another_type_are_refused(self, a2: BootableHost) -> None:
        self.defined(a2, "auto", "nvidia-1")
        with pytest.raises(DeviceInUse, match="defines nvidia-1, but"):
            a2.host.persist.plan_import([NAME])

    def test_that_do_not_exist_are_started_first(self, a2: BootableHost) -> None:
        self.defined(a2, "auto")
        a2.other(f"/sys/bus/mdev/devices/{NAME}/remove", "1")
        with pytest.raises(HostError, match="does not exist now") as failure:
            a2.host.persist.plan_import()
        assert failure.value.next_command == f"mdevctl start --uuid {NAME}"

    def test_several_of_which_one_is_wrong_change_nothing(self, a2: BootableHost) -> None:
        self.defined(a2, "manual")
        before = a2.all_but_boot()
        with pytest.raises(UnknownDevice, match=UUIDS[1]):
            a2.host.persist.plan_import([NAME, UUIDS[1]])
        assert a2.all_but_boot() == before


class TestVfs:
    PF, VF = "0000:41:00.0", "0000:41:00.4"
    TYPE = f"/sys/bus/pci/devices/{VF}/nvidia/current_vgpu_type"
    FILE = f"/etc/vfioctl/vgpu.d/{VF}.json"

    @pytest.fixture
    def l40s(self, fast_folder: Path) -> BootableHost:
        machine = BootableHost(fast_folder, beginning("l40s"))
        machine.does(lambda host: host.vgpu.plan_vfs(self.PF, 32, persistent=True))
        return machine

    def test_with_a_type_are_kept_for_this_card(self, l40s: BootableHost) -> None:
        l40s.other(self.TYPE, "1155")
        assert imported(l40s, self.VF) == ["definition", "kept vGPU"]
        known = json.loads(l40s.tree.files[self.FILE])
        assert (known["card"], known["type"], known["identity"][:9]) == (self.PF, "1155", "10de:26b9")
        l40s.boots()
        assert not l40s.host.persist.restore().failures
        assert l40s.tree.text(self.TYPE).strip() == "1155"
        l40s.boots()
        l40s.add(self.FILE, l40s.tree.files[self.FILE].replace("10de:26b9", "10de:26ba"))
        (failure,) = l40s.host.persist.restore().failures.values()
        assert "is another device than when" in failure.message
        assert l40s.tree.text(self.TYPE).strip() == "0", "a vGPU of one card is not created on another"

    def test_without_a_type_are_kept_with_their_pf(self, l40s: BootableHost) -> None:
        with pytest.raises((BadSpec, UnknownDevice)):
            l40s.host.persist.plan_import([self.VF])
