"""Work in workers that the caller can outlive: nothing is lost, nothing is kept, nothing stays behind."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from vfioctl.errors import HostError
from vfioctl.kernel.worker import client, processes, survey
from vfioctl.kernel.worker.client import ForkServer
from vfioctl.kernel.worker.job import Job, begin, call
from vfioctl.kernel.worker.processes import began_at, process_text, ticket_of
from vfioctl.kernel.worker.server import Answers
from vfioctl.kernel.worker.stall import Unreturned
from vfioctl.kernel.worker.wire import Frames, Page, send
from vfioctl.kernel.worker.workers import Maker, Reader, Workers, send_results

pytestmark = pytest.mark.alone

ROOT = Path(__file__).resolve().parents[3]
TIMEOUT = 0.8  # a busy machine may leave a worker waiting for a while
LATE = 20.0
SUBJECTS = [f"subject {number}" for number in range(150)]
Reading = Callable[[str], Any]
NOTHING: Maker = ("builtins:object", {})


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """After each test no descriptor is open that was not, and no child is there, zombies included."""
    before = set(os.listdir("/proc/self/fd"))
    yield
    assert (has_children(), set(os.listdir("/proc/self/fd")) - before) == (False, set())


@pytest.fixture(params=["forked", "executed"])
def server(request: pytest.FixtureRequest) -> Iterator[ForkServer]:
    """A fork server, begun in a process with one thread or with two; its workers all end with it."""
    server = ForkServer()
    with two_threads() if request.param == "executed" else one_thread():
        yield server
    session = server._pid
    server.close()
    assert eventually(lambda: not session or not of_session(session)), "a worker outlives its caller"


@contextmanager
def one_thread() -> Iterator[None]:
    yield


@contextmanager
def two_threads() -> Iterator[None]:
    """Another thread runs meanwhile; a signal is never for it, or Python would tell the main thread at once."""

    def wait() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        ready.set()
        done.wait()

    ready, done = threading.Event(), threading.Event()
    thread = threading.Thread(target=wait)
    thread.start()
    ready.wait()
    try:
        yield
    finally:
        done.set()
        thread.join()


def of_session(session: int) -> list[int]:
    """The processes of a fork server: it, and those that it has forked; zombies included."""
    pids = (int(name) for name in os.listdir("/proc") if name.isdecimal())
    fields = {pid: process_text(pid, "stat").rpartition(")")[2].split() for pid in pids}
    return [pid for pid, found in fields.items() if len(found) > 3 and int(found[3]) == session]


def eventually(true: Callable[[], object]) -> bool:
    until = time.monotonic() + LATE
    while time.monotonic() < until:
        if true():
            return True
        time.sleep(0.01)
    return False


def has_children() -> bool:
    """Whether there is any child, zombies included."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def open_files() -> dict[str, str]:
    """What this process has open, by descriptor."""
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            found[fd] = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:
            continue
    return found


# -- what workers do: by name ----------------------------------------------------------------------------


def same(value: object) -> object:
    return value


def long_text() -> str:
    return "é" * (3 << 20)


def block() -> None:
    time.sleep(60)


def block_stubbornly() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    block()


def end_at_once() -> None:
    os._exit(0)


def end_by_signal() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def end_politely() -> None:
    sys.exit(0)


def divide_by_zero() -> float:
    return 1 / 0


def not_plain() -> object:
    return object()


def interrupt(caller: int) -> None:
    """Ctrl-C comes while the work is under way: certainly, for it is the work that sends it."""
    os.kill(caller, signal.SIGINT)


def interrupt_thrice(caller: int, done: str) -> None:
    for _ in range(3):
        interrupt(caller)
        time.sleep(0.02)
    Path(done).touch()


def interrupt_and_block(caller: int) -> None:
    interrupt(caller)
    block()


def interrupt_itself(caller: int) -> list[bool]:
    os.kill(os.getpid(), signal.SIGINT)
    return [os.getsid(0) != os.getsid(caller)]


def say_so_and_block(answers: Answers) -> None:
    answers.send(1)
    block()


def who() -> int:
    return os.getpid()


def lengths(_: object) -> Reading:
    return len


