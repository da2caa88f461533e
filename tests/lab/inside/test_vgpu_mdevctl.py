"""mdevctl 1.2.0 and the vGPUs of vfioctl: its output and its definitions."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.lab.inside import mdev, pci
from tests.lab.inside.conftest import Load
from tests.lab.inside.in_use import within_seconds
from tests.lab.inside.topology import Topology

DEFINITIONS = Path("/etc/mdevctl.d")
KIND = "nvidia-754"
IN_THE_RULE = Path("/usr/sbin/mdevctl")
AUTOSTART_SECONDS = 20.0


@pytest.fixture
def parent(lab: Topology, load: Load) -> str:
    """An older card, on the stand-in."""
    load("standin_mdev")
    pci.bind_to(lab.far_display, "nvidia")
    return lab.far_display


def mdevctl(*arguments: str) -> str:
    """Its standard output; raises CalledProcessError with what it said."""
    return subprocess.run(["mdevctl", *arguments], check=True, capture_output=True, text=True, timeout=60).stdout


def test_types_as_json(parent: str) -> None:
    (answer,) = _json("types", "--parent", parent, "--dumpjson")
    (types,) = (one for kinds in answer[parent] for kind, one in kinds.items() if kind == KIND)
    assert types == {
        "available_instances": 4,
        "description": "num_heads=1, frl_config=60, framebuffer=4096M, max_resolution=4096x2400, max_instance=4",
        "device_api": "vfio-pci",
        "name": "NVIDIA A2-4C",
    }


def test_start_and_stop_leave_no_file(parent: str) -> None:
    name = mdev.new_uuid()
    mdevctl("start", "--uuid", name, "--parent", parent, "--type", KIND)
    assert mdev.instances() == {name}
    assert mdevctl("list").split() == [name, parent, KIND, "manual"]
    assert not list(DEFINITIONS.rglob(name))
    mdevctl("stop", "--uuid", name)
    assert mdev.instances() == set()


def test_a_definition_is_a_file_under_its_parent(parent: str, results: Path) -> None:
    name = mdev.new_uuid()
    mdevctl("define", "--uuid", name, "--parent", parent, "--type", KIND, "--auto")
    mdevctl("modify", "--uuid", name, "--addattr", "nvidia/vgpu_params", "--value", "frame_rate_limiter=0")
    file = DEFINITIONS / parent / name
    (results / "mdevctl-definition.txt").write_text(f"{file} {file.stat().st_mode:o}\n{file.read_text()}\n")
    assert json.loads(file.read_text()) == {
        "mdev_type": KIND,
        "start": "auto",
        "attrs": [{"nvidia/vgpu_params": "frame_rate_limiter=0"}],
    }
    assert mdev.instances() == set()
    mdevctl("start", "--uuid", name)
    assert (mdev.BUS / "devices" / name / "nvidia/vgpu_params").read_text() == "frame_rate_limiter=0\n"
    assert mdevctl("list").split() == [name, parent, KIND, "auto", "(defined)"]
    mdevctl("undefine", "--uuid", name)
    assert not file.exists()
    # what runs goes on
    assert mdev.instances() == {name}


def test_a_defined_instance_starts_with_its_parent_where_udevs_rule_finds_the_program(parent: str) -> None:
    name = mdev.new_uuid()
    mdevctl("define", "--uuid", name, "--parent", parent, "--type", KIND, "--auto")
    try:
        _bind_anew(parent)
        # Debian 12's rule runs /usr/sbin/mdevctl, and its package has none
        assert not IN_THE_RULE.exists()
        subprocess.run(["udevadm", "settle"], check=True, timeout=60)
        assert mdev.instances() == set()
        mdevctl("start-parent-mdevs", parent)
        assert mdev.instances() == {name}
        IN_THE_RULE.symlink_to("/usr/bin/mdevctl")
        _bind_anew(parent)
        within_seconds(AUTOSTART_SECONDS, lambda: mdev.instances() == {name})
    finally:
        IN_THE_RULE.unlink(missing_ok=True)
        mdevctl("undefine", "--uuid", name)


def test_what_does_not_fit_is_said_before_it_is_tried(parent: str) -> None:
    mdev.create(parent, "nvidia-747")
    with pytest.raises(subprocess.CalledProcessError) as caught:
        mdevctl("start", "--uuid", mdev.new_uuid(), "--parent", parent, "--type", KIND)
    assert caught.value.stderr == f"Error: No available instances of {KIND} on {parent}\n"


def _bind_anew(address: str) -> None:
    pci.unbind(address)
    assert mdev.instances() == set()
    pci.bind_to(address, "nvidia")


def _json(*arguments: str) -> Any:
    return json.loads(mdevctl(*arguments))
