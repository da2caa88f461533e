"""Claims compared with the real kernel: who has devices open, drivers changed by hand, domains of libvirt."""

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.lab.inside import mdev, pci
from tests.lab.inside.command import vfioctl
from tests.lab.inside.conftest import Load
from tests.lab.inside.libvirt_host import daemon, running_domain
from tests.lab.inside.topology import Topology

A2_4C = "nvidia-754"
BOOT_ID = "/proc/sys/kernel/random/boot_id"


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


def reconciled(ledger: Path, *words: str) -> dict[str, Any]:
    """Run `vfioctl reconcile`, and return its JSON."""
    done = vfioctl(ledger, "reconcile", *words, "--json")
    document = json.loads(done.stdout)
    assert done.returncode == (4 if document["differences"] else 0), done.stdout + done.stderr
    assert isinstance(document, dict)
    return document


def differences(ledger: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = reconciled(ledger)["differences"]
    return found


def remedied(ledger: Path, difference: dict[str, Any]) -> None:
    _, *words = difference["remedy"].partition(" --ledger")[0].split()
    done = vfioctl(ledger, *words, *(["--yes"] if {"release", "--fix"} & {*words} else []))
    assert done.returncode == 0, done.stderr


def claimed(ledger: Path, *words: str) -> str:
    done = vfioctl(ledger, "claim", "create", *words, "--yes", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    return str(json.loads(done.stdout)["id"])


def test_vgpus_that_a_reboot_lost(ledger: Path, lab: Topology, load: Load, tmp_path: Path) -> None:
    load("standin_mdev")
    load("mbochs", count=100)
    pci.bind_to(lab.far_display, "nvidia")
    made = claimed(ledger, "--owner", "user/alice", "--vgpu", "A2-4C")
    (own,) = mdev.instances()
    done = vfioctl(ledger, "vgpu", "create", "mbochs-small", "--json")
    (other,) = (vgpu["id"] for vgpu in json.loads(done.stdout)["report"]["vgpus"])
    done = vfioctl(ledger, "claim", "adopt", "--owner", "user/bob", "--device", other, "--json")
    adopted = json.loads(done.stdout)["id"]
    assert differences(ledger) == []
    with another_boot(tmp_path):
        mdev.remove_all()
        found = differences(ledger)
        assert {(each["claim"], each["device"], each["kind"], each["fix"]) for each in found} == {
            (made, own, "vGPU gone", "restore"),
            (made, "", "rebooted", "restore"),
            (adopted, other, "vGPU gone", "restore"),
            (adopted, "", "rebooted", "restore"),
        }
        document = reconciled(ledger, "--fix", "--yes")
        assert (len(document["fixed"]), document["failed"]) == (4, [])
        assert mdev.instances_of(lab.far_display, A2_4C) == {own}
        assert mdev.instances_of("mbochs", "mbochs-small") == {other}
        for claim in (made, adopted):
            assert vfioctl(ledger, "claim", "release", claim, "--yes").returncode == 0
        assert mdev.instances() == {other}  # only the other one was created by its claim

        made = claimed(ledger, "--owner", "user/alice", "--vgpu", "A2-4C")
    # back in the first boot, where the display has no driver that offers vGPUs
    mdev.remove_all()
    pci.bind_to(lab.far_display, "bochs-drm")
    lost, marked = differences(ledger)
    assert (lost["kind"], lost["fix"], marked["kind"], marked["fix"]) == ("vGPU gone", "", "rebooted", "")
    assert "offers no nvidia-754 now" in lost["words"]
    assert reconciled(ledger, "--fix", "--yes")["fixed"] == []
    remedied(ledger, lost)
    assert differences(ledger) == []


@contextmanager
def another_boot(folder: Path) -> Iterator[None]:
    """The kernel's boot id is another one until the block ends."""
    own = folder / "boot_id"
    own.write_text("11111111-2222-4333-8444-555555555555\n")
    subprocess.run(["mount", "--bind", str(own), BOOT_ID], check=True, timeout=60)
    try:
        yield
    finally:
        subprocess.run(["umount", BOOT_ID], check=True, timeout=60)


def beyond_sight(ledger: Path) -> dict[str, Any]:
    """Run `vfioctl reconcile` where no other process can be seen, and return its JSON."""
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-m", "vfioctl.app"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [*command, "--ledger", str(ledger), "reconcile", "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=environment,
    )
    assert done.stdout, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_a_domain_with_a_claimed_vgpu_and_an_unclaimed_gpu(ledger: Path, lab: Topology, load: Load) -> None:
    load("mbochs", count=100)
    done = vfioctl(ledger, "vgpu", "create", "mbochs-small", "--json")
    (vgpu,) = (each["id"] for each in json.loads(done.stdout)["report"]["vgpus"])
    done = vfioctl(ledger, "claim", "adopt", "--owner", "vm/lab", "--device", vgpu, "--json")
    claim_of_vgpu = json.loads(done.stdout)["id"]
    assert vfioctl(ledger, "bind", lab.far_display, "--yes").returncode == 0
    with daemon():
        with running_domain(vgpu, lab.far_display) as domain:
            document = beyond_sight(ledger)
            (found,) = document["differences"]
            assert (found["kind"], found["device"]) == ("foreign use", lab.far_display)
            assert f"guest {domain.name} (libvirt)" in found["words"]
            assert str(domain.pid) not in found["words"]
            assert f"--owner vm/{domain.name}" in found["remedy"]
            assert not [why for why in document["unknown"] if "libvirt" in why]
            (seen,) = differences(ledger)
            both = f"guest {domain.name} (libvirt) and guest {domain.name} (process {domain.pid}) have it"
            assert both in seen["words"]

            remedied(ledger, found)
            made_long_ago(ledger)  # a claim is made before its domain starts
            assert differences(ledger) == []
            claims = json.loads(vfioctl(ledger, "claim", "list", "--json").stdout)["claims"]
            assert {(each["owner"], each["stale"]) for each in claims} == {(f"vm/{domain.name}", "")}
            ids = {each["id"] for each in claims}
            assert claim_of_vgpu in ids
            assert len(ids) == 2
        gone = differences(ledger)
        assert {(each["kind"], each["claim"], each["fix"]) for each in gone} == {
            ("owner gone", claim, "release") for claim in ids
        }
        listed = json.loads(vfioctl(ledger, "claim", "list", "--json").stdout)["claims"]
        assert {each["stale"] for each in listed} == {each["words"] for each in gone}
        released = vfioctl(ledger, "claim", "release", "--stale", "--yes", "--json")
        assert released.returncode == 0, released.stderr
        assert {each["id"] for each in json.loads(released.stdout)["claims"]} == ids
    assert vfioctl(ledger, "unbind", lab.far_display, "--yes").returncode == 0
    assert vfioctl(ledger, "vgpu", "remove", vgpu, "--wait", "30s").returncode == 0


def made_long_ago(ledger: Path) -> None:
    db = sqlite3.connect(ledger)
    with db:
        db.execute("UPDATE claim SET since = '2020-01-01T00:00:00.000+00:00'")
    db.close()
