"""A document of the host's state: shown, asserted and applied on the real kernel."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.inside import mdev, pci
from tests.lab.inside.command import Answer, vfioctl
from tests.lab.inside.conftest import Load
from tests.lab.inside.test_vgpu_mdevctl import DEFINITIONS
from tests.lab.inside.topology import Topology

UUID = "c0ffee00-0000-4000-8000-000000000001"
ETC = Path("/etc/vfioctl")
RULES = Path("/etc/udev/rules.d")


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def file(tmp_path: Path, lab: Topology, load: Load) -> Iterator[Path]:
    """For a document. The far display is on the stand-in for an older card; no definition outlives the test."""
    load("standin_mdev")
    pci.bind_to(lab.far_display, "nvidia")
    yield tmp_path / "state.json"
    shutil.rmtree(ETC, ignore_errors=True)
    for definition in (*DEFINITIONS.glob("*/*-*-*-*-*"), *DEFINITIONS.glob("*/.*"), *RULES.glob("61-vfioctl-*")):
        definition.unlink()


def shown(ledger: Path) -> dict[str, Any]:
    answer = vfioctl(ledger, "state", "show", "--json")
    assert answer.returncode == 0, answer.stderr
    document: dict[str, Any] = json.loads(answer.stdout)
    return document


def device(document: dict[str, Any], address: str) -> dict[str, Any]:
    (found,) = [entry for entry in document["devices"] if entry["address"] == address]
    return dict(found)


def wanted(document: dict[str, Any], lab: Topology) -> dict[str, Any]:
    """A card on VFIO, two VFs of which one is too, and a mediated device; the last three at boot as well."""
    bound = {"driver": "vfio-pci", "driver_at_boot": "none"}
    card = [{**device(document, address), **bound} for address in lab.card]
    nvme = {**json.loads(json.dumps(document["nvme"])), "driver": "nvme", "vfs": 2, "vfs_at_boot": 2}
    lasting = {"driver": "vfio-pci", "driver_at_boot": "vfio-pci"}
    vf = {"address": "0000:42:1f.7", "vf": {"of": lab.nvme, "number": 0}, **lasting}
    vgpu = {"uuid": UUID, "parent": lab.far_display, "type": "A2-4C", "at_boot": True}
    devices = [*card, nvme, vf, device(document, lab.far_display)]
    return {"version": 1, "devices": devices, "vgpus": [vgpu]}


def asked(ledger: Path, file: Path, document: dict[str, Any], *words: str) -> Answer:
    file.write_text(json.dumps(document))
    return vfioctl(ledger, "state", words[0], str(file), *words[1:])


def settled(ledger: Path, file: Path, document: dict[str, Any]) -> None:
    """The host is as the document says, and nothing is left to do."""
    answer = asked(ledger, file, document, "assert", "--json")
    assert answer.returncode == 0, answer.stdout
    again = asked(ledger, file, document, "apply", "--yes", "--json")
    assert (again.returncode, json.loads(again.stdout)["changed"]) == (0, False), again.stderr


@pytest.fixture
def before(ledger: Path, lab: Topology, file: Path) -> dict[str, Any]:
    """The state of the host, and that of the nvme, which is no GPU: it is shown while it has VFs."""
    mdev.enable_vfs(lab.nvme, 1, autoprobe=False)
    nvme = device(shown(ledger), lab.nvme)
    assert nvme["vfs"] == 1
    mdev.set_vf_count(lab.nvme, 0)
    return {**shown(ledger), "nvme": nvme}


def test_it_is_applied_and_taken_back(ledger: Path, lab: Topology, file: Path, before: dict[str, Any]) -> None:
    drivers = [pci.driver_of(address) for address in lab.card]
    document = wanted(before, lab)
    differing = asked(ledger, file, document, "assert", "--json")
    assert differing.returncode == 6
    assert {d["setting"] for d in json.loads(differing.stdout)["differences"]} == {
        *("driver", "vfs", "vfs_at_boot", "device", "state", "at_boot")
    }
    planned = asked(ledger, file, document, "apply", "--dry-run", "--json")
    assert planned.returncode == 0, planned.stdout
    assert [later["name"] for later in json.loads(planned.stdout)["later"]] == ["0000:42:1f.7"]
    assert (mdev.vfs(lab.nvme), mdev.instances()) == ([], set())

    done = asked(ledger, file, document, "apply", "--yes", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["changed"]
    first, second = mdev.vfs(lab.nvme)
    assert [pci.driver_of(address) for address in (*lab.card, first, second)] == [*["vfio-pci"] * 3, None]
    assert mdev.instances() == {UUID}
    assert (ETC / f"devices.d/{first}.toml").exists()
    assert (ETC / f"vgpu.d/{lab.nvme}.json").exists()
    assert (DEFINITIONS / lab.far_display / UUID).exists()
    settled(ledger, file, document)
    assert device(shown(ledger), first)["vf"] == {"of": lab.nvme, "number": 0}

    for entry, driver in zip(document["devices"], drivers, strict=False):
        entry["driver"] = driver
    document["devices"][3] |= {"driver": "none", "driver_at_boot": "none"}
    document["devices"][2] |= {"vfs_at_boot": 0}
    document["vgpus"][0] |= {"state": "absent", "at_boot": False}
    back = asked(ledger, file, document, "apply", "--yes", "--json")
    assert back.returncode == 0, back.stdout + back.stderr
    settled(ledger, file, document)
    assert [pci.driver_of(address) for address in (*lab.card, first)] == [*drivers, None]
    assert mdev.instances() == set()
    assert not [*ETC.glob("*.d/*"), *RULES.glob("61-vfioctl-*"), *DEFINITIONS.glob("*/*-*")]
    document["devices"] = [{**document["devices"][2], "vfs": 0}]
    document["vgpus"] = []
    assert asked(ledger, file, document, "apply", "--yes").returncode == 0
    assert mdev.vfs(lab.nvme) == []
