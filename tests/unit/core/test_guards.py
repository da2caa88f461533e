"""What must not pass or get lost: forged plans, devices that hang in a rollback, damaged ledgers, failures."""

from __future__ import annotations

import json
import logging
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.hosts.machines import REGISTRY, copy, machine, original, state
from vfioctl.core.change import Change, Draft, Plan
from vfioctl.errors import KernelRefused, Stuck
from vfioctl.kernel.simulated.faults import DIE, HANG, Fault, SimulatedDeath

SERVICE = Change(kind="service", name="evil.service", subject="0000:01:00.0", before="inactive", after="active")
MODULE = Change(kind="module", name="evil", subject="0000:01:00.0", before="", after="loaded")


def with_changes(plan: Plan, *changes: Change) -> Plan:
    """The plan with more changes, its steps and its id as they should be for these."""
    return REGISTRY.plan(Draft(plan.intent, plan.facts, (*plan.changes, *changes), plan.checks, plan.notes))


class TestForgedPlans:
    @pytest.mark.parametrize("extra", [SERVICE, MODULE])
    def test_a_bind_starts_no_unit_and_loads_no_other_module(self, extra: Change, tmp_path: Path) -> None:
        plan = machine(copy(original("laptop")), tmp_path / "ledger.db").binding.plan_bind(["gpu0"])
        assert not REGISTRY.is_forged(with_changes(plan))
        assert REGISTRY.is_forged(with_changes(plan, extra))

    def test_a_bind_verifies_its_groups(self, tmp_path: Path) -> None:
        plan = machine(copy(original("laptop")), tmp_path / "ledger.db").binding.plan_bind(["gpu0"])
        assert REGISTRY.is_forged(REGISTRY.plan(Draft(plan.intent, plan.facts, plan.changes, (), plan.notes)))

    def test_a_change_stands_there_once(self, tmp_path: Path) -> None:
        plan = machine(copy(original("laptop")), tmp_path / "ledger.db").binding.plan_bind(["gpu0"])
        assert REGISTRY.is_forged(with_changes(plan, plan.changes[-1]))

    def test_a_change_of_vfs_moves_no_function(self, tmp_path: Path) -> None:
        plan = machine(copy(original("laptop")), tmp_path / "ledger.db").vgpu.plan_vfs("00:02.0", 4)
        address = plan.facts[0].subject
        for driver in ("vfio-pci", "i915"):
            moved = Change(kind="binding", name=address, subject=address, before=driver, after=driver)
            assert REGISTRY.is_forged(with_changes(plan, moved))

    @pytest.mark.parametrize(
        "path",
        [
            "/etc/mdevctl/d/0000:08:00.6/{}",
            "/etc/mdevctlXd/parent/{}",
            "/etc/mdevctl.d/scripts.d/{}",
            "/etc/mdevctl.d/../{}",
        ],
    )
    def test_a_definition_lies_where_definitions_lie(self, path: str) -> None:
        uuid = "11111111-2222-4333-8444-555555555555"
        good = Change(kind="definition", name=f"/etc/mdevctl.d/mtty/{uuid}", subject=uuid, before="", after="{}")
        REGISTRY.resource(good).validate(good)
        with pytest.raises(ValueError, match="not the name"):
            REGISTRY.resource(good).validate(good.model_copy(update={"name": path.format(uuid)}))


def test_a_device_that_does_not_answer_keeps_no_host_from_being_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = copy(original("workstation"))
    machine(tree, tmp_path / "ledger.db").apply(machine(tree, tmp_path / "ledger.db").binding.plan_bind(["gpu1"]))
    before = state(tree)
    probe = Fault(at=9, kind="errno", errno=5)
    host = machine(tree, tmp_path / "ledger.db", faults=[probe])

    def hang(address: str) -> bytes:
        raise Stuck(f"reading {address} did not return")

    monkeypatch.setattr(host.session.kernel, "config", hang)
    with pytest.raises(KernelRefused) as caught:
        host.apply(host.binding.plan_unbind(["gpu1"]))
    assert "put back as before" in caught.value.restored
    assert "did not return" in caught.value.message
    assert state(tree) == before
    assert not host.unfinished()
    assert {mark.kind for mark in host.devices.marks().values()} == {"dead"}


def test_a_plan_of_an_unknown_kind_in_a_ledger_costs_no_listing(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.db"
    dying = machine(copy(original("hgx8")), ledger, [Fault(2, DIE)])
    plan = dying.binding.plan_bind(["gpu0"])
    with pytest.raises(SimulatedDeath):
        dying.apply(plan)
    with closing(sqlite3.connect(ledger)) as db:
        ((text,),) = db.execute("SELECT plan FROM journal").fetchall()
        document = json.loads(text)
        document["changes"].append({**document["changes"][0], "kind": "odd"})
        db.execute("UPDATE journal SET plan = ?", (json.dumps(document),))
        db.commit()
    host = machine(copy(original("hgx8")), ledger)
    assert len(host.inventory().functions) > 8
    assert host.vgpu.vgpus().cards == ()


def test_a_recovery_that_fails_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tree = copy(original("hgx8"))
    host = machine(tree, tmp_path / "ledger.db", faults=[Fault(at=4, kind=HANG)])
    with pytest.raises(Stuck):
        host.apply(host.binding.plan_bind(["gpu1"]))
    caplog.clear()
    with caplog.at_level(logging.INFO, "vfioctl.changes"), pytest.raises(Stuck):
        host.recover()
    ((record,),) = [caplog.records]
    assert record.getMessage().startswith("recover bind ")
    assert record.__dict__["verb"] == "bind"
    assert record.__dict__["result"].startswith("Stuck: ")


def test_modules_are_looked_up_again_when_their_aliases_have_changed(tmp_path: Path) -> None:
    tree = copy(original("hgx8"))
    host = machine(tree, tmp_path / "ledger.db")
    gpu = host.find(["gpu1"])[0]
    assert host.inventory().by_address[gpu].available_drivers
    (aliases,) = [path for path in tree.files if path.endswith("/modules.alias")]
    tree.put(aliases, "")
    assert host.inventory().by_address[gpu].available_drivers == ()
