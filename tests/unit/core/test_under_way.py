"""A change that a living process is making is under way; every other open one was interrupted."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.hosts.machines import copy, original
from tests.processes import end_in_time
from tests.unit.conftest import Run
from tests.users import as_nobody, as_root
from vfioctl import sources
from vfioctl.core.caller import is_making, this_process
from vfioctl.core.change import JournalEntry, JournalState
from vfioctl.errors import Busy, Unfinished
from vfioctl.host import Host
from vfioctl.kernel import lock_holder
from vfioctl.kernel.lock import held
from vfioctl.kernel.simulated.host import Simulated
from vfioctl.opening import CommandSession

GPU = "0000:01:00.0"


def stamp(seconds: float = 0.0) -> str:
    return datetime.fromtimestamp(time.time() + seconds, UTC).isoformat(timespec="milliseconds")


@pytest.fixture
def session(fast_folder: Path) -> CommandSession:
    fast_folder.chmod(0o755)
    kernel = Simulated(copy(original("laptop")), "simulated")
    ledger, public = fast_folder / "private" / "ledger.db", fast_folder / "public" / "public.json"
    return CommandSession(kernel, ledger, settle=0.0, lock_wait=0.0, public=public)


def begin(session: CommandSession, *, began: str = "", selector: str = GPU) -> int:
    plan = Host(session).binding.plan_bind([selector])
    return session.journal.begin(plan, boot_id=session.boot_id, now=began or stamp(), caller=this_process())


@contextmanager
def locked(session: CommandSession) -> Iterator[None]:
    with held(session.store.lock_file, wait=0):
        yield


def entry(session: CommandSession) -> JournalEntry:
    return Host(session).history()[0]


@contextmanager
def child(work: Callable[[], None]) -> Iterator[int]:
    """A process that works, and then waits to be killed."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            end_in_time()
            work()
            os.write(theirs, b"1")
            signal.pause()
        finally:
            os._exit(1)
    os.close(theirs)
    assert os.read(ours, 1) == b"1"
    os.close(ours)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_while_its_process_holds_the_hosts_lock(session: CommandSession) -> None:
    with locked(session):
        begin(session)
        assert entry(session).under_way
        assert Host(session).unfinished()[0].under_way
        assert [(change.process, change.under_way) for change in session.being_changed()] == [(os.getpid(), True)]
    assert not entry(session).under_way
    assert [(change.process, change.under_way) for change in session.being_changed()] == [(None, False)]


def test_not_by_a_process_that_started_later(session: CommandSession) -> None:
    """Another process with the number of one that died."""
    with locked(session):
        begin(session, began=stamp(-365 * 86400))
        assert not entry(session).under_way
        assert not session.being_changed()[0].under_way


def test_not_by_a_process_that_holds_another_lock(session: CommandSession) -> None:
    session.store.lock_file.parent.mkdir()
    session.store.lock_file.touch()
    with held(session.ledger.with_name("other.lock"), wait=0):
        begin(session)
        assert not entry(session).under_way


def test_only_the_newest_change_can_be(session: CommandSession) -> None:
    """A long-lived program gave up the first one and makes another change."""
    with locked(session):
        begin(session)
        plan = Host(session).binding.plan_unbind(["0000:00:02.0"]).model_copy(update={"changes": ()})
        number = session.journal.begin(plan, boot_id=session.boot_id, now=stamp(), caller=this_process())
        session.journal.end(number, JournalState.DONE, boot_id=session.boot_id, now=stamp(), plan=plan)
        assert [change.under_way for change in Host(session).history()] == [False, False]
        assert not session.being_changed()[0].under_way


def test_not_a_stuck_one(session: CommandSession) -> None:
    with locked(session):
        session.journal.end(begin(session), JournalState.STUCK, boot_id=session.boot_id, now=stamp())
        assert not entry(session).under_way
        assert not session.being_changed()[0].under_way


@pytest.mark.alone
@pytest.mark.parametrize("reaped", [True, False])
def test_not_by_a_dead_process_whose_worker_keeps_the_lock(session: CommandSession, *, reaped: bool) -> None:
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        with locked(session):
            begin(session)
            worker = os.fork()
            if worker == 0:
                signal.pause()
            os.write(theirs, str(worker).encode())
            os._exit(0)
    worker = int(os.read(ours, 32))
    os.close(ours)
    os.close(theirs)
    os.waitid(os.P_PID, pid, os.WEXITED | (0 if reaped else os.WNOWAIT))
    try:
        assert entry(session).caller.pid == pid
        assert lock_holder._is_listed(pid, session.store.lock_file.stat().st_ino), "the kernel still lists it"
        assert not entry(session).under_way
        assert not session.being_changed()[0].under_way
        with pytest.raises(Busy), locked(session):
            pass
    finally:
        os.kill(worker, signal.SIGKILL)
        if not reaped:
            os.waitpid(pid, 0)


