"""vfioctl turns the VFs of a real device on and off, and refuses to turn off VFs in use."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.lab.inside import mdev, pci
from tests.lab.inside.command import vfioctl
from tests.lab.inside.conftest import Hold
from tests.lab.inside.topology import Topology
from vfioctl.errors import KernelRefused
from vfioctl.host import Host
from vfioctl.kernel.live.host import Live
from vfioctl.session import Session


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


def autoprobe(physical: str) -> str:
    return pci.attribute(physical, "sriov_drivers_autoprobe")


def refusal(ledger: Path, *words: str) -> dict[str, Any]:
    """The error of a command that must be refused as a conflict."""
    answer = vfioctl(ledger, *words, "--json")
    assert answer.returncode == 4, (words, answer)
    error: dict[str, Any] = json.loads(answer.stdout)["error"]
    return error


class TestTheirNumber:
    def test_they_come_without_drivers_and_autoprobe_is_as_before(self, lab: Topology, ledger: Path) -> None:
        assert autoprobe(lab.nvme) == "1"
        two = vfioctl(ledger, "sriov", "set", lab.nvme, "2", "--json")
        assert two.returncode == 0, two.stderr
        functions = mdev.vfs(lab.nvme)
        assert [vgpu["id"] for vgpu in json.loads(two.stdout)["report"]["vgpus"]] == functions
        assert len(functions) == 2
        assert [pci.driver_of(one) for one in functions] == [None, None]
        assert autoprobe(lab.nvme) == "1"
        four = vfioctl(ledger, "sriov", "set", lab.nvme, "4")
        assert four.returncode == 0, four.stderr
        assert len(mdev.vfs(lab.nvme)) == 4
        assert [pci.driver_of(one) for one in mdev.vfs(lab.nvme)] == [None] * 4
        assert autoprobe(lab.nvme) == "1"
        again = vfioctl(ledger, "sriov", "set", lab.nvme, "all")
        assert again.returncode == 0
        assert "nothing to do" in (again.stdout + again.stderr).lower()
        off = vfioctl(ledger, "sriov", "off", lab.nvme)
        assert off.returncode == 0, off.stderr
        assert mdev.vfs(lab.nvme) == []
        assert autoprobe(lab.nvme) == "1"

    def test_when_somebody_is_faster_autoprobe_goes_back_and_theirs_stay(self, lab: Topology, ledger: Path) -> None:
        host = Host(Session(_Overtaken(lab.nvme), ledger))
        plan = host.vgpu.plan_vfs(lab.nvme, 2)
        with pytest.raises(KernelRefused) as caught:
            host.apply(plan)
        assert caught.value.symbol == "EBUSY"
        assert len(mdev.vfs(lab.nvme)) == 1
        assert autoprobe(lab.nvme) == "1"
        assert host.recover() == ()
        assert len(mdev.vfs(lab.nvme)) == 1


class _Overtaken(Live):
    """This machine, on which somebody else turns one VF on just before vfioctl does."""

    def __init__(self, physical: str) -> None:
        super().__init__()
        self._physical = physical

    def write(self, path: str, value: str) -> None:
        if path.endswith("/sriov_numvfs") and value != "0":
            mdev.set_vf_count(self._physical, 1)
        super().write(path, value)


class TestOnTheWayDown:
    def test_first_the_guests_then_the_vfs_then_the_function(
        self, lab: Topology, ledger: Path, hold: Hold, original_drivers: dict[str, str | None]
    ) -> None:
        assert vfioctl(ledger, "sriov", "set", lab.nvme, "2").returncode == 0
        first, second = mdev.vfs(lab.nvme)
        bound = vfioctl(ledger, "bind", first)
        assert bound.returncode == 0, bound.stderr
        assert [pci.driver_of(one) for one in (first, second)] == ["vfio-pci", None]
        assert first in refusal(ledger, "bind", lab.nvme)["message"]
        assert first in refusal(ledger, "sriov", "set", lab.nvme, "4")["message"]
        process = hold(first)
        assert first in refusal(ledger, "sriov", "off", lab.nvme)["message"]
        assert f"process {process.pid}" in refusal(ledger, "unbind", first)["message"]
        assert len(mdev.vfs(lab.nvme)) == 2
        assert pci.driver_of(first) == "vfio-pci"
        process.kill()
        process.wait()
        unbound = vfioctl(ledger, "unbind", first)
        assert unbound.returncode == 0, unbound.stderr
        assert pci.driver_of(first) is None
        off = vfioctl(ledger, "sriov", "off", lab.nvme)
        assert off.returncode == 0, off.stderr
        assert mdev.vfs(lab.nvme) == []
        assert pci.drivers() == original_drivers
        bound = vfioctl(ledger, "bind", lab.nvme)
        assert bound.returncode == 0, bound.stderr
