"""Ledgers of vfioctl 0.1: what was open can be finished, what was done can be undone. Its plan files are refused."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.machines import HOSTS, REGISTRY, differing, machine, original, state
from vfioctl.binding.model.binding import Binding
from vfioctl.core.change import JournalState, Result
from vfioctl.core.marks import MarkKind
from vfioctl.errors import BadDocument, StoreDamaged, Stuck
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel.recorded.host import read_tree
from vfioctl.kernel.recorded.tree import Tree
from vfioctl.kernel.simulated.host import Simulated
from vfioctl.upgrade import upgraded
from vfioctl.vgpu.ledger import read_records
from vfioctl.vgpu.model.vgpu import OURS, Vgpu

RELEASE = HOSTS.parent / "data" / "first-release"
LEDGERS = sorted(file.stem for file in RELEASE.glob("*.sql"))
PLANS = sorted(RELEASE.glob("*.json"))
OPEN = [name for name in LEDGERS if name.endswith("-cut")]
END = "#end"
HGX, DGPU, CARD = PciAddress("0000:1b:00.0"), PciAddress("0000:01:00.0"), PciAddress("0000:0b:00.0")


class First:
    """A host and its ledger as vfioctl 0.1 left them."""

    def __init__(self, name: str, folder: Path) -> None:
        bundled, *lines = (RELEASE / f"{name}.changes").read_text(encoding="utf-8").splitlines()
        self.before = original(bundled)
        text = (HOSTS / f"{bundled}.host").read_text(encoding="utf-8").splitlines()
        for line in (*(line[1:] for line in lines if line.startswith("-")), END):
            text.remove(line)
        file = folder / f"{name}.host"
        text += [*(line[1:] for line in lines if line.startswith("+")), END, ""]
        file.write_text("\n".join(text), encoding="utf-8")
        self.tree = read_tree(file)
        self.ledger = folder / f"{name}.db"
        with closing(sqlite3.connect(self.ledger)) as db:
            db.execute("PRAGMA journal_mode = WAL")
            db.executescript((RELEASE / f"{name}.sql").read_text(encoding="utf-8"))
        self.host = machine(self.tree, self.ledger)

    @property
    def own(self) -> list[Vgpu]:
        """The vGPUs that vfioctl created; the hosts have others."""
        return [vgpu for vgpu in self.host.vgpu.vgpus().instances if vgpu.owner == OURS]

    def as_before(self) -> None:
        assert not differing(state(self.tree), state(self.before))
        assert lasting(self.tree) == lasting(self.before)


def lasting(tree: Tree) -> Mapping[str, str]:
    """All files and links but for those of modules, which stay loaded, and of vfio-pci."""
    texts = {**tree.files, **tree.links}
    left = ("/sys/module/", "/sys/bus/pci/drivers/vfio-pci/")
    return {path: text for path, text in texts.items() if not path.startswith(left)}


def old_plans(ledger: Path) -> list[dict[str, Any]]:
    """The newest first."""
    with closing(sqlite3.connect(ledger)) as db:
        return [json.loads(text) for (text,) in db.execute("SELECT plan FROM journal ORDER BY id DESC")]


@pytest.mark.parametrize("name", LEDGERS)
class TestReading:
    def test_lists_its_changes_and_leaves_it_as_it_is(self, name: str, fast_folder: Path) -> None:
        first = First(name, fast_folder)
        before = first.ledger.read_bytes()
        old = old_plans(first.ledger)
        entries = first.host.history()
        assert [entry.plan.intent.verb for entry in entries] == [plan["intent"]["verb"] for plan in old]
        assert [entry.plan.notes for entry in entries] == [tuple(plan["notes"]) for plan in old]
        assert len(first.host.unfinished()) == (not name.endswith(("-done", "-laptop", "-l40s")))
        first.host.inventory()
        first.host.vgpu.vgpus()
        assert first.ledger.read_bytes() == before
        assert not any(file.stat().st_size for file in fast_folder.glob("*.db-wal"))

    def test_finds_the_steps_that_were_to_be_taken(self, name: str, fast_folder: Path) -> None:
        """By number too: that is how the journal says which one was begun last."""
        first = First(name, fast_folder)
        for entry, old in zip(first.host.history(), old_plans(first.ledger), strict=True):
            made = [(step.target, step.value, step.may_fail) for step in entry.plan.steps]
            assert made == [(step["target"], step["value"], step["may_fail"]) for step in old["steps"]]
            assert not REGISTRY.is_forged(entry.plan)

    def test_is_possible_again_when_it_was_written(self, name: str, fast_folder: Path) -> None:
        first = First(name, fast_folder)
        entries, marks = first.host.history(), first.host.session.engine.marks()
        first.host.session.journal.unmark([], boot_id=first.host.session.boot_id)
        assert first.host.history() == entries
        assert first.host.session.engine.marks() == marks
        with closing(sqlite3.connect(first.ledger)) as db:
            assert db.execute("PRAGMA user_version").fetchone() == (first.host.session.store.version,)


class TestOpenChanges:
    @pytest.mark.parametrize("name", ["bind-cut", "create-cut", "profile-cut", "sriov-cut", "unbind-cut"])
    def test_are_taken_back(self, name: str, fast_folder: Path) -> None:
        first = First(name, fast_folder)
        (outcome,) = first.host.recover()
        assert outcome.result == Result.BACK
        assert first.host.history()[0].state == JournalState.BACK
        assert first.host.unfinished() == ()
        if name == "unbind-cut":
            first.host.apply(first.host.binding.plan_unbind([CARD]))
        first.as_before()

    def test_of_a_bind_whose_group_is_ready_are_finished_if_asked_to(self, fast_folder: Path) -> None:
        """Only the last entry was missing, and power/control."""
        first = First("bind-cut", fast_folder)
        (outcome,) = first.host.recover(forward=True)
        assert outcome.result == Result.DONE
        gpu = first.host.inventory().by_address[HGX]
        assert (gpu.driver, gpu.driver_override) == ("vfio-pci", "vfio-pci")
        assert first.host.session.kernel.read(f"/sys/bus/pci/devices/{HGX}/power/control") == "on"
        first.host.apply(first.host.binding.plan_unbind([HGX]))
        first.as_before()

    def test_of_a_bind_that_no_guest_could_use_are_taken_back(
        self, fast_folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Simulated, "viable", lambda *_: False)
        first = First("bind-cut", fast_folder)
        assert first.host.recover()[0].result == Result.BACK
        first.as_before()

    def test_of_a_removal_that_took_place_are_done(self, fast_folder: Path) -> None:
        first = First("remove-cut", fast_folder)
        assert first.host.recover()[0].result == Result.COMPLETE
        first.as_before()
        assert not first.own

    def test_of_a_reset_leave_the_binding_as_it_was(self, fast_folder: Path) -> None:
        first = First("reset-cut", fast_folder)
        now = state(first.tree)
        assert first.host.recover()[0].result == Result.BACK
        assert state(first.tree) == now
        first.host.apply(first.host.binding.plan_unbind(["0000:41:00.0"]))
        first.as_before()

    @pytest.mark.parametrize("name", OPEN)
    def test_are_finished(self, name: str, fast_folder: Path) -> None:
        first = First(name, fast_folder)
        (entry,) = first.host.unfinished()
        (outcome,) = first.host.recover(forward=True)
        assert (outcome.result, outcome.plan) == (
            Result.COMPLETE if name == "remove-cut" else Result.DONE,
            entry.plan,
        )
        assert first.host.history()[0].state == JournalState.DONE
        self.as_meant(first, name)
        first.as_before()

    def as_meant(self, first: First, name: str) -> None:
        """The change has been made, and can be undone like one of this release."""
        host, plans = first.host, first.host.binding
        if name == "create-cut":
            assert [(vgpu.type, vgpu.attributes["vgpu_params"]) for vgpu in first.own] == [
                ("1153", "frame_rate_limiter=0")
            ] * 2
            host.apply(host.vgpu.plan_remove([vgpu.id for vgpu in first.own]))
        elif name == "sriov-cut":
            host.apply(host.vgpu.plan_vfs("0000:00:02.0", 0))
        elif name == "profile-cut":
            home = "/sys/bus/pci/devices/0000:03:00.0/sriov_admin"
            for vf, wanted in (("vf1", "11"), ("vf2", "10")):
                assert host.session.kernel.read(f"{home}/{vf}/profile/exec_quantum_ms") == wanted
                host.session.kernel.write(f"{home}/{vf}/profile/exec_quantum_ms", "20")
        elif name == "reset-cut":
            assert first.tree.properties["sim:0000:41:00.0"]["resets"] == "2"
            host.apply(plans.plan_unbind(["0000:41:00.0"]))
        elif name == "bind-cut":
            host.apply(plans.plan_unbind([HGX]))

    @pytest.mark.parametrize("name", OPEN)
    def test_of_an_earlier_boot_are_over(self, name: str, fast_folder: Path) -> None:
        first = First(name, fast_folder)
        first.tree.put("/proc/sys/kernel/random/boot_id", "11111111-1111-1111-1111-111111111111")
        (outcome,) = first.host.recover()
        assert outcome.result == Result.REBOOTED
        assert first.host.history()[0].state == JournalState.REBOOTED


class TestStuckChange:
    def test_with_its_mark_is_kept_until_its_write_has_ended(self, fast_folder: Path) -> None:
        first = First("bind-hung", fast_folder)
        assert first.host.history()[0].state == JournalState.STUCK
        mark = first.host.session.engine.marks()[HGX]
        assert (mark.kind, mark.ticket != "") == (MarkKind.WEDGED, True)
        assert first.host.inventory().by_address[HGX].mark == mark
        with pytest.raises(Stuck, match=f"{HGX} is still wedged"):
            first.host.recover()
        assert first.host.session.engine.marks()[HGX] == mark, "in the ledger of this release too"

    @pytest.mark.parametrize("forward", [False, True])
    def test_is_settled_when_the_driver_has_let_go(self, fast_folder: Path, forward: bool) -> None:
        first = First("bind-hung", fast_folder)
        kernel = first.host.session.kernel
        assert isinstance(kernel, Simulated)
        kernel.release(HGX)
        (outcome,) = first.host.recover(forward=forward)
        assert outcome.result == (Result.DONE if forward else Result.BACK)
        assert not first.host.session.engine.marks()
        assert first.host.inventory().by_address[HGX].driver == ("vfio-pci" if forward else "nvidia")
        if forward:
            first.host.apply(first.host.binding.plan_unbind([HGX]))
        first.as_before()


class TestWhatWasDone:
    def test_a_bind_leads_back_to_the_drivers_and_settings_there_were(self, fast_folder: Path) -> None:
        first = First("bind-laptop", fast_folder)
        plan = first.host.binding.plan_unbind([DGPU])
        assert not any("no record" in note for note in plan.notes)
        assert {change.kind for change in plan.changes} >= {"binding", "power", "d3cold"}
        assert first.host.apply(plan).result == Result.DONE
        first.as_before()

    def test_a_create_is_still_vfioctls_own(self, fast_folder: Path) -> None:
        first = First("create-done", fast_folder)
        self.are_removed(first, 2)

    def test_a_create_on_vfs_too_with_the_names_of_its_types(self, fast_folder: Path) -> None:
        first = First("create-l40s", fast_folder)
        (vgpu,) = first.own
        assert (vgpu.type, vgpu.type_name) == ("1153", "NVIDIA L40S-12Q")
        self.are_removed(first, 1)

    def are_removed(self, first: First, number: int) -> None:
        ledger = read_records(first.host.session.store, boot_id=first.host.session.boot_id)
        assert [created.persistent for created in ledger.created.values()] == [True] * number
        assert len(first.own) == number
        outcome = first.host.apply(first.host.vgpu.plan_remove([vgpu.id for vgpu in first.own]))
        assert outcome.result == Result.DONE
        assert not first.own
        first.as_before()

    def test_vfs_are_still_vfioctls_own(self, fast_folder: Path) -> None:
        first = First("sriov-done", fast_folder)
        assert first.host.apply(first.host.vgpu.plan_vfs("0000:00:02.0", 0)).result == Result.DONE
        first.as_before()


class TestTranslation:
    def test_of_vfs_by_nvidia_says_that_the_gpu_keeps_its_driver(self) -> None:
        """What 0.1 verified, and put back, without a word of it in the plan: sriov-manage takes the GPU meanwhile."""
        old = json.loads((RELEASE / "sriov-laptop.json").read_text(encoding="utf-8"))
        (fact,) = old["facts"]
        fact["binding"]["driver"] = "nvidia"
        gpu = fact["address"]
        old["settings"] = [
            {"kind": "NVIDIA VFs", "name": gpu, "address": gpu, "before": "0", "after": "4", "during": None}
        ]
        plan = REGISTRY.read_plan(upgraded(old, REGISTRY))
        assert [(change.kind, change.before, change.after) for change in plan.changes] == [
            ("NVIDIA VFs", "0", "4"),
            ("binding", "nvidia", "nvidia"),
        ]
        assert not REGISTRY.is_forged(plan)

    def test_of_a_variant_driver_knows_how_else_it_may_register(self) -> None:
        old = json.loads((RELEASE / "bind-hgx8.json").read_text(encoding="utf-8"))
        (change,) = old["changes"]
        change["after"] = {"driver": "nvgrace_gpu_vfio_pci", "driver_override": "nvgrace_gpu_vfio_pci"}
        old["steps"] = [{**step, "target": "nvgrace_gpu_vfio_pci"} for step in old["steps"] if step["kind"] == "load"]
        plan = REGISTRY.read_plan(upgraded(old, REGISTRY))
        (binding,) = plan.changes_of("binding")
        assert Binding.parse(binding.after).spellings == ("nvgrace-gpu-vfio-pci",)
        assert [step.alternatives for step in plan.steps if step.action == "override"] == [("nvgrace-gpu-vfio-pci",)]
        assert not REGISTRY.is_forged(plan)


class TestPlanFiles:
    @pytest.mark.parametrize("file", PLANS, ids=lambda file: file.stem)
    def test_are_refused_by_their_version(self, file: Path, fast_folder: Path) -> None:
        host = machine(Tree(), fast_folder / "x.db")
        with pytest.raises(BadDocument, match=r"the plan is of version 1, and this vfioctl reads version 2") as caught:
            host.read_plan(file.read_bytes())
        assert "new plan" in caught.value.hint


class TestDamage:
    @pytest.mark.parametrize(
        "plan",
        [
            "not json",
            "[]",
            "{}",
            '{"version": 1}',
            '{"version": 1, "intent": {"verb": "odd"}, "steps": []}',
            "null",
        ],
    )
    def test_an_entry_that_holds_no_plan_is_said_to(self, fast_folder: Path, plan: str) -> None:
        first = First("bind-cut", fast_folder)
        with closing(sqlite3.connect(first.ledger)) as db:
            db.execute("UPDATE journal SET plan = ?", (plan,))
            db.commit()
        before = first.ledger.read_bytes()
        with pytest.raises(StoreDamaged, match="entry 1 holds no plan"):
            first.host.history()
        with pytest.raises(StoreDamaged, match="entry 1 holds no plan"):
            first.host.session.journal.unmark([], boot_id="b")
        assert first.ledger.read_bytes() == before, "and it is left as it was"
        assert first.host.inventory().functions, "a listing is wanted then all the more"


def test_every_ledger_has_its_test(fast_folder: Path) -> None:
    assert {*OPEN} == {f"{what}-cut" for what in ("bind", "create", "profile", "remove", "reset", "sriov", "unbind")}
    assert {*LEDGERS} - {*OPEN} == {"bind-hung", "bind-laptop", "create-done", "create-l40s", "sriov-done"}
