"""Each kind of resource: what a plan may name, which steps a change takes, what restores it, what a refusal means."""

from __future__ import annotations

import errno
from collections.abc import Sequence

import pytest

from tests.hosts.machines import REGISTRY, copy, original
from vfioctl.core.action import Context
from vfioctl.core.change import Change, Key, Phase, Step
from vfioctl.core.resource import Found
from vfioctl.errors import DeviceInUse, KernelRefused, NoCapacity
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel.recorded.host import Recorded
from vfioctl.kernel.recorded.tree import Tree
from vfioctl.kernel.simulated.host import Simulated
from vfioctl.units import Uuid
from vfioctl.vgpu.model.intents import CreateVgpuIntent
from vfioctl.vgpu.model.kinds import (
    AUTOPROBE,
    DEFINITION,
    MDEV,
    NVIDIA_VFS,
    PARAMETER,
    PROFILE,
    VF_COUNT,
    VGPU_TYPE,
    ZOMBIE,
    autoprobe_file,
    count_file,
    type_file,
)
from vfioctl.vgpu.resources.vfs import ManageVfs

ONE = Uuid("4e8c5df7-c4fa-4719-904f-5579cd5ac35f")
PF, VF = PciAddress("0000:41:00.0"), PciAddress("0000:41:00.4")
HOME, MDEVS = f"/sys/bus/pci/devices/{PF}", "/sys/bus/mdev/devices"
PLACE = f"{VF}/nvidia-754"
PARAMS = f"{MDEVS}/{ONE}/nvidia/vgpu_params"
OWN_FILE, MDEVCTL_FILE = f"/etc/vfioctl/vgpu.d/{PF}.json", f"/etc/mdevctl.d/{VF}/{ONE}"


def change(kind: str, name: str, subject: str, before: str, after: str, during: str | None = None) -> Change:
    return Change(kind=kind, name=name, subject=subject, before=before, after=after, during=during)


GOOD = (
    change(MDEV, ONE, ONE, "", PLACE),
    change(MDEV, ONE, ONE, ZOMBIE, ""),
    change(MDEV, ONE, ONE, "mbochs/mbochs-small", ""),
    change(VGPU_TYPE, type_file(VF), VF, "0", "1155"),
    change(PARAMETER, PARAMS, ONE, "", "a=1, b=2"),
    change(PARAMETER, f"/sys/bus/pci/devices/{VF}/nvidia/placement_id", VF, "", "8"),
    change(PARAMETER, PARAMS[:-11] + "a" * (254 - len(PARAMS[:-11])), ONE, "", "1"),
    change(VF_COUNT, count_file(PF), PF, "2", "4", "0"),
    change(AUTOPROBE, autoprobe_file(PF), PF, "1", "1", "0"),
    change(NVIDIA_VFS, PF, PF, "0", "32"),
    change(PROFILE, f"{HOME}/sriov_admin/vf2/profile/exec_quantum_ms", PF, "20", "10"),
    change(DEFINITION, OWN_FILE, PF, "", "{}"),
    change(DEFINITION, MDEVCTL_FILE, ONE, "{\n\t}", ""),
    change(DEFINITION, f"/etc/mdevctl.d/mbochs/{ONE.upper()}", ONE, "{}", ""),
)
BAD = (
    change(MDEV, VF, VF, "", PLACE),
    change(MDEV, ONE, VF, "", PLACE),
    change(MDEV, ONE.upper(), ONE.upper(), "", PLACE),
    change(MDEV, ONE, ONE, "", ZOMBIE),
    change(MDEV, ONE, ONE, "", "../x"),
    change(MDEV, ONE, ONE, "", f"{VF}/../x"),
    change(MDEV, ONE, ONE, "", f"{PLACE}\n"),
    change(VGPU_TYPE, type_file(VF), PF, "0", "1155"),
    change(VGPU_TYPE, type_file(VF), VF, "0", "nvidia-1"),
    change(VGPU_TYPE, type_file(f"{VF}/../{PF}"), f"{VF}/../{PF}", "0", "1155"),
    change(PARAMETER, f"{MDEVS}/{ONE}/driver/unbind", ONE, "", "1"),
    change(PARAMETER, f"{MDEVS}/{ONE}/vfio-dev/x", ONE, "", "1"),
    change(PARAMETER, f"{MDEVS}/{ONE}/remove", ONE, "", "1"),
    change(PARAMETER, f"{MDEVS}/{ONE}/a/b/c", ONE, "", "1"),
    change(PARAMETER, f"{MDEVS}/{ONE}/a/current_vgpu_type", ONE, "", "1"),
    change(PARAMETER, type_file(VF), VF, "", "1155"),
    change(PARAMETER, f"/sys/bus/pci/devices/{VF}/power/control", VF, "", "on"),
    change(PARAMETER, PARAMS, VF, "", "1"),
    change(PARAMETER, PARAMS, ONE, "", "\n"),
    change(PARAMETER, f"{MDEVS}/../x", "..", "", "1"),
    change(PARAMETER, PARAMS[:-11] + "a" * (255 - len(PARAMS[:-11])), ONE, "", "1"),
    change(VF_COUNT, count_file(PF), VF, "0", "1"),
    change(VF_COUNT, count_file(PF), PF, "0", "-1"),
    change(VF_COUNT, count_file("../x"), "../x", "0", "1"),
    change(AUTOPROBE, autoprobe_file(PF), PF, "1", "2"),
    change(AUTOPROBE, autoprobe_file(PF), PF, "1", "1", "x"),
    change(NVIDIA_VFS, ONE, ONE, "0", "1"),
    change(NVIDIA_VFS, count_file(PF), PF, "0", "1"),
    change(PROFILE, f"{HOME}/sriov_admin/vf0/profile/exec_quantum_ms", PF, "20", "10"),
    change(PROFILE, f"{HOME}/sriov_admin/pf/profile/../x", PF, "20", "10"),
    change(PROFILE, f"{HOME}/sriov_admin/pf/profile/x", PF, "20", "A"),
    change(DEFINITION, "/etc/passwd", PF, "", "x"),
    change(DEFINITION, OWN_FILE, VF, "", "{}"),
    change(DEFINITION, OWN_FILE, ONE, "", "{}"),
    change(DEFINITION, f"/etc/mdevctl.d/../{ONE}", ONE, "", "{}"),
    change(DEFINITION, f"/etc/mdevctl.d/a/b/{ONE}", ONE, "", "{}"),
    change(DEFINITION, MDEVCTL_FILE, ONE, "", "\x00"),
    change(DEFINITION, MDEVCTL_FILE, ONE, "", "\u00e9"),
)


