"""What has vGPUs and VFs created again at boot: texts, files, whose a vGPU is; damaged and hostile ones too."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hosts.machines import copy, original, unhurried
from tests.processes import end_in_time
from vfioctl.errors import HostError, KernelRefused
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel import files
from vfioctl.kernel.captured.host import Captured
from vfioctl.kernel.live.host import Live
from vfioctl.kernel.recorded.host import Recorded
from vfioctl.kernel.recorded.tree import Tree
from vfioctl.units import Uuid
from vfioctl.vgpu.model.intents import CreateVgpuIntent, SetVfsIntent
from vfioctl.vgpu.model.lookup import is_whole, with_owners
from vfioctl.vgpu.model.persistent import OwnDefinition, definition_file, definition_text, vfs_text, vgpu_text
from vfioctl.vgpu.model.vgpu import (
    FOREIGN,
    OURS,
    Created,
    Definition,
    Dialect,
    Vgpu,
    VgpuCard,
    VgpuParent,
    Vgpus,
    VgpuState,
    VgpuType,
)
from vfioctl.vgpu.probe.inventory import definition_in
from vfioctl.vgpu.probe.persistent import read_own_definitions, read_persistent

ONE, TWO = Uuid("4e8c5df7-c4fa-4719-904f-5579cd5ac35f"), Uuid("5e8c5df7-c4fa-4719-904f-5579cd5ac35f")
PF, VF, OTHER = (PciAddress(f"0000:41:00.{n}") for n in (0, 4, 5))
HOME = "/etc/vfioctl/vgpu.d"
KIND = VgpuType("1155", name="NVIDIA L40S-4Q", profile="L40S-4Q")


def host(**texts: str) -> Recorded:
    """With those files in vfioctl's own folder."""
    tree = Tree()
    for name, text in texts.items():
        tree.put(f"{HOME}/{name}", text)
    return Recorded(tree, "")


class TestTexts:
    def test_are_where_they_belong(self) -> None:
        assert definition_file(ONE, VF) == f"/etc/mdevctl.d/{VF}/{ONE}"
        assert definition_file(ONE, "mbochs") == f"/etc/mdevctl.d/mbochs/{ONE}"
        assert definition_file(VF, PF) == definition_file(VF, "") == f"{HOME}/{VF}.json"

    def test_are_read_back(self) -> None:
        kernel = host(**{f"{PF}.json": vfs_text(PF, 4), f"{VF}.json": vgpu_text(PF, VF, KIND, {"nvidia/x": "1"})})
        (vfs, vgpu_), problems = read_own_definitions(kernel)
        assert (vfs.device, vfs.card, vfs.vfs, vfs.type) == (PF, PF, 4, None)
        assert (vgpu_.device, vgpu_.card, vgpu_.vfs, vgpu_.type) == (VF, PF, None, "1155")
        assert (vgpu_.name, vgpu_.parameters) == ("NVIDIA L40S-4Q", {"nvidia/x": "1"})
        assert problems == []

    @unhurried
    @given(st.text(max_size=40), st.dictionaries(st.text(max_size=10), st.text(max_size=20), max_size=3))
    def test_of_definitions_say_what_they_were_given(self, kind: str, parameters: dict[str, str]) -> None:
        definition = definition_in("/etc/x", definition_text(kind, parameters))
        assert definition == Definition("/etc/x", kind, "auto", (*parameters.items(),))
        assert definition_text(kind, parameters).isascii()


