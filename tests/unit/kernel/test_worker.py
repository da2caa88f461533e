"""Writes and reads in write workers: a FIFO that nobody reads stands for a write that does not return."""

from __future__ import annotations

import errno
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.unit.kernel.test_jobs import NOTHING, eventually, has_children, of_session, open_files
from vfioctl.errors import Busy, HostError, KernelRefused, Stuck
from vfioctl.kernel.live.host import Live
from vfioctl.kernel.lock import held
from vfioctl.kernel.protocol import Unanswered, per_subject
from vfioctl.kernel.timeouts import Timeouts
from vfioctl.kernel.worker import job, wire
from vfioctl.kernel.worker.client import ForkServer
from vfioctl.kernel.worker.processes import RETURNED, process_text, ticket_of, write_ended
from vfioctl.kernel.worker.stall import Unreturned
from vfioctl.kernel.worker.workers import Worker

pytestmark = pytest.mark.alone

ROOT = Path(__file__).resolve().parents[3]
SOON, LATE = 0.4, 20.0
"""Seconds: after which a write is given up here; and that nothing takes, on the busiest machine."""


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """No descriptor stays open, and no child is ours, zombies included."""
    gc.collect()  # what earlier tests have left is not this one's
    before = open_files()
    yield
    gc.collect()  # a traceback may have kept a kernel
    assert open_files().keys() == before.keys()
    assert not has_children()


@pytest.fixture
def server() -> Iterator[ForkServer]:
    server = ForkServer()
    yield server
    server.close()


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


def started(worker: Worker) -> None:
    assert eventually(lambda: worker.job.pid)


