"""Definitions: vfioctl's are started by mdevctl 1.2.0, and mdevctl's by vfioctl."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.inside import mdev, pci
from tests.lab.inside.command import vfioctl
from tests.lab.inside.conftest import Load
from tests.lab.inside.test_vgpu_mdev import listed, made
from tests.lab.inside.test_vgpu_mdevctl import DEFINITIONS, mdevctl
from tests.lab.inside.test_vgpu_vfs import refusal
from tests.lab.inside.topology import Topology
from vfioctl.vgpu.model.vgpu import FOREIGN, OURS, VgpuState

KIND = "nvidia-754"
PARAMETER = "nvidia/vgpu_params"


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def parent(lab: Topology, load: Load) -> Iterator[str]:
    """An older card, on the stand-in; no definition outlives the test."""
    load("standin_mdev")
    pci.bind_to(lab.far_display, "nvidia")
    yield lab.far_display
    for file in (*DEFINITIONS.glob("*/*-*-*-*-*"), *DEFINITIONS.glob("*/.*")):
        file.unlink()


def parameters(name: str) -> str:
    return (mdev.BUS / "devices" / name / PARAMETER).read_text().strip()


class TestOurs:
    def test_mdevctl_lists_it_and_starts_it_with_its_parameters(self, parent: str, ledger: Path) -> None:
        words = ("vgpu", "create", "A2-4C", "--persistent", "--param", "frame_rate_limiter=0")
        answer = vfioctl(ledger, *words)
        assert answer.returncode == 0, answer.stderr
        (name,) = mdev.instances()
        file = DEFINITIONS / parent / name
        assert json.loads(file.read_text()) == {
            "mdev_type": KIND,
            "start": "auto",
            "attrs": [{PARAMETER: "frame_rate_limiter=0"}],
        }
        assert mdevctl("list", "--defined").split() == [name, parent, KIND, "auto", "(active)"]
        mdev.remove(name)
        shown = listed(ledger)[name]
        assert (shown.state, shown.definition and shown.definition.path) == (VgpuState.DEFINED, str(file))
        mdevctl("start", "--uuid", name)
        assert mdev.instances() == {name}
        assert parameters(name) == "frame_rate_limiter=0"
        assert listed(ledger)[name].owner == OURS
        gone = vfioctl(ledger, "vgpu", "remove", name)
        assert gone.returncode == 0, gone.stderr
        assert mdev.instances() == set()
        assert not file.exists()
        assert listed(ledger) == {}


class TestTheirs:
    def test_it_is_listed_and_started_by_its_name(self, parent: str, ledger: Path) -> None:
        name = mdev.new_uuid()
        mdevctl("define", "--uuid", name, "--parent", parent, "--type", KIND, "--auto")
        mdevctl("modify", "--uuid", name, "--addattr", PARAMETER, "--value", "frame_rate_limiter=0")
        shown = listed(ledger)[name]
        assert (shown.state, shown.owner, shown.profile) == (VgpuState.DEFINED, FOREIGN, "A2-4C")
        assert shown.definition
        assert shown.definition.attributes == ((PARAMETER, "frame_rate_limiter=0"),)
        assert shown.definition.start == "auto"
        other = vfioctl(ledger, "vgpu", "create", "A2-2Q", "--parent", parent, "--uuid", name)
        assert other.returncode == 4, other.stderr
        answer = vfioctl(ledger, "vgpu", "create", "A2-4C", "--parent", parent, "--uuid", name)
        assert answer.returncode == 0, answer.stderr
        assert mdev.instances() == {name}
        assert listed(ledger)[name].owner == OURS
        assert parameters(name) == "frame_rate_limiter=0", "as it is defined"

    def test_is_taken_over_with_its_instance(self, parent: str, ledger: Path) -> None:
        name = mdev.new_uuid()
        mdevctl("define", "--uuid", name, "--parent", parent, "--type", KIND, "--auto")
        mdevctl("start", "--uuid", name)
        text = (DEFINITIONS / parent / name).read_text()
        taken = vfioctl(ledger, "persist", "import", name[:8], "--yes")
        assert taken.returncode == 0, taken.stderr
        assert listed(ledger)[name].owner == OURS
        assert (DEFINITIONS / parent / name).read_text() == text, "mdevctl's own words are vfioctl's"
        mdevctl("stop", "--uuid", name)
        restored = vfioctl(ledger, "persist", "restore", "--yes")
        assert restored.returncode == 0, restored.stderr
        assert mdev.instances() == {name}
        assert vfioctl(ledger, "vgpu", "remove", name).returncode == 0
        assert mdevctl("list", "--defined").split() == []

    def test_the_definition_stays_when_its_instance_goes(self, parent: str, ledger: Path) -> None:
        name = mdev.new_uuid()
        mdevctl("define", "--uuid", name, "--parent", parent, "--type", KIND)
        file = DEFINITIONS / parent / name
        text = file.read_text()
        made(ledger, "A2-4C", parent=parent, uuids=(name,))
        gone = vfioctl(ledger, "vgpu", "remove", name)
        assert gone.returncode == 0, gone.stderr
        assert mdev.instances() == set()
        assert file.read_text() == text
        # now it is a definition and nothing else, and not ours
        assert refusal(ledger, "vgpu", "remove", name)["kind"] == "Foreign"
        assert file.read_text() == text
        mdevctl("start", "--uuid", name)
        assert listed(ledger)[name].owner == FOREIGN
        assert refusal(ledger, "vgpu", "remove", name)["kind"] == "Foreign"
        assert mdev.instances() == {name}
        mdevctl("stop", "--uuid", name)
        assert vfioctl(ledger, "vgpu", "remove", name, "--foreign").returncode == 0
        assert not file.exists()
