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


def test_the_user_of_a_claim_opens_its_device_and_no_other_does(ledger: Path, lab: Topology) -> None:
    made = create(ledger, "--device", lab.far_display, "--access", str(ADA), owner="user/ada")
    node = made["devices"][0]["group"]
    assert permissions(node) == (ADA, 0, 0o600)
    assert opens(lab.far_display, ADA)
    assert not opens(lab.far_display, EVE)
    assert vfioctl(ledger, "reconcile").returncode == 0
    claim(ledger, "release", str(made["id"]), "--yes")
    assert not Path(node).exists()
    assert pci.driver_of(lab.far_display) != "vfio-pci"


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


def test_what_another_program_sets_is_found_and_set_again(ledger: Path, lab: Topology) -> None:
    made = create(ledger, "--device", lab.far_display, "--access", str(ADA), owner="user/ada")
    node = made["devices"][0]["group"]
    Path(node).chmod(0o666)  # as the rule of another program would
    found = vfioctl(ledger, "reconcile")
    assert found.returncode == 4, found.stdout
    assert f"{node} has the permissions {ADA}:0:666" in " ".join(found.stdout.split())
    assert vfioctl(ledger, "reconcile", "--fix", "--yes").returncode == 0
    assert permissions(node) == (ADA, 0, 0o600)
    claim(ledger, "release", str(made["id"]), "--yes")


def test_qemu_of_the_user_gets_the_device(ledger: Path, lab: Topology) -> None:
    """As an ordinary user; only the limit of locked memory is raised, as libvirt and systemd do."""
    made = create(ledger, "--device", lab.far_display, "--access", str(ADA), owner="user/ada")
    if l2.accelerator() == "kvm":
        l2.KVM.chmod(0o666)  # as Debian's rule does for the group kvm
    limits = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    try:
        seen = l2.functions_seen([lab.far_display], user=ADA)
    finally:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, limits)
    assert [each for each in seen if each.kind.startswith("03")]
    claim(ledger, "release", str(made["id"]), "--yes")
