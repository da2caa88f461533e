"""The ledger's file: whole or refused with a reason, whatever was done to it or to its disk."""

from __future__ import annotations

import functools
import multiprocessing
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.machines import HOSTS, REGISTRY, copy, machine, original, state
from tests.processes import end_in_time
from tests.unit.conftest import Run
from vfioctl.core import store
from vfioctl.core.change import Caller
from vfioctl.core.journal import Journal
from vfioctl.core.locations import import_object
from vfioctl.core.marks import Mark, MarkKind
from vfioctl.core.migrations import FIRST, Migration
from vfioctl.core.store import Store, _log_ahead
from vfioctl.errors import Busy, StoreDamaged, StoreForeign, StoreOlder
from vfioctl.subsystems import SUBSYSTEMS
from vfioctl.vgpu.ledger.reading import read_records

INSERT = "INSERT INTO journal (plan, state, boot_id, began) VALUES ('p', 'open', 'b', 't')"
MIGRATIONS = tuple(migration for row in SUBSYSTEMS if row.migrations for migration in import_object(row.migrations))
VERSION = 9
PROGRAM = """
import sys
from pathlib import Path
from vfioctl.core.locations import import_object
from vfioctl.core.store import Store, _log_ahead
from vfioctl.subsystems import SUBSYSTEMS
migrations = [migration for row in SUBSYSTEMS if row.migrations for migration in import_object(row.migrations)]
store = Store(Path(sys.argv[1]), migrations)
"""


def store_at(file: Path) -> Store:
    """The store of this release, with all its subsystems."""
    return Store(file, MIGRATIONS)


@pytest.fixture
def ledger(fast_folder: Path) -> Store:
    return store_at(fast_folder / "deep" / "ledger.db")


def add(ledger: Store) -> None:
    with ledger.transaction() as db:
        db.execute(INSERT)


def count(ledger: Store) -> int:
    return ledger.read(lambda db: int(db.execute("SELECT count(*) FROM journal").fetchone()[0]), -1)


def refused(ledger: Store, why: str) -> StoreDamaged:
    """Both reading and writing say so."""
    with pytest.raises(StoreDamaged, match=why):
        add(ledger)
    with pytest.raises(StoreDamaged, match=why) as caught:
        count(ledger)
    assert str(ledger.file) in caught.value.message
    assert caught.value.hint
    return caught.value


