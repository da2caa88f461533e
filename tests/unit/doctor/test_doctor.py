"""`vfioctl doctor`: its page and its document on hosts, compared with golden files, and its exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.captures import unpack
from tests.hosts.machines import HOSTS, NAMES, copy, original
from tests.unit.conftest import Golden, Run
from vfioctl.core.published import BeingChanged
from vfioctl.doctor.checks.table import CHECKS
from vfioctl.errors import StoreDamaged
from vfioctl.kernel.recorded.tree import form
from vfioctl.session import Session

SHOWN = ("hgx8", "workstation", "busy", "iommu-off", "iommu-firmware", "shared-group", "mi300x", "gh200", "t4", "lab")
LINES, COLUMNS = 24, 80


@pytest.mark.parametrize("name", SHOWN)
def test_the_page(terminal: Run, golden: Golden, name: str) -> None:
    answer = terminal(f"doctor --host {name}")
    assert answer.err == ""
    assert max(map(len, answer.out.splitlines())) <= COLUMNS
    golden(f"doctor/{name}.txt", answer.out)


@pytest.mark.parametrize("name", ["hgx8", "busy"])
def test_the_page_with_everything(terminal: Run, golden: Golden, name: str) -> None:
    golden(f"doctor/{name}-all.txt", terminal(f"doctor --all --host {name}").out)


@pytest.mark.parametrize("name", ["hgx8", "iommu-off", "shared-group"])
def test_the_document(run: Run, golden: Golden, name: str) -> None:
    golden(f"doctor/{name}.json", run(f"doctor --json --host {name}").out)


@pytest.mark.parametrize("name", NAMES)
def test_every_check_has_its_result_on_every_host(run: Run, name: str) -> None:
    answer = run(f"doctor --json --host {name}")
    document = answer.document
    assert list(dict.fromkeys(result["check"] for result in document["results"])) == [check.name for check in CHECKS]
    assert answer.code == (1 if document["failed"] else 2 if document["unknown"] else 0)
    assert document["ok"] is (answer.code == 0)


@pytest.mark.parametrize("name", ["a2", "t4", "xe", "hgx8"])
def test_a_healthy_host_is_one_screen(terminal: Run, name: str) -> None:
    answer = terminal(f"doctor --host {name}")
    assert answer.code == 0
    assert len(answer.out.splitlines()) < LINES
    assert "No problems" in answer.out


def test_problems_come_first_and_exit_with_1(terminal: Run) -> None:
    answer = terminal("doctor --host shared-group")
    assert answer.code == 1
    assert answer.out.startswith("fail ")


def test_what_cannot_be_told_exits_with_2(run: Run, tmp_path: Path) -> None:
    tree = copy(original("t4"))
    tree.remove("/sys/kernel/irq")
    file = tmp_path / "older.host"
    file.write_text(form(tree))
    answer = run("doctor --host", str(file))
    assert answer.code == 2
    assert answer.out.startswith("unknown  interrupt-remapping")


def test_single_devices(run: Run) -> None:
    def failed(*devices: str) -> list[str]:
        document = run(f"doctor --json --host busy {' '.join(devices)}").document
        return [result["check"] for result in document["results"] if result["status"] == "fail"]

    assert failed("gpu0") == []
    assert failed("gpu2") == ["group-sharing"]
    assert failed("gpu0", "gpu2") == ["group-sharing"]
    assert failed("0000:05:00.0") == ["group-sharing"]  # a disk, by its companion


def test_a_device_that_is_not_here(run: Run) -> None:
    answer = run("doctor 0000:ff:00.0 --host busy")
    assert (answer.code, answer.out) == (2, "")
    assert "there is no device 0000:ff:00.0 here" in answer.err


def test_a_simulated_host_names_itself_in_commands(run: Run, tmp_path: Path) -> None:
    tree = copy(original("t4"))
    tree.put_refused("/sys/bus/pci/devices/0000:99:00.0", 5)
    file = tmp_path / "unread.host"
    file.write_text(form(tree))
    assert f"-> vfioctl inventory --all --host {file}" in run("doctor --host", str(file)).out


def test_a_captured_directory(run: Run, tmp_path: Path) -> None:
    root = unpack(HOSTS / "t4.host", tmp_path / "root")
    answer = run("doctor --json --root", str(root))
    statuses = {result["check"]: result["status"] for result in answer.document["results"]}
    assert answer.code == 0
    assert statuses["interrupt-remapping"] == "pass"
    assert statuses["unsigned-modules"] == "pass"


def test_interrupted_changes_and_a_damaged_ledger(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted = (BeingChanged(1, ("0000:01:00.0",), None),)
    monkeypatch.setattr(Session, "being_changed", lambda _: interrupted)
    answer = run("doctor --host t4")
    assert answer.code == 1
    assert "-> vfioctl recover --host t4" in answer.out

    def damaged(_: Session) -> tuple[BeingChanged, ...]:
        raise StoreDamaged("the ledger is damaged")

    monkeypatch.setattr(Session, "being_changed", damaged)
    answer = run("doctor --json --host t4")
    assert answer.code == 2
    unknown = [result for result in answer.document["results"] if result["status"] == "unknown"]
    assert [result["check"] for result in unknown] == ["unfinished", "claims"]
    assert "the ledger is damaged" in json.dumps(unknown)


def test_claims_that_differ_from_the_machine(run: Run) -> None:
    assert run("claim create --owner vm/one --gpus 1 --yes --simulate hgx8").code == 0
    assert "claims" in run("doctor --simulate hgx8").out.partition("pass\n")[2]
    assert run("hosts reboot hgx8").code == 0
    answer = run("doctor --simulate hgx8")
    assert answer.code == 1
    assert "-> vfioctl reconcile --simulate hgx8" in answer.out


@pytest.mark.parametrize(
    ("name", "check", "status", "word"),
    [
        ("lab-amd", "nested", "pass", "a virtual machine with KVM"),
        ("microvm", "nested", "fail", "neither vmx nor svm"),
        ("lab-conventional", "group-sharing", "fail", "not below 0000:03:00.0, where they meet"),
    ],
)
def test_recordings_of_real_machines(run: Run, name: str, check: str, status: str, word: str) -> None:
    document = run(f"doctor --json --host {HOSTS / 'recorded' / name}.host").document
    (result,) = [result for result in document["results"] if result["check"] == check]
    assert result["status"] == status
    assert word in str(result)


def test_comparing_claims_without_vgpus_imports_no_pydantic(run: Run) -> None:
    """It would take a tenth of the time on a large host."""
    assert run("claim create --owner vm/one --gpus 1 --cpus 2 --yes --simulate hgx8").code == 0
    program = (
        "import sys\nfrom vfioctl.host import Host\nfacts = Host.simulated('hgx8').doctor.facts()\n"
        "print(facts.claims, facts.compare_problem, *sorted({'pydantic', 'libvirt'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["1"], done
