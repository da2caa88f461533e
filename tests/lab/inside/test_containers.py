"""Real container runtimes on a real kernel: a container has exactly the VFIO devices that vfioctl names or injects."""

import json
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.inside import containers, pci
from tests.lab.inside.command import vfioctl
from tests.lab.inside.containers import MISSING, OPENED, REFUSED
from tests.lab.inside.topology import Topology

CDI = Path("/var/run/cdi")
REPOSITORY = Path(__file__).resolve().parents[3]
RUNTIMES = ("crun", "runc")


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def node(lab: Topology, ledger: Path) -> Iterator[str]:
    """The group node of the far display, which is on VFIO; another group has a node too."""
    for device in (lab.far_display, lab.nvme):
        answer = vfioctl(ledger, "bind", device, "--yes")
        assert answer.returncode == 0, answer.stderr
    yield f"/dev/vfio/{pci.group_of(lab.far_display)}"
    shutil.rmtree(CDI, ignore_errors=True)


@pytest.fixture
def claim(ledger: Path, lab: Topology, node: str) -> str:
    """A claim of the far display."""
    del node
    owner = ("--owner", "pod/default/lab/main")
    answer = vfioctl(ledger, "claim", "create", *owner, "--device", lab.far_display, "--yes", "--json")
    assert answer.returncode == 0, answer.stderr
    return str(json.loads(answer.stdout)["id"])


@pytest.fixture
def rootfs(tmp_path: Path) -> Path:
    return containers.root_file_system(tmp_path / "rootfs")


# -- CDI -------------------------------------------------------------------------------------------------


def test_podman_gives_a_container_the_device_that_the_cdi_file_names(
    ledger: Path, lab: Topology, node: str, rootfs: Path
) -> None:
    answer = vfioctl(ledger, "cdi", "generate", "--all")
    assert answer.returncode == 0, answer.stderr
    name = f"vfioctl/vfio={lab.far_display.replace(':', '-')}"
    other = f"/dev/vfio/{pci.group_of(lab.nvme)}"
    code, said = containers.run_podman(rootfs, containers.opens(node), "--device", name)
    assert (code, said.strip()) == (0, OPENED), said
    code, said = containers.run_podman(rootfs, containers.opens("/dev/vfio/vfio"), "--device", name)
    assert (code, said.strip()) == (0, OPENED), said
    code, said = containers.run_podman(rootfs, containers.opens(other), "--device", name)
    assert code == 2, said
    assert MISSING in said
    code, said = containers.run_podman(rootfs, containers.makes_its_own(other), "--device", name, "--cap-add=MKNOD")
    assert code != 0
    assert REFUSED in said


def test_podman_without_the_device_has_no_node_and_may_not_use_one_of_its_own(node: str, rootfs: Path) -> None:
    code, said = containers.run_podman(rootfs, containers.opens(node))
    assert code == 2, said
    assert MISSING in said
    code, said = containers.run_podman(rootfs, containers.makes_its_own(node), "--cap-add=MKNOD")
    assert code != 0
    assert REFUSED in said


def test_podman_refuses_a_name_of_a_file_that_is_gone(ledger: Path, lab: Topology, node: str, rootfs: Path) -> None:
    """The file goes with the last device; it must not stay as one without devices, which every runtime refuses."""
    del node
    assert vfioctl(ledger, "cdi", "generate", "--all").returncode == 0
    for device in (lab.far_display, lab.nvme):
        assert vfioctl(ledger, "unbind", device, "--yes").returncode == 0
    assert vfioctl(ledger, "cdi", "generate", "--all").returncode == 0
    assert list(CDI.iterdir()) == []
    name = f"vfioctl/vfio={lab.far_display.replace(':', '-')}"
    code, said = containers.run_podman(rootfs, ["/bin/true"], "--device", name)
    assert code != 0
    assert f"unresolvable CDI devices {name}" in said


