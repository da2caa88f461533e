"""Differences between the claims and simulated hosts: each appears, its remedy is a command that removes it, --fix."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.hosts.machines import FOUR_GPUS, copy, original, put_process, reduced, written
from tests.unit.conftest import Answer, Golden, Run, timeless
from vfioctl import sources
from vfioctl.claims.model.difference import Seen, Use
from vfioctl.claims.model.passthrough_devices import devices_in
from vfioctl.claims.probe.owners import read_containers
from vfioctl.claims.reconcile.reconcile import compare
from vfioctl.kernel.captured.host import Captured
from vfioctl.kernel.recorded import tree as tree_of_hosts
from vfioctl.kernel.recorded.tree import Tree, form, parse
from vfioctl.kernel.simulated.files import ledger_of
from vfioctl.session import Session

GPU0, GPU1 = "0000:1b:00.0", "0000:43:00.0"
GROUP0 = "/dev/vfio/21"
BOOT_ID = "/proc/sys/kernel/random/boot_id"
LONG_AGO = "2026-01-01T00:00:00.000+00:00"


class Machine:
    """A simulated host in a file, its ledger, and the commands on it."""

    def __init__(self, run: Run, folder: Path, name: str, tree: Tree | None = None) -> None:
        self._run, self.file, self.ledger = run, folder / f"{name}.host", folder / "ledger.db"
        self.file.write_text(form(copy(tree or original(name))), encoding="utf-8")
        self.options = ["--simulate", str(self.file), "--ledger", str(self.ledger)]

    def __call__(self, line: str, *, as_json: bool = True) -> Answer:
        line = line.partition(" --simulate")[0].removeprefix("vfioctl ")
        return self._run(f"{line}{' --json' if as_json else ''}", *self.options)

    def claim(self, *words: str, owner: str = "vm/web1") -> str:
        answer = self(f"claim create --owner {owner} --yes {' '.join(words)}")
        assert answer.code == 0, answer
        return str(answer.document["id"])

    def change(self, edit: Callable[[Tree], object]) -> None:
        """Change the host behind vfioctl's back."""
        tree = self.tree()
        edit(tree)
        self.file.write_text(form(tree), encoding="utf-8")

    def tree(self) -> Tree:
        return parse(self.file.read_text(encoding="utf-8"), str(self.file))

    def sql(self, statement: str, *values: object) -> None:
        db = sqlite3.connect(self.ledger)
        db.execute(statement, values)
        db.commit()
        db.close()

    def reboot(self) -> None:
        answer = self._run(f"hosts reboot {self.file}")
        assert answer.code == 0, answer

    def differences(self) -> list[dict[str, Any]]:
        answer = self("reconcile")
        assert "differences" in answer.document, answer
        found: list[dict[str, Any]] = answer.document["differences"]
        assert answer.code == (4 if found else 0)
        return found

    def kinds(self) -> list[str]:
        return [each["kind"] for each in self.differences()]

    def remedied(self) -> None:
        """Run the remedies of all differences."""
        for each in self.differences():
            answer = self(
                each["remedy"] + (" --yes" if "release" in each["remedy"] or "--fix" in each["remedy"] else "")
            )
            assert answer.code == 0, answer
        assert self.differences() == []

    def driver(self, address: str) -> str:
        link = self.tree().links.get(f"{self.tree().resolve(f'/sys/bus/pci/devices/{address}')}/driver", "")
        return link.rpartition("/")[2]

    def vgpus(self) -> dict[str, tuple[str, str]]:
        """Return the parent and type of each vGPU that exists."""
        found = self("vgpu list").document["instances"]
        return {each["id"]: (each["parent"], each["type"]) for each in found if each["state"] == "live"}

    def state(self, claim: str) -> str:
        return str(self(f"claim show {claim}").document["state"])


@pytest.fixture(autouse=True)
def any_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host file has no /run: these tests' may."""
    monkeypatch.setattr(tree_of_hosts, "ROOTS", (*tree_of_hosts.ROOTS, "/run/", "/etc/libvirt/", "/bundle/"))


@pytest.fixture
def host(run: Run, fast_folder: Path) -> Machine:
    return Machine(run, fast_folder, "hgx8", reduced("hgx8", *FOUR_GPUS))


@pytest.fixture
def busy(run: Run, fast_folder: Path) -> Machine:
    return Machine(run, fast_folder, "busy")


def guest(pid: int, name: str, *files: str) -> Callable[[Tree], None]:
    def start(tree: Tree) -> None:
        command = f"/usr/bin/qemu-system-x86_64\0-name\0guest={name},debug-threads=on\0"
        users = "Uid:\t0\t0\t0\t0"
        put_process(tree, 1, name="systemd")
        put_process(tree, pid, *files, name="qemu-system-x86", cmdline=command, status=users, cgroup="0::/")

    return start


def another_device(tree: Tree, address: str = GPU0) -> None:
    home = tree.resolve(f"/sys/bus/pci/devices/{address}")
    old = tree.text(f"{home}/device").removeprefix("0x")
    tree.put(f"{home}/device", "0x1db6")
    tree.put(f"{home}/modalias", tree.text(f"{home}/modalias").replace(old.upper(), "1DB6"))


def test_a_captured_host_without_a_boot_id(host: Machine, run: Run, tmp_path: Path) -> None:
    claim = host.claim("--device", "gpu0")
    host.change(lambda tree: tree.remove(BOOT_ID))
    place = ("--root", str(written(host.tree(), tmp_path / "root")), "--ledger", str(host.ledger))
    answer = run("reconcile --json", *place)
    assert (answer.code, answer.document["differences"]) == (0, [])
    assert "whether the host was booted again is not known: it reports no boot id" in answer.document["unknown"]
    for line in ("claim list --json", f"claim show {claim} --json"):
        listing = run(line, *place)
        assert (listing.code, '"stale": ""' in listing.out or '"stale":""' in listing.out) == (0, True)
    host.sql("UPDATE claim SET state = 'reserved'")
    assert run("reconcile --json", *place).document["differences"] == []


def test_nothing_to_say(host: Machine) -> None:
    assert host.differences() == []
    host.claim("--device", "gpu0")
    assert host.differences() == []
    assert host("reconcile", as_json=False).out == "The claims and the machine agree.\n"