@pytest.mark.parametrize("began", ["", "t", "9999-99-99"])
def test_not_where_the_time_is_no_time(began: str) -> None:
    assert not is_making(os.getpid(), began, 1)


def test_not_where_the_kernel_lists_no_locks(session: CommandSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_holder, "LOCKS", Path("/nonexistent"))
    with locked(session):
        begin(session)
        assert not entry(session).under_way


@pytest.mark.parametrize(
    "line",
    [
        "1: FLOCK  ADVISORY  WRITE 0 00:1a:{0} 0 EOF",
        "1: FLOCK  ADVISORY  WRITE -1 00:1a:{0} 0 EOF",
        "1: -> FLOCK  ADVISORY  WRITE {1} 00:1a:{0} 0 EOF",
        "1: POSIX  ADVISORY  WRITE {1} 00:1a:{0} 0 EOF",
        "1: FLOCK  ADVISORY  WRITE {1} 00:1a:18 0 EOF",
        "1: FLOCK",
        "",
    ],
)
def test_not_for_a_lock_of_another_kind_or_namespace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.setattr(lock_holder, "LOCKS", tmp_path / "locks")
    own = "5: FLOCK  ADVISORY  WRITE {1} 00:1a:{0} 0 EOF"
    for text, expected in ((line, False), (own, True)):
        lock_holder.LOCKS.write_text(text.format(17, os.getpid()))
        assert is_making(os.getpid(), stamp(), 17) is expected


def test_a_change_that_ends_while_it_is_looked_at_was_not_interrupted(
    session: CommandSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process closes the entry, unlocks and ends between the reading of the ledger and that of /proc."""
    number = begin(session)

    def ends(*_: object) -> bool:
        session.journal.end(number, JournalState.DONE, boot_id=session.boot_id, now=stamp())
        return False

    for name in ("vfioctl.core.published.is_making", "vfioctl.core.journal.is_making"):
        monkeypatch.setattr(name, ends)
    assert session.being_changed() == ()
    with session.store.transaction() as db:
        db.execute("UPDATE journal SET state = 'open'")
        db.execute("INSERT INTO under_change VALUES (?, ?)", (GPU, number))
    assert Host(session).unfinished() == ()


class TestWords:
    @pytest.fixture(autouse=True)
    def here(self, session: CommandSession, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sources, "live", lambda *_: session)

    def test_while_it_is_under_way(self, session: CommandSession, run: Run) -> None:
        with locked(session):
            begin(session)
            said = run("inventory").err
            assert f"a change of {GPU}" in said
            assert f"is under way (process {os.getpid()})\n" in said
            assert "recover" not in said
            assert "under way" in run("history").out
            assert "state    under way: a process is making it" in run("history show 1").out
            assert run("history show 1 --json").document["under_way"] is True
            plan = run("recover --dry-run").out
            assert f"is under way (process {os.getpid()})" in plan

    def test_once_it_was_interrupted(self, session: CommandSession, run: Run) -> None:
        with locked(session):
            begin(session)
        assert "was interrupted; to finish it: vfioctl recover" in run("inventory").err
        assert "state    open: interrupted, or made by" in run("history show 1").out
        assert run("history show 1 --json").document["under_way"] is False


@pytest.mark.alone
def test_a_plan_with_nothing_to_do_waits_for_no_recovery_of_it(session: CommandSession) -> None:
    host = Host(session)
    host.apply(host.binding.plan_bind([GPU]))
    nothing = host.binding.plan_bind([GPU])
    unbind = host.binding.plan_unbind([GPU])
    kept = []

    def work() -> None:
        kept.append(held(session.store.lock_file, wait=0))
        kept[0].__enter__()
        session.journal.begin(unbind, boot_id=session.boot_id, now=stamp(), caller=this_process())

    with child(work) as pid, pytest.raises(Busy, match=rf"is under way \(process {pid}\)"):
        host.apply(nothing)
    with pytest.raises(Unfinished):
        host.apply(nothing)


@as_root
@pytest.mark.alone
class TestAnotherUser:
    def test_sees_it_from_what_is_published(self, session: CommandSession) -> None:
        with locked(session):
            begin(session)
            assert as_nobody(lambda: session.being_changed()[0].process) == os.getpid()
        assert as_nobody(lambda: session.being_changed()[0].process) is None

    def test_reads_a_document_of_the_first_version(self, session: CommandSession) -> None:
        begin(session)
        public = session.published._file
        assert public
        text = f'{{"version": 1, "boot_id": "{session.boot_id}", "marks": [], "unfinished": [{{"journal": 1, "subjects": ["a"]}}], "records": {{}}}}'  # noqa: E501
        public.write_text(text)
        assert as_nobody(session.being_changed) == [[1, ["a"], None]]