def words(each: Change) -> str:
    return f"{each.kind} {each.name[-40:]} {each.after[:20]!r}"


@pytest.mark.parametrize("each", GOOD, ids=words)
def test_what_a_plan_may_name(each: Change) -> None:
    REGISTRY.resource(each).validate(each)


@pytest.mark.parametrize("each", BAD, ids=words)
def test_what_no_plan_may_name(each: Change) -> None:
    with pytest.raises(ValueError, match=r"^(not|neither|nothing) "):
        REGISTRY.resource(each).validate(each)


def test_every_kind_is_about_the_right_time() -> None:
    """Which of them outlive a boot, begin with what the plan says, or may come in the place of somebody else's."""
    flags = {
        each.kind: (r.fixed_start, r.survives_reboot, r.created, r.shared_place)
        for each in GOOD
        for r in [REGISTRY.resource(each)]
    }
    assert flags == {
        MDEV: (True, False, True, False),
        VGPU_TYPE: (True, False, True, True),
        PARAMETER: (False, False, False, False),
        VF_COUNT: (True, False, False, False),
        AUTOPROBE: (False, False, False, False),
        NVIDIA_VFS: (True, False, False, False),
        PROFILE: (False, False, False, False),
        DEFINITION: (True, True, False, False),
    }


@pytest.mark.parametrize("kind", [MDEV, VF_COUNT, NVIDIA_VFS, AUTOPROBE, DEFINITION])
def test_what_links_tell_is_read_without_a_worker(kind: str) -> None:
    (each, *_) = [each for each in GOOD if each.kind == kind]
    assert not [*REGISTRY.resource(each).blocking(each)]


def test_what_a_driver_answers_is_read_by_a_worker() -> None:
    for each in (change(PARAMETER, PARAMS, ONE, "", "1"), change(VGPU_TYPE, type_file(VF), VF, "0", "1155")):
        assert [*REGISTRY.resource(each).blocking(each)] == [each.name]


