"""One library object in a program with threads: each thread lists, binds and gives back, while a write of one hangs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hosts.machines import copy, original, state
from vfioctl.errors import Stuck, VfioctlError
from vfioctl.host import Host
from vfioctl.kernel.simulated.faults import HANG, Fault
from vfioctl.kernel.simulated.host import Simulated
from vfioctl.session import Session

GPUS = [f"gpu{number}" for number in range(8)]


def in_threads(work: Callable[[str], None]) -> dict[str, BaseException]:
    """Runs `work` for each GPU in a thread of its own; what each has raised."""
    failures: dict[str, BaseException] = {}
    start = threading.Barrier(len(GPUS))

    def run(gpu: str) -> None:
        start.wait(10)
        try:
            work(gpu)
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            failures[gpu] = error

    threads = [threading.Thread(target=run, args=(gpu,), daemon=True) for gpu in GPUS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    return failures


def hand_over_and_back(host: Host, gpu: str) -> None:
    (address,) = host.find([gpu])
    host.apply(host.binding.plan_bind([gpu]))
    assert host.inventory().by_address[address].driver == "vfio-pci"
    host.apply(host.binding.plan_unbind([gpu]))
    assert host.inventory().by_address[address].driver == "nvidia"


@pytest.fixture(params=["in memory", "in a file"])
def kernel(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Simulated]:
    """Makes a server with eight GPUs, kept in memory or in a file as the command keeps it."""

    def make(*faults: Fault) -> Simulated:
        tree = copy(original("hgx8"))
        if request.param == "in memory":
            return Simulated(tree, "simulated", faults=faults)
        file = tmp_path / "hgx8.host"
        file.write_text((Path(__file__).parents[1] / "hosts" / "hgx8.host").read_text())
        return Simulated.at(file, faults=faults)

    return make


def test_eight_threads_share_one_host(kernel: Callable[..., Simulated], tmp_path: Path) -> None:
    simulated = kernel()
    before = state(copy(simulated.tree))
    host = Host(Session(simulated, tmp_path / "ledger.db", settle=0.0, lock_wait=60.0))
    assert in_threads(lambda gpu: hand_over_and_back(host, gpu)) == {}
    assert state(simulated.tree) == before
    assert [entry.state for entry in host.history()] == ["done"] * 16


def test_a_hanging_write_holds_up_its_own_thread_only(kernel: Callable[..., Simulated], tmp_path: Path) -> None:
    simulated = kernel(Fault(at=7, kind=HANG))
    host = Host(Session(simulated, tmp_path / "ledger.db", settle=0.0, lock_wait=60.0))
    failures = in_threads(lambda gpu: hand_over_and_back(host, gpu))
    assert [type(error) for error in failures.values()] == [Stuck]
    ((gpu, error),) = failures.items()
    assert isinstance(error, VfioctlError)
    address = error.facts["address"]
    assert host.inventory().by_address[host.find([gpu])[0]].mark is not None
    (unfinished,) = host.unfinished()
    assert address in unfinished.plan.subjects
    simulated.release(str(error.facts["ticket"]).removeprefix("sim:"))
    assert [outcome.result for outcome in host.recover()] == ["put back"]


def test_a_thread_that_reads_does_not_undo_what_another_changes(fast_folder: Path) -> None:
    """The file is another process's meanwhile, so that the reader reads it again."""
    file = fast_folder / "hgx8.host"
    text = (Path(__file__).parents[1] / "hosts" / "hgx8.host").read_text(encoding="utf-8")
    file.write_text(text, encoding="utf-8")
    host, name = Simulated.at(file), "/sys/bus/pci/devices/0000:1b:00.0/d3cold_allowed"
    reader = threading.Thread(target=lambda: host.tree)
    with host._turn():
        host.tree.put(host.tree.resolve(name), "0")
        (fast_folder / "new").write_text(text, encoding="utf-8")
        (fast_folder / "new").replace(file)
        reader.start()
        reader.join(0.5)
    reader.join()
    assert host.read(name) == "0"
    assert Simulated.at(file).read(name) == "0"