class TestTransactions:
    def test_are_kept(self, ledger: Store) -> None:
        assert count(ledger) == -1
        assert not ledger.file.parent.exists(), "asking makes no file"
        add(ledger)
        add(store_at(ledger.file))
        assert count(ledger) == 2

    @pytest.mark.parametrize("connection", ["its own", "kept open"])
    @pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
    def test_are_undone_when_they_fail(self, ledger: Store, error: type[BaseException], connection: str) -> None:
        add(ledger)

        def fail() -> None:
            with ledger.transaction() as db:
                db.execute(INSERT)
                raise error

        with ledger.one_connection() if connection == "kept open" else nullcontext():
            with pytest.raises(error):
                fail()
            assert count(ledger) == 1
            add(ledger)
            assert count(ledger) == 2

    def test_are_on_disk_when_they_end(self, ledger: Store) -> None:
        with ledger.transaction() as db:
            assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
            assert db.execute("PRAGMA synchronous").fetchone() == (2,)
            assert db.execute("PRAGMA foreign_keys").fetchone() == (1,)

    def test_wait_for_one_another(self, ledger: Store) -> None:
        add(ledger)
        program = (
            f"import sqlite3\n{PROGRAM}"
            "with store.transaction() as db:\n    print('in', flush=True)\n    sys.stdin.read()\n"
            f'    db.execute("{INSERT}")\n'
        )
        command = [sys.executable, "-c", program, str(ledger.file)]
        with subprocess.Popen(command, cwd=HOSTS.parents[1], stdin=-1, stdout=-1, text=True) as other:
            assert other.stdout
            assert other.stdin
            assert other.stdout.readline() == "in\n"
            assert count(ledger) == 1
            other.stdin.close()
            add(ledger)
        assert count(ledger) == 3

    def test_are_refused_while_another_one_lasts(self, ledger: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        add(ledger)
        monkeypatch.setattr(store, "SECONDS", 0.05)
        with closing(sqlite3.connect(ledger.file, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(Busy, match="other processes write to the ledger"):
                add(ledger)
        add(ledger)
        assert count(ledger) == 2

    def test_are_refused_where_nothing_can_be_written(self, ledger: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        add(ledger)
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR

        class Broken(sqlite3.Connection):
            def execute(self, statement: str, *parameters: Any) -> sqlite3.Cursor:
                if statement.startswith("BEGIN"):
                    raise error
                return super().execute(statement, *parameters)

        connect = functools.partial(sqlite3.connect, factory=Broken)
        monkeypatch.setattr(sqlite3, "connect", connect)
        with pytest.raises(StoreDamaged, match="cannot be used: disk I/O error"):
            add(ledger)

    def test_leave_signals_to_their_handlers(self, ledger: Store) -> None:
        heard: list[int] = []
        before = signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
        try:
            with ledger.transaction() as db:
                db.execute(INSERT)
                signal.raise_signal(signal.SIGINT)
                assert heard == [signal.SIGINT]
        finally:
            signal.signal(signal.SIGINT, before)
        assert count(ledger) == 1

    def test_are_all_kept_when_several_processes_make_the_ledger(self, fast_folder: Path) -> None:
        processes, rounds = 6, 20
        begin = multiprocessing.Barrier(processes)

        def make() -> None:
            end_in_time()
            for number in range(rounds):
                begin.wait(timeout=60)
                add(store_at(fast_folder / f"{number}.db"))

        makers = [multiprocessing.Process(target=make) for _ in range(processes)]
        for each in makers:
            each.start()
        for each in makers:
            each.join()
        assert [each.exitcode for each in makers] == [0] * processes
        assert {count(store_at(fast_folder / f"{number}.db")) for number in range(rounds)} == {processes}

    def test_cannot_take_a_device_twice(self, ledger: Store) -> None:
        add(ledger)
        take = "INSERT INTO under_change VALUES ('0000:41:00.0', 1)"
        with ledger.transaction() as db:
            db.execute(take)
        with pytest.raises(StoreDamaged, match="UNIQUE"), ledger.transaction() as db:
            db.execute(take)

    @pytest.mark.parametrize(
        "statement",
        [
            "INSERT INTO under_change VALUES ('0000:41:00.0', 99)",
            "INSERT INTO journal (plan, state, boot_id, began) VALUES ('p', 'odd', 'b', 't')",
            "INSERT INTO journal (plan, state, boot_id, began) VALUES (NULL, 'open', 'b', 't')",
            "INSERT INTO journal (id, plan, state, boot_id, began) VALUES ('x', 'p', 'open', 'b', 't')",
            "INSERT INTO vgpu VALUES ('i', 'c', 'p', 2, 'b', 't', 1)",
            "INSERT INTO vgpu VALUES ('i', 'c', 'p', 0, 'b', 't', 99)",
            "INSERT INTO vgpu VALUES ('i', 'c', NULL, 0, 'b', 't', 1)",
        ],
    )
    def test_cannot_write_nonsense(self, ledger: Store, statement: str) -> None:
        add(ledger)
        with pytest.raises(StoreDamaged), ledger.transaction() as db:
            db.execute(statement)


class TestDamage:
    def test_a_newer_version_is_refused(self, ledger: Store) -> None:
        add(ledger)
        with sqlite3.connect(ledger.file) as db:
            db.execute("PRAGMA user_version = 99")
        db.close()
        hint = refused(ledger, "a newer vfioctl wrote the ledger .*: version 99").hint
        assert ("upgrade vfioctl" in hint, "mv " in hint) == (True, False)

    @pytest.mark.parametrize("content", [b"garbage", b"\0" * 5000, b"SQLite format 3\0" + b"\xff" * 500, b"{}" * 4096])
    def test_what_is_no_database_is_refused(self, ledger: Store, content: bytes) -> None:
        ledger.file.parent.mkdir()
        ledger.file.write_bytes(content)
        refused(ledger, "is damaged")
        assert ledger.file.read_bytes() == content

    def test_an_empty_file_is_an_empty_store(self, ledger: Store) -> None:
        ledger.file.parent.mkdir()
        ledger.file.touch()
        assert count(ledger) == 0
        add(ledger)
        assert count(ledger) == 1

    def test_a_file_cut_short_is_refused_or_still_whole(self, ledger: Store) -> None:
        for _ in range(3):
            add(ledger)
        whole = ledger.file.read_bytes()
        for length in range(512, len(whole), 3000):
            ledger.file.write_bytes(whole[:length])
            assert counted(ledger) in (3, "damaged"), length

    def test_a_file_with_flipped_bits_is_refused_or_read(self, ledger: Store) -> None:
        for _ in range(3):
            add(ledger)
        whole, dice = ledger.file.read_bytes(), random.Random(1)
        for _ in range(60):
            spoilt = bytearray(whole)
            for _ in range(8):
                spoilt[dice.randrange(16, len(spoilt))] ^= 1 << dice.randrange(8)
            ledger.file.write_bytes(spoilt)
            for left in ledger.file.parent.glob("*-*"):
                left.unlink()
            assert isinstance(counted(ledger), int | str)

    def test_a_database_of_something_else_is_refused(self, ledger: Store) -> None:
        ledger.file.parent.mkdir()
        with sqlite3.connect(ledger.file) as db:
            db.execute("CREATE TABLE journal (x)")
        db.close()
        with pytest.raises(StoreDamaged, match="another program's"):
            add(ledger)

    def test_missing_tables_are_refused(self, ledger: Store) -> None:
        add(ledger)
        with ledger.transaction() as db:
            db.execute("DROP TABLE under_change")
            db.execute("DROP TABLE previous")
            db.execute("DROP TABLE journal")
        refused(ledger, "no such table")


def counted(ledger: Store) -> int | str:
    try:
        found = count(ledger)
        add(ledger)
    except StoreDamaged:
        return "damaged"
    return found


class TestHost:
    """A ledger is of the host that wrote it first."""

    def of(self, ledger: Store, machine_id: str) -> Store:
        return Store(ledger.file, MIGRATIONS, machine_id=lambda: machine_id)

    def test_that_is_another_one_is_refused(self, ledger: Store) -> None:
        add(self.of(ledger, "a" * 32))
        add(self.of(ledger, "a" * 32))
        for use in (count, add):
            with pytest.raises(StoreForeign) as refusal:
                use(self.of(ledger, "b" * 32))
            assert f"another host's: its machine-id begins with {'a' * 8}, and" in str(refusal.value)
            assert f"mv {ledger.file} {ledger.file}.other-host" in refusal.value.hint
            assert "vfioctl recover --this-host" in refusal.value.hint
        assert count(self.of(ledger, "a" * 32)) == 2

    def test_that_is_not_known_is_not_refused(self, ledger: Store) -> None:
        add(self.of(ledger, ""))  # in a container
        add(self.of(ledger, "a" * 32))
        assert count(self.of(ledger, "")) == 2
        with pytest.raises(StoreForeign):
            count(self.of(ledger, "b" * 32))

    def test_of_an_older_ledger_is_the_next_that_writes(self, ledger: Store) -> None:
        add(ledger)
        with closing(sqlite3.connect(ledger.file, isolation_level=None)) as db:
            for table in ("host", "kubelet_cordon", "claim_shared"):
                db.execute(f"DROP TABLE {table}")
            db.execute("ALTER TABLE claim DROP COLUMN shares")
            db.execute(f"PRAGMA user_version = {FIRST}")
        assert count(self.of(ledger, "b" * 32)) == 1
        add(self.of(ledger, "a" * 32))
        with pytest.raises(StoreForeign):
            count(self.of(ledger, "b" * 32))

    def test_is_read_from_the_machine_and_kept_when_its_id_changed(self, ledger: Store, run: Run) -> None:
        add(self.of(ledger, "a" * 32))
        captured = ledger.file.parent / "root"
        for name in ("sys", "etc"):
            (captured / name).mkdir(parents=True)
        (captured / "etc/machine-id").write_text("b" * 32 + "\n")
        boot_id = captured / "proc/sys/kernel/random/boot_id"
        boot_id.parent.mkdir(parents=True)
        boot_id.write_text("c\n")
        place = ("--root", str(captured), "--ledger", str(ledger.file))
        assert run("history --json", *place).code == 3
        listing = run("inventory --json", *place)
        assert listing.code == 0
        assert "another host's" in listing.out
        assert run("recover --dry-run --this-host", *place).code == 3
        run("recover --this-host --yes", *place)
        assert count(self.of(ledger, "b" * 32)) == 1
        (captured / "etc/machine-id").write_text("uninitialized\n")
        assert count(self.of(ledger, "b" * 32)) == 1
        assert "another host's" not in run("inventory --json", *place).out


class TestOlderVersions:
    """A later release adds to the schema of this one."""

    LATER = (
        Migration(
            VERSION + 1,
            "CREATE TABLE later (x TEXT) STRICT; ALTER TABLE journal ADD COLUMN later TEXT NOT NULL DEFAULT 'none';",
        ),
    )

    @pytest.fixture
    def older(self, ledger: Store) -> Store:
        """A ledger that this release wrote, as a later one opens it."""
        plan = machine(copy(original("laptop")), ledger.file).binding.plan_bind(["01:00.0"])
        with ledger.transaction() as db:
            db.execute(INSERT.replace("'p'", "?"), (plan.model_dump_json(),))
        assert version(ledger) == VERSION
        assert "later" not in tables(ledger)
        return Store(ledger.file, (*MIGRATIONS, *self.LATER))

    def test_are_read_as_the_newer_would_have_them_and_stay_as_they_are(self, older: Store) -> None:
        before, nothing = older.file.read_bytes(), set[str]()
        assert count(older) == 1
        journal = Journal(older, REGISTRY)
        assert journal.marks(boot_id="b") == {}
        assert [entry.plan.intent.verb for entry in journal.entries()] == ["bind"]
        assert [entry.caller for entry in journal.entries()] == [Caller()]
        assert not read_records(older, boot_id="b").created
        assert older.read(tables_in, nothing) >= {"journal", "under_change", "previous", "mark", "vgpu", "later"}
        assert older.read(lambda db: db.execute("SELECT later FROM journal").fetchall(), []) == [("none",)]
        assert older.file.read_bytes() == before
        assert version(older) == VERSION

    def test_are_read_without_write_permission(self, older: Store) -> None:
        older.file.chmod(0o444)
        older.file.parent.chmod(0o555)
        try:
            assert count(older) == 1
        finally:
            older.file.parent.chmod(0o755)

    def test_are_made_newer_when_they_are_written(self, older: Store) -> None:
        journal = Journal(older, REGISTRY)
        journal.mark([MARK], boot_id="b")
        assert version(older) == VERSION + 1
        assert count(older) == 1, "and nothing is lost"
        assert journal.marks(boot_id="b") == {MARK.address: MARK}
        assert [entry.plan.intent.verb for entry in journal.entries()] == ["bind"]

    def test_are_made_newer_by_one_of_several(self, older: Store) -> None:
        later = f"from vfioctl.core.migrations import Migration\nmigrations += [Migration{tuple(self.LATER[0])!r}]\n"
        program = PROGRAM.replace("store = ", f"{later}store = ")
        program += f'with store.transaction() as db:\n    db.execute("{INSERT}")\n'
        command = [sys.executable, "-c", program, str(older.file)]
        others = [subprocess.Popen(command, cwd=HOSTS.parents[1]) for _ in range(4)]
        assert [other.wait() for other in others] == [0] * 4
        assert (version(older), count(older)) == (VERSION + 1, 5)

    @pytest.mark.parametrize("script", ["CREATE TABLE odd (x); nonsense;", "CREATE TABLE odd (x); " * 2])
    def test_an_upgrade_that_fails_leaves_it_older(self, older: Store, script: str) -> None:
        with pytest.raises(StoreDamaged):
            add(Store(older.file, (*MIGRATIONS, *self.LATER, Migration(VERSION + 2, script))))
        assert version(older) == VERSION
        assert tables(older).isdisjoint({"odd", "later"})
        assert count(older) == 1

    @pytest.mark.parametrize("old", [1, FIRST - 1])
    def test_of_releases_before_the_first_that_is_kept_are_refused_and_stay_as_they_are(
        self, ledger: Store, old: int
    ) -> None:
        add(ledger)
        with closing(sqlite3.connect(ledger.file)) as db:
            db.execute(f"PRAGMA user_version = {old}")
        before = ledger.file.read_bytes()
        error = refused(ledger, "vfioctl 0.1 wrote the ledger .*, and this release does not read it")
        assert isinstance(error, StoreOlder)
        assert f"mv {ledger.file} {ledger.file}.old; what devices were before is then unknown" in error.hint
        assert ledger.file.read_bytes() == before


MARK = Mark(address="0000:41:00.0", kind=MarkKind.WEDGED, since="t", why="w", ticket="1:2")


def version(ledger: Store) -> int:
    with closing(sqlite3.connect(ledger.file)) as db:
        return int(db.execute("PRAGMA user_version").fetchone()[0])


def tables(ledger: Store) -> set[str]:
    with closing(sqlite3.connect(ledger.file)) as db:
        return tables_in(db)


def tables_in(db: sqlite3.Connection) -> set[str]:
    return {name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}


class TestPlaces:
    @pytest.mark.parametrize("place", ["folder", "file/ledger.db", "/dev/null/x/ledger.db", "/proc/vfioctl/ledger.db"])
    def test_that_cannot_be_written_are_refused(self, fast_folder: Path, place: str) -> None:
        (fast_folder / "folder").mkdir()
        (fast_folder / "file").touch()
        with pytest.raises(StoreDamaged, match="cannot be used"):
            add(store_at(fast_folder / place))

    def test_a_folder_in_place_of_the_file_is_refused(self, ledger: Store) -> None:
        ledger.file.mkdir(parents=True)
        refused(ledger, "cannot be used")

    @pytest.mark.parametrize("name", ["a b.db", "100%.db", "what?mode=rwc.db", "a#b.db", "é.db", ":memory:", "-x.db"])
    def test_odd_names_are_names(self, fast_folder: Path, name: str) -> None:
        add(store_at(fast_folder / name))
        assert count(store_at(fast_folder / name)) == 1
        assert (fast_folder / name).is_file()

    def test_an_engine_without_its_ledger_touches_nothing(self, fast_folder: Path) -> None:
        (fast_folder / "file").touch()
        tree = copy(original("laptop"))
        host = machine(tree, fast_folder / "file" / "ledger.db")
        with pytest.raises(StoreDamaged):
            host.apply(host.binding.plan_bind(["01:00.0"]))
        assert state(tree) == state(original("laptop"))


AS_NOBODY = """
import os, sqlite3, sys
from pathlib import Path
from vfioctl.core.locations import import_object
from vfioctl.core.store import Store, _log_ahead
from vfioctl.errors import VfioctlError
from vfioctl.subsystems import SUBSYSTEMS
migrations = [migration for row in SUBSYSTEMS if row.migrations for migration in import_object(row.migrations)]
store = Store(Path(sys.argv[1]), migrations)
sqlite3.connect(":memory:").close(), Path("/x").as_uri()  # nobody may not be able to import
if os.geteuid() == 0:
    os.setegid(65534), os.seteuid(65534)
try:
    print(store.read(lambda db: db.execute("SELECT count(*) FROM journal").fetchone()[0], -1))
except VfioctlError as error:
    print(type(error).__name__, error.message)
"""


class TestReadingAsAnotherUser:
    """A ledger of a release that let everybody read it, until root changes something."""

    @pytest.fixture
    def open_folder(self, fast_folder: Path, ledger: Store) -> Path:
        fast_folder.chmod(0o755)
        add(ledger)
        ledger.file.chmod(0o644)
        return ledger.file.parent

    def nobodys(self, ledger: Store) -> str:
        """What a user sees who may write neither the file nor its folder."""
        ledger.file.parent.chmod(0o555)
        try:
            command = [sys.executable, "-c", AS_NOBODY, str(ledger.file)]
            done = subprocess.run(command, cwd=HOSTS.parents[1], capture_output=True, text=True, check=True)
            return done.stdout.strip()
        finally:
            ledger.file.parent.chmod(0o755)

    @pytest.mark.usefixtures("open_folder")
    def test_needs_no_permission_to_write(self, ledger: Store) -> None:
        assert self.nobodys(ledger) == "1"
        assert os.listdir(ledger.file.parent) == [ledger.file.name]

    @pytest.mark.usefixtures("open_folder")
    def test_sees_what_a_writer_has_just_written(self, ledger: Store) -> None:
        writer = sqlite3.connect(ledger.file, isolation_level=None)
        writer.execute(INSERT)
        assert (ledger.file.parent / "ledger.db-wal").stat().st_size
        assert self.nobodys(ledger) == "2"
        writer.close()
        assert self.nobodys(ledger) == "2"

    @pytest.mark.usefixtures("open_folder")
    def test_never_sees_less_than_there_is(self, ledger: Store) -> None:
        writer = sqlite3.connect(ledger.file, isolation_level=None)
        writer.execute(INSERT)
        crashed = store_at(ledger.file.parent.parent / "crashed" / "ledger.db")
        shutil.copytree(ledger.file.parent, crashed.file.parent)
        writer.close()
        (crashed.file.parent / "ledger.db-shm").unlink()
        assert self.nobodys(crashed).startswith("StoreDamaged the ledger")
        assert count(crashed) == 2, "one who may write sees all"

    @pytest.mark.usefixtures("open_folder")
    @pytest.mark.parametrize(("left", "found"), [(None, 1), ("", 1), ("newest entries", "damaged")])
    def test_in_this_process_too(
        self, ledger: Store, monkeypatch: pytest.MonkeyPatch, left: str | None, found: int | str
    ) -> None:
        def unwritable(self: Store, place: Path, mode: str) -> sqlite3.Connection:
            if mode == "mode=ro":
                raise sqlite3.OperationalError
            return genuine(self, place, mode)

        genuine = Store._opened
        monkeypatch.setattr(Store, "_opened", unwritable)
        if left is not None:
            (ledger.file.parent / "ledger.db-wal").write_text(left)
        try:
            assert count(ledger) == found
        except StoreDamaged:
            assert found == "damaged"

    @pytest.mark.usefixtures("open_folder")
    def test_is_refused_what_it_may_not_read(self, ledger: Store) -> None:
        ledger.file.chmod(0o600)
        if os.geteuid():
            ledger.file.chmod(0o000)
        assert self.nobodys(ledger).startswith("StoreDamaged the ledger")

    @pytest.mark.usefixtures("open_folder")
    def test_is_refused_a_folder_it_may_not_enter(self, ledger: Store, fast_folder: Path) -> None:
        fast_folder.chmod(0o600)
        try:
            assert self.nobodys(ledger).startswith("StoreDamaged the ledger")
        finally:
            fast_folder.chmod(0o755)


def limited(pages: int) -> Callable[..., sqlite3.Connection]:
    """sqlite3.connect for databases that have room for so many pages."""
    genuine = sqlite3.connect

    def connect(*arguments: object, **options: object) -> sqlite3.Connection:
        connection: sqlite3.Connection = genuine(*arguments, **options)  # type: ignore[call-overload] # passed on
        connection.execute(f"PRAGMA max_page_count = {pages}")
        return connection

    return connect


class TestFullDisk:
    @pytest.mark.parametrize("pages", [1, 2, 4])
    def test_a_store_that_cannot_be_made_is_refused(
        self, ledger: Store, monkeypatch: pytest.MonkeyPatch, pages: int
    ) -> None:
        monkeypatch.setattr(sqlite3, "connect", limited(pages))
        with pytest.raises(StoreDamaged, match="full") as caught:
            add(ledger)
        assert "space" in caught.value.hint
        monkeypatch.undo()
        add(ledger)
        assert count(ledger) == 1

    def test_what_was_there_before_stays(self, ledger: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        add(ledger)
        monkeypatch.setattr(sqlite3, "connect", limited(1))
        many = INSERT.replace("'p'", "?")
        with pytest.raises(StoreDamaged, match="full"), ledger.transaction() as db:
            db.executemany(many, [("x" * 999,)] * 1000)
        assert count(ledger) == 1

    def test_a_host_is_left_as_it_was(self, fast_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        tree = copy(original("laptop"))
        host = machine(tree, fast_folder / "ledger.db")
        plan = host.binding.plan_bind(["01:00.0"])
        monkeypatch.setattr(sqlite3, "connect", limited(4))
        with pytest.raises(StoreDamaged, match="full"):
            host.apply(plan)
        assert state(tree) == state(original("laptop"))

    def test_a_real_one_leaves_the_host_as_it_was(self, tmp_path: Path) -> None:
        program = tmp_path / "program.py"
        program.write_text(ON_A_FULL_DISK)
        mount = f"mount -t tmpfs -o size=320k tmpfs {tmp_path} && exec {sys.executable} /dev/stdin {tmp_path}"
        namespace = ["unshare", "--mount", *(["--map-root-user"] if os.geteuid() else []), "sh", "-c", mount]
        with program.open() as text:
            done = subprocess.run(
                namespace,
                stdin=text,
                capture_output=True,
                text=True,
                check=False,
                cwd=HOSTS.parents[1],
                env={**os.environ, "PYTHONPATH": str(HOSTS.parents[1])},
            )
        if "Operation not permitted" in done.stderr and "unshare" in done.stderr:
            pytest.skip("no mount namespaces here; the limited databases above stand for the full disk")
        assert done.stdout.split("\n") == ["StoreDamaged 3", "as before", "DONE", ""], done.stderr


ON_A_FULL_DISK = """
import os, sys
from pathlib import Path
from tests.hosts.machines import copy, machine, original, state
from vfioctl.errors import VfioctlError
home, tree = Path(sys.argv[1]), copy(original("laptop"))
(home / "ledgers").mkdir()
host = machine(tree, home / "ledgers" / "ledger.db")
plan = host.binding.plan_bind(["01:00.0"])
with (home / "filler").open("wb", buffering=0) as filler:
    try:
        while filler.write(b"x" * 512):
            pass
    except OSError:
        pass
try:
    host.apply(plan)
except VfioctlError as error:
    print(type(error).__name__, error.exit_code)
print("as before" if state(tree) == state(original("laptop")) else "changed")
(home / "filler").unlink()
print(host.apply(plan).result.name)
"""


def test_the_command_that_sets_a_damaged_ledger_aside_quotes_its_name(tmp_path: Path) -> None:
    file = tmp_path / "my;ledger.db"
    file.write_bytes(b"SQLite format 3\0" + b"x" * 4096)
    with pytest.raises(StoreDamaged) as caught:
        Store(file).read(lambda db: db.execute("SELECT 1").fetchone(), None)
    assert f"mv '{file}' '{file}.damaged'" in caught.value.hint


def test_marks_need_no_database() -> None:
    program = "import sys, vfioctl.core.marks; sys.exit('sqlite3' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


class TestWritingAhead:
    """SQLite does not wait for another process that turns it on for a new file."""

    class Busy:
        def __init__(self, code: int, times: int) -> None:
            self.code, self.left = code, times

        def execute(self, statement: str) -> None:
            assert statement == "PRAGMA journal_mode = WAL"
            if self.left:
                self.left -= 1
                error = sqlite3.OperationalError("no")
                error.sqlite_errorcode = self.code
                raise error

    def test_is_tried_again_while_another_process_does_it(self) -> None:
        connection: Any = self.Busy(sqlite3.SQLITE_BUSY, 3)
        _log_ahead(connection)
        assert connection.left == 0

    def test_of_a_file_that_cannot_be_written_is_not(self) -> None:
        connection: Any = self.Busy(sqlite3.SQLITE_READONLY, 2)
        with pytest.raises(sqlite3.OperationalError):
            _log_ahead(connection)
        assert connection.left == 1

    def test_has_an_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(store, "SECONDS", 0.02)
        connection: Any = self.Busy(sqlite3.SQLITE_BUSY, 1000)
        with pytest.raises(sqlite3.OperationalError):
            _log_ahead(connection)


@pytest.mark.parametrize("is_database", [True, False])
def test_nobody_is_told_to_move_a_file_that_is_no_ledger(fast_folder: Path, is_database: bool) -> None:
    file = fast_folder / "ledger.db"
    if is_database:
        with closing(sqlite3.connect(file)) as other:
            other.execute("CREATE TABLE theirs (a)")
    else:
        file.write_text("root:x:0:0:root:/root:/bin/bash\n" * 100)
    with pytest.raises(StoreDamaged) as refused:
        count(store_at(file))
    assert "mv " not in refused.value.hint
    assert "another --ledger" in refused.value.hint