class TestReading:
    def test_vfs_come_before_what_is_made_on_them(self) -> None:
        late, early = PciAddress("0000:c1:00.0"), PciAddress("0000:01:00.4")
        kernel = host(**{f"{early}.json": vgpu_text(PF, early, KIND, {}), f"{late}.json": vfs_text(late, 2)})
        assert [kept.device for kept in read_own_definitions(kernel)[0]] == [late, early]

    def test_without_the_folder_there_is_nothing(self) -> None:
        assert read_own_definitions(host()) == ([], [])

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "{",
            "[]",
            "null",
            "\0",
            "{}",
            '"x"',
            "[" * 5000,
            json.dumps({"device": VF}),
            json.dumps({"device": VF, "card": PF}),
            json.dumps({"device": VF, "card": PF, "vfs": 2, "type": "1"}),
            json.dumps({"device": OTHER, "card": PF, "type": "1"}),
            json.dumps({"device": "../../x", "card": PF, "type": "1"}),
            json.dumps({"device": VF, "card": PF, "type": "../1"}),
            json.dumps({"device": VF, "card": PF, "type": "1\n"}),
            json.dumps({"device": VF, "card": PF, "vfs": 0}),
            json.dumps({"device": VF, "card": PF, "vfs": 70_000}),
            json.dumps({"device": VF, "card": PF, "vfs": -1}),
            json.dumps({"device": VF, "card": PF, "type": "1", "version": 2}),
            json.dumps({"device": VF, "card": PF, "type": "1", "more": 1}),
            json.dumps({"device": VF, "card": PF, "type": "1", "name": "x" * 101}),
            json.dumps({"device": VF, "card": PF, "type": "1", "parameters": {"x": 1}}),
            vgpu_text(PF, VF, KIND, {}) + " " * 70_000 + "x",
        ],
    )
    def test_a_damaged_or_hostile_file_costs_itself(self, text: str) -> None:
        good = vgpu_text(PF, OTHER, KIND, {})
        kept, problems = read_own_definitions(host(**{f"{VF}.json": text, f"{OTHER}.json": good}))
        if text.endswith("x"):  # only its beginning is read, and that is whole
            assert [each.device for each in kept] == [VF, OTHER]
            return
        assert [each.device for each in kept] == [OTHER]
        ((path, why),) = problems
        assert path == f"{HOME}/{VF}.json"
        assert 0 < len(why) < 150
        assert "\n" not in why
        assert "pydantic" not in why

    @pytest.mark.parametrize(
        "name",
        ["README", ".hidden", VF, f"{VF}.json~", f"{VF}.json.bak", f".{VF}.json.17", f"{ONE}.json", "41:00.4.json"],
    )
    def test_files_of_other_names_are_none_of_its_business(self, name: str) -> None:
        assert read_own_definitions(host(**{name: "garbage"})) == ([], [])

    def test_one_that_cannot_be_read_says_so(self) -> None:
        tree = Tree()
        tree.put_refused(f"{HOME}/{VF}.json", errno.EACCES)
        assert read_own_definitions(Recorded(tree, "")) == ([], [(f"{HOME}/{VF}.json", "EACCES")])


