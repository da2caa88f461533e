"""Writes and reads in a child of their own: a FIFO that nobody reads stands for a write that does not return."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.unit.kernel.test_child import has_children, open_files
from vfioctl.errors import Busy, HostError, KernelRefused, Stuck
from vfioctl.kernel.live.host import Live
from vfioctl.kernel.lock import held
from vfioctl.kernel.protocol import Unanswered
from vfioctl.kernel.timeouts import Timeouts
from vfioctl.kernel.worker.child import Unreturned, call, process_text
from vfioctl.kernel.worker.writer import RETURNED, Deputy, ticket_of, write_ended

pytestmark = pytest.mark.alone

ROOT = Path(__file__).resolve().parents[3]
SOON, LATE = 0.4, 20.0
"""Seconds: after which a write is given up here; and that nothing takes, on the busiest machine."""


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """No descriptor stays open, and no child is ours: those of init are its to collect."""
    before = open_files()
    yield
    assert open_files().keys() == before.keys()
    assert not has_children()


@pytest.fixture
def fifo(tmp_path: Path) -> Iterator[Path]:
    """A file whose writing blocks until `drained`."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    yield path
    drained(path)


def drained(fifo: Path) -> bytes:
    """What somebody who waits to write to it writes; nothing where nobody waits."""
    fd = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        text, until = b"", time.monotonic() + 0.3
        while not text and time.monotonic() < until:
            with suppress(BlockingIOError):
                text = os.read(fd, 4096)
            time.sleep(0.01)
        return text
    finally:
        os.close(fd)


def has_ended(pid: int) -> bool:
    """Though init may not have collected it yet."""
    return ticket_of(pid) == f"{pid}:"


def eventually(true: Callable[[], object]) -> bool:
    until = time.monotonic() + LATE
    while time.monotonic() < until:
        if true():
            return True
        time.sleep(0.01)
    return False


