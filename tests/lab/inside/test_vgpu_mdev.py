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
from vfioctl.vgpu.model.report import left_in, vgpus_in
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
            {MEDIUM: 2, SMALL: 3},
            {LARGE: 1, MEDIUM: 1, SMALL: 1},
            {SMALL: 25},
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

    def test_a_change_says_what_it_leaves(self, load: Load, host: Host) -> None:
        load("mbochs", count=100)
        (card,) = host.vgpu.vgpus().cards
        forecast = after(card, {MEDIUM: 2})
        outcome = host.apply(host.vgpu.plan_create(MEDIUM, count=2))
        vgpus = vgpus_in(outcome.report)
        assert [vgpu.type for vgpu in vgpus] == [MEDIUM] * 2
        assert [(left.type, left.available) for left in left_in(outcome.report)] == [
            (MEDIUM, forecast.available[MEDIUM])
        ]
        assert exact(forecast.available) == mdev.available("mbochs") == bochs(17, 4, 1)
        assert left_in(host.apply(host.vgpu.plan_remove([vgpu.id for vgpu in vgpus])).report) == ()
        assert mdev.available("mbochs") == bochs(25, 6, 1)

    def test_all_or_none(self, load: Load, ledger: Path) -> None:
        load("mbochs", count=100)
        many = vfioctl(ledger, "vgpu", "create", MEDIUM, "--count", "7")
        assert many.returncode == 4
        assert "at most 6" in many.stderr
        assert mdev.instances() == set()
        six = vfioctl(ledger, "vgpu", "create", MEDIUM, "--count", "6", "--json")
        assert six.returncode == 0, six.stderr
        assert {vgpu["id"] for vgpu in json.loads(six.stdout)["report"]["vgpus"]} == mdev.instances()
        assert mdev.available("mbochs") == bochs(1, 0, 0)
        before = mdev.instances()
        for kind, count in ((MEDIUM, 1), (SMALL, 2), (LARGE, 1)):
            refused = vfioctl(ledger, "vgpu", "create", kind, "--count", f"{count}", "--json")
            assert refused.returncode == 4
            assert json.loads(refused.stdout)["error"]["kind"] == "NoCapacity"
            assert mdev.instances() == before
        assert vfioctl(ledger, "vgpu", "create", SMALL).returncode == 0
        assert mdev.available("mbochs") == bochs(0, 0, 0)
        gone = vfioctl(ledger, "vgpu", "remove", *sorted(mdev.instances()))
        assert gone.returncode == 0, gone.stderr
        assert mdev.available("mbochs") == bochs(25, 6, 1)

    def test_the_last_of_a_count_that_the_driver_keeps(self, load: Load, ledger: Path) -> None:
        load("mdpy")
        kinds = sorted(mdev.available("mdpy"))
        mdev.fill("mdpy", kinds[1], 2)
        for kind in (kinds[2], kinds[0]):
            made(ledger, kind)
        assert set(mdev.available("mdpy").values()) == {0}
        assert vfioctl(ledger, "vgpu", "create", kinds[0]).returncode == 4
        assert len(mdev.instances()) == 4


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

    def test_its_name_may_be_given(self, load: Load, ledger: Path) -> None:
        load("mtty")
        load("mbochs")
        name = mdev.new_uuid()
        answer = vfioctl(ledger, "vgpu", "create", "mtty-1", "--uuid", name.upper())
        assert answer.returncode == 0, answer.stderr
        assert mdev.instances() == {name}
        for kind in ("mtty-1", SMALL):
            taken = vfioctl(ledger, "vgpu", "create", kind, "--uuid", name)
            assert taken.returncode == 4, taken.stderr
            assert name in taken.stderr
        assert mdev.instances() == {name}
        assert vfioctl(ledger, "vgpu", "remove", name[:8]).returncode == 0
        assert mdev.instances() == set()

    def test_what_others_made_is_foreign(self, load: Load, ledger: Path) -> None:
        load("mtty")
        (theirs,) = mdev.fill("mtty", "mtty-1", 1)
        ours = made(ledger, "mtty-1")[0].id
        assert {name: vgpu.owner for name, vgpu in listed(ledger).items()} == {theirs: FOREIGN, ours: OURS}
        for words in ((theirs,), (ours, theirs)):
            refused = vfioctl(ledger, "vgpu", "remove", *words, "--json")
            assert refused.returncode == 4
            error = json.loads(refused.stdout)["error"]
            assert (error["kind"], error["facts"]) == ("Foreign", {"foreign": [theirs]})
        assert mdev.instances() == {theirs, ours}
        assert vfioctl(ledger, "vgpu", "remove", theirs, "--foreign").returncode == 0
        assert mdev.instances() == {ours}

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

    def test_what_has_gone_meanwhile_is_said(self, load: Load, ledger: Path) -> None:
        load("mtty")
        (one,) = made(ledger, "mtty-1")
        mdev.remove(one.id)
        answer = vfioctl(ledger, "vgpu", "remove", one.id)
        assert answer.returncode == 2, answer.stderr
        assert one.id in answer.stderr