class TestWhatIsMadeAgain:
    def tree(self) -> Tree:
        tree = copy(original("a2"))
        tree.put(f"{HOME}/{PF}.json", vfs_text(PF, 4))
        tree.put(f"{HOME}/{VF}.json", vgpu_text(PF, VF, KIND, {"nvidia/vgpu_params": "x=1"}))
        tree.put(f"/etc/mdevctl.d/0000:08:00.7/{ONE}", definition_text("nvidia-754", {"nvidia/vgpu_params": "x=1"}))
        return tree

    def made(self, name: str, *, kept: bool) -> dict[str, Created]:
        return {name: Created(name, "0000:08:00.0", "0000:08:00.7/nvidia-754", "t", kept)}

    def test_is_vfioctls_own_and_of_mdevctls_what_vfioctl_wrote(self) -> None:
        found, problems = read_persistent(Recorded(self.tree(), ""), self.made(ONE, kept=True))
        assert problems == {}
        assert [*found] == [f"{HOME}/{PF}.json", f"{HOME}/{VF}.json", f"/etc/mdevctl.d/0000:08:00.7/{ONE}"]
        vfs, vgpu_, mdev = found.values()
        assert isinstance(vfs, SetVfsIntent)
        assert (vfs.devices, vfs.vfs, vfs.persistent) == ((PF,), 4, True)
        assert isinstance(vgpu_, CreateVgpuIntent)
        assert (vgpu_.type, vgpu_.parent) == ("NVIDIA L40S-4Q", VF), "numbers change with drivers"
        assert vgpu_.parameters == (("nvidia/vgpu_params", "x=1"),)
        assert isinstance(mdev, CreateVgpuIntent)
        assert (mdev.type, mdev.uuids) == ("nvidia-754", (ONE,))

    def test_is_nothing_that_others_define(self) -> None:
        for made in ({}, self.made(ONE, kept=False), self.made(TWO, kept=True)):
            assert not [file for file in read_persistent(Recorded(self.tree(), ""), made)[0] if "mdevctl" in file]

    def test_is_nothing_that_starts_by_hand(self) -> None:
        tree = self.tree()
        text = definition_text("nvidia-754", {}).replace("auto", "manual")
        tree.put(f"/etc/mdevctl.d/0000:08:00.7/{ONE}", text)
        found, _ = read_persistent(Recorded(tree, ""), self.made(ONE, kept=True))
        assert [file for file in found if "mdevctl" in file] == []

    def test_a_damaged_file_costs_itself(self) -> None:
        tree = self.tree()
        tree.put(f"{HOME}/{PF}.json", "{")
        tree.put(f"/etc/mdevctl.d/0000:08:00.7/{ONE}", "{")
        found, problems = read_persistent(Recorded(tree, ""), self.made(ONE, kept=True))
        assert [*found] == [f"{HOME}/{VF}.json"]
        assert {*problems} == {f"{HOME}/{PF}.json", f"/etc/mdevctl.d/0000:08:00.7/{ONE}"}


# -- whose a vGPU is ------------------------------------------------------------------------------------

CARD = VgpuCard(
    PF, Dialect.MDEV, types=(VgpuType("a-1", name="A one", profile="A-1"),), parents=(VgpuParent(VF), VgpuParent(OTHER))
)
LIVE = Vgpu(ONE, Dialect.MDEV, card=PF, parent=VF, type="a-1")


def made(place: str = f"{VF}/a-1", name: str = ONE, card: str = PF) -> dict[str, Created]:
    return {name: Created(name, card, place, "t", persistent=False)}


class TestOwners:
    def owner(self, vgpu: Vgpu, known: dict[str, Created]) -> str:
        (found,) = with_owners(Vgpus((CARD,), (vgpu,)), known).instances
        return found.owner

    def test_one_is_ours_as_it_was_made(self) -> None:
        assert self.owner(LIVE, made()) == OURS

    @pytest.mark.parametrize(
        "known",
        [{}, made(f"{OTHER}/a-1"), made(f"{VF}/a-2"), made(name=TWO), made("4", name=PF)],
        ids=["none", "elsewhere", "otherwise", "another", "its PF's VFs"],
    )
    def test_and_else_foreign(self, known: dict[str, Created]) -> None:
        """Another one may have the name since, or the VF another type."""
        assert self.owner(LIVE, known) == FOREIGN

    @pytest.mark.parametrize("dialect", [Dialect.SRIOV, Dialect.XE])
    def test_plain_vfs_are_whose_their_pf_says(self, dialect: Dialect) -> None:
        plain = Vgpu(VF, dialect, card=PF, parent=PF, type="vf")
        assert self.owner(plain, made("1", name=PF)) == OURS
        assert self.owner(plain, made("4", name=PF)) == FOREIGN, "others made them anew"
        assert self.owner(plain, {}) == FOREIGN
        assert self.owner(plain, made(f"{VF}/1155", name=VF)) == FOREIGN

    def test_a_zombie_is_known_by_the_ledger_alone(self) -> None:
        zombie = replace(LIVE, state=VgpuState.ZOMBIE, type="", iommu_group=7)
        (found,) = with_owners(Vgpus((CARD,), (zombie,)), made()).instances
        assert (found.type, found.profile, found.owner, found.parent) == ("a-1", "A-1", OURS, VF)
        assert (found.state, found.iommu_group) == (VgpuState.ZOMBIE, 7)

    def test_a_foreign_zombie_stays_itself_whoever_made_the_vfs(self) -> None:
        zombie = replace(LIVE, state=VgpuState.ZOMBIE, type="")
        (found,) = with_owners(Vgpus((CARD,), (zombie,)), made("4", name=PF)).instances
        assert found == zombie