class TestMatches:
    @pytest.mark.parametrize(
        ("each", "found", "as_meant"),
        [
            (change(MDEV, ONE, ONE, "", PLACE), PLACE, True),
            (change(MDEV, ONE, ONE, "", PLACE), None, False),
            (change(MDEV, ONE, ONE, "", PLACE), ZOMBIE, False),
            (change(MDEV, ONE, ONE, PLACE, ""), "", True),
            (change(MDEV, ONE, ONE, PLACE, ""), None, True),
            (change(MDEV, ONE, ONE, PLACE, ""), ZOMBIE, False),
            (change(VGPU_TYPE, type_file(VF), VF, "0", "1155"), None, False),
            (change(VGPU_TYPE, type_file(VF), VF, "1155", "0"), None, True),
            (change(PARAMETER, PARAMS, ONE, "", "a=1, b=2"), "b=2,a=1", True),
            (change(PARAMETER, PARAMS, ONE, "", "a=1, b=2"), "a=1", False),
            (change(PARAMETER, PARAMS, ONE, "", "a=1"), None, False),
            (change(PARAMETER, PARAMS, ONE, "a=1", ""), "anything", True),
            (change(PARAMETER, PARAMS, ONE, "a=1", ""), None, True),
            (change(VF_COUNT, count_file(PF), PF, "0", "2"), "2", True),
            (change(VF_COUNT, count_file(PF), PF, "2", "0"), None, False),
            (change(NVIDIA_VFS, PF, PF, "2", "0"), None, False),
            (change(AUTOPROBE, autoprobe_file(PF), PF, "1", "1"), None, True),
            (change(DEFINITION, OWN_FILE, PF, "", "{}"), "{} ", False),
        ],
        ids=lambda each: words(each) if isinstance(each, Change) else repr(each),
    )
    def test_what_was_found(self, each: Change, found: str | None, as_meant: bool) -> None:
        assert REGISTRY.resource(each).matches(each, found) is as_meant


class TestSteps:
    def told(self, *changes: Change) -> list[tuple[Phase, str, str]]:
        return [(o.step.phase, o.step.target.rpartition("/")[2], o.step.value) for o in REGISTRY.steps(changes)]

    def test_a_type_becomes_another_in_no_plan(self) -> None:
        assert self.told(change(VGPU_TYPE, type_file(VF), VF, "1155", "1156")) == []
        assert self.told(change(MDEV, ONE, ONE, PLACE, f"{PF}/nvidia-755")) == []

    def test_autoprobe_is_off_around_the_count(self) -> None:
        count = change(VF_COUNT, count_file(PF), PF, "2", "4", "0")
        assert self.told(change(AUTOPROBE, autoprobe_file(PF), PF, "1", "1", "0"), count) == [
            (Phase.CHECK, PF, ""),
            (Phase.PREPARE, "sriov_drivers_autoprobe", "0"),
            (Phase.COUNT, "sriov_numvfs", "0"),
            (Phase.COUNT, "sriov_numvfs", "4"),
            (Phase.RESUME, "sriov_drivers_autoprobe", "1"),
        ]

    def test_vgpus_that_go_are_asked_for_together(self) -> None:
        two = Uuid(ONE.replace("4e", "5e"))
        going = [change(MDEV, uuid, uuid, PLACE, "") for uuid in (ONE, two)]
        check, *_ = REGISTRY.steps(going)
        assert (check.step.action, check.step.target, check.step.subject) == ("unheld", f"{ONE} {two}", "")


