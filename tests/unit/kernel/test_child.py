"""Work in a child that the caller can outlive: nothing is lost, nothing is kept, nothing stays behind."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from vfioctl.errors import HostError
from vfioctl.kernel.worker import child as expendable
from vfioctl.kernel.worker import survey
from vfioctl.kernel.worker.child import Unreturned, call
from vfioctl.kernel.worker.survey import each

pytestmark = pytest.mark.alone

TIMEOUT = 0.8  # a busy machine may leave a child waiting for a while
SUBJECTS = [f"subject {number}" for number in range(150)]


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """After each test no descriptor is open that was not, and a later call has collected every child."""
    before = set(os.listdir("/proc/self/fd"))
    yield
    extra = set(os.listdir("/proc/self/fd")) - before
    until = time.monotonic() + 5
    while has_children() and time.monotonic() < until:
        call(lambda: 1, deadline=5)
    left, expendable._abandoned[:] = [has_children(), *expendable._abandoned], []
    with suppress(ChildProcessError):  # so that no other test suffers
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    assert (left, extra) == ([False], set())


def has_children() -> bool:
    """Whether there is any child, zombies included."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def block() -> None:
    time.sleep(60)


def say_so_and_block(send: Callable[[object], None]) -> None:
    send(1)
    block()


def interrupt_the_parent() -> None:
    """Ctrl-C comes while the work is under way: certainly, for it is the work that sends it."""
    os.kill(os.getppid(), signal.SIGINT)


def open_files() -> dict[str, str]:
    """What this process has open, by descriptor."""
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            found[fd] = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:
            continue
    return found