class TestHidden:
    """What a write never returned from, and the kernel does not show."""

    REMOVING = f"writing '1' to /sys/bus/mdev/devices/{ONE}/remove did not return"

    def hidden(self, known: dict[str, Created], wedged: dict[str, str]) -> tuple[Vgpu, ...]:
        return with_owners(Vgpus((CARD,)), known, wedged).instances

    def test_still_takes_its_share(self) -> None:
        (found,) = self.hidden(made(), {ONE: self.REMOVING})
        assert (found.id, found.state, found.profile, found.owner) == (ONE, VgpuState.ZOMBIE, "A-1", OURS)

    def test_is_on_the_card_of_its_parent(self) -> None:
        """A plan may be about several cards."""
        (found,) = self.hidden(made(card="0000:c1:00.0"), {ONE: self.REMOVING})
        assert (found.card, found.profile) == (PF, "A-1")

    def test_of_a_vf_is_no_mdev(self) -> None:
        (found,) = self.hidden(made(f"{VF}/1155", name=VF), {VF: "it"})
        assert (found.dialect, found.parent) == (Dialect.VENDOR, VF)

    def test_a_count_of_vfs_is_no_vgpu(self) -> None:
        assert self.hidden(made("4", name=PF), {PF: "writing '0' to sriov_numvfs did not return"}) == ()

    def test_what_vfioctl_did_not_make_is_not_made_up(self) -> None:
        assert self.hidden({}, {ONE: self.REMOVING}) == ()

    def test_is_not_told_twice(self) -> None:
        (found,) = with_owners(Vgpus((CARD,), (LIVE,)), made(), {ONE: self.REMOVING}).instances
        assert found.owner == OURS


@pytest.mark.parametrize(
    ("word", "whole"),
    [
        (ONE, True),
        (ONE.upper(), True),
        (VF, True),
        ("10000:41:00.4", True),
        (ONE[:-1], False),
        (f"{ONE}0", False),
        ("41:00.4", False),
        ("0000:41:00.8", False),
        ("gpu0", False),
        ("", False),
        (f"{ONE}\n", False),
        ("0000:41:00.4 ", False),
        (ONE.replace("4", "\u0664"), False),
    ],
)
def test_a_whole_name_is_one_whatever_there_is(word: str, whole: bool) -> None:
    assert is_whole(word) is whole


# -- the files -------------------------------------------------------------------------------------------


@pytest.fixture(params=[0o022, 0o077, 0])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def in_a_child(work: Callable[[], object]) -> int:
    """The exit status of a process that dies as it does."""
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        end_in_time()
        work()
    finally:
        os._exit(1)