class TestWorker:
    def test_one_process_does_all_writes(self, server: ForkServer, tmp_path: Path) -> None:
        (tmp_path / "a").touch()
        worker = Worker(server, NOTHING)
        for text in ("one", "two", "\n", "é"):
            assert worker.write(str(tmp_path / "a"), text, timeout=LATE) == 0
        pid = worker.job.pid
        assert (tmp_path / "a").read_bytes() == b"\xc3\xa9o", "each is written over the one before, as to sysfs"
        worker.close()
        assert eventually(lambda: has_ended(pid))

    @pytest.mark.parametrize(
        ("path", "number"),
        [("/no/such/file", errno.ENOENT), ("/proc", errno.EISDIR), ("/proc/sys/kernel/ostype", errno.EACCES)],
    )
    def test_an_errno_is_told_and_it_goes_on(self, server: ForkServer, tmp_path: Path, path: str, number: int) -> None:
        worker = Worker(server, NOTHING)
        told = worker.write(path, "x", timeout=LATE)
        assert told in (number, errno.EROFS, errno.EPERM)
        (tmp_path / "a").touch()
        assert worker.write(str(tmp_path / "a"), "x", timeout=LATE) == 0
        worker.close()

    def test_it_is_the_fork_servers_child(self, server: ForkServer) -> None:
        worker = Worker(server, NOTHING)
        started(worker)
        parent = int(process_text(worker.job.pid, "stat").rpartition(")")[2].split()[1])
        assert parent == server._pid
        worker.close()
        assert eventually(lambda: of_session(server._pid) == [server._pid]), "which collects it"

    def test_it_outlives_the_fork_server_while_it_writes(self, server: ForkServer, fifo: Path, tmp_path: Path) -> None:
        worker = Worker(server, NOTHING)
        with pytest.raises(Unreturned) as caught:
            worker.write(str(fifo), "text", timeout=SOON, verdicts=tmp_path / "verdicts")
        ticket = ticket_of(caught.value.pid)
        worker.close()
        server.close()
        time.sleep(0.2)
        assert write_ended(ticket, tmp_path / "verdicts") is None
        assert drained(fifo) == b"text"
        assert eventually(lambda: write_ended(ticket, tmp_path / "verdicts") == RETURNED)

    def test_it_outlives_a_fork_server_that_was_killed(self, server: ForkServer, tmp_path: Path) -> None:
        (tmp_path / "a").touch()
        worker = Worker(server, NOTHING)
        assert worker.write(str(tmp_path / "a"), "x", timeout=LATE) == 0
        os.kill(server._pid, signal.SIGKILL)
        assert worker.write(str(tmp_path / "a"), "y", timeout=LATE) == 0
        worker.close()

    def test_an_answer_that_nobody_took_is_its_verdict(self, server: ForkServer, fifo: Path, tmp_path: Path) -> None:
        """It returned between the timeout and the moment that it was given up."""
        worker = Worker(server, NOTHING)
        with pytest.raises(Unreturned) as caught:
            worker.write(str(fifo), "text", timeout=SOON, verdicts=tmp_path / "verdicts")
        ticket = ticket_of(caught.value.pid)
        assert drained(fifo) == b"text"
        assert eventually(lambda: worker.job.has_ended), "it has answered"
        worker.close()
        assert eventually(lambda: write_ended(ticket, tmp_path / "verdicts") == RETURNED)

    def test_a_write_that_does_not_return_is_given_up_in_time_and_not_killed(
        self, server: ForkServer, fifo: Path, tmp_path: Path
    ) -> None:
        verdicts = tmp_path / "verdicts"
        worker, began = Worker(server, NOTHING), time.monotonic()
        with pytest.raises(Unreturned) as caught:
            worker.write(str(fifo), "text", timeout=SOON, verdicts=verdicts)
        assert SOON <= time.monotonic() - began < SOON + 10
        ticket = ticket_of(caught.value.pid)
        worker.close()
        assert write_ended(ticket, verdicts) is None
        time.sleep(0.1)
        assert ticket_of(caught.value.pid) == ticket, "it is still there"
        assert not verdicts.exists()
        assert drained(fifo) == b"text"
        assert eventually(lambda: write_ended(ticket, verdicts) == RETURNED)
        assert eventually(lambda: has_ended(caught.value.pid)), "and it ends by itself"
        assert verdicts.stat().st_mode & 0o777 == 0o600

    def test_an_errno_that_comes_late_is_its_verdict(self, server: ForkServer, fifo: Path, tmp_path: Path) -> None:
        verdicts, full = tmp_path / "verdicts", os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
        with suppress(BlockingIOError):
            while os.write(full, b"x" * 4096):
                pass
        worker = Worker(server, NOTHING)
        with pytest.raises(Unreturned) as caught:
            worker.write(str(fifo), "text", timeout=SOON, verdicts=verdicts)
        ticket = ticket_of(caught.value.pid)
        worker.close()
        os.close(full)  # the last who could have read it
        assert eventually(lambda: write_ended(ticket, verdicts) == "EPIPE")

    @pytest.mark.parametrize("verdicts", ["none", "no/such/folder/x", "link"])
    def test_where_it_cannot_say_so_its_end_is_all_there_is(
        self, server: ForkServer, fifo: Path, tmp_path: Path, verdicts: str
    ) -> None:
        (tmp_path / "target").touch()
        (tmp_path / "link").symlink_to(tmp_path / "target")
        place = None if verdicts == "none" else tmp_path / verdicts
        worker = Worker(server, NOTHING)
        with pytest.raises(Unreturned) as caught:
            worker.write(str(fifo), "text", timeout=SOON, verdicts=place)
        ticket = ticket_of(caught.value.pid)
        worker.close()
        assert write_ended(ticket, place) is None
        drained(fifo)
        assert eventually(lambda: write_ended(ticket, place) == "unknown")
        assert (tmp_path / "target").read_bytes() == b"", "no link is followed"

    def test_a_child_that_was_killed_is_told(self, server: ForkServer, tmp_path: Path) -> None:
        (tmp_path / "a").touch()
        worker = Worker(server, NOTHING)
        started(worker)
        os.kill(worker.job.pid, signal.SIGKILL)
        assert eventually(lambda: has_ended(worker.job.pid))
        with pytest.raises(ChildProcessError, match="died"):
            worker.write(str(tmp_path / "a"), "x", timeout=LATE)
        worker.close()

    def test_a_ctrl_c_is_heard_when_the_write_has_ended(self, server: ForkServer, fifo: Path) -> None:
        def later() -> None:
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.2)
            text.append(drained(fifo))

        text: list[bytes] = []
        worker, thread = Worker(server, NOTHING), threading.Thread(target=later)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            worker.write(str(fifo), "text", timeout=LATE)
        thread.join()
        worker.close()
        assert text == [b"text"]

    def test_no_descriptor_can_be_had(self, server: ForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
        def none_left(*_: object) -> int:
            raise OSError(errno.EMFILE, "Too many open files")

        monkeypatch.setattr(wire, "pair", none_left)
        monkeypatch.setattr(job, "pair", none_left)
        with pytest.raises(HostError, match="no child process could be started"):
            Worker(server, NOTHING)

    def test_a_read_that_does_not_return_is_killed(self, server: ForkServer, fifo: Path) -> None:
        worker = Worker(server, NOTHING)
        worker.begin_reading(f"{__name__}:block", (), [str(fifo)])
        started(worker)
        pid = worker.job.pid
        assert worker.job.receive(SOON) == []
        worker.close()
        assert eventually(lambda: has_ended(pid))

    def test_a_lock_is_held_as_long_as_a_write_and_no_longer(
        self, server: ForkServer, fifo: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "a").touch()
        worker, lock = Worker(server, NOTHING), os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
        assert worker.write(str(tmp_path / "a"), "x", timeout=LATE, locks=[lock]) == 0
        assert eventually(lambda: holders_of(tmp_path / "lock") == [])
        with pytest.raises(Unreturned) as caught:
            worker.write(str(fifo), "x", timeout=SOON, locks=[lock])
        os.close(lock)
        assert holders_of(tmp_path / "lock") == [caught.value.pid]
        worker.close()
        drained(fifo)
        assert eventually(lambda: holders_of(tmp_path / "lock") == [])


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


# -- behind the protocol ---------------------------------------------------------------------------------


def live(**seconds: float) -> Live:
    return Live(timeouts=Timeouts(default=LATE, steps=seconds))


class TestLive:
    def test_one_process_does_all_writes_and_lone_reads(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_text("text\n")
        kernel = live()
        pid, text = seen(kernel, tmp_path / "a")
        assert text == "text"
        kernel.write(str(tmp_path / "a"), "x")
        with kernel.exclusive(tmp_path / "lock", wait=0):
            kernel.write(str(tmp_path / "a"), "y")
            assert seen(kernel, tmp_path / "a") == (pid, "yext")
            with pytest.raises(Busy), held(tmp_path / "lock", wait=0):
                pytest.fail("it is taken")
        assert seen(kernel, tmp_path / "a") == (pid, "yext"), "it stays for the next one"
        del kernel
        assert eventually(lambda: has_ended(pid)), "and goes with its kernel"

    def test_a_refused_write_says_so(self, tmp_path: Path) -> None:
        kernel = live()
        with pytest.raises(KernelRefused) as caught:
            kernel.write(str(tmp_path / "b"), "x")
        assert (caught.value.symbol, caught.value.text) == ("ENOENT", "x")

    def test_a_lone_read_begins_at_once_and_holds_up_no_write(self, tmp_path: Path) -> None:
        (tmp_path / "a").touch()
        kernel = live()
        answers = kernel.survey(touched, [str(tmp_path / "done")])
        assert eventually((tmp_path / "done").exists)
        kernel.write(str(tmp_path / "a"), "x")
        assert [answer for _, answer in answers] == ["there"]

    def test_a_lone_read_that_is_never_asked_for_ends(self, tmp_path: Path) -> None:
        kernel = live()
        answers = kernel.survey(block, [str(tmp_path)])
        assert eventually(lambda: len(of_session(kernel._workers.server._pid)) == 2)
        del answers
        assert eventually(lambda: len(of_session(kernel._workers.server._pid)) == 1)

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
            kernel.write(str(tmp_path / "a"), "x")  # by another worker
        with held(lock, wait=0):
            pass  # unlocked by name, though the worker still has it open
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

    def test_one_that_is_stuck_does_not_have_the_next_lock(self, fifo: Path, tmp_path: Path) -> None:
        kernel, lock = live(fifo=SOON), tmp_path / "lock"
        with kernel.exclusive(lock, wait=0), pytest.raises(Stuck) as caught:
            kernel.write(str(fifo), "text")
        stuck = int(str(caught.value.facts["pid"]))
        del caught  # it would keep the kernel
        with kernel.exclusive(lock, wait=0):
            assert holders_of(lock) == [stuck]
            drained(fifo)
            assert eventually(lambda: holders_of(lock) == [])

    def test_the_timeout_of_another_file_is_its_own(self) -> None:
        timeouts = Timeouts(default=5.0, steps={"unbind": 9.0})
        assert timeouts.of("/sys/bus/pci/drivers/nvidia/unbind") == 9.0
        assert timeouts.of("/sys/bus/pci/drivers_probe") == 5.0
        assert timeouts.of("unbind") == 9.0

    def test_a_read_that_does_not_return_costs_its_subject_and_its_worker(self, tmp_path: Path) -> None:
        kernel = live()
        pid, _ = seen(kernel, tmp_path)
        ((_, found),) = kernel.survey(block, [str(tmp_path)], timeout=SOON)
        assert found == Unanswered(f"no answer in {SOON:g} s")
        assert eventually(lambda: has_ended(pid)), "it only read, so it is killed"
        assert seen(kernel, tmp_path)[0] != pid

    def test_a_worker_that_was_killed_while_it_was_idle_costs_nothing(self, tmp_path: Path) -> None:
        (tmp_path / "a").touch()
        kernel = live()
        for again in (lambda: seen(kernel, tmp_path), lambda: kernel.write(str(tmp_path / "a"), "x")):
            pid, _ = seen(kernel, tmp_path)
            os.kill(pid, signal.SIGKILL)
            assert eventually(lambda pid=pid: has_ended(pid))  # type: ignore[misc] # a default
            again()

    def test_a_worker_that_dies_while_it_reads_costs_its_subject(self, tmp_path: Path) -> None:
        ((_, found),) = live().survey(dying, [str(tmp_path)])
        assert found == Unanswered("the process that read it died")

    def test_a_bug_of_a_reader_is_raised_and_the_next_read_goes_on(self, tmp_path: Path) -> None:
        kernel = live()
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            list(kernel.survey(wrong, [str(tmp_path)]))
        assert seen(kernel, tmp_path)

    def test_a_lock_that_cannot_be_had_may_be_had_later(self, tmp_path: Path) -> None:
        kernel, lock = live(), tmp_path / "lock"
        with held(lock, wait=0), pytest.raises(Busy), kernel.exclusive(lock, wait=0):
            pytest.fail("it is taken")
        with kernel.exclusive(lock, wait=0), pytest.raises(Busy), held(lock, wait=0):
            pytest.fail("it is taken")

    def test_a_fork_of_the_process_has_its_own(self, tmp_path: Path) -> None:
        (tmp_path / "a").touch()
        kernel, lock = live(), tmp_path / "lock"
        pid, _ = seen(kernel, tmp_path)
        child = os.fork()
        if child == 0:
            with kernel.exclusive(lock, wait=LATE):
                kernel.write(str(tmp_path / "a"), "child")
            os._exit(seen(kernel, tmp_path)[0] == pid)
        assert os.waitpid(child, 0)[1] == 0
        assert (tmp_path / "a").read_text() == "child"
        with kernel.exclusive(lock, wait=0):
            kernel.write(str(tmp_path / "a"), "other")
        assert (tmp_path / "a").read_text() == "other"
        assert seen(kernel, tmp_path)[0] == pid

    def test_closed_it_can_be_used_again(self, tmp_path: Path) -> None:
        kernel = live()
        pid, _ = seen(kernel, tmp_path)
        kernel.close()
        kernel.close()
        assert has_ended(pid)
        assert seen(kernel, tmp_path)[0] != pid

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
            time.sleep(SOON)
            assert len(holders_of(lock)) == 2, "the write has it too"
            caller.kill()
        (child,) = holders_of(lock)
        with pytest.raises(Busy), held(lock, wait=0):
            pytest.fail("the write is under way")
        assert eventually(lambda: len(of_session(session_of(child))) == 1), "nothing else is left"
        assert drained(fifo) == b"text"
        assert eventually(lambda: has_ended(child))
        assert json.loads(lock.with_suffix(".verdicts").read_text())["said"] == RETURNED
        with held(lock, wait=LATE):
            pass


def session_of(pid: int) -> int:
    return int(process_text(pid, "stat").rpartition(")")[2].split()[3])


def seen(kernel: Live, path: Path) -> tuple[int, str]:
    """Who read it, and its text."""
    ((_, found),) = kernel.survey(read, [str(path)])
    assert isinstance(found, list)
    return found[0], found[1]


# -- what workers do: by name ----------------------------------------------------------------------------


@per_subject
def read(kernel: Live, path: str) -> list[Any]:
    return [os.getpid(), kernel.read(path) if kernel.has(path) and not Path(path).is_dir() else ""]


@per_subject
def block(_: object, path: str) -> str:
    time.sleep(60)
    return path


@per_subject
def touched(_: object, path: str) -> str:
    Path(path).touch()
    return "there"


@per_subject
def dying(_: object, path: str) -> str:
    os.kill(os.getpid(), signal.SIGKILL)
    return path


@per_subject
def wrong(_: object, path: str) -> float:
    return 1 / (len(path) - len(path))


def holders_of(file: Path) -> list[int]:
    """The other processes that have it open."""
    found = []
    others = (pid for pid in os.listdir("/proc") if pid.isdecimal() and int(pid) != os.getpid())
    for pid in others:
        with suppress(OSError):
            for fd in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError):  # closed meanwhile; the others count
                    if os.readlink(f"/proc/{pid}/fd/{fd}") == str(file):
                        found.append(int(pid))
                        break
    return found