class TestDevices:
    def test_gone(self, host: Machine) -> None:
        made = host.claim("--device", "gpu0")
        host.change(lambda tree: tree.remove(f"/sys/bus/pci/devices/{GPU0}"))
        (found,) = host.differences()
        assert (found["kind"], found["claim"], found["device"], found["fix"]) == ("device gone", made, GPU0, "")
        host.remedied()
        assert host.state(made) == "released"

    def test_replaced(self, host: Machine) -> None:
        host.claim("--device", "gpu0")
        host.change(another_device)
        (found,) = host.differences()
        assert found["kind"] == "device replaced"
        assert "10de:1db6" in found["words"]
        host.remedied()

    def test_on_another_driver(self, host: Machine) -> None:
        before = host.file.read_text(encoding="utf-8")
        made = host.claim("--device", "gpu0")
        host.file.write_text(before, encoding="utf-8")
        (found,) = host.differences()
        assert (found["kind"], found["claim"], found["fix"]) == ("driver", made, "restore")
        assert "its driver is nvidia" in found["words"]
        plans = host(f"claim show {made}").document["plans"]
        host.remedied()
        document = host(f"claim show {made}").document
        assert (document["state"], document["devices"][0]["undo"], len(document["plans"])) == ("held", "unbind", 2)
        assert document["plans"][:1] == plans
        assert all(event["why"] == "" for event in document["events"])
        last = host("history").document["entries"][0]
        assert (last["made_for"], last["plan"]["intent"]["verb"]) == (f"claim {made}", "bind")
        assert host(f"claim release {made} --yes").code == 0
        assert host.driver(GPU0) == "nvidia"

    def test_on_another_driver_and_in_use_is_refused(self, busy: Machine) -> None:
        before = busy.file.read_text(encoding="utf-8")
        made = busy.claim("--device", "gpu3")
        busy.file.write_text(before, encoding="utf-8")
        status = "Uid:\t0\t0\t0\t0"
        busy.change(lambda tree: put_process(tree, 4711, "/dev/nvidia2", name="train", status=status, cgroup="0::/"))
        answer = busy("reconcile --fix --yes")
        assert (answer.code, answer.document["fixed"]) == (4, [])
        assert {each["claim"] for each in answer.document["failed"]} == {made}
        assert all("is held by train (process 4711, root)" in each["error"] for each in answer.document["failed"])
        told = busy("reconcile --fix --yes", as_json=False).err
        assert told.count("train (process 4711, root)") == 1
        assert (busy.driver("0000:04:00.0"), busy.state(made)) == ("nvidia", "held")
        busy.change(lambda tree: tree.remove("/proc/4711"))
        assert busy("reconcile --fix --yes").document["failed"] == []
        assert (busy.driver("0000:04:00.0"), busy.kinds()) == ("vfio-pci", ["foreign use"])

    def test_only_what_has_another_driver_is_bound_again(self, host: Machine) -> None:
        """A guest that still uses the claim's other device does not keep it from that."""
        made = host.claim("--device", "gpu0", "--device", "gpu1")
        claimed = host.tree()
        host.reboot()
        host.change(lambda tree: tree.put(BOOT_ID, claimed.files[BOOT_ID]))
        assert host("bind gpu1 --yes").code == 4  # it is claimed
        host.sql("UPDATE claim SET boot_id = ?", claimed.files[BOOT_ID])
        assert host.kinds() == ["driver", "driver"]
        host.remedied()
        host.change(guest(4711, "web1", "/dev/vfio/27"))
        assert host.differences() == []
        self.give(host, GPU0, "nvidia")
        assert host.kinds() == ["driver"]
        host.remedied()
        assert (host.driver(GPU0), host.driver(GPU1)) == ("vfio-pci", "vfio-pci")
        assert host.state(made) == "held"

    @pytest.mark.parametrize(
        ("gpu", "audio", "kinds"),
        [("gpu0", "0000:05:00.1", {"driver"}), ("gpu1", "0000:0b:00.1", {"driver", "group not viable"})],
    )
    def test_a_companion_on_another_driver(
        self, run: Run, fast_folder: Path, gpu: str, audio: str, kinds: set[str]
    ) -> None:
        host = Machine(run, fast_folder, "workstation")
        made = host.claim("--device", gpu)
        self.give(host, audio, "snd_hda_intel")
        assert set(host.kinds()) == kinds
        fixed = host("reconcile --fix --yes")
        assert (fixed.code, fixed.document["failed"]) == (0, []), fixed
        assert host.driver(audio) == "vfio-pci"
        assert {each["undo"] for each in host(f"claim show {made}").document["devices"]} == {"unbind"}
        assert host(f"claim release {made} --yes").code == 0
        assert host.driver(audio) == "snd_hda_intel"

    def test_a_release_gives_it_back_to_the_driver_before_the_claim(self, host: Machine) -> None:
        host.change(lambda tree: tree.put_directory("/sys/bus/pci/drivers/nouveau"))
        made = host.claim("--device", "gpu0")
        self.give(host, GPU0, "nouveau")
        host.remedied()
        assert host(f"claim release {made} --yes").code == 0
        assert host.driver(GPU0) == "nvidia"

    def test_with_another_device_gone_is_not_fixed(self, host: Machine) -> None:
        made = host.claim("--device", "gpu0", "--device", "gpu1")
        host.change(lambda tree: tree.remove(f"/sys/bus/pci/devices/{GPU1}"))
        self.give(host, GPU0, "nvidia")
        assert {(each["kind"], each["fix"]) for each in host.differences()} == {("driver", ""), ("device gone", "")}
        assert host("reconcile --fix --yes").document["fixed"] == []
        assert host(f"claim release {made} --yes").code == 0

    def give(self, host: Machine, address: str, driver: str) -> None:
        """Give a function to another driver by hand."""
        session = sources.simulated(Session, str(host.file), host.ledger)
        home = f"/sys/bus/pci/devices/{address}"
        session.kernel.write(f"{home}/driver/unbind", address)
        session.kernel.write(f"{home}/driver_override", driver)
        session.kernel.write("/sys/bus/pci/drivers_probe", address)
        assert host.driver(address) == driver

    def test_vgpu_gone(self, run: Run, fast_folder: Path) -> None:
        host = Machine(run, fast_folder, "a2")
        before = host.file.read_text(encoding="utf-8")
        made = host.claim("--vgpu", "A2-4C")
        assert [each for each in host.kinds() if each != "foreign use"] == []
        host.file.write_text(before, encoding="utf-8")
        (found,) = [each for each in host.differences() if each["claim"]]
        assert (found["kind"], found["claim"], found["fix"]) == ("vGPU gone", made, "restore")
        assert host(found["remedy"] + " --yes").code == 0
        assert [each for each in host.differences() if each["claim"]] == []


class TestUse:
    def test_foreign_use_is_shown_and_can_be_adopted(self, busy: Machine) -> None:
        (found,) = busy.differences()
        assert (found["kind"], found["claim"], found["fix"]) == ("foreign use", "", "")
        assert "guest win11 (process 2684) has it" in found["words"]
        busy("reconcile --fix --yes")
        assert busy.kinds() == ["foreign use"]
        busy.remedied()
        (adopted,) = busy("claim list").document["claims"]
        assert adopted["owner"] == "vm/win11"

    def test_another_guest(self, host: Machine) -> None:
        made = host.claim("--device", "gpu0")
        host.change(guest(4711, "web1", GROUP0))
        assert host.differences() == []
        host.change(guest(4711, "web2", GROUP0))
        (found,) = host.differences()
        assert (found["kind"], found["claim"]) == ("other user", made)
        host.remedied()
        assert host(f"claim show {made}").document["owner"] == "vm/web2"

    def test_a_name_that_no_owner_has(self, host: Machine) -> None:
        host("bind gpu0 --yes")
        host.change(guest(4711, "\x1b[2J; rm -rf /", GROUP0))
        (found,) = host.differences()
        assert found["remedy"].startswith("vfioctl claim adopt --owner user/root --device ")
        host.remedied()


