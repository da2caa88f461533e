"""Who may open the device nodes of a claim, on a real kernel: tried by two users, and by QEMU as one of them."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.inside import holder, l2, pci
from tests.lab.inside.command import vfioctl
from tests.lab.inside.test_claims import claim, create
from tests.lab.inside.topology import Topology

ADA, EVE = 1000, 1001
TEAM = 2000


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


def opens(address: str, user: int, group: int = 0, extra: tuple[int, ...] = ()) -> bool:
    """Whether a process of a user can open a device through VFIO: its container, its group, and itself."""
    process = subprocess.Popen(
        [sys.executable, "-S", "-E", holder.__file__, address],
        user=user,
        group=group or user,
        extra_groups=extra,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout
        assert process.stderr
        said = process.stdout.readline()
        process.kill()
        if said != "ready\n":
            assert "PermissionError" in process.stderr.read()
        return said == "ready\n"


def permissions(node: str) -> tuple[int, int, int]:
    status = os.stat(node)
    return status.st_uid, status.st_gid, status.st_mode & 0o777


def test_access_ends_with_the_claim_of_a_device_that_stays_on_vfio(ledger: Path, lab: Topology) -> None:
    assert vfioctl(ledger, "bind", lab.far_display, "--yes").returncode == 0
    try:
        made = create(ledger, "--device", lab.far_display, "--access", f":{TEAM}", owner="user/ada")
        node = made["devices"][0]["group"]
        assert permissions(node) == (0, TEAM, 0o660)
        assert opens(lab.far_display, EVE, extra=(TEAM,))
        assert not opens(lab.far_display, EVE)
        claim(ledger, "release", str(made["id"]), "--yes")
        assert permissions(node) == (0, 0, 0o600)
        assert not opens(lab.far_display, EVE, extra=(TEAM,))
        assert not any(Path("/run/vfioctl/access").iterdir())
    finally:
        assert vfioctl(ledger, "unbind", lab.far_display, "--yes").returncode == 0


def test_qemu_of_the_user_gets_the_device(ledger: Path, lab: Topology) -> None:
    """As an ordinary user; only the limit of locked memory is raised, as libvirt and systemd do."""
    made = create(ledger, "--device", lab.far_display, "--access", str(ADA), owner="user/ada")
    node = made["devices"][0]["group"]
    assert permissions(node) == (ADA, 0, 0o600)
    limits = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    try:
        assert not opens(lab.far_display, EVE)
        with l2.paused([lab.far_display], user=ADA) as guest:
            held = {os.readlink(file) for file in Path(f"/proc/{guest.pid}/fd").iterdir()}
            assert {node, "anon_inode:[vfio-device]"} <= held
    finally:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, limits)
    assert vfioctl(ledger, "reconcile").returncode == 0
    claim(ledger, "release", str(made["id"]), "--yes")
    assert not Path(node).exists()
    assert pci.driver_of(lab.far_display) != "vfio-pci"
