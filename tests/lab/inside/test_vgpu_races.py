"""Other processes take the same places: before a plan is carried out, during it, and at the same moment."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab.inside import mdev
from tests.lab.inside.command import Running, vfioctl
from tests.lab.inside.conftest import Load
from vfioctl.core.change import JournalState
from vfioctl.errors import DeviceInUse, NoCapacity
from vfioctl.host import Host
from vfioctl.kernel.live.host import Live
from vfioctl.session import Session

ROUNDS = 2
BEFORE_ALL_BEGIN = 0.5
PORT, TWO_PORTS = "mtty-1", "mtty-2"
SMALL, SMALL_MB = "mbochs-small", 4
FULL = [("mtty", PORT, "ENOSPC"), ("mdpy", "mdpy-vga", "EUSERS")]


class Overtaken(Live):
    """This machine, on which somebody else is faster just before the k-th vGPU is created."""

    def __init__(self, k: int, somebody: Callable[[str], object]) -> None:
        super().__init__()
        self._k, self._made, self._somebody = k, 0, somebody

    def write(self, path: str, value: str) -> None:
        """Tells `somebody` what is about to be written."""
        if path.endswith(("/create", "/current_vgpu_type")) and value != mdev.NONE:
            self._made += 1
            if self._made == self._k:
                self._somebody(value)
        super().write(path, value)


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


def fill_up_to(parent: str, kind: str, left: int) -> set[str]:
    """Made by somebody else, so that so many more fit; their names."""
    if parent == "mtty":
        mdev.fill(parent, TWO_PORTS, (mdev.available(parent)[kind] - left) // 2)
    mdev.fill(parent, kind, mdev.available(parent)[kind] - left)
    return mdev.instances()


class TestOvertaken:
    @pytest.mark.parametrize(("module", "kind", "reason"), FULL)
    def test_by_who_takes_the_last_place_all_go_back(
        self, load: Load, ledger: Path, module: str, kind: str, reason: str
    ) -> None:
        load(module)
        theirs = fill_up_to(module, kind, 3)

        def take(_: str) -> None:
            theirs.update(mdev.fill(module, kind, 1))

        host = Host(Session(Overtaken(3, take), ledger))
        plan = host.vgpu.plan_create(kind, count=3)
        with pytest.raises(NoCapacity) as caught:
            host.apply(plan)
        assert caught.value.exit_code == 4
        assert mdev.instances() == theirs
        # what the first of ours had is free again
        assert mdev.available(module)[kind] == 2
        assert f"{module} has room for 2 more" in caught.value.message
        assert caught.value.kernel_said.startswith(reason)
        assert "put back" in caught.value.restored
        assert [entry.state for entry in host.history()] == [JournalState.BACK]
        assert all(vgpu.owner == "foreign" for vgpu in host.vgpu.vgpus().instances)

    def test_by_who_makes_another_type_of_the_same_pool(self, load: Load, ledger: Path) -> None:
        load("mbochs", count=100)
        theirs: set[str] = set()
        host = Host(Session(Overtaken(2, lambda _: theirs.add(mdev.create("mbochs", "mbochs-large"))), ledger))
        with pytest.raises(NoCapacity, match="mbochs has room for 2 more"):
            host.apply(host.vgpu.plan_create("mbochs-medium", count=4))
        assert mdev.instances() == theirs

    def test_by_who_takes_the_very_name_theirs_stays(self, load: Load, ledger: Path) -> None:
        load("mtty")
        host = Host(Session(Overtaken(2, lambda name: mdev.create("mtty", TWO_PORTS, name)), ledger))
        plan = host.vgpu.plan_create(PORT, count=3)
        with pytest.raises(DeviceInUse) as caught:
            host.apply(plan)
        assert caught.value.facts["errno"] == "EEXIST"
        (theirs,) = mdev.instances()
        assert mdev.instances_of("mtty", TWO_PORTS) == {theirs}
        assert host.recover() == ()
        assert mdev.instances() == {theirs}


class TestAtOnce:
    @pytest.mark.parametrize("names", [("one.db", "other.db"), ("one.db", "one.db")])
    def test_of_two_for_the_last_place_one_gets_it_and_keeps_it(
        self, load: Load, tmp_path: Path, names: tuple[str, str]
    ) -> None:
        """With ledgers of their own no lock keeps them apart, only the kernel does."""
        load("mbochs", count=SMALL_MB)
        for _ in range(ROUNDS):
            begin = time.monotonic() + BEFORE_ALL_BEGIN
            racing = [Running(tmp_path / name, "vgpu", "create", SMALL, "--json", begin=begin) for name in names]
            answers = [each.answer() for each in racing]
            assert sorted(answer.returncode for answer in answers) == [0, 4], answers
            (won,), (lost,) = ([json.loads(a.stdout) for a in answers if a.returncode == code] for code in (0, 4))
            assert mdev.instances() == {vgpu["id"] for vgpu in won["report"]["vgpus"]}
            assert lost["error"]["kind"] in ("NoCapacity", "StalePlan")
            mdev.remove(won["report"]["vgpus"][0]["id"])

    def test_against_somebody_who_just_writes(self, load: Load, ledger: Path) -> None:
        load("mbochs", count=3 * SMALL_MB)
        span = _seconds_of_three(ledger)
        outcomes = set()
        for number in range(ROUNDS):
            name = mdev.new_uuid()
            begin = time.monotonic() + BEFORE_ALL_BEGIN
            ours = Running(ledger, "vgpu", "create", SMALL, "--count", "3", begin=begin)
            written = _written(name, begin + span * number / ROUNDS)
            answer = ours.answer()
            made = mdev.instances()
            expected: dict[int, tuple[bool, int]] = {0: (False, 3), 4: (True, 1)}
            assert (written, len(made)) == expected[answer.returncode], answer.stderr
            assert (name in made) == written
            outcomes.add(answer.returncode)
            mdev.remove_all()
        assert 4 in outcomes, "whoever writes at once should have been faster"


def _seconds_of_three(ledger: Path) -> float:
    began = time.monotonic()
    assert vfioctl(ledger, "vgpu", "create", SMALL, "--count", "3").returncode == 0
    took = time.monotonic() - began
    mdev.remove_all()
    return took


def _written(name: str, moment: float) -> bool:
    """Whether a plain write at that moment created a vGPU."""
    child = os.fork()
    if child == 0:
        try:
            time.sleep(max(0.0, moment - time.monotonic()))
            mdev.create("mbochs", SMALL, name)
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0
