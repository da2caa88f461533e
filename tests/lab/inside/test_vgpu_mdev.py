"""vfioctl creates and removes mediated devices of the kernel's own sample drivers, and counts what that leaves."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.lab.inside import mdev, pci, test_vfioctl
from tests.lab.inside.command import vfioctl
from tests.lab.inside.conftest import Load
from vfioctl.host import Host
from vfioctl.vgpu.model.report import vgpus_in
from vfioctl.vgpu.model.vgpu import FOREIGN, OURS, Count, Vgpu, VgpuState
from vfioctl.vgpu.placement.capacity import after

SMALL, MEDIUM, LARGE = "mbochs-small", "mbochs-medium", "mbochs-large"


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def host(ledger: Path) -> Host:
    return Host.live(ledger)


def bochs(small: int, medium: int, large: int) -> dict[str, int]:
    """What the types of mbochs have left."""
    return {SMALL: small, MEDIUM: medium, LARGE: large}


def said_available(host: Host) -> dict[str, int]:
    """What vfioctl says that there is room for, where it says so exactly."""
    (card,) = host.vgpu.vgpus().cards
    assert all(kind.available.is_exact for kind in card.types)
    return {kind.id: kind.available.at_least for kind in card.types}


def exact(available: Mapping[str, Count]) -> dict[str, int]:
    assert all(count.is_exact for count in available.values())
    return {kind: count.at_least for kind, count in available.items()}


def listed(ledger: Path) -> dict[str, Vgpu]:
    """All vGPUs by id, as `vgpu list` has them."""
    return {vgpu.id: vgpu for vgpu in Host.live(ledger).vgpu.vgpus().instances}


def made(ledger: Path, kind: str, *, count: int = 1, **wishes: Any) -> list[Vgpu]:
    """The vGPUs that vfioctl created, as it reports them."""
    host = Host.live(ledger)
    return list(vgpus_in(host.apply(host.vgpu.plan_create(kind, count=count, **wishes)).report))


class TestAPool:
    def test_what_remains_afterwards_is_what_was_said_before(self, load: Load, host: Host, ledger: Path) -> None:
        load("mbochs", count=100)
        assert said_available(host) == mdev.available("mbochs") == bochs(25, 6, 1)
        requests = (
            {LARGE: 1},
            {LARGE: 1, MEDIUM: 1, SMALL: 1},
            {MEDIUM: 6, SMALL: 1},
        )
        for request in requests:
            (card,) = host.vgpu.vgpus().cards
            forecast = after(card, request)
            assert forecast.certain
            for kind, count in request.items():
                mdev.fill("mbochs", kind, count)
            assert exact(forecast.available) == said_available(host) == mdev.available("mbochs"), request
            mdev.remove_all()
        assert said_available(host) == bochs(25, 6, 1)
        answer = vfioctl(ledger, "vgpu", "types", "mbochs", "--after", LARGE, "--after", f"{MEDIUM}=2", "--json")
        document = json.loads(answer.stdout)
        (said,) = document["after"]
        assert said["available"] == {kind: {"at_least": left, "at_most": left} for kind, left in bochs(1, 0, 0).items()}


class TestOne:
    def test_whoever_asked_has_it_when_the_command_returns(self, load: Load, ledger: Path) -> None:
        """Here the installed command, as a process of its own."""
        load("mtty")
        answer = test_vfioctl.whole_vfioctl(ledger, "vgpu", "create", "mtty-2", "--json")
        assert answer.returncode == 0, answer.stderr
        (one,) = json.loads(answer.stdout)["report"]["vgpus"]
        assert mdev.instances() == {one["id"]}
        device = mdev.BUS / "devices" / one["id"]
        group = (device / "iommu_group").readlink().name
        assert one["vfio_group"] == f"/dev/vfio/{group}"
        assert Path(one["vfio_group"]).is_char_device()
        assert (device / "mdev_type").resolve().name == one["type"] == "mtty-2"
        assert one["owner"] == OURS
        listing = vfioctl(ledger, "vgpu", "list", "--json")
        (shown,) = json.loads(listing.stdout)["instances"]
        assert (shown["id"], shown["owner"], shown["state"]) == (one["id"], OURS, VgpuState.LIVE)
        gone = test_vfioctl.whole_vfioctl(ledger, "vgpu", "remove", one["id"])
        assert gone.returncode == 0, gone.stderr
        assert mdev.instances() == set()
        assert listed(ledger) == {}

    def test_a_name_used_again_by_somebody_else_is_theirs(self, load: Load, ledger: Path) -> None:
        load("mtty")
        name = mdev.new_uuid()
        made(ledger, "mtty-1", uuids=(name,))
        mdev.remove(name)
        mdev.create("mtty", "mtty-2", name)
        assert listed(ledger)[name].owner == FOREIGN
        assert vfioctl(ledger, "vgpu", "remove", name).returncode == 4
        assert mdev.instances() == {name}

    def test_one_that_lost_its_driver_can_still_be_removed(self, load: Load, host: Host, ledger: Path) -> None:
        load("mtty")
        (one,) = made(ledger, "mtty-1")
        pci.write((mdev.BUS / "devices" / one.id / "driver").resolve() / "unbind", one.id)
        assert listed(ledger)[one.id].state == VgpuState.ORPHAN
        assert said_available(host) == {"mtty-1": 24, "mtty-2": 12}
        answer = vfioctl(ledger, "vgpu", "remove", one.id)
        assert answer.returncode == 0, answer.stderr
        assert mdev.instances() == set()