class TestKeeping:
    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        return tmp_path / "mdevctl.d" / "0000:41:00.4" / ONE

    def names(self, file: Path) -> list[str]:
        return sorted(path.name for path in file.parent.iterdir())

    @pytest.mark.usefixtures("umask")
    def test_anybody_may_read_it_whatever_the_umask(self, file: Path) -> None:
        files.replace_file(str(file), "text")
        assert file.read_text() == "text"
        assert file.stat().st_mode & 0o7777 == 0o644

    def test_it_is_replaced_whole(self, file: Path) -> None:
        for text in ("long" * 5000, "short", ""):
            files.replace_file(str(file), text)
            assert file.read_text() == text
        assert self.names(file) == [ONE]

    def test_a_reader_never_sees_half_of_it(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        files.replace_file(str(file), "old")
        seen, genuine = [], os.replace

        def watched(source: str, target: str, **directories: int) -> None:
            seen.append((file.read_text(), file.with_name(source).read_text()))
            genuine(source, target, **directories)

        monkeypatch.setattr(os, "replace", watched)
        files.replace_file(str(file), "new")
        assert seen == [("old", "new")]

    def test_a_death_in_between_leaves_the_old_one(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        files.replace_file(str(file), "old")
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", lambda *_, **__: os._exit(9))
            assert in_a_child(lambda: files.replace_file(str(file), "new")) == 9
        assert file.read_text() == "old"
        files.replace_file(str(file), "newer")
        assert file.read_text() == "newer"

    @pytest.mark.parametrize("call", ["fsync", "fchmod", "replace"])
    def test_a_failure_leaves_the_old_one_and_nothing_beside_it(
        self, file: Path, monkeypatch: pytest.MonkeyPatch, call: str
    ) -> None:
        files.replace_file(str(file), "old")

        def fail(*_: object, **__: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, call, fail)
        with pytest.raises(OSError, match="No space"):
            files.replace_file(str(file), "new")
        assert file.read_text() == "old"
        assert self.names(file) == [ONE]

    @pytest.mark.parametrize("target", ["precious", "nowhere", "."])
    def test_a_link_in_its_place_is_replaced_and_not_followed(self, file: Path, tmp_path: Path, target: str) -> None:
        (tmp_path / "precious").write_text("precious")
        file.parent.mkdir(parents=True)
        file.symlink_to(tmp_path / target)
        files.replace_file(str(file), "text")
        assert not file.is_symlink()
        assert (tmp_path / "precious").read_text() == "precious"
        file.unlink()
        file.symlink_to(tmp_path / target)
        files.replace_file(str(file), None)
        assert not file.is_symlink()
        assert (tmp_path / "precious").exists()

    def test_it_is_removed(self, file: Path) -> None:
        files.replace_file(str(file), "text")
        files.replace_file(str(file), None)
        assert not file.exists()
        files.replace_file(str(file), None)

    def test_what_never_was_is_removed_without_a_word(self, file: Path) -> None:
        files.replace_file(str(file), None)
        assert not file.parent.exists()

    def test_what_a_killed_one_left_under_the_same_number_is_in_nobodys_way(self, file: Path) -> None:
        file.parent.mkdir(parents=True)
        (file.parent / f".{ONE}.{os.getpid()}.{threading.get_native_id()}").write_text("half")
        files.replace_file(str(file), "text")
        assert self.names(file) == [ONE]

    def test_a_text_of_any_language(self, file: Path) -> None:
        files.replace_file(str(file), "é\n\u4e00")
        assert file.read_bytes() == "é\n\u4e00".encode()

    @pytest.mark.parametrize(("text", "verb"), [("x", "written"), (None, "removed")])
    def test_a_machine_that_refuses_is_told_with_its_reason(self, file: Path, text: str | None, verb: str) -> None:
        file.mkdir(parents=True)
        with pytest.raises(HostError, match=f"could not be {verb}") as caught:
            Live().replace_file(str(file), text)
        assert "EISDIR" in caught.value.kernel_said
        with pytest.raises(HostError):
            Live().replace_file("/proc/vfioctl/x", "x")

    def test_a_captured_directory_is_not_written_to(self, tmp_path: Path) -> None:
        kernel = Captured(str(tmp_path))
        with pytest.raises(HostError, match="cannot be written"):
            kernel.replace_file(f"{HOME}/{VF}.json", "x")
        with pytest.raises(HostError, match=f"VFs of {PF} cannot be changed"):
            kernel.manage_vfs(PF, on=True)
        with pytest.raises(KernelRefused):
            kernel.write("/sys/x", "1")
        assert [*tmp_path.iterdir()] == []

    def test_what_is_kept_is_what_is_read(self, file: Path) -> None:
        kept = OwnDefinition(device=VF, card=PF, type="1155")
        files.replace_file(str(file), vgpu_text(PF, VF, KIND, {}))
        assert OwnDefinition.model_validate_json(Live().read(str(file))).device == kept.device
