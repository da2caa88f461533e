"""Eight threads of one program list, bind and unbind on a real kernel, while a write of one of them hangs."""

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.lab.inside import in_use, pci
from tests.lab.inside.conftest import Hold
from tests.lab.inside.topology import Topology
from vfioctl.errors import Stuck, VfioctlError
from vfioctl.host import Host
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel.live.host import Live
from vfioctl.kernel.timeouts import Timeouts
from vfioctl.kernel.worker.processes import process_text
from vfioctl.session import Session

THREADS, ROUNDS = 8, 1
TIMEOUT, SETTLE = 8.0, 30.0


@pytest.fixture
def no_fork_beside_threads() -> Iterator[list[int]]:
    """How many threads there were at each fork of this process."""
    counts: list[int] = []
    _watched.append(counts)
    yield counts
    _watched.remove(counts)
    assert all(count == 1 for count in counts)


_watched: list[list[int]] = []


def _count_threads() -> None:
    for counts in _watched:
        counts.append(len(os.listdir("/proc/self/task")))


os.register_at_fork(before=_count_threads)


def test_eight_threads_go_on_while_a_write_of_one_hangs(
    lab: Topology, hold: Hold, tmp_path: Path, no_fork_beside_threads: list[int]
) -> None:
    """Each thread that writes has a ledger, and so a lock, of its own: the one that hangs is not waited for."""
    before = _zombies()  # another test kills a child that blocks in the kernel, and does not wait for it
    kernel = Live(timeouts=Timeouts(default=TIMEOUT))
    hanging = Host(Session(kernel, tmp_path / "hanging.db"))
    others = Host(Session(kernel, tmp_path / "others.db", lock_wait=120.0))
    far = PciAddress(lab.far_display)
    hanging.apply(hanging.binding.plan_bind([far]))
    process = hold(far)

    def hang() -> Stuck:
        plan = hanging.binding.plan_unbind([far], force_holders=True)
        with pytest.raises(Stuck) as caught:
            hanging.apply(plan)
        return caught.value

    def change() -> int:
        for _ in range(ROUNDS):
            others.apply(others.binding.plan_bind([lab.nvme]))
            assert pci.driver_of(lab.nvme) == "vfio-pci"
            others.apply(others.binding.plan_unbind([lab.nvme]))
            assert pci.driver_of(lab.nvme) == "nvme"
        return ROUNDS

    def look() -> int:
        for _ in range(ROUNDS):
            found = Host(Session(kernel, tmp_path / "others.db")).inventory()
            assert PciAddress(lab.nvme) in found.by_address
        return ROUNDS

    with ThreadPoolExecutor(THREADS) as pool:
        stuck = pool.submit(hang)
        working = [pool.submit(change), *(pool.submit(look) for _ in range(THREADS - 2))]
        assert [future.result() for future in working] == [ROUNDS] * (THREADS - 1)
        error = stuck.result()
    writer = int(str(error.facts["pid"]))
    assert Path(f"/proc/{writer}").exists(), "what cannot be killed was killed"
    assert kernel.write_ended(str(error.facts["ticket"])) is None
    process.kill()
    process.wait()
    in_use.within_seconds(SETTLE, lambda: not Path(f"/proc/{writer}").exists())
    in_use.within_seconds(SETTLE, lambda: _recovers(hanging))
    hanging.apply(hanging.binding.plan_unbind([far]))
    assert pci.driver_of(far) == "bochs-drm"
    kernel.close()
    assert _zombies() <= before


def _recovers(host: Host) -> bool:
    try:
        host.recover()
    except VfioctlError:
        time.sleep(0.5)
        return False
    return True


def _zombies() -> set[str]:
    """Children of this process that have ended and that nobody has collected."""
    ended = (
        process_text(int(pid), "stat").rpartition(")")[2].split() for pid in os.listdir("/proc") if pid.isdecimal()
    )
    return {" ".join(fields) for fields in ended if fields[:2] == ["Z", str(os.getpid())]}