class TestDeputy:
    def test_one_child_does_all_writes(self, tmp_path: Path) -> None:
        (tmp_path / "a").touch()
        deputy = Deputy(None)
        for text in ("one", "two", "\n", "é"):
            assert deputy.write(str(tmp_path / "a"), text, deadline=LATE) == 0
        pid = deputy._child.pid
        assert (tmp_path / "a").read_bytes() == b"\xc3\xa9o", "each is written over the one before, as to sysfs"
        deputy.close()
        assert eventually(lambda: has_ended(pid))

    @pytest.mark.parametrize(
        ("path", "number"),
        [("/no/such/file", errno.ENOENT), ("/proc", errno.EISDIR), ("/proc/sys/kernel/ostype", errno.EACCES)],
    )
    def test_an_errno_is_told_and_the_child_goes_on(self, tmp_path: Path, path: str, number: int) -> None:
        deputy = Deputy(None)
        told = deputy.write(path, "x", deadline=LATE)
        assert told in (number, errno.EROFS, errno.EPERM)
        (tmp_path / "a").touch()
        assert deputy.write(str(tmp_path / "a"), "x", deadline=LATE) == 0
        deputy.close()

    def test_it_is_nobodys_child_but_inits(self) -> None:
        deputy = Deputy(None)
        deputy._child.meet()
        parent = int(process_text(deputy._child.pid, "stat").rpartition(")")[2].split()[1])
        assert parent != os.getpid()
        assert not has_children()
        deputy.close()

    def test_a_write_that_does_not_return_is_given_up_in_time_and_not_killed(self, fifo: Path, tmp_path: Path) -> None:
        verdicts = tmp_path / "verdicts"
        deputy, began = Deputy(None, verdicts=verdicts), time.monotonic()
        with pytest.raises(Unreturned) as caught:
            deputy.write(str(fifo), "text", deadline=SOON)
        assert SOON <= time.monotonic() - began < SOON + 10
        ticket = ticket_of(caught.value.pid)
        deputy.close()
        assert write_ended(ticket, verdicts) is None
        time.sleep(0.1)
        assert ticket_of(caught.value.pid) == ticket, "it is still there"
        assert not verdicts.exists()
        assert drained(fifo) == b"text"
        assert eventually(lambda: write_ended(ticket, verdicts) == RETURNED)
        assert eventually(lambda: has_ended(caught.value.pid)), "and it ends by itself"
        assert verdicts.stat().st_mode & 0o777 == 0o600

    def test_an_errno_that_comes_late_is_its_verdict(self, fifo: Path, tmp_path: Path) -> None:
        verdicts, full = tmp_path / "verdicts", os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
        with suppress(BlockingIOError):
            while os.write(full, b"x" * 4096):
                pass
        deputy = Deputy(None, verdicts=verdicts)
        with pytest.raises(Unreturned) as caught:
            deputy.write(str(fifo), "text", deadline=SOON)
        ticket = ticket_of(caught.value.pid)
        deputy.close()
        os.close(full)  # the last who could have read it
        assert eventually(lambda: write_ended(ticket, verdicts) == "EPIPE")

    @pytest.mark.parametrize("verdicts", ["none", "no/such/folder/x", "link"])
    def test_where_it_cannot_say_so_its_end_is_all_there_is(self, fifo: Path, tmp_path: Path, verdicts: str) -> None:
        (tmp_path / "target").touch()
        (tmp_path / "link").symlink_to(tmp_path / "target")
        place = None if verdicts == "none" else tmp_path / verdicts
        deputy = Deputy(None, verdicts=place)
        with pytest.raises(Unreturned) as caught:
            deputy.write(str(fifo), "text", deadline=SOON)
        ticket = ticket_of(caught.value.pid)
        deputy.close()
        assert write_ended(ticket, place) is None
        drained(fifo)
        assert eventually(lambda: write_ended(ticket, place) == "unknown")
        assert (tmp_path / "target").read_bytes() == b"", "no link is followed"

    def test_a_child_that_was_killed_is_told(self, tmp_path: Path) -> None:
        (tmp_path / "a").touch()
        deputy = Deputy(None)
        deputy._child.meet()
        os.kill(deputy._child.pid, signal.SIGKILL)
        assert eventually(lambda: has_ended(deputy._child.pid))
        with pytest.raises(ChildProcessError, match="died"):
            deputy.write(str(tmp_path / "a"), "x", deadline=LATE)
        deputy.close()

    def test_a_ctrl_c_is_heard_when_the_write_has_ended(self, fifo: Path) -> None:
        def later() -> None:
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.2)
            text.append(drained(fifo))

        text: list[bytes] = []
        deputy, thread = Deputy(None), threading.Thread(target=later)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            deputy.write(str(fifo), "text", deadline=LATE)
        thread.join()
        deputy.close()
        assert text == [b"text"]

    def test_no_descriptor_can_be_had(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def none_left() -> tuple[int, int]:
            pipes.append(1)
            if len(pipes) > 1:
                raise OSError(errno.EMFILE, "Too many open files")
            return real()

        real, pipes = os.pipe, [0][:0]
        monkeypatch.setattr(os, "pipe", none_left)
        with pytest.raises(HostError, match="no child process could be started"):
            Deputy(None)


class TestTickets:
    def test_name_a_process_and_the_moment_it_began(self) -> None:
        pid, began = ticket_of(os.getpid()).split(":")
        assert (int(pid), began.isdecimal()) == (os.getpid(), True)
        assert write_ended(ticket_of(os.getpid()), None) is None, "it is there"

    def test_of_a_process_that_nobody_has_collected_yet_are_unknown(self) -> None:
        with subprocess.Popen(["sleep", "60"]) as child:
            ticket = ticket_of(child.pid)
            assert write_ended(ticket, None) is None
            child.kill()
            assert eventually(lambda: write_ended(ticket, None) == "unknown")
            assert process_text(child.pid, "stat"), "it is a zombie"

    @pytest.mark.parametrize(
        "ticket", ["1:0", "99999999:", "", ":", "x:1", "-1:1", "99999999:1", "\u0661:1", "1/../1:1", "a/../b"]
    )
    def test_of_no_process_are_unknown(self, ticket: str) -> None:
        assert write_ended(ticket, None) == "unknown"

    def test_the_last_word_counts_and_damage_is_passed_over(self, tmp_path: Path) -> None:
        lines = [
            "",
            "{",
            "[]",
            "null",
            "7",
            "\xff\x00",
            '{"said": "EIO"}',
            '{"ticket": "1:2"}',
            *(f'{{"ticket": "1:{n}", "said": "{word}"}}' for n, word in ((2, "EIO"), (2, "returned"), (3, "EBUSY"))),
        ]
        verdicts = tmp_path / "verdicts"
        verdicts.write_bytes("\n".join(lines).encode("latin-1"))
        assert write_ended("1:2", verdicts) == "returned"
        assert write_ended("1:3", verdicts) == "EBUSY"
        assert write_ended("1:4", verdicts) == "unknown"

    def test_a_file_of_verdicts_may_be_long(self, tmp_path: Path) -> None:
        verdicts = tmp_path / "verdicts"
        line = json.dumps({"ticket": "1:1", "said": "EIO"}) + "\n"
        verdicts.write_text(line * 50_000 + json.dumps({"ticket": "1:2", "said": "returned"}) + "\n")
        assert write_ended("1:2", verdicts) == "returned"


# -- behind the seam -------------------------------------------------------------------------------------


def live(**seconds: float) -> Live:
    return Live(timeouts=Timeouts(default=LATE, steps=seconds))


class TestLive:
    def test_a_write_alone_has_a_child_of_its_own(self, tmp_path: Path) -> None:
        (tmp_path / "a").touch()
        kernel = live()
        kernel.write(str(tmp_path / "a"), "x")
        assert kernel._deputy is None
        with pytest.raises(KernelRefused) as caught:
            kernel.write(str(tmp_path / "b"), "x")
        assert (caught.value.symbol, caught.value.text) == ("ENOENT", "x")

    def test_one_child_lasts_for_a_change(self, tmp_path: Path) -> None:
        (tmp_path / "a").touch()
        kernel = live()
        with kernel.exclusive(tmp_path / "lock", wait=0):
            kernel.write(str(tmp_path / "a"), "x")
            first = kernel._deputy
            kernel.write(str(tmp_path / "a"), "y")
            assert kernel._deputy is first is not None
        assert kernel._deputy is None

    def test_what_does_not_return_is_stuck_with_a_ticket(self, fifo: Path, tmp_path: Path) -> None:
        kernel = live(fifo=SOON)
        lock = tmp_path / "ledger.db.lock"
        with kernel.exclusive(lock, wait=0):
            with pytest.raises(Stuck) as caught:
                kernel.write(str(fifo), "text")
            ticket = str(caught.value.facts["ticket"])
            assert caught.value.message == f"writing 'text' to {fifo} did not return in {SOON:g} s"
            assert caught.value.next_command == "vfioctl recover"
            assert caught.value.kernel_said.startswith(f"process {caught.value.facts['pid']} is in state S, in ")
            assert kernel.write_ended(ticket) is None
            (tmp_path / "a").touch()
            kernel.write(str(tmp_path / "a"), "x")  # by another child
        with held(lock, wait=0):
            pass  # let go of by name, though the child still has it open
        drained(fifo)
        assert eventually(lambda: kernel.write_ended(ticket) == RETURNED)
        assert (tmp_path / "ledger.db.verdicts").exists()

    def test_a_later_process_knows_the_ticket(self, fifo: Path, tmp_path: Path) -> None:
        kernel, lock = live(fifo=SOON), tmp_path / "ledger.db.lock"
        with kernel.exclusive(lock, wait=0), pytest.raises(Stuck) as caught:
            kernel.write(str(fifo), "text")
        ticket = str(caught.value.facts["ticket"])
        heir = live()
        with heir.exclusive(lock, wait=0):
            assert heir.write_ended(ticket) is None
            drained(fifo)
            assert eventually(lambda: heir.write_ended(ticket) == RETURNED)

    def test_the_deadline_of_another_file_is_its_own(self) -> None:
        timeouts = Timeouts(default=5.0, steps={"unbind": 9.0})
        assert timeouts.of("/sys/bus/pci/drivers/nvidia/unbind") == 9.0
        assert timeouts.of("/sys/bus/pci/drivers_probe") == 5.0
        assert timeouts.of("unbind") == 9.0

    def test_a_caller_that_is_killed_leaves_the_lock_with_the_write(self, fifo: Path, tmp_path: Path) -> None:
        lock = tmp_path / "lock"
        program = (
            "import sys; from pathlib import Path; from vfioctl.kernel.live.host import Live\n"
            "kernel = Live()\n"
            "with kernel.exclusive(Path(sys.argv[1]), wait=0):\n"
            "    print('now', flush=True)\n"
            "    kernel.write(sys.argv[2], 'text')\n"
        )
        command = [sys.executable, "-c", program, str(lock), str(fifo)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as caller:
            assert caller.stdout is not None
            assert caller.stdout.readline() == "now\n"
            assert eventually(lambda: len(holders_of(lock)) > 1), "the writing child has it too"
            time.sleep(SOON)  # it has it before it is told to write
            caller.kill()
        (child,) = holders_of(lock)
        with pytest.raises(Busy), held(lock, wait=0):
            pytest.fail("the write is under way")
        assert drained(fifo) == b"text"
        assert eventually(lambda: has_ended(child))
        with held(lock, wait=LATE):
            pass


def read(kernel: Live, path: str) -> list[Any]:
    return [os.getpid(), kernel.read(path)]


def seen(kernel: Live, path: Path, read_one: Callable[[str], list[Any]] | None = None) -> tuple[int, str]:
    """Who read it, and its text."""
    ((_, found),) = kernel.survey(read_one or partial(read, kernel), [str(path)])
    assert isinstance(found, list)
    return found[0], found[1]


def block(_: Live, path: str) -> str:
    time.sleep(1)
    return path


def deputy_of(kernel: Live) -> Deputy | None:
    return kernel._deputy


class TestPrepared:
    """What a change will need, from the moment it is planned."""

    @pytest.fixture
    def lock(self, tmp_path: Path) -> Path:
        lock = tmp_path / "ledger.db.lock"
        lock.touch()
        return lock

    def test_one_child_reads_and_writes_from_the_plan_to_the_end(self, lock: Path, tmp_path: Path) -> None:
        (tmp_path / "a").write_text("text\n")
        kernel = live()
        kernel.prepare(lock)
        first = deputy_of(kernel)
        assert first is not None
        pid, text = seen(kernel, tmp_path / "a")
        assert text == "text"
        with kernel.exclusive(lock, wait=0):
            assert deputy_of(kernel) is first
            assert holders_of(lock) == [pid], "it has the lock too"
            kernel.write(str(tmp_path / "a"), "x")
            assert seen(kernel, tmp_path / "a") == (pid, "xext")
            with pytest.raises(Busy), held(lock, wait=0):
                pytest.fail("it is taken")
        with held(lock, wait=0):
            pass
        with kernel.exclusive(lock, wait=0):
            assert seen(kernel, tmp_path / "a") == (pid, "xext"), "it stays for the next one"
        del kernel, first
        assert eventually(lambda: has_ended(pid)), "and goes with its kernel"

    def test_what_is_no_function_of_this_kernel_alone_has_a_child_of_its_own(self, lock: Path) -> None:
        kernel = live()
        kernel.prepare(lock)
        pid, _ = seen(kernel, lock)
        for read_one in (lambda path: read(kernel, path), partial(read, live())):
            other, _ = seen(kernel, lock, read_one)
            assert other not in (pid, os.getpid())
        with kernel.exclusive(lock, wait=0):
            pass

        def all_collected() -> bool:
            call(os.getpid, deadline=LATE)  # which first collects those that have ended
            return not has_children()

        assert eventually(all_collected)

    def test_what_does_not_return_costs_its_subject_and_the_deputy(self, lock: Path) -> None:
        kernel = live()
        kernel.prepare(lock)
        ((_, found),) = kernel.survey(partial(block, kernel), [str(lock)], timeout=SOON)
        assert found == Unanswered(f"no answer after {SOON:g} s")
        assert deputy_of(kernel) is None
        with kernel.exclusive(lock, wait=0):
            kernel.write(str(lock), "x")

    def test_a_deputy_that_was_killed_costs_its_subject(self, lock: Path) -> None:
        kernel = live()
        kernel.prepare(lock)
        pid, _ = seen(kernel, lock)
        os.kill(pid, signal.SIGKILL)
        assert eventually(lambda: has_ended(pid))
        ((_, found),) = kernel.survey(partial(read, kernel), [str(lock)])
        assert found == Unanswered("the child that writes died")
        assert deputy_of(kernel) is None

    def test_one_that_is_stuck_does_not_have_the_next_lock(self, lock: Path, fifo: Path) -> None:
        kernel = live(fifo=SOON)
        kernel.prepare(lock)
        with kernel.exclusive(lock, wait=0), pytest.raises(Stuck) as caught:
            kernel.write(str(fifo), "text")
        stuck = int(str(caught.value.facts["pid"]))
        del caught  # it would keep the kernel
        kernel.prepare(lock)
        with kernel.exclusive(lock, wait=0):
            pid, _ = seen(kernel, lock)
            assert set(holders_of(lock)) == {pid, stuck}
            drained(fifo)
            assert eventually(lambda: holders_of(lock) == [pid])

    def test_a_lock_that_is_not_there_is_not_made(self, tmp_path: Path) -> None:
        kernel = live()
        kernel.prepare(tmp_path / "new/ledger.db.lock")
        assert deputy_of(kernel) is None
        assert not (tmp_path / "new").exists()

    @pytest.mark.parametrize("what", ["replaced", "another"])
    def test_another_lock_is_not_the_one(self, lock: Path, tmp_path: Path, what: str) -> None:
        kernel = live()
        kernel.prepare(lock)
        first = deputy_of(kernel)
        if what == "replaced":
            (tmp_path / "new").touch()
            (tmp_path / "new").replace(lock)
        with kernel.exclusive(lock if what == "replaced" else tmp_path / "other", wait=0):
            assert deputy_of(kernel) is not first

    def test_a_lock_that_cannot_be_had_may_be_had_later(self, lock: Path) -> None:
        kernel = live()
        kernel.prepare(lock)
        with held(lock, wait=0), pytest.raises(Busy), kernel.exclusive(lock, wait=0):
            pytest.fail("it is taken")
        first = deputy_of(kernel)
        with kernel.exclusive(lock, wait=0):
            assert deputy_of(kernel) is first
            assert eventually(lambda: holders_of(lock))

    def test_a_fork_of_the_process_has_its_own(self, lock: Path, tmp_path: Path) -> None:
        (tmp_path / "a").touch()
        kernel = live()
        kernel.prepare(lock)
        child = os.fork()
        if child == 0:
            with kernel.exclusive(lock, wait=LATE):
                kernel.write(str(tmp_path / "a"), "child")
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert (tmp_path / "a").read_text() == "child"
        with kernel.exclusive(lock, wait=0):
            kernel.write(str(tmp_path / "a"), "other")
        assert (tmp_path / "a").read_text() == "other"


def holders_of(file: Path) -> list[int]:
    """The processes that have it open."""
    found = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            links = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
        except OSError:
            continue
        if str(file) in links:
            found.append(int(pid))
    return found