class TestCall:
    @pytest.mark.parametrize("result", [None, 0, "x", b"\0" * 3, [1, {"a": ("b", 2.5)}], {}, frozenset({1}), ""])
    def test_gives_the_result(self, result: object) -> None:
        assert call(lambda: result, deadline=5) == result

    def test_gives_a_large_result(self) -> None:
        assert call(lambda: "é" * (3 << 20), deadline=20) == "é" * (3 << 20)

    def test_does_not_wait_for_what_never_returns(self) -> None:
        began = time.monotonic()
        with pytest.raises(Unreturned, match=r"no answer after 0\.8 s") as caught:
            call(block, deadline=TIMEOUT)
        assert TIMEOUT <= time.monotonic() - began < TIMEOUT + 10
        assert caught.value.state["stat"] == "S"
        assert caught.value.pid > 0

    def test_cannot_be_held_up_by_a_child_that_ignores_signals(self) -> None:
        def stubborn() -> None:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            block()

        with pytest.raises(Unreturned):
            call(stubborn, deadline=TIMEOUT)

    @pytest.mark.parametrize(
        "end", [lambda: os._exit(0), lambda: os.kill(os.getpid(), signal.SIGKILL), lambda: sys.exit(0)]
    )
    def test_says_when_the_child_died(self, end: Callable[[], object]) -> None:
        with pytest.raises(ChildProcessError, match="died"):
            call(end, deadline=20)

    @pytest.mark.parametrize(("work", "bug"), [(lambda: 1 // 0, "ZeroDivisionError"), (object, "unmarshallable")])
    def test_does_not_hide_a_bug(self, work: Callable[[], object], bug: str) -> None:
        with pytest.raises(RuntimeError, match=bug):
            call(work, deadline=20)

    def test_begun_early_and_asked_late_gives_what_came_in_time(self) -> None:
        wait = expendable.begin(lambda: "in time", deadline=0.5)
        time.sleep(1)
        assert wait() == "in time"

    def test_begun_early_is_not_waited_for_longer(self) -> None:
        wait, began = expendable.begin(block, deadline=0.2), time.monotonic()
        time.sleep(0.3)
        with pytest.raises(Unreturned):
            wait()
        assert time.monotonic() - began < 10

    def test_interrupted_sees_to_the_end_first(self, tmp_path: Path) -> None:
        done = tmp_path / "done"

        def work() -> None:
            for _ in range(3):
                interrupt_the_parent()
                time.sleep(0.02)
            done.touch()

        with pytest.raises(KeyboardInterrupt):
            call(work, deadline=20)
        assert done.exists()

    def test_interrupted_and_never_returning_says_that_it_never_returned(self) -> None:
        with pytest.raises(Unreturned):
            call(lambda: (interrupt_the_parent(), block()), deadline=TIMEOUT)  # type: ignore[func-returns-value] # both

    @pytest.mark.parametrize("name", ["fork", "pipe"])
    def test_that_cannot_be_begun_is_a_matter_of_the_host(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        def refused() -> int:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

        monkeypatch.setattr(os, name, refused)
        with pytest.raises(HostError, match="no child process could be started: Resource"):
            call(block, deadline=20)

    def test_the_terminals_interrupt_does_not_reach_the_child(self) -> None:
        def work() -> list[object]:
            os.kill(os.getpid(), signal.SIGINT)
            return [os.getsid(0) == os.getpid()]

        assert call(work, deadline=20) == [True]

    def test_works_where_pipes_may_not_grow(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refused(fd: int, command: int, argument: int = 0) -> int:
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr(fcntl, "fcntl", refused)
        assert call(lambda: "x" * (3 << 20), deadline=20) == "x" * (3 << 20)


class TestTheChild:
    def test_keeps_nothing_of_its_parents_open(self, tmp_path: Path) -> None:
        with (tmp_path / "held").open("w") as held, (tmp_path / "kept").open("w") as kept:
            assert not held.closed
            seen = call(open_files, deadline=20, keep=[kept.fileno()])
        assert {seen[standard] for standard in ("0", "1", "2")} == {"/dev/null"}
        assert str(tmp_path / "kept") in seen.values()
        assert str(tmp_path / "held") not in seen.values()
        others = [name for fd, name in seen.items() if fd not in "012" and name != str(tmp_path / "kept")]
        assert all(name.startswith(("pipe:", "/dev/null", "/proc/")) for name in others)
        assert sum(name.startswith("pipe:") for name in others) == 1

    @pytest.mark.parametrize("kept", [True, False])
    def test_holds_a_lock_only_when_told_to_keep_it(self, tmp_path: Path, kept: bool) -> None:
        lock = tmp_path / "lock"
        with lock.open("w") as first, lock.open("w") as second:
            fcntl.flock(first, fcntl.LOCK_EX)
            child = expendable.Child(say_so_and_block, [first.fileno()] if kept else [])
            try:
                assert child.receive(5) == [1]
                first.close()
                if kept:
                    with pytest.raises(BlockingIOError):
                        fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
                else:
                    fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
            finally:
                child.abandon()

    def test_left_behind_does_not_keep_a_readers_pipe_open(self) -> None:
        program = (
            "from vfioctl.kernel.worker.child import call, Unreturned\nimport signal, time\n"
            "def work():\n    time.sleep(30)\n"
            "import os\nos.kill = lambda *a: None\n"  # the child lives on, as in state D
            "try:\n    call(work, deadline=0.1)\nexcept Unreturned as late:\n    print(late.pid)\n"
        )
        began = time.monotonic()
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        os.kill(int(done.stdout), signal.SIGKILL)
        assert time.monotonic() - began < 10

    def test_runs_no_exit_handler_and_flushes_no_buffer_of_the_parent(self, tmp_path: Path) -> None:
        file = tmp_path / "buffered"
        with file.open("w") as stream:
            stream.write("once ")
            call(lambda: 1, deadline=20)
        assert file.read_text() == "once "


class TestEach:
    @pytest.mark.parametrize("children", [1, 2, 4])
    @pytest.mark.parametrize("number", [0, 1, 2, 63, 64, 65, 128, 150])
    def test_gives_every_result_in_order(self, number: int, children: int) -> None:
        subjects = SUBJECTS[:number]
        assert list(each(len, subjects, timeout=20, children=children)) == [(s, len(s)) for s in subjects]

    @pytest.mark.parametrize(("stuck", "children"), [([0], 1), ([63, 149], 1), ([0, 149], 3), ([64], 3)], ids=str)
    def test_loses_only_those_that_never_return(self, stuck: list[int], children: int) -> None:
        blocked = {SUBJECTS[number] for number in stuck}

        def work(subject: str) -> str:
            if subject in blocked:
                block()
            return subject.upper()

        began = time.monotonic()
        found = list(each(work, SUBJECTS, timeout=TIMEOUT, children=children))
        assert time.monotonic() - began < len(stuck) * TIMEOUT * 1.5 + 10
        assert [subject for subject, _ in found] == SUBJECTS
        for subject, result in found:
            if subject in blocked:
                assert isinstance(result, Unreturned)
            else:
                assert result == subject.upper()

    @pytest.mark.parametrize("children", [1, 4])
    def test_loses_only_those_whose_reader_died(self, children: int) -> None:
        def work(subject: str) -> str:
            if subject.endswith("7"):
                os.kill(os.getpid(), signal.SIGKILL)
            return subject

        found = list(each(work, SUBJECTS, timeout=20, children=children))
        assert [subject for subject, _ in found] == SUBJECTS
        for subject, result in found:
            assert isinstance(result, ChildProcessError) if subject.endswith("7") else result == subject

    def test_does_not_hide_a_bug(self) -> None:
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            list(each(lambda subject: 1 // (len(subject) - len(SUBJECTS[20])), SUBJECTS, timeout=20, children=2))

    def test_gives_up_on_children_that_do_no_work(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(survey._Shard, "_go_through", lambda *_: os._exit(1))
        with pytest.raises(RuntimeError, match="die without work"):
            list(each(len, SUBJECTS, timeout=20))

    def test_a_slow_subject_is_waited_for_while_others_progress(self) -> None:
        def work(subject: str) -> str:
            time.sleep(TIMEOUT / 4)
            return subject

        subjects = SUBJECTS[:5]
        assert [result for _, result in each(work, subjects, timeout=TIMEOUT)] == subjects

    def test_gives_large_results(self) -> None:
        found = dict(each(lambda subject: subject * 100_000, SUBJECTS[:8], timeout=20))
        assert found == {subject: subject * 100_000 for subject in SUBJECTS[:8]}

    def test_is_at_work_before_the_first_result_is_asked_for(self, tmp_path: Path) -> None:
        results = each(lambda subject: (tmp_path / subject).touch(), ["done"], timeout=20)
        until = time.monotonic() + 10
        while not (tmp_path / "done").exists() and time.monotonic() < until:
            time.sleep(0.005)
        assert (tmp_path / "done").exists()
        assert list(results) == [("done", None)]

    def test_interrupted_leaves_no_child_behind(self) -> None:
        def work(subject: str) -> None:
            if subject == SUBJECTS[0]:
                interrupt_the_parent()
            block()

        with pytest.raises(KeyboardInterrupt):
            list(each(work, SUBJECTS, timeout=20, children=3))


class TestInThisProcess:
    """What otherwise runs in a child, where nothing measures it."""

    def test_results_are_sent_in_batches(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(survey, "Child", lambda _: None)
        shard = survey._Shard(str.upper, SUBJECTS)
        shard._lost = {SUBJECTS[3]: ChildProcessError()}
        sent: list[object] = []
        shard._go_through(sent.append)
        expected: list[object] = [subject.upper() for subject in SUBJECTS]
        expected[3] = None
        assert sent == [expected[:64], expected[64:128], expected[128:]]
        assert int.from_bytes(shard._at[:], "little") == len(SUBJECTS) - 1

    def test_a_child_that_was_kept_from_its_work_is_no_bug(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(survey, "Child", lambda _: None)
        shard, late = survey._Shard(str.upper, SUBJECTS[:3]), Unreturned.__new__(Unreturned)
        for lost in (SUBJECTS[:1], SUBJECTS[:2], SUBJECTS[:3], SUBJECTS[:3]):
            shard._lose(late)
            assert list(shard._lost) == lost
        with pytest.raises(RuntimeError, match="die without work"):
            shard._lose(ChildProcessError("x"))

    def test_what_is_sent_in_pieces_is_received_whole(self) -> None:
        receiving, sending = os.pipe()
        child = expendable.Child.__new__(expendable.Child)
        child.results, child._received = receiving, b""
        expendable._send(sending, (True, ["a", 1]))
        expendable._send(sending, (True, {"b": None}))
        whole = os.read(receiving, 1 << 16)
        found = []
        for piece in (whole[:3], whole[3:20], whole[20:-1], whole[-1:]):
            os.write(sending, piece)
            found += child.receive(1) or []
        assert found == [["a", 1], {"b": None}]
        assert child.receive(0) == []
        os.close(sending)
        assert child.receive(1) is None
        os.close(receiving)

    def test_a_child_that_is_nobodys_is_forgotten(self) -> None:
        expendable._abandoned.append(os.getpid())
        expendable._reap_abandoned()
        assert expendable._abandoned == []
        assert expendable.process_text(1 << 30, "stat") == ""
