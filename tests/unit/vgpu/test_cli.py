"""vgpu create, remove and sriov from the outside: all on simulated hosts, each with its own ledger."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.unit.conftest import Answer, Run, program_in
from vfioctl.console.choice import Choice
from vfioctl.errors import KernelRefused, NoCapacity, StalePlan
from vfioctl.host import Host
from vfioctl.kernel.simulated.host import Simulated
from vfioctl.opening import open_session
from vfioctl.vgpu.cli.completion import complete_parent, complete_type, complete_vgpu

ONE, TWO = "4e8c5df7-c4fa-4719-904f-5579cd5ac35f", "5e8c5df7-c4fa-4719-904f-5579cd5ac35f"
THERE = "6d3f2c1a-0b4e-4f6d-8a7c-5e9b1f2a3c4d"
"""On a2; vfioctl did not create it."""
ROOT = Path(__file__).resolve().parents[3]


def owners(run: Run, host: str) -> dict[str, str]:
    document = run(f"vgpu list --json --simulate {host}").document
    return {each["id"]: each["owner"] for each in document["instances"] if each["state"] == "live"}


def failed(answer: Answer, code: int, kind: str) -> str:
    """The message of what went wrong."""
    error = answer.document["error"]
    assert (answer.code, error["exit_code"], error["kind"]) == (code, code, kind), answer
    assert error["hint"] or error["next_command"], "what to do"
    return str(error["message"])


class TestCreate:
    def test_an_mdev_by_each_of_its_names(self, run: Run) -> None:
        for word in ("nvidia-319", "T4-4C", "t4-4c", "GRID T4-4C"):
            answer = run("vgpu create --json --simulate t4", word)
            assert answer.code == 0, answer.err
            (made,) = answer.document["report"]["vgpus"]
            assert (made["type"], made["owner"], made["state"]) == ("nvidia-319", "vfioctl", "live")
            assert made["vfio_group"].startswith("/dev/vfio/")
        assert answer.document["report"]["left"][0]["available"] == {"at_least": 0, "at_most": 0}
        assert "no room" in failed(run("vgpu create T4-4C --json --simulate t4"), 4, "NoCapacity")

    def test_all_or_none(self, run: Run) -> None:
        before = owners(run, "a2")
        answer = run("vgpu create A2-4C --count 3 --json --simulate a2")
        assert "has no room for 3 of A2-4C" in failed(answer, 4, "NoCapacity")
        assert owners(run, "a2") == before
        assert len(run("vgpu create A2-4C --count 2 --json --simulate a2").document["report"]["vgpus"]) == 2

    def test_is_called_as_it_was_asked(self, run: Run) -> None:
        line = f"vgpu create T4-4C --count 2 --uuid {ONE.upper()} --uuid {TWO} --simulate t4"
        assert run(line).code == 0
        assert owners(run, "t4") == {ONE: "vfioctl", TWO: "vfioctl"}

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            ("--uuid nonsense", "not a UUID"),
            (f"--uuid {{{ONE}}}", "not a UUID"),
            (f"--uuid {ONE} --uuid {TWO}", "2 UUIDs for 1 vGPUs"),
            (f"--count 2 --uuid {ONE}", "1 UUIDs for 2 vGPUs"),
            (f"--count 2 --uuid {ONE} --uuid {ONE.upper()}", "a UUID is given twice"),
            ("--placement best", "placement"),
            ("--param nonsense", "not a parameter"),
            ("--param =1", "not a parameter"),
            ("--param ../../x=1", "not a parameter of a vGPU"),
            ("--param driver/unbind=1", "not a parameter of a vGPU"),
            ("--param placement_id=1 --count 2", "is for one vGPU"),
            ("--numa 7", "NUMA node 7"),
        ],
    )
    def test_what_cannot_be_meant(self, run: Run, words: str, said: str) -> None:
        error = run(f"vgpu create T4-4C {words} --json --simulate t4").document["error"]
        assert error["exit_code"] in (2, 4)
        assert said in error["message"]
        assert run("history --simulate t4 --json").document == {"entries": []}

    @pytest.mark.parametrize("count", ["0", "-1", "x", "1.5"])
    def test_counts_that_are_none(self, run: Run, count: str) -> None:
        assert run(f"vgpu create T4-4C --count {count} --simulate t4").code == 2

    def test_far_too_many(self, run: Run) -> None:
        assert run("vgpu create T4-4C --count 70000 --simulate t4 --json").code in (2, 4)

    def test_a_type_that_there_is_not(self, run: Run) -> None:
        failed(run("vgpu create nonsense --json --simulate a2"), 2, "BadSpec")
        assert "no card has a type" in run("vgpu create nonsense --simulate laptop").err

    def test_on_a_parent(self, run: Run) -> None:
        for parent, place in (("08:00.7", "0000:08:00.7"), ("gpu0", "0000:08:00.6")):
            answer = run(f"vgpu create A2-4C --parent {parent} --json --simulate a2")
            assert answer.document["report"]["vgpus"][0]["parent"] == place
        failed(run("vgpu create A2-4C --parent 09:00.0 --json --simulate a2"), 2, "UnknownDevice")
        failed(run("vgpu create A2-4C --parent gpu9 --json --simulate a2"), 2, "UnknownDevice")

    def test_a_vf_has_no_uuid(self, run: Run) -> None:
        answer = run(f"vgpu create L40S-12Q --uuid {ONE} --json --simulate l40s")
        assert "has its address as id" in failed(answer, 2, "BadSpec")

    def test_a_uuid_that_is_taken(self, run: Run) -> None:
        assert THERE in failed(run(f"vgpu create A2-4C --uuid {THERE} --json --simulate a2"), 4, "DeviceInUse")

    def test_parameters_are_read_back(self, run: Run) -> None:
        answer = run(f"vgpu create T4-4C --uuid {ONE} --param frame_rate_limiter=0 --json --simulate t4")
        assert answer.document["report"]["vgpus"][0]["attributes"]["vgpu_params"].strip() == "frame_rate_limiter=0"

    def test_one_that_the_driver_has_not_puts_all_back(self, run: Run) -> None:
        answer = run(f"vgpu create T4-4C --uuid {ONE} --param vendor/none=1 --json --simulate t4")
        assert answer.code == 5
        assert answer.document["error"]["restored"]
        assert owners(run, "t4") == {}

    @pytest.mark.parametrize("errno", ["ENOSPC", "EUSERS", "EINVAL", "EIO"])
    def test_when_somebody_is_faster_other_places_are_tried(
        self, run: Run, monkeypatch: pytest.MonkeyPatch, errno: str
    ) -> None:
        monkeypatch.setenv("VFIOCTL_FAULTS", f"1:{errno}")
        named = run("vgpu create A2-4C --parent 08:00.6 --simulate a2")
        assert named.code == 4, "there is no other"
        assert "0000:08:00.6 had room for A2-4C, but the kernel refused to create it" in named.err
        assert "  restored: " in named.err
        answer = run("vgpu create A2-4C --json --simulate a2")
        assert answer.code == 0
        assert "trying elsewhere" in answer.err
        assert [each["parent"] for each in answer.document["report"]["vgpus"]] == ["0000:08:00.7"]

    def test_is_in_the_history(self, run: Run) -> None:
        run(f"vgpu create T4-4C --uuid {ONE} --simulate t4")
        run(f"vgpu remove {ONE} --simulate t4")
        told = run("history --simulate t4").out
        assert f"vgpu remove {ONE}"[:40] in told
        assert "vgpu create T4-4C" in told


class TestRemove:
    def test_ones_own_by_a_beginning(self, run: Run) -> None:
        run(f"vgpu create T4-4C --uuid {ONE} --simulate t4")
        answer = run(f"vgpu remove {ONE[:6]} --simulate t4")
        assert answer.code == 0
        assert f"mdev {ONE}  0000:3b:00.0/nvidia-319  ->  none\n" in answer.out
        assert owners(run, "t4") == {}

    def test_of_others_only_when_told(self, run: Run) -> None:
        assert THERE in failed(run(f"vgpu remove {THERE} --json --simulate a2"), 4, "Foreign")
        assert THERE in owners(run, "a2")
        assert run(f"vgpu remove {THERE} --foreign --simulate a2").code == 0
        assert THERE not in owners(run, "a2")

    def test_all_or_none(self, run: Run) -> None:
        run(f"vgpu create A2-4C --uuid {ONE} --simulate a2")
        failed(run(f"vgpu remove {ONE} {THERE} --json --simulate a2"), 4, "Foreign")
        assert {ONE, THERE} <= {*owners(run, "a2")}

    @pytest.mark.parametrize("word", [ONE, "4e8c5df7", "nonsense", "41:00.4"])
    def test_what_is_not_there(self, run: Run, word: str) -> None:
        assert "no vGPU" in failed(run(f"vgpu remove {word} --json --simulate t4"), 2, "UnknownDevice")

    def test_of_a_vf_the_type_goes(self, run: Run) -> None:
        assert run("vgpu create L40S-12Q --parent 41:00.6 --simulate l40s").code == 0
        assert run("vgpu remove 41:00.6 --simulate l40s").code == 0
        assert {*owners(run, "l40s")} == {"0000:41:00.4", "0000:41:00.5"}

    def test_a_plain_vf_does_not_go_by_itself(self, run: Run) -> None:
        assert "VFs are removed together" in failed(
            run("vgpu remove 03:00.1 --foreign --json --simulate xe"), 2, "BadSpec"
        )

    def test_removing_twice(self, run: Run) -> None:
        run(f"vgpu create T4-4C --uuid {ONE} --simulate t4")
        run(f"vgpu remove {ONE} --simulate t4")
        failed(run(f"vgpu remove {ONE} --json --simulate t4"), 2, "UnknownDevice")

    def test_one_that_hangs_is_a_zombie_until_it_is_let_go(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        run(f"vgpu create T4-4C --uuid {ONE} --simulate t4")
        monkeypatch.setenv("VFIOCTL_FAULTS", "1:hang")
        answer = run(f"vgpu remove {ONE} --simulate t4")
        monkeypatch.delenv("VFIOCTL_FAULTS")
        assert answer.code == 7
        assert answer.err.splitlines()[-1] == "  next:     vfioctl recover --simulate t4"
        listed = run("vgpu list --json --simulate t4").document["instances"]
        assert [(each["id"], each["state"], each["profile"]) for each in listed] == [(ONE, "zombie", "T4-4C")]
        assert run(f"vgpu create T4-4C --uuid {TWO} --simulate t4").code == 0, "others go on"
        waiting = run("recover --simulate t4")
        assert waiting.code == 7
        assert f"{ONE} is still wedged" in waiting.err
        kernel = Host.simulated("t4").session.kernel
        assert isinstance(kernel, Simulated)
        kernel.release(ONE)
        assert run("recover --simulate t4").code == 0
        assert TWO in owners(run, "t4")

    def test_a_vf_whose_removal_hangs_is_not_said_to_be_made(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        run("vgpu create L40S-12Q --simulate l40s")
        (vf,) = (name for name, owner in owners(run, "l40s").items() if owner == "vfioctl")
        monkeypatch.setenv("VFIOCTL_FAULTS", "1:hang")
        answer = run(f"vgpu remove {vf} --json --simulate l40s")
        monkeypatch.delenv("VFIOCTL_FAULTS")
        assert answer.code == 7
        assert answer.document["error"]["facts"]["holders"] == [], "the vGPU does not hold itself"
        assert "it is held by" not in answer.document["error"]["hint"]
        told = " ".join(run("vgpu list --simulate l40s").out.split())
        assert f"{vf} is wedged: it is being removed, and the write never returned" in told
        again = failed(run(f"vgpu remove {vf} --json --simulate l40s"), 4, "DeviceInUse")
        assert "it is being removed" in again


class TestDefinitions:
    FILE = f"/etc/mdevctl.d/0000:08:00.4/{THERE}"

    def test_a_vgpu_that_comes_back_at_boot_is_not_called_gone(self, run: Run) -> None:
        answer = run(f"vgpu remove {THERE} --foreign --simulate a2")
        assert f"stays defined in {self.FILE}: mdevctl creates it again at boot" in " ".join(answer.out.split())
        line = answer.out.splitlines()[-1].removeprefix("vfioctl ")
        assert run(f"{line} --simulate a2").code == 0
        assert THERE not in run("vgpu list --simulate a2").out

    def test_both_go_with_the_option(self, run: Run) -> None:
        assert "--definition removes that too" in run(f"vgpu remove {THERE} --foreign --dry-run --simulate a2").out
        failed(run(f"vgpu remove {THERE} --definition --json --simulate a2"), 4, "Foreign")
        answer = run(f"vgpu remove {THERE} --foreign --definition --json --simulate a2")
        assert (answer.code, answer.document["report"]) == (0, {})
        assert THERE not in run("vgpu list --simulate a2").out

    def test_what_is_left_is_in_the_json(self, run: Run) -> None:
        report = run(f"vgpu remove {THERE} --foreign --json --simulate a2").document["report"]
        assert report["still_defined"][THERE]["path"] == self.FILE


class TestHolders:
    def test_the_first_characters_of_a_uuid_are_enough(self, run: Run) -> None:
        for words, devices in (
            ("6d3f", [THERE]),
            (f"6D3F2C1A-0b {THERE}", [THERE]),
            ("6d3f 08:00.6", ["0000:08:00.6", THERE]),
        ):
            assert run(f"holders {words} --json --simulate a2").document["devices"] == devices

    def test_an_ambiguous_or_unknown_beginning_is_refused(self, run: Run) -> None:
        for uuid in (ONE, f"{ONE[:-1]}0"):
            assert run(f"vgpu create T4-1Q --uuid {uuid} --simulate t4").code == 0
        answer = run(f"holders {ONE[:8]} --json --simulate t4")
        message = failed(answer, 2, "BadSpec")
        assert ONE in message
        assert f"{ONE[:-1]}0" in message
        failed(run("holders ffff --json --simulate t4"), 2, "UnknownDevice")
        failed(run("holders 9d3f --json --simulate a2"), 2, "UnknownDevice")  # it is only defined


class TestPlanFiles:
    def saved(self, run: Run, line: str, folder: Path) -> Path:
        file = folder / "plan.json"
        file.write_text(run(f"{line} --dry-run --json").out)
        return file

    @pytest.mark.parametrize(
        "line",
        [
            f"vgpu create T4-4C --uuid {ONE} --param x=1 --persistent --simulate t4",
            "vgpu create L40S-12Q --count 2 --simulate l40s",
            f"vgpu remove {THERE} --foreign --simulate a2",
            "sriov set 00:02.0 4 --persistent --simulate laptop",
            "sriov profile 03:00.0 vf1/exec_quantum_ms=10 --simulate xe",
        ],
    )
    def test_run_later_and_once(self, run: Run, tmp_path: Path, line: str) -> None:
        host = line.rpartition(" ")[2]
        file = self.saved(run, line, tmp_path)
        assert run(f"history --simulate {host} --json").document == {"entries": []}
        outcome = run(f"apply {file} --json --simulate {host}").document
        assert (outcome["result"], outcome["plan"]) == ("done", json.loads(file.read_text()))
        again = run(f"apply {file} --json --simulate {host}")
        assert again.code != 0 or again.document["result"] == "nothing to do"

    def test_without_uuids_they_are_those_of_the_plan(self, run: Run, tmp_path: Path) -> None:
        file = self.saved(run, "vgpu create T4-4C --count 2 --simulate t4", tmp_path)
        wanted = json.loads(file.read_text())["intent"]["uuids"]
        assert run(f"apply {file} --simulate t4").code == 0
        assert [*owners(run, "t4")] == sorted(wanted)

    def test_are_stale_when_the_place_is_taken(self, run: Run, tmp_path: Path) -> None:
        file = self.saved(run, "vgpu create A2-4C --simulate a2", tmp_path)
        run("vgpu create A2-4C --simulate a2")
        failed(run(f"apply {file} --json --simulate a2"), 4, "StalePlan")
        run("vgpu create A2-4C --simulate a2")
        failed(run(f"apply {file} --json --simulate a2"), 4, "NoCapacity")

    def test_are_stale_when_the_vfs_are_others(self, run: Run, tmp_path: Path) -> None:
        file = self.saved(run, "sriov set 00:02.0 4 --simulate laptop", tmp_path)
        run("sriov set 00:02.0 2 --simulate laptop")
        failed(run(f"apply {file} --json --simulate laptop"), 4, "StalePlan")

    def test_are_stale_when_the_vgpu_is_gone(self, run: Run, tmp_path: Path) -> None:
        file = self.saved(run, f"vgpu remove {THERE} --foreign --simulate a2", tmp_path)
        run(f"vgpu remove {THERE} --foreign --simulate a2")
        assert run(f"apply {file} --json --simulate a2").document["error"]["kind"] in ("StalePlan", "UnknownDevice")

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ("nvidia-319", "nvidia-320"),
            (ONE, TWO),
            ('"count": 1', '"count": 2'),
            ('"why": "create', '"why": "a'),
            ("/create", "/../../../../remove"),
            ("mdev_bus", "net"),
        ],
    )
    def test_that_were_edited_are_refused(self, run: Run, tmp_path: Path, old: str, new: str) -> None:
        file = self.saved(run, f"vgpu create nvidia-319 --uuid {ONE} --simulate t4", tmp_path)
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new))
        failed(run(f"apply {file} --json --simulate t4"), 2, "BadDocument")
        assert owners(run, "t4") == {}


class TestTheLibrary:
    """What `apply` refuses by itself, whoever made the plan."""

    @pytest.fixture
    def host(self) -> Host:
        return Host.simulated("a2")

    def test_a_vgpu_that_is_not_as_it_was_planned(self, host: Host) -> None:
        plan = host.vgpu.plan_remove([THERE], foreign=True)
        host.session.kernel.write(f"/sys/bus/mdev/devices/{THERE}/remove", "1")
        with pytest.raises(StalePlan, match=THERE):
            host.apply(plan)

    def test_a_uuid_that_was_taken_meanwhile(self, host: Host) -> None:
        plan = host.vgpu.plan_create("A2-4C", uuids=[ONE])
        host.session.kernel.write(
            "/sys/class/mdev_bus/0000:08:00.9/mdev_supported_types/nvidia-754/create".replace("08:00.9", "08:00.7"), ONE
        )
        with pytest.raises(StalePlan, match=ONE):
            host.apply(plan)
        assert host.session.kernel.has(f"/sys/bus/mdev/devices/{ONE}")

    def test_a_place_that_was_taken_meanwhile(self, host: Host) -> None:
        """The kernel says so, and what it says is looked at again."""
        plan = host.vgpu.plan_create("A2-4C", uuids=[ONE])
        (change,) = plan.changes
        parent, _, kind = change.after.partition("/")
        host.session.kernel.write(f"/sys/class/mdev_bus/{parent}/mdev_supported_types/{kind}/create", TWO)
        with pytest.raises((NoCapacity, KernelRefused)) as caught:
            host.apply(plan)
        assert isinstance(caught.value, NoCapacity)
        assert "has room for 1 more" in caught.value.message
        assert caught.value.restored
        assert host.session.kernel.has(f"/sys/bus/mdev/devices/{TWO}"), "theirs stays"

    def test_a_type_that_was_set_meanwhile(self) -> None:
        host = Host.simulated("l40s")
        plan = host.vgpu.plan_create("L40S-12Q")
        (change,) = plan.changes
        host.session.kernel.write(change.name, change.after)
        with pytest.raises(StalePlan):
            host.apply(plan)
        assert host.session.kernel.read(change.name).strip() == change.after

    def test_a_kept_file_that_was_written_meanwhile(self, host: Host) -> None:
        plan = host.vgpu.plan_create("A2-4C", uuids=[ONE], persistent=True)
        host.session.kernel.replace_file(plan.changes[-1].name, "theirs")
        with pytest.raises(StalePlan):
            host.apply(plan)
        assert host.session.kernel.read(plan.changes[-1].name) == "theirs"


class TestSriov:
    def count(self, run: Run, host: str) -> int:
        return len(run(f"vgpu list --json --simulate {host}").document["instances"])

    def test_on_another_count_and_off(self, run: Run) -> None:
        for words, wanted in (("set 4", 4), ("set 2", 2), ("set all", 7), ("set 0", 0), ("off", 0)):
            verb, _, count = words.partition(" ")
            answer = run(f"sriov {verb} gpu1 {count} --simulate laptop --json")
            made = answer.document["report"].get("vgpus", [])
            assert {each["owner"] for each in made} == ({"vfioctl"} if wanted else set())
            assert (answer.code, self.count(run, "laptop")) == (0, wanted), answer.err

    def test_are_ones_own_then(self, run: Run) -> None:
        run("sriov set gpu1 2 --simulate laptop")
        instances = run("vgpu list --json --simulate laptop").document["instances"]
        assert {each["owner"] for each in instances} == {"vfioctl"}
        run("sriov off gpu1 --simulate laptop")
        assert self.count(run, "laptop") == 0

    @pytest.mark.parametrize("word", ["-1", "1.5", "x", "", "123456", "\u0661", "ALL"])
    def test_counts_that_are_none(self, run: Run, word: str) -> None:
        assert run("sriov set gpu1 --simulate laptop --", word).code == 2

    def test_refusals_have_their_exit_codes(self, run: Run) -> None:
        failed(run("sriov set gpu1 8 --json --simulate laptop"), 2, "BadSpec")
        failed(run("sriov set 00:1f.7 1 --json --simulate laptop"), 2, "UnknownDevice")
        failed(run("sriov set 00:1f.3 1 --json --simulate laptop"), 2, "BadSpec")
        for count in ("-1", "-15", "x"):
            answer = run(f"sriov set 00:02.0 {count} --json --simulate laptop")
            assert f"not a number of VFs: '{count}'" in failed(answer, 2, "BadSpec")
        failed(run("sriov set gpu0 1 --json --simulate laptop"), 2, "BadSpec")
        failed(run("sriov set 03:00.1 1 --json --simulate xe"), 2, "BadSpec")
        failed(run("sriov off 03:00.0 --json --simulate xe"), 4, "Foreign")
        failed(run("sriov off 03:00.0 --foreign --json --simulate xe"), 4, "DeviceInUse")
        failed(run("sriov off 05:00.0 --foreign --json --simulate mi300x-vf"), 3, "HostError")
        failed(run("sriov off 41:00.0 --foreign --json --simulate l40s"), 4, "DeviceInUse")

    def test_all_is_what_it_has_and_a_vf_has_none(self, run: Run) -> None:
        failed(run("sriov set gpu0 all --json --simulate laptop"), 2, "BadSpec")
        failed(run("sriov set 03:00.1 all --json --simulate xe"), 2, "BadSpec")

    def test_vfs_for_guests_stay_until_they_are_returned(self, run: Run) -> None:
        run("sriov set gpu1 2 --simulate laptop")
        assert run("bind 00:02.1 --simulate laptop").code == 0
        error = run("sriov off gpu1 --json --simulate laptop").document["error"]
        assert (error["kind"], error["facts"]["vfs"]) == ("DeviceInUse", ["0000:00:02.1"])
        assert run("bind gpu1 --allow-boot-vga --simulate laptop").code == 4, "nor does the PF go"
        assert run("unbind 00:02.1 --simulate laptop").code == 0
        assert run("sriov off gpu1 --simulate laptop").code == 0

    def test_profiles(self, run: Run) -> None:
        answer = run("sriov profile 03:00.0 vf1/exec_quantum_ms=10 pf/sched_priority=high --simulate xe")
        assert answer.code == 0
        (card,) = run("vgpu types --json --simulate xe").document["cards"]
        values = {each["of"]: each["values"] for each in card["profiles"]}
        assert values["vf1"]["exec_quantum_ms"] == "10"
        assert "[high]" in values["pf"]["sched_priority"]

    @pytest.mark.parametrize("word", ["vf1/none=1", "nonsense", "vf1/exec_quantum_ms=A", "vf9/exec_quantum_ms=1", "=1"])
    def test_profiles_that_are_none(self, run: Run, word: str) -> None:
        failed(run(f"sriov profile 03:00.0 {word} --json --simulate xe"), 2, "BadSpec")
        failed(run(f"sriov profile gpu1 {word} --json --simulate laptop"), 2, "BadSpec")

    def test_alone_it_shows_its_verbs(self, run: Run) -> None:
        answer = run("sriov")
        assert answer.code == 2
        assert "profile" in answer.out + answer.err


class TestRestore:
    def test_what_is_kept_and_gone_is_made_again(self, run: Run) -> None:
        run("sriov set gpu1 4 --persistent --simulate laptop")
        Host.simulated("laptop").session.kernel.write("/sys/bus/pci/devices/0000:00:02.0/sriov_numvfs", "0")
        answer = run("vgpu restore --json --simulate laptop")
        assert (answer.code, [each["result"] for each in answer.document["outcomes"]]) == (0, ["done"])
        assert len(run("vgpu list --json --simulate laptop").document["instances"]) == 4

    def test_what_is_there_is_left(self, run: Run) -> None:
        run(f"vgpu create T4-4C --uuid {ONE} --persistent --simulate t4")
        answer = run("vgpu restore --json --simulate t4")
        assert (answer.code, answer.document["outcomes"]) == (0, [])
        assert len(run("history --json --simulate t4").document["entries"]) == 1


class TestHelp:
    def commands(self) -> Iterator[tuple[str, str]]:
        """Each command about vGPUs, with the examples that its help shows."""
        from typer.main import get_command

        from vfioctl.vgpu.cli import sriov, vgpu

        for module in (vgpu, sriov):
            verbs = get_command(module.app)
            known: Mapping[str, Any] = getattr(verbs, "commands", {})
            yield from ((f"{verbs.name} {verb}", command.epilog or "") for verb, command in known.items())

    def test_every_example_works(self, tmp_path: Path) -> None:
        program_in(tmp_path)
        seen = []
        for name, epilog in self.commands():
            lines = [line.strip() for line in epilog.splitlines()[1:]]
            assert lines, f"{name} shows no example"
            script = "\n".join(("set -e", f'PATH="{tmp_path}:$PATH"', "export XDG_STATE_HOME=$(mktemp -d)", *lines))
            done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{script}\n{done.stderr}"
            seen.append(name)
        assert {"vgpu create", "vgpu remove", "vgpu restore", "sriov set", "sriov off", "sriov profile"} <= {*seen}


class TestCompletion:
    class Context:
        """As typer's, as far as it is asked."""

        def __init__(self, host: str) -> None:
            self.obj = Choice(open_session)
            self.obj.given["simulate"] = host

        def find_root(self) -> TestCompletion.Context:
            return self

    def suggested(self, complete: Callable[..., list[tuple[str, str]]], host: str) -> list[tuple[str, str]]:
        return complete(self.Context(host), "")

    def test_of_parents_types_and_vgpus(self) -> None:
        assert self.suggested(complete_parent, "a2") == [("0000:08:00.0", "mdev")]
        assert ("A2-4C", "0000:08:00.0") in self.suggested(complete_type, "a2")
        assert (THERE, "A2-4C") in self.suggested(complete_vgpu, "a2")
        assert ("0000:41:00.4", "L40S-12Q") in self.suggested(complete_vgpu, "l40s")

    @pytest.mark.parametrize("complete", [complete_parent, complete_type, complete_vgpu])
    def test_of_a_host_that_there_is_not_suggests_nothing(self, complete: Callable[..., list[tuple[str, str]]]) -> None:
        assert self.suggested(complete, "nowhere") == []


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("vgpu remove 05:02.0 --host mi300x-vf", "unload gim, which creates its VFs"),
        ("vgpu remove 03:00.1 --host xe", "next:     vfioctl unbind 0000:03:00.1"),
    ],
)
def test_who_removes_one_vf_is_told_how_all_of_them_go(run: Run, line: str, advice: str) -> None:
    answer = run(f"{line} --foreign --dry-run")
    assert answer.code == 2
    assert advice in answer.err
    assert ("unload gim" in answer.err) == ("mi300x" in line)


def test_the_next_commands_of_removing_one_vf_lead_to_the_removal_of_all(run: Run) -> None:
    followed = []
    while (answer := run("vgpu remove 03:00.1 --json --simulate xe")).document["error"]["next_command"]:
        followed.append(answer.document["error"]["next_command"].removesuffix(" --simulate xe"))
        assert run(answer.document["error"]["next_command"].removeprefix("vfioctl ")).code == 0
    assert followed == ["vfioctl unbind 0000:03:00.1", "vfioctl sriov off 0000:03:00.0 --foreign"]
    assert not any(f["virtfns"] for f in run("inventory --all --json --simulate xe").document["functions"])
