"""Claims on a real kernel: what they change and put back, and what they keep others from."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.lab.inside import mdev, pci
from tests.lab.inside.command import vfioctl
from tests.lab.inside.conftest import Hold, Load
from tests.lab.inside.topology import Topology


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


def claim(ledger: Path, *words: str, code: int = 0) -> dict[str, Any]:
    """Run `vfioctl claim` with these words, and return its JSON."""
    done = vfioctl(ledger, "claim", *words, "--json")
    assert done.returncode == code, done.stdout + done.stderr
    document = json.loads(done.stdout)
    assert isinstance(document, dict)
    return document


def create(ledger: Path, *words: str, code: int = 0, owner: str = "vm/web1") -> dict[str, Any]:
    return claim(ledger, "create", "--owner", owner, "--yes", *words, code=code)


def state_of(ledger: Path, id_: object) -> object:
    return claim(ledger, "show", str(id_))["state"]


def test_a_gpu_is_claimed_kept_and_given_back(ledger: Path, lab: Topology, hold: Hold) -> None:
    made = create(ledger, "--gpus", "1", "--numa", "1")
    device = made["devices"][0]
    assert (device["address"], pci.driver_of(lab.far_display)) == (lab.far_display, "vfio-pci")
    assert Path(device["group"]).is_char_device()
    assert create(ledger, "--device", lab.far_display, owner="vm/web2", code=4)["error"]["kind"] == "ClaimConflict"
    for words in (("unbind",), ("bind",), ("reset",), ("unbind", "--force-holders")):
        verb, *options = words
        refused = vfioctl(ledger, verb, lab.far_display, *options, "--yes")
        assert refused.returncode == 4, refused.stderr
        assert f"claim {made['id']} of vm/web1" in refused.stderr
    assert pci.driver_of(lab.far_display) == "vfio-pci"

    holder = hold(lab.far_display)
    refused = vfioctl(ledger, "claim", "release", str(made["id"]), "--yes")
    assert refused.returncode == 4
    assert f"process {holder.pid}" in refused.stderr
    assert state_of(ledger, made["id"]) == "held"
    holder.kill()
    holder.wait()
    claim(ledger, "release", str(made["id"]), "--yes", "--wait", "30s")
    assert pci.driver_of(lab.far_display) == "bochs-drm"
    assert pci.attribute(lab.far_display, "driver_override") == pci.NO_OVERRIDE
    assert claim(ledger, "list") == {"claims": []}


def test_a_mediated_device_on_no_pci_function_is_claimed(ledger: Path, load: Load, hold: Hold) -> None:
    load("mtty")
    vgpu = mdev.create("mtty", "mtty-2")
    dry = create(ledger, "--device", vgpu, "--cpus", "1", "--dry-run")
    assert (dry["placement"]["devices"], dry["placement"]["nodes"], dry["plan"]) == ([vgpu], [], None)
    assert not ledger.exists(), "a dry run records nothing"
    made = create(ledger, "--device", vgpu, "--cpus", "1")
    (device,) = made["devices"]
    assert (device["address"], device["mdev"], made["state"]) == ("mtty", vgpu, "held")
    assert made["cpus"] == dry["placement"]["cpus"] != ""
    assert Path(device["group"]).is_char_device()
    refused = create(ledger, "--device", vgpu, owner="vm/web2", code=4)
    assert f"claim {made['id']} of vm/web1" in refused["error"]["message"]
    removed = vfioctl(ledger, "vgpu", "remove", vgpu, "--foreign", "--yes")
    assert (removed.returncode, vgpu in mdev.instances()) == (4, True)
    assert claim(ledger, "release", str(made["id"]), "--dry-run")["claims"][0]["plan"] is None
    claim(ledger, "release", str(made["id"]), "--yes")
    assert vgpu in mdev.instances(), "the claim did not create it"
    holder = hold(vgpu)
    assert create(ledger, "--device", vgpu, code=4)["error"]["kind"] == "DeviceInUse"
    assert create(ledger, "--device", vgpu, "--dry-run", code=4)["error"]["kind"] == "DeviceInUse"
    holder.kill()
    holder.wait()


def test_vgpus_on_no_pci_function_are_placed_created_and_removed(ledger: Path, load: Load) -> None:
    load("mtty")
    dry = create(ledger, "--vgpu", "mtty-2=2", "--dry-run")
    assert dry["placement"]["vgpus"] == [{"parent": "mtty", "type": "mtty-2", "count": 2}]
    assert [each["after"] for each in dry["plan"]["changes"] if each["kind"] == "mdev"] == ["mtty/mtty-2"] * 2
    assert mdev.instances() == set()
    made = create(ledger, "--vgpu", "mtty-2=2")
    assert mdev.instances() == {each["mdev"] for each in made["devices"]}
    assert len(claim(ledger, "release", str(made["id"]), "--dry-run")["claims"][0]["plan"]["changes"]) == 2
    assert len(mdev.instances()) == 2
    claim(ledger, "release", str(made["id"]), "--yes")
    assert mdev.instances() == set()
