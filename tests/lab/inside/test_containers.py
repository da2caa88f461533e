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
    answer = vfioctl(ledger, "bind", lab.far_display, lab.nvme, "--yes")
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


def test_podman_gives_a_container_what_the_cdi_file_names_and_nothing_else(
    ledger: Path, lab: Topology, node: str, rootfs: Path
) -> None:
    answer = vfioctl(ledger, "cdi", "generate", "--all")
    assert answer.returncode == 0, answer.stderr
    file, device = CDI / "vfioctl.json", f"--device=vfioctl/vfio={lab.far_display.replace(':', '-')}"
    other = f"/dev/vfio/{pci.group_of(lab.nvme)}"
    tries = containers.opens(node, "/dev/vfio/vfio", other) + containers.makes_its_own(other)
    code, said = containers.run_podman(rootfs, tries, device)
    assert said.splitlines()[:3] == [OPENED, OPENED, MISSING], said
    assert (code != 0, REFUSED in said) == (True, True), said
    code, said = containers.run_podman(rootfs, containers.opens(node) + containers.makes_its_own(node))
    assert said.splitlines()[0] == MISSING, said
    assert (code != 0, REFUSED in said) == (True, True), said
    # this podman refuses a later version, which is why the lowest is written
    lowest = file.read_text()
    file.write_text(lowest.replace('"0.5.0"', '"0.6.0"'))
    code, said = containers.run_podman(rootfs, "true", device)
    assert (code != 0, "unresolvable CDI devices" in said) == (True, True), said
    file.write_text(lowest)
    # the file goes with the last device: every runtime refuses one without devices
    assert vfioctl(ledger, "unbind", lab.far_display, lab.nvme, "--yes").returncode == 0
    assert vfioctl(ledger, "cdi", "generate", "--all").returncode == 0
    assert list(CDI.iterdir()) == []


# -- config.json -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_bundle_gets_the_devices_of_a_claim_before_its_hooks_run(
    ledger: Path, node: str, claim: str, lab: Topology, tmp_path: Path, runtime: str
) -> None:
    """The runtime has read config.json before it runs hooks. If this fails one day, the documents may say less."""
    place, other = tmp_path / "bundle", f"/dev/vfio/{pci.group_of(lab.nvme)}"
    place.mkdir()
    containers.bundle(place, runtime, containers.opens(node) + containers.makes_its_own(other))
    config, injected = place / "config.json", tmp_path / "injected"
    injected.mkdir()
    shutil.copy(config, injected)
    done = vfioctl(ledger, "oci", "inject", str(injected), "--claim", claim, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["nodes"] == ["/dev/vfio/vfio", node]

    hook = {"path": "/bin/sh", "args": ["sh", "-c", f"cp {injected}/config.json {config}"]}
    containers.change(place, lambda config: config.update(hooks={"createRuntime": [hook]}))
    _, said = containers.run_bundle(runtime, place, "hooked")
    assert config.read_bytes() == (injected / "config.json").read_bytes(), "the hook has run"
    assert said.splitlines()[0] == MISSING, said

    assert vfioctl(ledger, "oci", "inject", str(place), "--claim", claim).returncode == 0
    assert config.read_bytes() == (injected / "config.json").read_bytes(), "it is not injected twice"
    code, said = containers.run_bundle(runtime, place, "injected")
    assert said.splitlines()[0] == OPENED, said
    assert (code != 0, REFUSED in said) == (True, True), said


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
    containers.bundle(place, "crun", f"exec 3<>{node} && echo {OPENED} && sleep 600")
    assert vfioctl(ledger, "oci", "inject", str(place), "--claim", claim).returncode == 0
    with containers.running("crun", place, "holder") as first_line:
        assert first_line.strip() == OPENED
        answer = vfioctl(ledger, "claim", "release", claim, "--yes")
        assert answer.returncode == 4, answer.stderr
        assert "sleep" in answer.stderr or "sh" in answer.stderr
        assert pci.driver_of(lab.far_display) == "vfio-pci"
    assert vfioctl(ledger, "claim", "release", claim, "--yes", "--wait", "30s").returncode == 0


# -- containerd ------------------------------------------------------------------------------------------


def test_containerd_gives_a_container_the_node_that_ctr_names(
    node: str, lab: Topology, rootfs: Path, tmp_path: Path
) -> None:
    tries = containers.opens(node) + containers.makes_its_own(f"/dev/vfio/{pci.group_of(lab.nvme)}")
    with containers.containerd(tmp_path / "containerd") as address:
        ctr = ("ctr", "--address", address, "run", "--rm", "--rootfs")
        with_both = ("--device", node, "--device", "/dev/vfio/vfio")
        for options, first in ((with_both, OPENED), ((), MISSING)):
            code, said = containers.ran(*ctr, *options, rootfs, "tries", "/bin/sh", "-c", tries)
            assert said.splitlines()[0] == first, said
            assert (code != 0, REFUSED in said) == (True, True), said


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