class Blocking:
    """Reads in capitals, but blocks at some subjects."""

    def __init__(self, _: object, blocked: Sequence[str]) -> None:
        self._blocked = blocked

    def __call__(self, subject: str) -> str:
        if subject in self._blocked:
            block()
        return subject.upper()


def dying_at_seven(_: object) -> Reading:
    def read(subject: str) -> str:
        if subject.endswith("7"):
            os.kill(os.getpid(), signal.SIGKILL)
        return subject

    return read


def dividing(_: object, by: int) -> Reading:
    return lambda subject: 1 // (len(subject) - by)


def slow(_: object, pause: float) -> Reading:
    def read(subject: str) -> str:
        time.sleep(pause)
        return subject

    return read


def large(_: object) -> Reading:
    return lambda subject: subject * 100_000


def touching(_: object, folder: str) -> Reading:
    return lambda subject: Path(folder, subject).touch()


def interrupting(_: object, caller: int) -> Reading:
    return lambda subject: interrupt_and_block(caller) if subject == SUBJECTS[0] else block()


def dies_early(*_: object) -> Reading:
    os._exit(1)


class Counted:
    """Counts what it has read: each worker has its own."""

    def __init__(self, _: object) -> None:
        self._count = 0

    def __call__(self, _: str) -> int:
        self._count += 1
        return self._count


def each(server: ForkServer, reader: Reader, subjects: Sequence[str], **rest: Any) -> Iterator[tuple[str, Any]]:
    return survey.each(Workers(server, NOTHING), reader, subjects, **rest)