class TestRestore:
    def restored(self, each: Change, found: str | None, *others: Change, written: Sequence[Key] = ()) -> Change | None:
        values = {other.key: other.after for other in others} | {each.key: found}
        seen = Found(values, frozenset(written), {c.key: c for c in (each, *others)})
        return REGISTRY.resource(each).restore(each, seen)

    @pytest.mark.parametrize(
        "each", [change(VF_COUNT, count_file(PF), PF, "0", "4"), change(NVIDIA_VFS, PF, PF, "0", "4")], ids=words
    )
    def test_a_count_that_the_host_made_less_of(self, each: Change) -> None:
        assert self.restored(each, "3") is None, "somebody else has set it"
        back = self.restored(each, "3", written=[each.key])
        assert back
        assert (back.before, back.after) == ("3", "0")
        assert self.restored(each, None, written=[each.key]) is None

    def test_a_profile_value_that_the_driver_made_another_of(self) -> None:
        each = change(PROFILE, f"{HOME}/sriov_admin/vf1/profile/exec_quantum_ms", PF, "20", "10")
        assert self.restored(each, "16") is None
        back = self.restored(each, "16", written=[each.key])
        assert back
        assert (back.before, back.after) == ("16", "20")

    def test_autoprobe_stays_off_while_vfs_come_back(self) -> None:
        off = change(VF_COUNT, count_file(PF), PF, "2", "0")
        each = change(AUTOPROBE, autoprobe_file(PF), PF, "1", "1")
        for found in ("1", "0"):
            back = self.restored(each, found, off)
            assert back
            assert (back.before, back.after, back.during) == (found, "1", "0")
        on = change(VF_COUNT, count_file(PF), PF, "0", "2")
        back = self.restored(each, "1", on)
        assert back
        assert back.during is None, "VFs only go"

    def test_autoprobe_that_somebody_else_set_is_left_alone(self) -> None:
        each = change(AUTOPROBE, autoprobe_file(PF), PF, "1", "1")
        assert self.restored(each, None) is None
        assert self.restored(each, "7") is None

    def test_a_parameter_comes_back_with_its_vgpu(self) -> None:
        gone = change(MDEV, ONE, ONE, "0000:08:00.6/nvidia-754", "")
        removed, created = change(PARAMETER, PARAMS, ONE, "a=1", ""), change(PARAMETER, PARAMS, ONE, "", "a=1")
        back = self.restored(removed, None, gone)
        assert back
        assert (back.before, back.after) == ("", "a=1")
        assert self.restored(removed, None) is None, "the vGPU stays"
        assert self.restored(created, "a=1", change(MDEV, ONE, ONE, "", "0000:08:00.6/nvidia-754")) is None

    def test_a_parameter_of_a_vgpu_that_is_gone_is_written_only_to_create_it(self) -> None:
        created, removed = change(PARAMETER, PARAMS, ONE, "", "a=1"), change(PARAMETER, PARAMS, ONE, "a=1", "")
        for each, forward in ((created, created), (removed, None)):
            seen = Found({each.key: None}, frozenset(), {each.key: each})
            assert REGISTRY.resource(each).finish(each, seen) == forward

    def test_a_text_that_others_have_written_is_left_to_them_in_both_ways(self) -> None:
        each = change(DEFINITION, OWN_FILE, PF, "", "{}")
        assert self.restored(each, "theirs") is None
        found = Found({each.key: "theirs"}, changes={each.key: each})
        assert REGISTRY.resource(each).finish(each, found) is None
        unchanged = Found({each.key: each.before}, changes={each.key: each})
        assert REGISTRY.resource(each).finish(each, unchanged) == each


class TestRead:
    def read(self, tree: Tree, each: Change) -> str | None:
        return REGISTRY.resource(each).read(Recorded(tree, ""), each)

    def test_an_mdev_is_its_parent_and_type(self) -> None:
        tree, name = original("a2"), "6d3f2c1a-0b4e-4f6d-8a7c-5e9b1f2a3c4d"
        assert self.read(tree, change(MDEV, name, name, "", PLACE)) == "0000:08:00.4/nvidia-754"
        assert self.read(tree, change(MDEV, ONE, ONE, "", PLACE)) == ""

    def test_one_that_is_on_no_bus_any_more_is_a_zombie(self) -> None:
        tree = copy(original("a2"))
        tree.put_directory(f"{tree.resolve('/sys/class/mdev_bus/0000:08:00.5')}/{ONE}")
        assert self.read(tree, change(MDEV, ONE, ONE, "0000:08:00.5/nvidia-754", "")) == ZOMBIE

    def test_vfs_are_counted_by_their_links(self) -> None:
        tree = original("l40s")
        for kind, name in ((VF_COUNT, count_file(PF)), (NVIDIA_VFS, PF)):
            assert self.read(tree, change(kind, name, PF, "0", "1")) == "32"
        gone = PciAddress("0000:ff:00.0")
        assert self.read(tree, change(VF_COUNT, count_file(gone), gone, "0", "1")) is None

    def test_of_several_words_the_chosen_one(self) -> None:
        tree, pf = original("xe"), PciAddress("0000:03:00.0")
        name = f"/sys/bus/pci/devices/{pf}/sriov_admin/pf/profile/sched_priority"
        found = self.read(tree, change(PROFILE, name, pf, "low", "high"))
        assert found
        assert f"[{found}]" in Recorded(tree, "").read(name)

    def test_a_definition_that_cannot_be_read_is_unknown(self) -> None:
        tree = Tree()
        tree.put_refused(OWN_FILE, errno.EIO)
        assert self.read(tree, change(DEFINITION, OWN_FILE, PF, "", "{}")) is None

    def test_a_definition_that_is_not_there_is_empty(self) -> None:
        assert self.read(Tree(), change(DEFINITION, OWN_FILE, PF, "", "{}")) == ""


class TestDescribe:
    @pytest.mark.parametrize(("before", "after", "shown"), [("", "1", ("none", "1")), ("1", "", ("1", "none"))])
    def test_a_parameter_without_a_value_is_none(self, before: str, after: str, shown: tuple[str, str]) -> None:
        each = change(PARAMETER, PARAMS, VF, before, after)
        found = REGISTRY.resource(each).describe(each)
        assert (found.before, found.after) == shown

    def test_a_definition_is_told_without_its_text(self) -> None:
        each = change(DEFINITION, OWN_FILE, PF, "", "{}")
        found = REGISTRY.resource(each).describe(each)
        assert (found.before, found.after) == ("none", "written")