def test_a_later_version_would_be_refused_by_this_podman(ledger: Path, lab: Topology, node: str, rootfs: Path) -> None:
    """Which is why the lowest version is written: 0.6.0 in the same file makes the device unknown."""
    del node
    assert vfioctl(ledger, "cdi", "generate", "--all").returncode == 0
    file = CDI / "vfioctl.json"
    file.write_text(file.read_text().replace('"0.5.0"', '"0.6.0"'))
    name = f"vfioctl/vfio={lab.far_display.replace(':', '-')}"
    code, said = containers.run_podman(rootfs, ["/bin/true"], "--device", name)
    assert code != 0
    assert f"unresolvable CDI devices {name}" in said


# -- config.json -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_bundle_gets_the_devices_of_a_claim(
    ledger: Path, node: str, claim: str, lab: Topology, tmp_path: Path, runtime: str
) -> None:
    place = tmp_path / "bundle"
    place.mkdir()
    containers.bundle(place, runtime, containers.opens(node))
    code, said = containers.run_bundle(runtime, place, "without")
    assert code == 2, said
    assert MISSING in said
    done = vfioctl(ledger, "oci", "inject", str(place), "--claim", claim, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["nodes"] == ["/dev/vfio/vfio", node]
    code, said = containers.run_bundle(runtime, place, "with")
    assert (code, said.strip()) == (0, OPENED), said
    before = (place / "config.json").read_bytes()
    assert vfioctl(ledger, "oci", "inject", str(place), "--claim", claim).returncode == 0
    assert (place / "config.json").read_bytes() == before
    other = f"/dev/vfio/{pci.group_of(lab.nvme)}"
    containers.change(place, lambda config: config["process"].update(args=containers.makes_its_own(other)))
    _may_make_nodes(place)
    code, said = containers.run_bundle(runtime, place, "own")
    assert code != 0
    assert REFUSED in said, said


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_create_runtime_hook_comes_too_late(
    ledger: Path, node: str, claim: str, tmp_path: Path, runtime: str
) -> None:
    """The runtime has read config.json before it runs hooks. If this fails one day, the documents may say less."""
    place = tmp_path / "bundle"
    place.mkdir()
    containers.bundle(place, runtime, containers.opens(node))
    ready = tmp_path / "ready.json"
    shutil.copy(place / "config.json", ready)
    edited = tmp_path / "edited"
    edited.mkdir()
    shutil.copy(ready, edited / "config.json")
    assert vfioctl(ledger, "oci", "inject", str(edited), "--claim", claim).returncode == 0
    script = f"cp {edited}/config.json {place}/config.json"
    hook = {"path": "/bin/sh", "args": ["sh", "-c", script]}
    containers.change(place, lambda config: config.update(hooks={"createRuntime": [hook]}))
    code, said = containers.run_bundle(runtime, place, "hooked")
    assert "vfioctl.claim" in (place / "config.json").read_text(), "the hook has run"
    assert code == 2, said
    assert MISSING in said


def test_podman_gives_a_container_what_a_precreate_hook_adds(
    ledger: Path, node: str, claim: str, rootfs: Path, tmp_path: Path
) -> None:
    """podman sends the configuration to the hook and takes what it prints, before the runtime reads it."""
    hooks, program = tmp_path / "hooks", tmp_path / "hook"
    hooks.mkdir()
    command = [sys.executable, "-m", "vfioctl.app", "oci", "inject", "--claim", claim, "--ledger", str(ledger)]
    program.write_text(f"#!/bin/sh\nPYTHONPATH={REPOSITORY} exec {shlex.join(command)}\n")
    program.chmod(0o755)
    hook = {"version": "1.0.0", "hook": {"path": str(program)}, "when": {"always": True}, "stages": ["precreate"]}
    (hooks / "vfioctl.json").write_text(json.dumps(hook))
    code, said = containers.run_podman(rootfs, containers.opens(node), hooks=hooks)
    assert (code, said.strip()) == (0, OPENED), said


def test_a_claim_is_not_released_while_a_container_has_its_device_open(
    ledger: Path, node: str, claim: str, tmp_path: Path, lab: Topology
) -> None:
    place = tmp_path / "bundle"
    place.mkdir()
    containers.bundle(place, "crun", ["/bin/sh", "-c", f"exec 3<>{node} && echo {OPENED} && sleep 600"])
    assert vfioctl(ledger, "oci", "inject", str(place), "--claim", claim).returncode == 0
    with containers.running("crun", place, "holder") as first_line:
        assert first_line.strip() == OPENED
        answer = vfioctl(ledger, "claim", "release", claim, "--yes")
        assert answer.returncode == 4, answer.stderr
        assert "sleep" in answer.stderr or "sh" in answer.stderr
        assert pci.driver_of(lab.far_display) == "vfio-pci"
    assert vfioctl(ledger, "claim", "release", claim, "--yes", "--wait", "30s").returncode == 0


def _may_make_nodes(place: Path) -> None:
    def edit(config: dict[str, object]) -> None:
        process = config["process"]
        assert isinstance(process, dict)
        for names in process["capabilities"].values():
            names.append("CAP_MKNOD")

    containers.change(place, edit)


# -- containerd ------------------------------------------------------------------------------------------


def test_containerd_gives_a_container_the_node_that_ctr_names(
    node: str, lab: Topology, rootfs: Path, tmp_path: Path
) -> None:
    other = f"/dev/vfio/{pci.group_of(lab.nvme)}"
    with containers.containerd(tmp_path / "containerd") as address:
        ctr = ("ctr", "--address", address, "run", "--rm", "--rootfs")
        with_both = ("--device", node, "--device", "/dev/vfio/vfio")
        code, said = containers.ran(*ctr, *with_both, rootfs, "with", *containers.opens(node))
        assert (code, said.strip()) == (0, OPENED), said
        code, said = containers.ran(*ctr, rootfs, "without", *containers.opens(node))
        assert code == 2, said
        assert MISSING in said
        code, said = containers.ran(*ctr, *with_both, rootfs, "other", *containers.makes_its_own(other))
        assert code != 0
        assert REFUSED in said, said


# -- Kata ------------------------------------------------------------------------------------------------


def test_what_kata_needs_is_checked_on_this_host(ledger: Path, lab: Topology, claim: str, tmp_path: Path) -> None:
    """Kata itself is not in Debian: this is what vfioctl reads of a real host for it."""
    assert vfioctl(ledger, "cdi", "generate").returncode == 0
    config, drop_in = tmp_path / "configuration.toml", tmp_path / "config.d" / "50-vfioctl.toml"
    config.write_text("[hypervisor.qemu]\n")
    drop_in.parent.mkdir()
    check = ("kata", "check", "--config", str(config), "--claim", claim, "--json")
    assert vfioctl(ledger, *check).returncode == 3
    assert vfioctl(ledger, "kata", "config", "--claim", claim, "--output", str(drop_in)).returncode == 0
    answer = vfioctl(ledger, *check)
    assert answer.returncode == 0, answer.stdout
    found = {each["name"]: each for each in json.loads(answer.stdout)["checks"]}
    assert found["BAR window"]["ok"] is True, "the CPU says how wide its addresses are"
    assert found[f"driver of {lab.far_display}"]["found"].startswith("vfio-pci, /dev/vfio/")


def test_the_lab_has_the_runtimes_of_debian_12(results: Path) -> None:
    """What they are is in the results."""
    said = {name: containers.ran(name, "--version") for name in ("podman", "crun", "runc", "containerd")}
    (results / "runtimes.json").write_text(json.dumps(said, indent=2))
    assert all(code == 0 for code, _ in said.values()), said
    assert Path("/sys/fs/cgroup/cgroup.controllers").exists(), "version 2"