def test_the_name_that_libvirt_has_is_proposed_as_the_owner() -> None:
    """The kernel says that somebody has the device, and only libvirt says who."""
    uses = (
        Use(GPU0, "a process that could not be found", "", "user/root"),
        Use(GPU0, "guest web1 (libvirt)", "web1", "vm/web1"),
    )
    seen = Seen(LONG_AGO, "boot", {}, {}, uses=uses)
    (found,) = compare((), seen)
    assert found.words.startswith("a process that could not be found and guest web1 (libvirt) have it")
    assert "--owner vm/web1 " in found.remedy


class TestStale:
    def expire(self, host: Machine, claim: str) -> None:
        host.sql("UPDATE claim SET expires = ? WHERE id = ?", LONG_AGO, claim)

    def test_expired(self, host: Machine) -> None:
        made = host.claim("--device", "gpu0", "--ttl", "1h")
        self.expire(host, made)
        (found,) = host.differences()
        assert (found["kind"], found["fix"]) == ("expired", "release")
        assert host("claim list").document["claims"][0]["stale"] == "its term is over"
        assert "stale: its term is over" in host("claim list", as_json=False).out
        assert host(f"claim show {made}").document["stale"] == "its term is over"
        host.remedied()

    def test_expired_and_in_use_is_not_released(self, host: Machine) -> None:
        made = host.claim("--device", "gpu0", "--ttl", "1h")
        self.expire(host, made)
        host.change(guest(4711, "web1", GROUP0))
        (found,) = host.differences()
        assert (found["kind"], found["fix"]) == ("expired", "")
        assert "guest web1 (process 4711) has its devices" in found["words"]
        assert host("reconcile --fix --yes").code == 4
        assert host.state(made) == "held"
        host.remedied()

    def test_of_a_process_that_died(self, host: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        made = host.claim("--device", "gpu0", "--no-bind")
        host.sql("UPDATE claim SET state = 'reserved' WHERE id = ?", made)
        assert host.differences() == []  # its process is this one
        monkeypatch.setattr("vfioctl.core.caller.is_running", lambda pid: pid != os.getpid())
        (found,) = host.differences()
        assert (found["kind"], found["fix"]) == ("process gone", "end")
        fixed = host("reconcile --fix --yes")
        assert (fixed.code, [each["claim"] for each in fixed.document["fixed"]]) == (0, [made])
        assert host.state(made) == "failed"

    def test_of_a_process_that_died_is_ended_by_a_release(self, host: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        made = host.claim("--device", "gpu0", "--no-bind")
        host.sql("UPDATE claim SET state = 'reserved' WHERE id = ?", made)
        monkeypatch.setattr("vfioctl.core.caller.is_running", lambda pid: pid != os.getpid())
        host.remedied()
        assert host.state(made) == "failed"

    def test_half_released(self, host: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        made = host.claim("--device", "gpu0")
        host.sql("UPDATE claim SET state = 'releasing' WHERE id = ?", made)
        assert host.differences() == []
        monkeypatch.setattr("vfioctl.core.caller.is_running", lambda pid: pid != os.getpid())
        assert [(each["kind"], each["fix"]) for each in host.differences()] == [("process gone", "release")]
        assert host("reconcile --fix --yes").code == 0
        assert host.state(made) == "released"

    def test_of_a_guest_that_is_gone(self, host: Machine) -> None:
        made = host.claim("--device", "gpu0")
        host.change(guest(4711, "web2"))
        assert host.differences() == []  # it may not have started yet
        host.sql("UPDATE claim SET since = ?", LONG_AGO)
        (found,) = host.differences()
        assert (found["kind"], found["fix"]) == ("owner gone", "release")
        assert host("claim list").document["claims"][0]["stale"] == found["words"]
        before = host.file.read_text(encoding="utf-8")
        host.change(lambda tree: tree.remove("/proc/1"))  # some processes are hidden
        assert host.differences() == []
        host.file.write_text(before, encoding="utf-8")
        for sign in (guest(4712, "web1"), lambda tree: tree.put("/etc/libvirt/qemu/web1.xml", "<domain/>")):
            before = host.file.read_text(encoding="utf-8")
            host.change(sign)
            assert host.differences() == []
            host.file.write_text(before, encoding="utf-8")
        assert host("claim release --stale --yes").document["claims"][0]["id"] == made
        assert host.differences() == []


class TestReboot:
    def test_restores_what_was_bound(self, host: Machine) -> None:
        made = host.claim("--device", "gpu0")
        host.reboot()
        (found,) = host.differences()
        assert (found["kind"], found["fix"]) == ("rebooted", "restore")
        shown = host("reconcile --fix --dry-run --yes").document
        assert (len(shown["differences"]), shown["fixed"]) == (1, [])
        host.remedied()
        document = host(f"claim show {made}").document
        assert (document["state"], document["devices"][0]["undo"]) == ("held", "unbind")
        assert document["boot_id"] == host.tree().files[BOOT_ID]
        assert document["events"][-1]["why"] == "restored after a reboot"
        assert host(f"claim release {made} --yes").code == 0
        assert host.differences() == []

    def test_releases_what_a_domain_had_that_ran_then(self, host: Machine) -> None:
        made = host.claim("--device", "gpu0", "--label", "libvirt=qemu:///system")
        host.reboot()
        (found,) = host.differences()
        assert (found["kind"], found["fix"]) == ("rebooted", "release")
        host.remedied()
        assert (host.state(made), host.driver(GPU0)) == ("released", "nvidia")

    def test_keeps_what_was_not_bound(self, host: Machine) -> None:
        made = host.claim("--device", "gpu0", "--no-bind")
        host.reboot()
        host.remedied()
        assert host(f"claim show {made}").document["plans"] == []

    def test_marks_one_whose_device_is_another(self, host: Machine) -> None:
        made = host.claim("--device", "gpu0")
        host.reboot()
        host.change(another_device)
        assert [(each["kind"], each["fix"]) for each in host.differences()] == [
            ("device replaced", ""),
            ("rebooted", ""),
        ]
        assert host("reconcile --fix --yes").code == 4
        assert host.state(made) == "held"
        assert host(f"claim release {made} --yes").code == 0
        assert host.differences() == []

    def test_that_cannot_be_restored_stays_a_claim(self, host: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        made = host.claim("--device", "gpu0")
        host.reboot()
        with monkeypatch.context() as patch:
            patch.setenv("VFIOCTL_FAULTS", "2:EBUSY")
            answer = host("reconcile --fix --yes")
        assert answer.code == 4, answer
        (failed,) = answer.document["failed"]
        assert (failed["claim"], host.state(made)) == (made, "held")
        assert host.kinds() == ["rebooted"]
        host.remedied()


class TestLostVgpus:
    """vGPUs that claims had, and that a reboot lost."""

    @pytest.fixture
    def a2(self, run: Run, fast_folder: Path) -> Machine:
        return Machine(run, fast_folder, "a2")

    @pytest.mark.parametrize(("name", "kind"), [("a2", "A2-4C"), ("l40s", "L40S-12Q"), ("t4", "T4-4C")])
    def test_are_created_again_as_they_were(self, run: Run, fast_folder: Path, name: str, kind: str) -> None:
        host = Machine(run, fast_folder, name)
        at_boot = host.vgpus()
        made = host.claim("--vgpu", f"{kind}=2")
        before = host.vgpus()
        host.reboot()
        assert host.vgpus() == at_boot
        found = host.differences()
        assert [(each["kind"], each["fix"]) for each in found] == [
            ("vGPU gone", "restore"),
            ("vGPU gone", "restore"),
            ("rebooted", "restore"),
        ]
        fixed = host("reconcile --fix --yes")
        assert (fixed.code, fixed.document["failed"], len(fixed.document["fixed"])) == (0, [], 3)
        assert host.vgpus() == before
        document = host(f"claim show {made}").document
        assert (document["state"], document["boot_id"]) == ("held", host.tree().files[BOOT_ID])
        assert "restored after a reboot" in [event["why"] for event in document["events"]]
        assert {each["undo"] for each in document["devices"]} == {"remove"}
        assert host("history").document["entries"][0]["made_for"] == f"claim {made}"
        assert host(f"claim release {made} --yes").code == 0
        assert host.vgpus() == at_boot

    def test_that_the_claim_did_not_create_stay_when_it_is_released(self, a2: Machine) -> None:
        at_boot = a2.vgpus()
        (name,) = (each["id"] for each in a2("vgpu create A2-4C").document["report"]["vgpus"])
        made = a2.claim("--device", name)
        before = a2.vgpus()
        a2.reboot()
        assert a2.vgpus() == at_boot
        a2.remedied()
        assert a2.vgpus() == before
        assert a2(f"claim release {made} --yes").code == 0
        assert a2.vgpus() == before

    def test_are_created_with_their_parameters(self, a2: Machine) -> None:
        done = a2("vgpu create A2-4C --param frame_rate_limiter=0")
        assert done.code == 0, done
        (name,) = (each["id"] for each in done.document["report"]["vgpus"])
        a2.claim("--device", name)
        a2.reboot()
        assert a2("reconcile --fix --yes").code == 0
        file = f"/sys/bus/mdev/devices/{name}/nvidia/vgpu_params"
        assert "frame_rate_limiter=0" in a2.tree().text(a2.tree().resolve(file))

    def unrestored(self, host: Machine, made: str) -> str:
        """Check that the claim is marked, and not restored; return why."""
        lost, marked = host.differences()
        assert [(each["kind"], each["fix"]) for each in (lost, marked)] == [("vGPU gone", ""), ("rebooted", "")]
        before = host(f"claim show {made}").document
        assert host("reconcile --fix --yes").document["fixed"] == []
        assert host(f"claim show {made}").document == before
        assert before["boot_id"] != host.tree().files[BOOT_ID]
        assert host(lost["remedy"] + " --yes").code == 0
        assert host.differences() == []
        return str(lost["words"])

    def test_whose_parent_is_another_device(self, a2: Machine) -> None:
        made = a2.claim("--vgpu", "A2-4C")
        (parent,) = (each["address"] for each in a2(f"claim show {made}").document["devices"])
        a2.reboot()
        a2.change(lambda tree: another_device(tree, parent))
        assert f"another device is at {parent}" in self.unrestored(a2, made)

    def test_whose_parent_is_gone(self, a2: Machine) -> None:
        made = a2.claim("--vgpu", "A2-4C")
        (parent,) = (each["address"] for each in a2(f"claim show {made}").document["devices"])
        a2.reboot()
        a2.change(lambda tree: tree.remove(f"/sys/bus/pci/devices/{parent}"))
        assert f"{parent}, on which it was, is gone" in self.unrestored(a2, made)

    def test_whose_room_another_program_has_taken(self, run: Run, a2: Machine) -> None:
        made = a2.claim("--vgpu", "A2-4C")
        (parent,) = (each["address"] for each in a2(f"claim show {made}").document["devices"])
        a2.reboot()
        elsewhere = ("--simulate", str(a2.file), "--ledger", f"{a2.ledger}2")
        assert run(f"vgpu create A2-4C --parent {parent}", *elsewhere).code == 0
        assert f"{parent} offers no nvidia-754 now" in self.unrestored(a2, made)

    def test_that_no_journal_has(self, a2: Machine) -> None:
        made = a2.claim("--vgpu", "A2-4C")
        a2.reboot()
        a2.sql("DELETE FROM journal")
        assert "the journal does not say how it was created" in self.unrestored(a2, made)

    def test_of_which_the_kernel_refuses_one(self, a2: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        """What was done is kept, and the rest is told and can be tried again."""
        made = a2.claim("--vgpu", "A2-4C=2")
        before = a2.vgpus()
        a2.reboot()
        with monkeypatch.context() as patch:
            patch.setenv("VFIOCTL_FAULTS", "2:EIO")
            answer = a2("reconcile --fix --yes")
        assert (answer.code, a2.state(made)) == (4, "held")
        assert {each["claim"] for each in answer.document["failed"]} == {made}
        assert [(each["kind"], each["fix"]) for each in a2.differences()] == [("vGPU gone", "restore")]
        a2.remedied()
        assert a2.vgpus() == before
        assert a2(f"claim release {made} --yes").code == 0


class TestContainers:
    def config(self, *nodes: str, **annotations: str) -> dict[str, Any]:
        return {"linux": {"devices": [{"path": node} for node in nodes]}, "annotations": annotations}

    @pytest.mark.parametrize(
        ("path", "document"),
        [
            ("/run/runc/c1/state.json", {"init_process_pid": 1, "config": {"devices": [{"path": GROUP0}]}}),
            ("/run/containerd/runc/k8s.io/c1/state.json", {"config": {"devices": [{"path": GROUP0}]}}),
            ("/run/crun/c1/status", {"pid": 1, "bundle": "/bundle/c1"}),
            ("/run/containerd/io.containerd.runtime.v2.task/default/c1/config.json", None),
            ("/run/containers/storage/overlay-containers/c1/userdata/config.json", None),
        ],
    )
    def test_that_has_a_device_without_a_claim(self, host: Machine, path: str, document: Any) -> None:
        host("bind gpu0 --yes")

        def start(tree: Tree) -> None:
            config = json.dumps(self.config(GROUP0, "/dev/vfio/vfio"))
            put_process(tree, 1, name="init")
            tree.put("/bundle/c1/config.json", config)
            tree.put(path, json.dumps(document) if document else config)

        host.change(start)
        (found,) = host.differences()
        assert (found["kind"], found["words"]) == ("foreign use", "container c1 has it, and no claim has it")
        host.remedied()

    def test_path_of_a_node_in_another_form(self, host: Machine) -> None:
        host("bind gpu0 --yes")
        devices = [{"path": GROUP0.replace("/dev/", "/dev//")}, {"path": "/dev//vfio/vfio"}]
        host.change(lambda tree: tree.put("/run/runc/c1/state.json", json.dumps({"config": {"devices": devices}})))
        assert [found["words"] for found in host.differences()] == ["container c1 has it, and no claim has it"]

    @pytest.mark.parametrize(("kind", "count"), [("c", 1), ("u", 1), ("b", 0)])
    def test_node_of_another_name_and_the_same_number(self, host: Machine, kind: str, count: int) -> None:
        host("bind gpu0 --yes")
        _, major, minor = host.tree().nodes[GROUP0]
        devices = [{"path": "/dev/gpu", "type": kind, "major": major, "minor": minor}]
        host.change(lambda tree: tree.put("/run/runc/c1/state.json", json.dumps({"config": {"devices": devices}})))
        assert [found["words"] for found in host.differences()] == ["container c1 has it, and no claim has it"] * count

    def test_that_has_ended_has_nothing(self, host: Machine) -> None:
        host("bind gpu0 --yes")
        document = {"init_process_pid": 77, "config": {"devices": [{"path": GROUP0}]}}
        host.change(lambda tree: tree.put("/run/runc/c1/state.json", json.dumps(document)))
        assert host.differences() == []

    def test_of_a_pod(self, host: Machine) -> None:
        names = ("sandbox-namespace", "sandbox-name", "container-name")
        told = dict(zip((f"io.kubernetes.cri.{name}" for name in names), ("ml", "train-0", "main"), strict=True))
        host.claim("--device", "gpu0", owner="pod/ml/train-1/main")
        host.sql("UPDATE claim SET since = ?", LONG_AGO)
        assert host.differences() == []  # no node of Kubernetes
        host("bind gpu1 --yes")
        home = "/run/containerd/io.containerd.runtime.v2.task/k8s.io/c1"
        host.change(lambda tree: tree.put(f"{home}/config.json", json.dumps(self.config("/dev/vfio/27", **told))))
        gone, foreign = host.differences()
        assert (gone["kind"], gone["words"]) == ("owner gone", "no container ml/train-1/main exists")
        assert "--owner pod/ml/train-0/main" in foreign["remedy"]
        host.remedied()

    def test_a_share_of_a_pod_without_a_container_is_not_taken_away(self, host: Machine) -> None:
        """It may start again at any time, and no process shows who has a share."""
        names = ("sandbox-namespace", "sandbox-name", "container-name")
        told = dict(zip((f"io.kubernetes.cri.{name}" for name in names), ("ml", "train-0", "main"), strict=True))
        made = host.claim("--device", "gpu0", "--cores", "40", owner="pod/ml/train-1/main")
        host.claim("--device", "gpu1", "--cores", "40", owner="pod/_/_/_")
        host.sql("UPDATE claim SET since = ?", LONG_AGO)
        home = "/run/containerd/io.containerd.runtime.v2.task/k8s.io/c1"
        host.change(lambda tree: tree.put(f"{home}/config.json", json.dumps(self.config(**told))))
        assert host("reconcile --fix --yes").code == 4
        (gone,) = host.differences()
        assert (gone["kind"], gone["fix"], gone["claim"]) == ("owner gone", "", made)
        assert gone["remedy"].startswith("vfioctl claim release ")
        assert len(host("claim list").document["claims"]) == 2

    @pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 5000, '{"config": []}', '{"linux": {"devices": 7}}'])
    def test_odd_states_are_tolerated(self, host: Machine, text: str) -> None:
        for name in ("a", "\x9b2J"):
            host.change(lambda tree, name=name: tree.put(f"/run/runc/{name}/state.json", text))  # type: ignore[misc]
        answer = host("reconcile")
        assert (answer.code, answer.document["differences"]) == (0, [])
        if text.startswith(('{"',)):
            assert answer.document["unknown"] == []
        else:
            assert len(answer.document["unknown"]) == 2
            shown = host("reconcile", as_json=False)
            assert "\x9b" not in shown.err + shown.out

    def test_fifos_and_huge_files_are_not_read(self, tmp_path: Path) -> None:
        home = tmp_path / "run/runc"
        for name in ("fifo", "huge", "loop", "folder"):
            (home / name).mkdir(parents=True)
        os.mkfifo(home / "fifo/state.json")
        (home / "huge/state.json").write_text('{"config": "' + "x" * (3 << 20) + '"}')
        (home / "loop/state.json").symlink_to("state.json")
        (home / "folder/state.json").mkdir()
        found = read_containers(Captured(str(tmp_path)))
        assert (found.found, len(found.unknown)) == ((), 4)


class TestLibvirt:
    XML = """<domain><devices>
      <hostdev mode='subsystem' type='pci'><driver name='vfio'/>
        <source><address domain='0x0000' bus='0x1b' slot='0x00' function='0x0'/></source>
        <address type='pci' domain='0x0000' bus='0x43' slot='0x00' function='0x0'/></hostdev>
      <hostdev mode='subsystem' type='mdev'>
        <source><address uuid='4E8C5DF7-c4fa-4719-904f-5579cd5ac35f'/></source></hostdev>
      <hostdev mode='subsystem' type='pci'><source><address bus='z'/></source></hostdev>
      <interface type='hostdev'><source><address type='pci' domain='0' bus='0x3' slot='0x10' function='0x1'/></source>
      </interface></devices></domain>"""

    def test_devices_of_a_domain(self) -> None:
        found = [GPU0, "4e8c5df7-c4fa-4719-904f-5579cd5ac35f", "0000:03:10.1"]
        assert devices_in(self.XML) == found
        assert devices_in("<domain>") == devices_in('<!DOCTYPE d [<!ENTITY a "b">]><d>&a;</d>') == []

    def with_libvirt(self, monkeypatch: pytest.MonkeyPatch, *names: str, error: str = "") -> None:
        class Refused(Exception):
            pass

        def opened(_uri: str) -> object:
            if error:
                raise Refused(error)
            domains = [SimpleNamespace(name=lambda n=name: n, XMLDesc=lambda _: self.XML) for name in names]
            return SimpleNamespace(listAllDomains=lambda _: domains, close=lambda: None)

        module = SimpleNamespace(
            libvirtError=Refused,
            openReadOnly=opened,
            registerErrorHandler=lambda *_: None,
            VIR_CONNECT_LIST_DOMAINS_ACTIVE=1,
        )
        monkeypatch.setitem(sys.modules, "libvirt", module)

    @pytest.fixture
    def with_socket(self, host: Machine) -> Machine:
        host.change(lambda tree: tree.put("/run/libvirt/libvirt-sock", ""))
        return host

    @pytest.mark.parametrize("name", ["web1", "win\x1b[2J"])
    def test_foreign_domain(self, with_socket: Machine, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.with_libvirt(monkeypatch, name)
        with_socket("bind gpu0 --yes")
        (found,) = with_socket.differences()
        assert (found["kind"], found["device"]) == ("foreign use", GPU0)
        assert f"guest {name} (libvirt)" in found["words"]
        assert "\x1b" not in with_socket("reconcile", as_json=False).out
        with_socket.remedied()

    def test_a_claim_of_a_running_domain_is_not_stale(
        self, with_socket: Machine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with_socket.claim("--device", "gpu1")
        with_socket.sql("UPDATE claim SET since = ?", LONG_AGO)
        with_socket.change(guest(4711, "other"))
        assert with_socket("claim list").document["claims"][0]["stale"] != ""
        self.with_libvirt(monkeypatch, "web1")
        assert [each["kind"] for each in with_socket.differences() if each["claim"]] == []
        self.with_libvirt(monkeypatch, "web2")
        assert [each["kind"] for each in with_socket.differences() if each["claim"]] == ["owner gone"]

    @pytest.mark.parametrize("owner", ["pod/ml/a/b", "user/alice", "vm/other"])
    def test_a_domain_that_has_the_gpu_of_a_claim(
        self, with_socket: Machine, monkeypatch: pytest.MonkeyPatch, owner: str
    ) -> None:
        claim = with_socket.claim("--device", "gpu0", owner=owner)
        with_socket.change(guest(4711, "web1", GROUP0))
        assert (with_socket.kinds() == []) is (owner != "vm/other"), "a guest without libvirt may be theirs"
        self.with_libvirt(monkeypatch, "web1")
        (found,) = with_socket.differences()
        assert (found["kind"], found["claim"], found["device"]) == ("other user", claim, GPU0)
        assert "guest web1" in found["words"]
        with_socket.remedied()

    @pytest.mark.parametrize("missing", [True, False])
    def test_that_cannot_be_asked(self, with_socket: Machine, monkeypatch: pytest.MonkeyPatch, missing: bool) -> None:
        if missing:
            monkeypatch.setitem(sys.modules, "libvirt", None)
        else:
            self.with_libvirt(monkeypatch, error="no connection")
        with_socket.claim("--device", "gpu0")
        with_socket.sql("UPDATE claim SET since = ?", LONG_AGO)
        with_socket.change(guest(4711, "other"))
        answer = with_socket("reconcile")
        (unknown,) = answer.document["unknown"]
        assert unknown.startswith("libvirt cannot be asked: ")
        assert answer.document["differences"] == []


def named_in(host: Machine, file: str = "vfioctl.json") -> set[str]:
    """Return the names in a CDI file of vfioctl; none if there is no file."""
    text = host.tree().files.get(f"/var/run/cdi/{file}", '{"devices": []}')
    return {each["name"] for each in json.loads(text)["devices"]}


class TestCdi:
    def test_a_node_that_has_changed(self, host: Machine) -> None:
        made = host.claim("--device", "gpu0")
        assert host("cdi generate").code == 0
        assert host.differences() == []
        host(f"claim release {made} --yes")
        (found,) = host.differences()
        assert (found["kind"], found["device"], found["remedy"].split(" --simulate")[0]) == (
            "CDI file",
            GPU0,
            "vfioctl cdi generate",
        )
        assert found["fix"] == "renew"
        host.remedied()

    def told(self, host: Machine) -> list[tuple[str, str, str]]:
        """Return the device, what is wrong with it, and the remedy, of each difference of a file."""
        return [
            (each["device"], each["words"].partition(".json ")[2], each["remedy"].partition(" --simulate")[0])
            for each in host.differences()
            if (each["kind"], each["claim"], each["fix"]) == ("CDI file", "", "renew")
        ]

    def test_a_file_that_a_reboot_removed(self, host: Machine) -> None:
        made = host.claim("--device", "gpu0")
        host("cdi generate")
        host.reboot()
        fixed = host("reconcile --fix --yes")
        assert (fixed.code, [each["fix"] for each in fixed.document["fixed"]][-1]) == (0, "renew")
        assert named_in(host) == {"0000-1b-00.0"}
        host.change(lambda tree: tree.files.pop("/var/run/cdi/vfioctl.json"))
        assert self.told(host) == [(GPU0, f"is not there, and claim {made} has it", "vfioctl cdi generate")]
        host.remedied()
        assert named_in(host) == {"0000-1b-00.0"}

    def test_a_file_that_lacks_a_claim(self, host: Machine) -> None:
        host.claim("--device", "gpu0")
        host("cdi generate")
        made = host.claim("--device", "gpu1")
        assert self.told(host) == [(GPU1, f"does not name it, and claim {made} has it", "vfioctl cdi generate")]
        fixed = host("reconcile --fix --yes")
        assert (fixed.code, [each["fix"] for each in fixed.document["fixed"]]) == (0, ["renew"])
        assert named_in(host) == {"0000-1b-00.0", "0000-43-00.0"}

    def test_a_file_with_a_device_that_no_claim_has(self, host: Machine) -> None:
        host("bind gpu0 --yes")
        made = host.claim("--device", "gpu0")
        host("cdi generate")
        host(f"claim release {made} --yes")
        assert host.driver(GPU0) == "vfio-pci"
        assert self.told(host) == [(GPU0, "names it, and no claim has it", "vfioctl cdi generate")]
        assert "fixed: CDI file: 0000:1b:00.0: " in host("reconcile --fix --yes", as_json=False).out
        assert named_in(host) == set()

    @pytest.mark.parametrize("journal", [True, False])
    def test_a_file_of_all_devices(self, host: Machine, journal: bool) -> None:
        host("bind gpu0 --yes")
        host("cdi generate --all --kind example.com/gpu")
        if not journal:
            host.sql("DELETE FROM journal")
        assert host.differences() == []
        host("bind gpu1 --yes")
        told = [(GPU1, "does not name it, and it is on VFIO", "vfioctl cdi generate --all --kind example.com/gpu")]
        assert self.told(host) == told
        assert host("reconcile --fix --yes").code == 0
        assert named_in(host, "vfioctl-example.com-gpu.json") == {"0000-1b-00.0", "0000-43-00.0"}

    def test_a_file_of_one_claim(self, host: Machine) -> None:
        """It has no other claims' devices, as it was asked for."""
        made = host.claim("--device", "gpu0")
        host.claim("--device", "gpu1")
        host(f"cdi generate --claim {made}")
        assert host.differences() == []
        host(f"claim release {made} --yes")
        assert self.told(host) == [
            (GPU0, "says that its node is /dev/vfio/21, and it is none", f"vfioctl cdi generate --claim {made}")
        ]
        host.remedied()
        assert named_in(host) == set()

    def test_what_a_fix_changes_is_in_the_file(self, host: Machine) -> None:
        """The file is as the claims are; releasing one of them makes it wrong."""
        made = host.claim("--device", "gpu0", "--ttl", "1h")
        host.claim("--device", "gpu1")
        host("cdi generate")
        host.sql("UPDATE claim SET expires = ? WHERE id = ?", LONG_AGO, made)
        assert host.kinds() == ["expired"]
        fixed = host("reconcile --fix --yes")
        assert (fixed.code, [each["fix"] for each in fixed.document["fixed"]]) == (0, ["release", "renew"])
        assert named_in(host) == {"0000-43-00.0"}

    def test_a_file_that_cannot_be_written(self, host: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        made = host.claim("--device", "gpu0")
        host("cdi generate")
        host(f"claim release {made} --yes")
        monkeypatch.setenv("VFIOCTL_FAULTS", "1:EROFS")
        answer = host("reconcile --fix --yes")
        (failed,) = answer.document["failed"]
        assert (answer.code, failed["fix"], named_in(host)) == (4, "renew", {"0000-1b-00.0"})
        assert "CDI file: 0000:1b:00.0: " in host("reconcile --fix --yes", as_json=False).err

    def test_files_of_others_are_left_alone(self, host: Machine) -> None:
        other = {
            "cdiVersion": "0.5.0",
            "kind": "vfioctl/vfio",
            "devices": [{"name": "x", "containerEdits": {"env": ["A=b"]}}],
        }
        for path in ("/etc/cdi/vfioctl.json", "/var/run/cdi/other.json"):
            host.change(lambda tree, path=path: tree.put(path, json.dumps(other)))  # type: ignore[misc]
        host.claim("--device", "gpu0")
        assert host.differences() == []


class TestCdiThatFollowsClaims:
    """`renew_cdi = true` in the configuration."""

    @pytest.fixture(autouse=True)
    def configured(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        file = tmp_path / "config.toml"
        file.write_text("[claims]\nrenew_cdi = true\n")
        monkeypatch.setenv("VFIOCTL_CONFIG", str(file))
        return file

    def test_create_adopt_and_release(self, host: Machine) -> None:
        first = host.claim("--device", "gpu0")
        assert named_in(host) == {"0000-1b-00.0"}
        host.claim("--device", "gpu1")
        assert named_in(host) == {"0000-1b-00.0", "0000-43-00.0"}
        host(f"claim release {first} --yes")
        assert named_in(host) == {"0000-43-00.0"}
        host("bind gpu2 --yes")
        assert host("claim adopt --owner vm/old --device gpu2").code == 0
        assert len(named_in(host)) == 2
        assert host.differences() == []
        for each in host("claim list").document["claims"]:
            host(f"claim release {each['id']} --yes")
        assert "/var/run/cdi/vfioctl.json" not in host.tree().files

    def test_each_file_stays_what_it_was_written_for(self, host: Machine) -> None:
        host("bind gpu0 --yes")
        assert host("cdi generate --all --kind example.com/gpu").code == 0
        host.claim("--device", "gpu1")
        assert named_in(host) == {"0000-43-00.0"}
        assert named_in(host, "vfioctl-example.com-gpu.json") == {"0000-1b-00.0", "0000-43-00.0"}

    def test_a_failure_is_a_warning(self, host: Machine) -> None:
        foreign = {
            "cdiVersion": "0.5.0",
            "kind": "vfioctl/vfio",
            "devices": [{"name": "0000-1b-00.0", "containerEdits": {"env": ["A=b"]}}],
        }
        host.change(lambda tree: tree.put("/etc/cdi/mine.json", json.dumps(foreign)))
        answer = host("claim create --owner vm/web1 --device gpu0 --yes")
        assert (answer.code, answer.document["state"]) == (0, "held")
        problem = (
            "the CDI files were not written again: vfioctl/vfio=0000-1b-00.0 is defined by /etc/cdi/mine.json already"
        )
        assert f"vfioctl: claim {answer.document['id']}: {problem}\n" in answer.err
        assert "/var/run/cdi/vfioctl.json" not in host.tree().files

    def test_a_damaged_configuration_stops_no_release(self, host: Machine, configured: Path) -> None:
        made = host.claim("--device", "gpu0")
        configured.write_text("[claims]\nrenew_cdi = 1\n")
        answer = host(f"claim release {made} --yes")
        assert (answer.code, host.driver(GPU0)) == (0, "nvidia")
        assert f"{configured}:2: claims.renew_cdi must be true or false" in answer.err

    def test_without_the_setting_nothing_is_written(self, host: Machine, configured: Path) -> None:
        configured.write_text("")
        host.claim("--device", "gpu0")
        assert named_in(host) == set()


class TestCpusAndHugepages:
    """They are compared with the machine, too: what is gone is no agreement."""

    ONLINE = "/sys/devices/system/cpu/online"
    POOL = "/sys/devices/system/node/node0/hugepages/hugepages-{}kB/nr_hugepages"

    def test_cpus_that_are_offline(self, host: Machine) -> None:
        claim = host.claim("--device", "gpu0", "--cpus", "2")
        cpus = host(f"claim show {claim}").document["cpus"]
        host.change(lambda tree: tree.put(self.ONLINE, "0"))
        (difference,) = host.differences()
        assert (difference["kind"], difference["claim"]) == ("CPUs offline", claim)
        assert difference["words"] == f"CPUs {cpus} are offline: bring them online, or release the claim"
        host.change(lambda tree: tree.remove(self.ONLINE))
        host.change(lambda tree: tree.put_refused(self.ONLINE, errno.EIO))
        answer = host("reconcile")
        assert answer.document["differences"] == []
        assert "which CPUs are online is not known" in answer.document["unknown"]

    def test_hugepages_that_are_gone(self, host: Machine) -> None:
        claims = [host.claim("--device", f"gpu{n}", "--hugepages", "2GiB", owner=f"vm/{n}") for n in (0, 1)]
        (pages,) = host(f"claim show {claims[0]}").document["hugepages"]
        assert host.differences() == []
        pool, most = self.POOL.format(pages["size"] // 1024), 2 * pages["pages"]
        for total in (most - 1, 0, None):
            host.change(lambda tree: tree.remove(pool))
            if total is not None:
                host.change(partial(Tree.put, path=pool, text=str(total)))
            found = host.differences()
            assert {(each["kind"], each["claim"]) for each in found} == {("hugepages gone", claim) for claim in claims}
            assert f"of {most} that claims hold" in found[0]["words"]
        host.change(lambda tree: tree.put_refused(pool, errno.EIO))
        answer = host("reconcile")
        assert answer.document["differences"] == []
        assert "the hugepages of node 0 cannot be read" in answer.document["unknown"]
        host.change(lambda tree: tree.remove(pool))
        host.change(lambda tree: tree.put(pool, str(most)))
        assert host.differences() == []


class TestHostUse:
    """A claimed GPU that is with its host driver, as after a reboot, is used by others."""

    GPU = "0000:01:00.0"
    USERS = "Uid:\t{0}\t{0}\t{0}\t{0}"

    @pytest.mark.parametrize(
        ("owner", "uid", "cgroup", "is_told"),
        [
            ("vm/web1", 1000, "0::/", True),
            ("vm/web1", 0, "0::/", True),
            ("pod/ml/a/b", 1000, "0::/", True),
            ("pod/ml/a/b", 0, "0::/system.slice/docker-" + 64 * "a" + ".scope", False),
            ("user/alice", 1000, "0::/", False),
            ("user/alice", 0, "0::/", False),
            ("user/bob", 1000, "0::/", True),
        ],
    )
    def test_is_reported(self, busy: Machine, owner: str, uid: int, cgroup: str, is_told: bool) -> None:
        self._use(busy, owner, uid, cgroup)
        found = [(each["kind"], each["words"], each["remedy"]) for each in busy.differences() if each["claim"]]
        words = "train (process 4711) uses it with its driver nvidia"
        remedy = f"vfioctl holders {self.GPU} --simulate {busy.file} --ledger {busy.ledger}"
        assert found == [("host use", words, remedy)] * is_told

    def test_golden(self, busy: Machine, terminal: Run, golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("vfioctl.claims.ledger.ledger._unused_id", lambda _: "aaaa0001")
        monkeypatch.chdir(busy.file.parent)
        busy.options = ["--simulate", "./busy.host"]
        busy.ledger = ledger_of(busy.file)
        self._use(busy, "vm/web1", 1000, "0::/")
        answer = terminal("reconcile", *busy.options)
        golden("busy/reconcile.txt", timeless(f"{answer.err}{answer.out}[exit code {answer.code}]\n"))
        golden("busy/reconcile.json", timeless(json.dumps(busy("reconcile").document, indent=1) + "\n"))

    def _use(self, busy: Machine, owner: str, uid: int, cgroup: str) -> None:
        """A process of the user has the GPU open after it was claimed."""

        def use(tree: Tree) -> None:
            put_process(tree, 4711, "/dev/nvidia0", name="train", status=self.USERS.format(uid), cgroup=cgroup)
            tree.properties["user:1000"] = {"name": "alice"}
            tree.remove("/proc/3107")
            tree.remove("/proc/3395")

        assert busy(f"claim adopt --owner {owner} --device {self.GPU}").code == 0
        busy.change(use)


def test_golden(host: Machine, terminal: Run, golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    """Text and JSON, with a claim of each kind."""
    ids = iter(("aaaa0001", "aaaa0002", "aaaa0003"))
    monkeypatch.setattr("vfioctl.claims.ledger.ledger._unused_id", lambda _: next(ids))
    monkeypatch.chdir(host.file.parent)
    host.options = ["--simulate", "./hgx8.host"]
    host.ledger = ledger_of(host.file)
    for number in (0, 1, 2):
        more = ("--cpus", "2", "--hugepages", "2GiB") if number == 1 else ()
        host.claim("--device", f"gpu{number}", "--ttl", "1h", *more, owner=f"vm/web{number}")
    host.change(lambda tree: tree.put(TestCpusAndHugepages.ONLINE, "0"))
    host.change(lambda tree: tree.put(TestCpusAndHugepages.POOL.format(1 << 20), "1"))
    host.sql("UPDATE claim SET expires = ? WHERE id = 'aaaa0001'", LONG_AGO)
    host.sql("UPDATE claim SET boot_id = 'x' WHERE id = 'aaaa0003'")
    host("bind gpu3 --yes")
    host.change(guest(4711, "win11", "/dev/vfio/39"))
    host.change(guest(4712, "web3", "/dev/vfio/27"))
    told = ""
    for line in ("claim list", "reconcile", "reconcile --fix --dry-run", "reconcile --fix --yes"):
        answer = terminal(line, *host.options)
        told += f"$ vfioctl {line}\n{answer.err}{answer.out}[exit code {answer.code}]\n\n"
    golden("reconcile.txt", timeless(told))
    golden("reconcile.json", timeless(json.dumps(host("reconcile").document, indent=1) + "\n"))


class TestLostVgpusKeepTheirCapacity:
    """What a live claim holds stays its own until it is released, whether its vGPUs exist or not."""

    @pytest.mark.parametrize(
        ("name", "kind", "count", "other"), [("t4", "T4-4C", 3, "T4-8C"), ("l40s", "L40S-12Q", 1, "L40S-24Q")]
    )
    def test_after_a_reboot(self, run: Run, fast_folder: Path, name: str, kind: str, count: int, other: str) -> None:
        host = Machine(run, fast_folder, name)
        made = host.claim("--vgpu", f"{kind}=2")
        before = host.vgpus()
        host.reboot()
        for line in (
            f"claim create --owner vm/other --vgpu {kind}={count}",
            f"vgpu create {kind} --count {count}",
            f"vgpu create {other}",  # a card takes one size at a time, unless it says otherwise
        ):
            refused = host(f"{line} --yes")
            assert refused.code == 4, (line, refused)
            assert f"(claim {made} of vm/web1)" in refused.document["error"]["message"]
        assert host("reconcile --fix --yes").document["failed"] == []
        assert host.vgpus() == before

    def test_what_is_left_is_given_and_a_release_gives_the_rest(self, run: Run, fast_folder: Path) -> None:
        host = Machine(run, fast_folder, "t4")
        made = host.claim("--vgpu", "T4-4C=2")
        host.reboot()
        host.claim("--vgpu", "T4-4C=2", owner="vm/other")
        assert host("vgpu create T4-4C --yes").code == 4
        assert host(f"claim release {made} --yes").code == 0
        assert host("vgpu create T4-4C --count 2 --yes").code == 0


class TestRepeatedRequests:
    """A request that is repeated with its key never gets a claim that cannot be used."""

    @pytest.mark.parametrize("before", ["claim list", "bind gpu0 --yes"])
    def test_after_a_reboot_its_devices_are_bound_again(self, host: Machine, before: str) -> None:
        assert host(before).code == 0
        made = host.claim("--device gpu0 --key k")
        host.reboot()
        assert host.driver(GPU0) == "nvidia"
        assert host(f"claim show {made}").document["stale"].startswith("made in another boot")
        assert host("claim create --owner vm/web1 --device gpu0 --key k --dry-run").document["plan"]
        again = host("claim create --owner vm/web1 --device gpu0 --key k --yes")
        assert (again.code, again.document["id"], again.document["stale"]) == (0, made, "")
        assert again.document["devices"][0]["group"] == GROUP0
        assert (host.driver(GPU0), host.differences()) == ("vfio-pci", [])

    def test_of_a_device_that_was_replaced_is_refused(self, host: Machine) -> None:
        made = host.claim("--device gpu0 --key k")
        host.reboot()
        host.change(another_device)
        for option in ("--yes", "--dry-run"):
            again = host(f"claim create --owner vm/web1 --device gpu0 --key k {option}")
            assert again.code == 4
            assert f"{GPU0} is not the device of claim {made}" in again.document["error"]["message"]

    def test_creates_the_vgpus_that_are_gone(self, run: Run, fast_folder: Path) -> None:
        host = Machine(run, fast_folder, "t4")
        made = host.claim("--vgpu T4-4C=2 --key k", owner="vm/v")
        before = host.vgpus()
        assert len(before) == 2
        host.reboot()
        assert host.vgpus() == {}
        again = host("claim create --owner vm/v --vgpu T4-4C=2 --key k --yes")
        assert (again.code, again.document["id"]) == (0, made)
        assert (host.vgpus(), host.differences()) == (before, [])


def test_an_adopted_claim_is_released_while_its_owner_uses_it(host: Machine) -> None:
    host("bind gpu0 --yes")
    host.change(guest(4711, "web1", GROUP0))
    made = host("claim adopt --owner vm/web1 --device gpu0").document["id"]
    assert host(f"claim release {made} --dry-run").code == 0
    assert host(f"claim release {made} --yes").code == 0
    assert host.driver(GPU0) == "vfio-pci"