@pytest.mark.parametrize(("value", "option"), [("1", "-e"), ("0", "-d")])
def test_sriov_manage_is_described_with_its_option(value: str, option: str) -> None:
    step = Step(phase=Phase.CREATE, target=PF, value=value, why="")
    assert ManageVfs().describe(step) == f"sriov-manage {option} {PF}"


class TestExplain:
    """What the kernel's no to a vGPU means; the rest is told as it is."""

    def context(self, tree: Tree, *changes: Change) -> Context:
        intent = CreateVgpuIntent(type="A2-4C")
        steps = [owned.step for owned in REGISTRY.steps(changes)]
        return Context(Simulated(tree, ""), intent, 0.0, steps=steps)

    def refused(self, each: Change, number: int) -> KernelRefused:
        (step,) = [owned.step for owned in REGISTRY.steps([each]) if owned.step.phase != Phase.CHECK]
        return KernelRefused(step.target, number, step.value)

    def test_a_taken_name(self) -> None:
        each = change(MDEV, ONE, ONE, "", "0000:08:00.6/nvidia-754")
        meant = REGISTRY.resource(each).explain(
            self.context(original("a2"), each), each, self.refused(each, errno.EEXIST)
        )
        assert isinstance(meant, DeviceInUse)

    @pytest.mark.parametrize(
        ("place", "number", "full"),
        [
            ("0000:08:00.6/nvidia-754", errno.EINVAL, True),
            ("0000:08:00.6/nvidia-754", errno.ENODEV, False),
            ("mbochs/mbochs-small", errno.ENOSPC, True),
            ("mbochs/mbochs-small", errno.EINVAL, False),
        ],
    )
    def test_no_room(self, place: str, number: int, full: bool) -> None:
        each = change(MDEV, ONE, ONE, "", place)
        meant = REGISTRY.resource(each).explain(self.context(original("a2"), each), each, self.refused(each, number))
        assert isinstance(meant, NoCapacity) is full
        if meant and place.startswith("0000"):
            assert "0000:08:00.0 has room for 2 more" in meant.message, "what is left, of the whole card"

    def test_another_file_than_that_of_the_creation_says_nothing(self) -> None:
        each = change(MDEV, ONE, ONE, "", "0000:08:00.6/nvidia-754")
        error = KernelRefused("/sys/another", errno.EEXIST, "1")
        assert REGISTRY.resource(each).explain(self.context(original("a2"), each), each, error) is None

    @pytest.mark.parametrize(("number", "in_use"), [(errno.EBUSY, True), (errno.EPERM, True), (errno.EIO, False)])
    def test_a_guest_has_the_vf(self, number: int, in_use: bool) -> None:
        each = change(VGPU_TYPE, type_file(VF), VF, "1155", "0")
        meant = REGISTRY.resource(each).explain(self.context(original("l40s")), each, self.refused(each, number))
        assert isinstance(meant, DeviceInUse) is in_use

    @pytest.mark.parametrize(("number", "full"), [(errno.EINVAL, True), (errno.EIO, True), (errno.EPERM, False)])
    def test_no_room_for_a_type_on_a_vf(self, number: int, full: bool) -> None:
        each = change(VGPU_TYPE, type_file(VF), VF, "0", "1155")
        context = self.context(original("l40s"), each)
        meant = REGISTRY.resource(each).explain(context, each, self.refused(each, number))
        assert isinstance(meant, NoCapacity) is full

    def test_one_that_has_gone_by_itself_is_done(self) -> None:
        each = change(MDEV, ONE, ONE, PLACE, "")
        resource, kernel = REGISTRY.resource(each), Recorded(original("a2"), "")
        assert resource.is_done_anyway(kernel, each, self.refused(each, errno.ENODEV))
        assert not resource.is_done_anyway(kernel, each, self.refused(each, errno.EBUSY))
        there = "6d3f2c1a-0b4e-4f6d-8a7c-5e9b1f2a3c4d"
        other = change(MDEV, there, there, PLACE, "")
        assert not resource.is_done_anyway(kernel, other, self.refused(other, errno.ENOENT)), "it is still there"
        created = change(MDEV, ONE, ONE, "", PLACE)
        assert not resource.is_done_anyway(kernel, created, self.refused(created, errno.ENOENT))
