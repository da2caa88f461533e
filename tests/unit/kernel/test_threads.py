"""One kernel used by eight threads, as a TUI or a gRPC server uses it: nothing forks there, and nobody waits.

A FIFO that nobody reads stands for a write that does not return.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest

from tests.unit.kernel.test_jobs import ROOT, eventually, has_children, of_session, open_files, two_threads
from tests.unit.kernel.test_worker import drained, has_ended, holders_of, session_of
from vfioctl.errors import Busy, Stuck
from vfioctl.kernel.lenient import text
from vfioctl.kernel.live.host import Live
from vfioctl.kernel.lock import held
from vfioctl.kernel.timeouts import Timeouts

pytestmark = pytest.mark.alone

THREADS, ROUNDS = 8, 6
SOON, LATE = 0.4, 20.0


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """No descriptor stays open, and no child is ours, zombies included."""
    gc.collect()  # what earlier tests have left is not this one's
    before = open_files()
    yield
    gc.collect()
    assert open_files().keys() == before.keys()
    assert not has_children()


@pytest.fixture
def no_fork_beside_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Fails where the process forks while it has a second thread, by whatever way; the counts of threads at each."""
    counts: list[int] = []
    _watched.append(counts)
    real = os.fork

    def fork() -> int:
        assert len(os.listdir("/proc/self/task")) == 1, "a fork beside another thread"
        return real()

    monkeypatch.setattr(os, "fork", fork)
    yield counts
    _watched.remove(counts)
    assert all(count == 1 for count in counts)


_watched: list[list[int]] = []


def _count_threads() -> None:
    for counts in _watched:
        counts.append(len(os.listdir("/proc/self/task")))


os.register_at_fork(before=_count_threads)


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """Files to read and to write, and one whose writing blocks."""
    for number in range(THREADS):
        (tmp_path / f"device{number}").mkdir()
        (tmp_path / f"device{number}" / "driver_override").write_text("(null)")
    os.mkfifo(tmp_path / "unbind")
    return tmp_path


def in_threads(work: Callable[[int], object]) -> list[Future[object]]:
    with ThreadPoolExecutor(THREADS) as pool:
        return [pool.submit(work, number) for number in range(THREADS)]


@pytest.mark.parametrize("begun", ["with one thread", "with several"])
def test_eight_threads_list_and_write_while_one_write_hangs(
    host: Path, begun: str, no_fork_beside_threads: list[int]
) -> None:
    kernel = Live(timeouts=Timeouts(default=LATE, steps={"unbind": 4.0}))
    subjects = [str(host / f"device{number}" / "driver_override") for number in range(THREADS)]
    if begun == "with one thread":
        list(kernel.survey(text, subjects))
    took: dict[int, float] = {}

    def work(number: int) -> str:
        began = time.monotonic()
        if number == 0:
            with kernel.exclusive(host / "lock", wait=LATE), pytest.raises(Stuck) as caught:
                kernel.write(str(host / "unbind"), "0000:01:00.0")
            return str(caught.value.facts["ticket"])
        for turn in range(ROUNDS):
            answers = kernel.survey(text, subjects)
            kernel.write(subjects[number], f"{number}-{turn}")
            assert [subject for subject, _ in answers] == subjects
            ((_, alone),) = kernel.survey(text, [subjects[number]])
            assert str(alone).startswith(f"{number}-{turn}")
            assert kernel.read(subjects[number]).startswith(f"{number}-{turn}")
        took[number] = time.monotonic() - began
        return "done"

    first, *others = (future.result() for future in in_threads(work))
    assert others == ["done"] * (THREADS - 1)
    assert max(took.values()) < 4.0, "nobody waited for the write that hangs"
    assert kernel.write_ended(str(first)) is None, "which was not killed"
    assert drained(host / "unbind") == b"0000:01:00.0"
    assert eventually(lambda: kernel.write_ended(str(first)) == "returned")
    session = kernel._workers.server._pid
    kernel.close()
    assert eventually(lambda: not of_session(session)), "a worker that wrote is not waited for"
    assert no_fork_beside_threads == ([1] if begun == "with one thread" else [])


def test_eight_threads_take_the_lock_one_after_the_other(host: Path, no_fork_beside_threads: list[int]) -> None:
    kernel = Live()
    inside: list[int] = []

    def work(number: int) -> None:
        for _ in range(3):
            with kernel.exclusive(host / "lock", wait=LATE):
                inside.append(number)
                kernel.write(str(host / "device0/driver_override"), str(number))
                assert inside == [number], "two at once"
                inside.remove(number)

    for future in in_threads(work):
        future.result()
    kernel.close()