class TestCall:
    @pytest.mark.parametrize("result", [None, 0, "x", b"\0" * 3, [1, {"a": ("b", 2.5)}], {}, frozenset({1}), ""])
    def test_gives_the_result(self, server: ForkServer, result: object) -> None:
        assert call(server, same, result, timeout=LATE) == result

    def test_gives_a_large_result(self, server: ForkServer) -> None:
        assert call(server, long_text, timeout=LATE) == long_text()

    def test_takes_a_large_argument(self, server: ForkServer) -> None:
        assert call(server, same, long_text(), timeout=LATE) == long_text()

    def test_does_not_wait_for_what_never_returns(self, server: ForkServer) -> None:
        call(server, same, 0, timeout=LATE)
        began = time.monotonic()
        with pytest.raises(Unreturned, match=r"no answer in 0\.8 s") as caught:
            call(server, block, timeout=TIMEOUT)
        assert TIMEOUT <= time.monotonic() - began < TIMEOUT + 10
        assert caught.value.state["stat"] == "S"
        assert caught.value.pid > 0

    def test_cannot_be_held_up_by_a_worker_that_ignores_signals(self, server: ForkServer) -> None:
        with pytest.raises(Unreturned) as caught:
            call(server, block_stubbornly, timeout=TIMEOUT)
        assert eventually(lambda: not Path(f"/proc/{caught.value.pid}").exists()), "it is killed, and no zombie"

    @pytest.mark.parametrize("end", [end_at_once, end_by_signal, end_politely])
    def test_says_when_the_worker_died(self, server: ForkServer, end: Callable[[], object]) -> None:
        with pytest.raises(ChildProcessError, match="died"):
            call(server, end, timeout=LATE)

    @pytest.mark.parametrize(("work", "bug"), [(divide_by_zero, "ZeroDivisionError"), (not_plain, "unmarshallable")])
    def test_does_not_hide_a_bug(self, server: ForkServer, work: Callable[[], object], bug: str) -> None:
        with pytest.raises(RuntimeError, match=bug):
            call(server, work, timeout=LATE)

    @pytest.mark.parametrize("work", [lambda: 1, Path("x").touch])
    def test_refuses_what_has_no_name(self, server: ForkServer, work: Callable[[], object]) -> None:
        with pytest.raises((TypeError, AttributeError)):
            call(server, work, timeout=LATE)

    def test_refuses_an_argument_that_is_not_plain(self, server: ForkServer) -> None:
        with pytest.raises(ValueError, match="unmarshallable"):
            call(server, same, object(), timeout=LATE)

    def test_begun_early_and_asked_late_gives_what_came_in_time(self, server: ForkServer) -> None:
        wait = begin(server, same, "in time", timeout=0.5)
        time.sleep(1)
        assert wait() == "in time"

    def test_begun_early_is_not_waited_for_longer(self, server: ForkServer) -> None:
        wait, began = begin(server, block, timeout=0.2), time.monotonic()
        time.sleep(0.3)
        with pytest.raises(Unreturned):
            wait()
        assert time.monotonic() - began < 10

    def test_begun_and_never_waited_for_ends_with_its_caller(self, server: ForkServer) -> None:
        wait = begin(server, block, timeout=LATE)
        assert eventually(lambda: len(of_session(server._pid)) == 2)
        del wait
        assert eventually(lambda: of_session(server._pid) == [server._pid])

    def test_interrupted_sees_to_the_end_first(self, server: ForkServer, tmp_path: Path) -> None:
        with pytest.raises(KeyboardInterrupt):
            call(server, interrupt_thrice, os.getpid(), str(tmp_path / "done"), timeout=LATE)
        assert (tmp_path / "done").exists()

    def test_interrupted_and_never_returning_says_that_it_never_returned(self, server: ForkServer) -> None:
        with pytest.raises(Unreturned):
            call(server, interrupt_and_block, os.getpid(), timeout=TIMEOUT)

    @pytest.mark.parametrize("name", ["fork", "pipe", "memfd_create"])
    def test_that_cannot_be_begun_is_a_matter_of_the_host(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        def refused(*_: object) -> int:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

        server = ForkServer()
        monkeypatch.setattr(os, name, refused)
        with pytest.raises(HostError, match="no child process could be started: Resource"):
            call(server, block, timeout=LATE)
        server.close()

    def test_a_server_that_cannot_fork_says_so(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def once() -> int:
            monkeypatch.setattr(os, "fork", refused)
            return real()

        def refused() -> int:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

        server, real = ForkServer(), os.fork
        monkeypatch.setattr(os, "fork", once)
        with pytest.raises(HostError, match="no child process could be started: Resource"):
            call(server, block, timeout=LATE)
        server.close()

    def test_an_interpreter_that_is_not_there_is_a_matter_of_the_host(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "executable", "/no/such/python")
        server = ForkServer()
        with two_threads(), pytest.raises(HostError, match="no child process could be started: No such file"):
            call(server, block, timeout=LATE)

    def test_an_interpreter_that_cannot_serve_is_a_matter_of_the_host(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "executable", "/bin/true")
        server = ForkServer()
        with two_threads(), pytest.raises(HostError, match="no child process could be started"):
            call(server, block, timeout=LATE)
        server.close()

    def test_the_terminals_interrupt_does_not_reach_the_worker(self, server: ForkServer) -> None:
        assert call(server, interrupt_itself, os.getpid(), timeout=LATE) == [True]

    def test_works_where_pipes_may_not_grow(self, server: ForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
        def refused(fd: int, command: int, argument: int = 0) -> int:
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr(fcntl, "fcntl", refused)
        assert call(server, long_text, timeout=LATE) == long_text()


class TestTheWorker:
    def test_keeps_nothing_of_its_callers_open(self, server: ForkServer, tmp_path: Path) -> None:
        with (tmp_path / "held").open("w") as held, (tmp_path / "kept").open("w") as kept:
            assert not held.closed
            seen = call(server, open_files, timeout=LATE, fds=[kept.fileno()])
        assert {seen[standard] for standard in ("0", "1", "2")} == {"/dev/null"}
        assert str(tmp_path / "kept") in seen.values()
        assert str(tmp_path / "held") not in seen.values()
        others = [name for fd, name in seen.items() if fd not in "012" and name != str(tmp_path / "kept")]
        assert all(name.startswith(("pipe:", "/dev/null", "/proc/", "/memfd:vfioctl-worker")) for name in others)
        assert sum(name.startswith("pipe:") for name in others) == 1
        assert sum(name.startswith("/memfd:") for name in others) == 1

    @pytest.mark.parametrize("kept", [True, False])
    def test_holds_a_lock_only_when_told_to_keep_it(self, server: ForkServer, tmp_path: Path, kept: bool) -> None:
        lock = tmp_path / "lock"
        with lock.open("w") as first, lock.open("w") as second:
            fcntl.flock(first, fcntl.LOCK_EX)
            name = f"{__name__}:say_so_and_block"
            worker = Job(server, name, (), fds=[first.fileno()] if kept else [], reading=True)
            try:
                assert worker.receive(LATE) == [1]
                first.close()
                if kept:
                    with pytest.raises(BlockingIOError):
                        fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
                else:
                    fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
            finally:
                worker.abandon()

    def test_left_behind_does_not_keep_a_readers_pipe_open(self) -> None:
        program = (
            "from vfioctl.kernel.worker.client import ForkServer\n"
            "from vfioctl.kernel.worker.job import Unreturned, call\n"
            "import time\n"
            "try:\n    call(ForkServer(), time.sleep, 30, timeout=0.5)\n"
            "except Unreturned as late:\n    print(late.pid)\n"
        )
        program = "from vfioctl.kernel.worker import client\nclient.kill = lambda *_: True\n" + program
        began = time.monotonic()
        done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
        assert time.monotonic() - began < 10
        assert int(done.stdout) > 0

    def test_runs_no_exit_handler_and_flushes_no_buffer_of_the_caller(self, server: ForkServer, tmp_path: Path) -> None:
        file = tmp_path / "buffered"
        with file.open("w") as stream:
            stream.write("once ")
            call(server, same, 1, timeout=LATE)
        assert file.read_text() == "once "


class TestEach:
    @pytest.mark.parametrize("workers", [1, 2, 4])
    @pytest.mark.parametrize("number", [0, 1, 2, 63, 64, 65, 128, 150])
    def test_gives_every_result_in_order(self, number: int, workers: int) -> None:
        subjects, server = SUBJECTS[:number], ForkServer()
        assert list(each(server, lengths, subjects, timeout=LATE, workers=workers)) == [(s, len(s)) for s in subjects]
        server.close()

    @pytest.mark.parametrize(("stuck", "workers"), [([0], 1), ([63, 149], 1), ([0, 149], 3), ([64], 3)], ids=str)
    def test_loses_only_those_that_never_return(self, server: ForkServer, stuck: list[int], workers: int) -> None:
        blocked = [SUBJECTS[number] for number in stuck]
        began = time.monotonic()
        found = list(each(server, Blocking, SUBJECTS, args=(blocked,), timeout=TIMEOUT, workers=workers))
        assert time.monotonic() - began < len(stuck) * TIMEOUT * 1.5 + 10
        assert [subject for subject, _ in found] == SUBJECTS
        for subject, result in found:
            if subject in blocked:
                assert isinstance(result, Unreturned)
            else:
                assert result == subject.upper()

    @pytest.mark.parametrize("workers", [1, 4])
    def test_loses_only_those_whose_reader_died(self, server: ForkServer, workers: int) -> None:
        found = list(each(server, dying_at_seven, SUBJECTS, timeout=LATE, workers=workers))
        assert [subject for subject, _ in found] == SUBJECTS
        for subject, result in found:
            assert isinstance(result, ChildProcessError) if subject.endswith("7") else result == subject

    def test_does_not_hide_a_bug(self, server: ForkServer) -> None:
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            list(each(server, dividing, SUBJECTS, args=(len(SUBJECTS[20]),), timeout=LATE, workers=2))

    def test_gives_up_on_workers_that_do_no_work(self, server: ForkServer) -> None:
        with pytest.raises(RuntimeError, match="die before they read anything"):
            list(each(server, dies_early, SUBJECTS, timeout=LATE))

    def test_a_slow_subject_is_waited_for_while_others_progress(self, server: ForkServer) -> None:
        subjects = SUBJECTS[:5]
        found = each(server, slow, subjects, args=(TIMEOUT / 4,), timeout=TIMEOUT)
        assert [result for _, result in found] == subjects

    def test_gives_large_results(self, server: ForkServer) -> None:
        found = dict(each(server, large, SUBJECTS[:8], timeout=LATE))
        assert found == {subject: subject * 100_000 for subject in SUBJECTS[:8]}

    def test_each_worker_has_one_reader_for_all_its_subjects(self, server: ForkServer) -> None:
        found = [count for _, count in each(server, Counted, SUBJECTS, timeout=LATE, workers=2)]
        assert found == [*range(1, 76)] * 2

    def test_is_at_work_before_the_first_result_is_asked_for(self, server: ForkServer, tmp_path: Path) -> None:
        results = each(server, touching, ["done"], args=(str(tmp_path),), timeout=LATE)
        assert eventually((tmp_path / "done").exists)
        assert list(results) == [("done", None)]

    def test_interrupted_leaves_no_worker_behind(self) -> None:
        server = ForkServer()
        with pytest.raises(KeyboardInterrupt):
            list(each(server, interrupting, SUBJECTS, args=(os.getpid(),), timeout=LATE, workers=3))
        assert eventually(lambda: of_session(server._pid) == [server._pid])
        server.close()

    def test_never_asked_for_leaves_no_worker_behind(self, server: ForkServer) -> None:
        results = each(server, Blocking, SUBJECTS, args=(SUBJECTS,), timeout=LATE, workers=3)
        assert eventually(lambda: len(of_session(server._pid)) == 4)
        del results
        assert eventually(lambda: of_session(server._pid) == [server._pid])


class TestTheServer:
    def test_is_one_for_all_jobs(self, server: ForkServer) -> None:
        workers = {call(server, who, timeout=LATE) for _ in range(5)}
        assert len(workers) == 5
        assert eventually(lambda: of_session(server._pid) == [server._pid]), "it collects what it forked"

    def test_killed_is_replaced(self, server: ForkServer) -> None:
        call(server, who, timeout=LATE)
        for _ in range(3):
            killed = server._pid
            os.kill(killed, signal.SIGKILL)
            assert call(server, who, timeout=LATE) > 0
            assert server._pid != killed
            assert not process_text(killed, "stat"), "a zombie"

    def test_killed_costs_no_reader_that_it_has_forked(self, server: ForkServer) -> None:
        results = each(server, slow, SUBJECTS[:3], args=(0.3,), timeout=LATE)
        assert eventually(lambda: len(of_session(server._pid)) == 2)
        os.kill(server._pid, signal.SIGKILL)
        assert [result for _, result in results] == SUBJECTS[:3]
        assert call(server, same, 1, timeout=LATE) == 1

    def test_killed_the_reader_that_it_leaves_can_be_given_up(self, server: ForkServer) -> None:
        results = each(server, Blocking, SUBJECTS[:2], args=(SUBJECTS[:1],), timeout=TIMEOUT)
        assert eventually(lambda: len(of_session(server._pid)) == 2)
        (left,) = set(of_session(server._pid)) - {server._pid}
        os.kill(server._pid, signal.SIGKILL)
        (_, first), (_, second) = results
        assert (isinstance(first, Unreturned), second) == (True, SUBJECTS[1].upper())
        assert eventually(lambda: not began_at(left))

    def test_stopped_a_request_that_it_never_took_is_made_again(self, server: ForkServer) -> None:
        call(server, who, timeout=LATE)
        stopped = server._pid
        os.kill(stopped, signal.SIGSTOP)
        wait, results = begin(server, same, 7, timeout=LATE), each(server, lengths, SUBJECTS, timeout=LATE)
        os.kill(stopped, signal.SIGKILL)
        assert wait() == 7
        assert [result for _, result in results] == [len(subject) for subject in SUBJECTS]

    def test_that_always_dies_is_given_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("vfioctl.kernel.worker.server._Server.serve", dies_early)
        server = ForkServer()
        for ask in (lambda: call(server, same, 1, timeout=LATE), lambda: list(each(server, lengths, ["x"], timeout=9))):
            with pytest.raises(HostError, match="no child process could be started"):
                ask()
        server.close()

    def test_a_fork_of_the_process_has_its_own(self, server: ForkServer) -> None:
        call(server, who, timeout=LATE)
        parents = server._pid
        child = os.fork()
        if child == 0:
            fine = server._pid == 0 and call(server, same, 1, timeout=LATE) == 1 and server._pid not in (0, parents)
            os._exit(0 if fine else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert server._pid == parents
        assert call(server, same, 2, timeout=LATE) == 2

    def test_ends_though_a_fork_of_its_caller_goes_on(self) -> None:
        server = ForkServer()
        call(server, who, timeout=LATE)
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        began = time.monotonic()
        server.close()
        assert time.monotonic() - began < 1
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)

    @pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL])
    def test_works_whatever_its_caller_does_with_ended_children(self, handler: signal.Handlers) -> None:
        before, server = signal.signal(signal.SIGCHLD, handler), ForkServer()
        try:
            assert [call(server, same, n, timeout=LATE) for n in range(3)] == [0, 1, 2]
            with pytest.raises(Unreturned) as caught:
                call(server, block, timeout=TIMEOUT)
            assert eventually(lambda: not Path(f"/proc/{caught.value.pid}").exists())
            server.close()
        finally:
            signal.signal(signal.SIGCHLD, before)

    def test_serves_a_caller_with_many_open_files(self) -> None:
        server = ForkServer()
        spare = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
        try:
            assert call(server, same, 1, timeout=LATE) == 1
            assert dict(each(server, lengths, ["ab"], timeout=LATE)) == {"ab": 2}
        finally:
            for fd in spare:
                os.close(fd)
            server.close()


class TestInThisProcess:
    """What otherwise runs in a worker, where nothing measures it."""

    def test_results_are_sent_in_batches(self) -> None:
        receiving, sending = os.pipe()
        fd, page = Page.create((), reading=True)
        send_results(Answers(sending, page), len, SUBJECTS, [SUBJECTS[3]])
        sent = [value for _, value in Frames().add(os.read(receiving, 1 << 16))]
        expected: list[object] = [len(subject) for subject in SUBJECTS]
        expected[3] = None
        assert sent == [expected[:64], expected[64:128], expected[128:]]
        assert page.at == len(SUBJECTS) - 1
        page.close()
        for each_fd in (receiving, sending, fd):
            os.close(each_fd)

    def test_a_worker_that_was_kept_from_its_work_is_no_bug(self, server: ForkServer) -> None:
        shard = survey._Shard(Workers(server, NOTHING), f"{__name__}:lengths", (), SUBJECTS[:3], LATE)
        late = Unreturned(0, 1)
        for lost in (SUBJECTS[:1], SUBJECTS[:2], SUBJECTS[:3], SUBJECTS[:3]):
            shard._job.page.at = 0
            shard._lose(late)
            assert list(shard._lost) == lost
        with pytest.raises(RuntimeError, match="die before they read anything"):
            shard._lose(ChildProcessError("x"))
        shard.abandon()

    def test_what_is_sent_in_pieces_is_received_whole(self) -> None:
        receiving, sending = os.pipe()
        send(sending, ["a", 1])
        send(sending, {"b": None})
        whole, frames, found = os.read(receiving, 1 << 16), Frames(), list[object]()
        for piece in (whole[:3], whole[3:20], whole[20:-1], whole[-1:]):
            found += frames.add(piece)
        assert found == [["a", 1], {"b": None}]
        os.close(sending)
        os.close(receiving)

    def test_a_process_is_killed_by_its_number_and_its_beginning_only(self) -> None:
        with subprocess.Popen(["sleep", "60"]) as child:
            for began in (0, began_at(child.pid) + 1):
                processes.kill(child.pid, began)
                assert child.poll() is None
            processes.kill(child.pid, began_at(child.pid))
            assert child.wait(LATE) == -signal.SIGKILL
        processes.kill(child.pid, 1)

    def test_a_process_that_is_not_there_began_never(self) -> None:
        assert (process_text(1 << 30, "stat"), began_at(1 << 30), ticket_of(1 << 30)) == ("", 0, f"{1 << 30}:")

    def test_a_child_that_somebody_else_collected_is_forgotten(self) -> None:
        client._uncollected.append(1 << 30)
        server = ForkServer()
        call(server, same, 1, timeout=LATE)
        assert client._uncollected == []
        server.close()