def test_eight_threads_while_the_fork_server_is_killed(host: Path, no_fork_beside_threads: list[int]) -> None:
    kernel = Live()
    subjects = [str(host / f"device{number}" / "driver_override") for number in range(THREADS)]
    stop = threading.Event()

    def kill() -> int:
        killed = 0
        while killed < 3 and not stop.wait(0.6):
            if pid := kernel._workers.server._pid:
                os.kill(pid, signal.SIGKILL)
                killed += 1
        stop.set()
        return killed

    def work(number: int) -> None:
        for turn in count():
            if stop.is_set():
                break
            assert [subject for subject, _ in kernel.survey(text, subjects)] == subjects
            kernel.write(subjects[number], f"{number}-{turn}")
            ((_, alone),) = kernel.survey(text, [subjects[number]])
            assert str(alone).startswith(f"{number}-{turn}")

    with ThreadPoolExecutor(1) as killer:
        killing = killer.submit(kill)
        try:
            for future in in_threads(work):
                future.result()
        finally:
            stop.set()
        assert killing.result() == 3
    kernel.close()


def test_a_session_of_another_thread_goes_on_when_one_ends(host: Path, no_fork_beside_threads: list[int]) -> None:
    path = str(host / "device0/driver_override")

    def work(number: int) -> None:
        for _ in range(3):
            kernel = Live()
            kernel.write(path, str(number))
            assert list(kernel.survey(text, [path, path]))
            del kernel

    for future in in_threads(work):
        future.result()


CALLER = """
import sys, threading
from pathlib import Path
from vfioctl.kernel.lenient import text
from vfioctl.kernel.live.host import Live
from vfioctl.kernel.timeouts import Timeouts
host = Path(sys.argv[1])
kernel = Live(timeouts=Timeouts(default=60.0))
subjects = [str(host / f"device{number}" / "driver_override") for number in range(8)]
def work(number):
    while True:
        list(kernel.survey(text, subjects))
        list(kernel.survey(text, subjects[:1]))
        kernel.write(subjects[number], str(number))
def hang():
    with kernel.exclusive(host / "lock", wait=60):
        kernel.write(str(host / "unbind"), "x")
if sys.argv[2] == "forked":
    list(kernel.survey(text, subjects))
print(kernel._workers.server._pid, flush=True)
for number in range(3):
    threading.Thread(target=work, args=(number,), daemon=True).start()
hang()
"""


@pytest.mark.parametrize("seed", range(6))
def test_a_caller_that_is_killed_leaves_nothing_but_the_write_that_blocks(host: Path, seed: int) -> None:
    """At any moment: before the write is begun, nothing at all is left."""
    chance = random.Random(seed)
    command = [sys.executable, "-c", CALLER, str(host), chance.choice(["forked", "executed"])]
    mine = {int(pid) for pid in os.listdir("/proc") if pid.isdecimal()}
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as caller:
        assert caller.stdout
        caller.stdout.readline()
        time.sleep(chance.uniform(0.0, 0.6))
        caller.kill()
    lock = host / "lock"

    def settled() -> bool:
        return {pid for pid in writers(mine) if not has_ended(pid)} == set(holders_of(lock))

    assert eventually(settled)
    left = holders_of(lock)
    assert len(left) <= 1
    if left:
        assert [pid for pid in of_session(session_of(left[0])) if not has_ended(pid)] == left
        with pytest.raises(Busy), held(lock, wait=0):
            pytest.fail("the write is under way")
        assert drained(host / "unbind") == b"x"
        assert eventually(lambda: has_ended(left[0]))
    with held(lock, wait=LATE):
        pass


def writers(before: set[int]) -> list[int]:
    """Processes that came since then with the caller's program, or forked by it."""
    found = []
    for pid in (int(name) for name in os.listdir("/proc") if name.isdecimal()):
        if pid not in before:
            try:
                words = Path(f"/proc/{pid}/cmdline").read_text()
            except OSError:
                continue
            if "vfioctl.kernel" in words:
                found.append(pid)
    return found


def test_beside_a_thread_a_new_interpreter_is_executed(no_fork_beside_threads: list[int]) -> None:
    kernel = Live()
    with two_threads():
        ((_, name),) = kernel.survey(text, ["/proc/self/cmdline"])
    assert "vfioctl.kernel.worker.server" in str(name)
    assert no_fork_beside_threads == []
    kernel.close()


@pytest.mark.parametrize(
    "module",
    [
        "vfioctl.kernel.worker.server",
        "vfioctl.kernel.worker.workers",
        "vfioctl.kernel.live.host",
        "vfioctl.kernel.lenient",
        "vfioctl.kernel.host_paths",
        "vfioctl.inventory.probe.nodes",
        "vfioctl.inventory.probe.processes",
        "vfioctl.inventory.probe.pci",
        "vfioctl.inventory.probe.scan",
        "vfioctl.binding.probe.readers",
        "vfioctl.vgpu.probe.scan",
    ],
)
def test_what_workers_import_imports_no_model(module: str) -> None:
    """A fork server imports it while its caller waits."""
    program = f"import sys, {module}; sys.exit('pydantic' in sys.modules or 'socket' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)
