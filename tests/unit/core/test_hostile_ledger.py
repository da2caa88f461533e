"""A ledger among hostile users: they cannot open it, put another in its place, or make root write elsewhere."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Never

import pytest

from tests.conftest import no_descriptor_left_open
from tests.hosts.machines import REGISTRY, copy, original
from tests.unit.conftest import Run
from tests.unit.core.test_store import INSERT, add, count, store_at
from tests.users import NOBODY, as_nobody, as_root
from vfioctl import sources
from vfioctl.core import guarded, published
from vfioctl.core.marks import Mark, MarkKind
from vfioctl.core.store import Store
from vfioctl.errors import NotPermitted, StoreDamaged
from vfioctl.host import Host
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel import files
from vfioctl.kernel.lock import held
from vfioctl.kernel.recorded.bundled import bundled_hosts
from vfioctl.kernel.simulated.faults import HANG, Fault
from vfioctl.kernel.simulated.host import Simulated
from vfioctl.kernel.trusted import Untrusted, opened_directory, place_of
from vfioctl.opening import CommandSession
from vfioctl.placement.model.claims import Owner
from vfioctl.placement.model.request import ClaimRequest
from vfioctl.published_ledger import PublishedLedger
from vfioctl.session import Session
from vfioctl.signals import Interrupt

GPU = "0000:01:00.0"
ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT max(x) FROM n"
NONE: tuple[published.BeingChanged, ...] = ()


@pytest.fixture
def shared(fast_folder: Path) -> Path:
    """A directory of root's that everybody may enter."""
    fast_folder.chmod(0o755)
    return fast_folder


def readable_host(shared: Path, name: str) -> str:
    """A copy of a bundled host that another user can read, also if the checkout is in root's home."""
    return str(shutil.copy(bundled_hosts()[name], shared))


@pytest.fixture
def theirs(shared: Path) -> Path:
    """A directory of another user's."""
    folder = shared / "theirs"
    folder.mkdir()
    os.chown(folder, NOBODY, NOBODY)
    return folder


@pytest.fixture
def ledger(shared: Path) -> Store:
    return store_at(shared / "private" / "ledger.db")


@pytest.fixture(params=[0o022, 0o077, 0o000])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> str:
    return f"{stat.S_IMODE(path.lstat().st_mode):04o}"


class Machine:
    """A host in memory whose ledger is published, as that of the live one."""

    def __init__(self, folder: Path, *faults: Fault) -> None:
        self.tree = copy(original("laptop"))
        self.ledger, self.public = folder / "private" / "ledger.db", folder / "public" / "public.json"
        self._faults = faults

    @property
    def session(self) -> Session:
        kernel = Simulated(self.tree, "simulated", faults=self._faults)
        return Session(kernel, self.ledger, settle=0.0, lock_wait=0.0, public=self.public)

    def bind(self) -> None:
        host = Host(self.session)
        host.apply(host.binding.plan_bind([GPU]))

    def cut_short(self) -> None:
        """A change that never ended, and a device with a write that never returned."""
        session = self.session
        binding = Host(session).binding
        plan = binding.plan_bind([GPU])
        plan = binding.plan_unbind([GPU]) if plan.nothing_to_do else plan
        session.journal.begin(plan, boot_id=session.boot_id, now="t")
        session.journal.mark(
            [Mark(address=GPU, kind=MarkKind.WEDGED, since="t", why="it hangs", ticket="1:2")], boot_id=session.boot_id
        )


def machine_session(folder: Path) -> CommandSession:
    """The session that a command line on such a host has."""
    machine = Machine(folder)
    return CommandSession(Simulated(machine.tree, "simulated"), machine.ledger, public=machine.public)


@as_root
class TestModes:
    @pytest.mark.usefixtures("umask")
    def test_are_the_same_under_every_umask(self, shared: Path) -> None:
        machine = Machine(shared)
        with held(machine.ledger.with_name("ledger.db.lock"), wait=0), machine.session.store.one_connection():
            machine.bind()
            files_of = {file.name: mode(file) for file in machine.ledger.parent.iterdir()}
        assert files_of == dict.fromkeys(("ledger.db", "ledger.db-wal", "ledger.db-shm", "ledger.db.lock"), "0600")
        assert mode(machine.ledger.parent) == "0700"
        assert (mode(machine.public.parent), mode(machine.public)) == ("0755", "0644")
        assert {mode(file) for file in machine.public.parent.glob(".*")} == {"0600"}

    @pytest.mark.usefixtures("umask")
    def test_directories_above_it_are_open(self, shared: Path) -> None:
        add(store_at(shared / "a" / "b" / "ledger.db"))
        assert [mode(shared / name) for name in ("a", "a/b", "a/b/ledger.db")] == ["0755", "0700", "0600"]

    def test_of_an_earlier_release_are_tightened_by_the_next_change(self, ledger: Store) -> None:
        add(ledger)
        writer = sqlite3.connect(ledger.file, isolation_level=None)
        writer.execute(INSERT)
        names = ("", "-wal", "-shm")
        for name in names:
            ledger.file.with_name(f"ledger.db{name}").chmod(0o644)
        ledger.file.parent.chmod(0o755)
        own = store_at(ledger.file)
        own._ledger._own_directory = True
        assert count(own) == 2
        assert mode(ledger.file) == "0644", "reading changes nothing"
        add(own)
        assert [mode(ledger.file.with_name(f"ledger.db{name}")) for name in names] == ["0600"] * 3
        assert mode(ledger.file.parent) == "0700"
        writer.close()

    def test_of_a_directory_that_somebody_chose_stay(self, shared: Path) -> None:
        add(store_at(shared / "ledger.db"))
        assert (mode(shared), mode(shared / "ledger.db")) == ("0755", "0600")


@as_root
class TestAnotherUser:
    """Seen: a user who may read the ledger takes POSIX read locks, and root's change fails after 30 s."""

    def test_cannot_lock_it(self, shared: Path) -> None:
        ledger = store_at(shared / "ledger.db")  # in a directory that they may enter
        add(ledger)

        def lock() -> None:
            with closing(sqlite3.connect(f"{ledger.file.as_uri()}?mode=ro", uri=True)) as db:
                db.execute("BEGIN")
                db.execute("SELECT * FROM journal").fetchall()

        with ledger.one_connection():
            for name in ("", "-wal", "-shm"):
                file = ledger.file.with_name(f"ledger.db{name}")
                assert as_nobody(lambda file=file: os.open(file, os.O_RDONLY)) == "PermissionError"  # type: ignore[misc]
        with pytest.raises(AssertionError):
            as_nobody(lock)
        began = time.monotonic()
        add(ledger)
        assert time.monotonic() - began < 5

    def test_reads_what_is_published(self, shared: Path) -> None:
        machine = Machine(shared)
        machine.bind()
        machine.cut_short()

        def look() -> object:
            session = machine.session
            found = Host(session).inventory()
            return [
                [[mark.subject, mark.kind, mark.why] for mark in session.marks()],
                session.being_changed(),
                [found.by_address[GPU].mark.why],  # type: ignore[union-attr, index]
                [str(warning) for warning in found.warnings if "ledger" in str(warning)],
                session.from_ledger(session.being_changed, NONE)[1],
            ]

        marks, changes, shown, warnings, problem = as_nobody(look)
        assert marks == [[GPU, "wedged", "it hangs"]]
        assert [GPU in subjects for _, subjects, _ in changes] == [True]
        assert (shown, warnings, problem) == (["it hangs"], [], "")
        assert as_nobody(machine.ledger.read_text) == "PermissionError"

    def test_reads_which_vgpus_are_vfioctls(self, shared: Path) -> None:
        machine = Machine(shared)
        machine.tree = copy(original("a2"))
        host = Host(machine.session)
        host.apply(host.vgpu.plan_create("nvidia-754", count=2))
        ours = [[vgpu.id, vgpu.owner] for vgpu in host.vgpu.vgpus().instances]

        def look() -> object:
            return [[vgpu.id, vgpu.owner] for vgpu in Host(machine.session).vgpu.vgpus().instances]

        assert as_nobody(look) == ours
        assert [owner for _, owner in ours].count("vfioctl") == 2

    def test_reads_who_has_claimed_a_device(self, shared: Path) -> None:
        """Seen: nothing was listed, because an ordinary user may not enter the ledger's directory."""
        machine = Machine(shared)
        claim = Host(machine.session).claims.create(ClaimRequest(owner=Owner("vm/a"), devices=(PciAddress(GPU),))).claim

        def look() -> object:
            session = machine.session
            function = Host(session).inventory().by_address[PciAddress(GPU)]
            return [function.claim, function.owner, len(session.reservations())]

        def warned() -> object:
            found = Host(machine.session).inventory()
            return [found.by_address[PciAddress(GPU)].owner, [str(w) for w in found.warnings if "ledger" in str(w)]]

        assert as_nobody(look) == [claim.id, "vm/a", len(machine.session.reservations())]
        document = json.loads(machine.public.read_text())
        for records in ({}, {"claims": 1}, {"claims": [1]}, {"claims": [[GPU, 1, "vm/a", True, ""]]}):
            machine.public.write_text(json.dumps({**document, "records": records}))
            owner, (warning,) = as_nobody(warned)
            assert owner is None
            assert "has no records of claims" in warning

    @pytest.mark.parametrize("text", [None, "", "{}", "[]", '{"version": 2}', "[" * 10**6, "fifo", "link", "foreign"])
    def test_is_warned_where_nothing_is_published(self, shared: Path, text: str | None) -> None:
        machine = Machine(shared)
        machine.bind()
        good = machine.public.read_text()
        machine.public.unlink()
        if text == "fifo":
            os.mkfifo(machine.public, 0o644)
        elif text == "link":
            (shared / "other").write_text(good)
            machine.public.symlink_to(shared / "other")
        elif text == "foreign":
            machine.public.write_text(good)
            os.chown(machine.public, 12345, 12345)
        elif text is not None:
            machine.public.write_text(text)

        def look() -> object:
            session = machine.session
            return [str(warning) for warning in Host(session).inventory().warnings if "ledger" in str(warning)]

        (warning,) = as_nobody(look)
        assert "only root may read the ledger" in warning

    def test_is_not_told_of_an_earlier_boot(self, shared: Path) -> None:
        machine = Machine(shared)
        machine.bind()
        machine.tree.put("/proc/sys/kernel/random/boot_id", "another")
        _, problem = as_nobody(lambda: machine.session.from_ledger(lambda: len(machine.session.marks()), 0))
        assert "it is of an earlier boot" in problem

    @pytest.mark.parametrize("line", ["inventory", "show gpu0", "holders gpu0", "vgpu list", "vgpu types"])
    def test_gets_a_listing_and_a_warning(self, shared: Path, line: str, capfd: pytest.CaptureFixture[str]) -> None:
        """Seen with umask 077: a traceback."""
        from vfioctl.app import main

        machine = Machine(shared)
        machine.bind()
        host = readable_host(shared, "a2" if "vgpu" in line else "laptop")
        main(["--host", host, *line.split()])  # imports
        codes = [as_nobody(lambda: main([*line.split(), "--host", host, "--ledger", str(machine.ledger)]))]
        said = capfd.readouterr()
        assert codes == [0], said.err
        assert "Traceback" not in said.err
        assert "ledger" in said.out + said.err

    @pytest.mark.parametrize("line", ["history", "unbind gpu0 --dry-run", "recover --yes", "history prune --keep 1"])
    def test_is_refused_what_only_root_may_know(
        self, shared: Path, line: str, capfd: pytest.CaptureFixture[str]
    ) -> None:
        from vfioctl.app import main

        machine = Machine(shared)
        machine.bind()
        host = readable_host(shared, "laptop")
        main(["--host", host, *line.split()])  # imports
        capfd.readouterr()
        code = as_nobody(lambda: main([*line.split(), "--host", host, "--ledger", str(machine.ledger)]))
        said = capfd.readouterr()
        assert (code, "Traceback" in said.err) == (3, False), said.err
        assert "run it as root" in said.err


@as_root
class TestPublication:
    def test_follows_each_change(self, shared: Path) -> None:
        machine = Machine(shared, Fault(at=2, kind=HANG))
        with pytest.raises(Exception, match="return"):
            machine.bind()
        found = published.read(str(machine.public))
        assert [mark.kind for mark in found.marks] == ["wedged"]
        assert [change.journal for change in found.unfinished] == [1]
        assert found.boot_id == machine.session.boot_id

    def test_is_read_up_to_16_mib(self, shared: Path) -> None:
        machine = Machine(shared)
        machine.bind()
        text = machine.public.read_bytes()
        machine.public.write_bytes(text + b" " * ((16 << 20) - len(text)))
        assert published.read(str(machine.public)).boot_id == machine.session.boot_id
        with machine.public.open("ab") as file:
            file.write(b" ")
        with pytest.raises(Untrusted, match="larger than 16 MiB"):
            published.read(str(machine.public))

    def test_is_repeated_by_root_after_a_crash_before_it(self, shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        machine = Machine(shared)
        machine.bind()
        with monkeypatch.context() as patch:
            patch.setattr(Session, "publish", lambda _: None)
            machine.cut_short()
        assert not published.read(str(machine.public)).unfinished
        machine.session.publish()
        assert published.read(str(machine.public)).unfinished

    def test_ends_with_the_ledger(self, shared: Path) -> None:
        machine = Machine(shared)
        machine.bind()
        machine.session.ledger.unlink()
        machine.session.publish()
        assert not machine.public.exists()

    def test_needs_no_subsystem_without_a_ledger(self, tmp_path: Path) -> None:
        def imported() -> Never:
            raise AssertionError("a listing would wait for its import")

        PublishedLedger(tmp_path / "public.json", tmp_path / "ledger.db", lambda: "boot").write(
            imported, imported, imported
        )

    @pytest.mark.parametrize("line", ["inventory", "holders gpu0", "bind nonsense", "vgpu list"])
    def test_is_repeated_at_the_end_of_every_command(
        self, run: Run, shared: Path, monkeypatch: pytest.MonkeyPatch, line: str
    ) -> None:
        machine, session = Machine(shared), machine_session(shared)
        machine.cut_short()
        machine.public.unlink()
        monkeypatch.setattr(sources, "live", lambda *_: session)
        run(line)
        assert published.read(str(machine.public)).unfinished

    def test_that_fails_leaves_no_old_one_and_fails_no_change(
        self, shared: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        machine = Machine(shared)
        machine.bind()

        def full(*_: object, **__: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("vfioctl.core.snapshot.write_into", full)
        machine.cut_short()
        assert not machine.public.exists()
        assert machine.session.being_changed()

    def test_shows_that_an_empty_ledger_was_emptied(self, shared: Path) -> None:
        machine = Machine(shared)
        machine.bind()
        for ending in ("-wal", "-shm"):
            machine.ledger.with_name(f"ledger.db{ending}").unlink(missing_ok=True)
        os.truncate(machine.ledger, 0)
        for _ in range(2):  # publishing leaves the evidence
            with pytest.raises(StoreDamaged, match="it is empty, and was not when") as damage:
                machine.session.unfinished()
            assert f"mv {machine.ledger} " in damage.value.hint
            with pytest.raises(StoreDamaged):
                machine.bind()
            machine.session.publish()
        machine.ledger.rename(machine.ledger.with_name("aside"))
        machine.tree = copy(original("laptop"))
        machine.bind()
        assert machine.session.unfinished() == ()

    def test_is_not_written_again_when_it_is_right(self, shared: Path) -> None:
        machine = Machine(shared)
        machine.cut_short()
        before = machine.public.stat().st_ino
        machine.session.publish()
        assert machine.public.stat().st_ino == before
        time.sleep(0.02)
        machine.session.publish()
        assert machine.session.published.is_newer
        with machine.session.store.transaction() as db:
            db.execute("UPDATE mark SET why = 'another reason'")
        assert not machine.session.published.is_newer

    @pytest.mark.parametrize(
        ("ledger", "log", "is_newer"), [(1, 1, True), (1, None, True), (2, 1, False), (1, 2, False), (3, 3, False)]
    )
    def test_is_newer_only_without_doubt(self, tmp_path: Path, ledger: int, log: int | None, is_newer: bool) -> None:
        times = {"ledger.db": ledger, "ledger.db-wal": log, "public.json": 2}
        for name, moment in times.items():
            if moment is not None:
                (tmp_path / name).touch()
                os.utime(tmp_path / name, ns=(moment, moment))
        assert published.is_newer(tmp_path / "public.json", tmp_path / "ledger.db") is is_newer

    def test_by_several_ends_with_what_the_ledger_says(self, shared: Path) -> None:
        machine = Machine(shared)
        machine.bind()
        threads = [threading.Thread(target=machine.session.publish) for _ in range(8)]
        for thread in threads:
            thread.start()
        machine.cut_short()
        for thread in threads:
            thread.join()
        assert published.read(str(machine.public)).unfinished


@as_root
class TestPlaces:
    """Root refuses what another user could exchange."""

    def refused(self, ledger: Path, why: str) -> None:
        before = sorted(ledger.parent.iterdir())
        for use in (add, count):
            with pytest.raises(StoreDamaged, match=why) as caught:
                use(store_at(ledger))
            assert "only root can change" in caught.value.hint
        assert sorted(ledger.parent.iterdir()) == before

    def test_a_ledger_that_is_a_link_is_refused(self, shared: Path) -> None:
        """Seen: root's change created a file in another directory."""
        (shared / "private").mkdir(mode=0o700)
        (shared / "ledger.db").symlink_to(shared / "private" / "made")
        with pytest.raises(StoreDamaged, match="symbolic link"):
            add(store_at(shared / "ledger.db"))
        assert not list((shared / "private").iterdir())

    @pytest.mark.parametrize("ending", ["-wal", "-shm"])
    def test_so_are_its_log_and_its_index(self, shared: Path, ending: str) -> None:
        """Seen: SQLite gave a root-only file behind the link the ledger's mode, and wrote to it."""
        add(store_at(shared / "ledger.db"))
        secret = shared / "secret"
        secret.touch(mode=0o400)
        (shared / f"ledger.db{ending}").symlink_to(secret)
        self.refused(shared / "ledger.db", "symbolic link")
        assert (mode(secret), secret.read_bytes()) == ("0400", b"")

    def test_a_directory_of_another_user_is_refused(self, theirs: Path) -> None:
        self.refused(theirs / "ledger.db", f"belongs to user {NOBODY}")
        (theirs / "below").mkdir(mode=0o755)
        self.refused(theirs / "below" / "ledger.db", f"belongs to user {NOBODY}")

    @pytest.mark.parametrize("open_to", [0o777, 0o775, 0o1777])
    def test_a_directory_that_others_may_write_is_refused(self, shared: Path, open_to: int) -> None:
        shared.chmod(open_to)
        self.refused(shared / "ledger.db", "can be written by users other than root")

    def test_below_a_sticky_one_is_a_good_place(self, shared: Path) -> None:
        shared.chmod(0o1777)
        add(store_at(shared / "mine" / "ledger.db"))

    def test_roots_links_are_followed_and_others_are_not(self, shared: Path) -> None:
        (shared / "real").mkdir()
        (shared / "link").symlink_to("real")
        add(store_at(shared / "link" / "ledger.db"))
        add(store_at(shared / "real" / ".." / "link" / "ledger.db"))
        assert count(store_at(shared / "real" / "ledger.db")) == 2
        os.lchown(shared / "link", NOBODY, NOBODY)
        self.refused(shared / "link" / "ledger.db", f"symbolic link of user {NOBODY}")

    def test_a_loop_of_links_ends(self, shared: Path) -> None:
        (shared / "loop").symlink_to("loop")
        with pytest.raises(OSError, match="symbolic links"), opened_directory(str(shared / "loop" / "x")):
            pass

    def test_a_ledger_of_another_user_is_refused(self, shared: Path) -> None:
        add(store_at(shared / "ledger.db"))
        os.chown(shared / "ledger.db", NOBODY, NOBODY)
        self.refused(shared / "ledger.db", f"belongs to user {NOBODY}")

    def test_a_lock_is_not_made_there(self, theirs: Path) -> None:
        with pytest.raises(NotPermitted, match="is refused"), held(theirs / "ledger.db.lock", wait=0):
            pass
        assert not list(theirs.iterdir())

    def test_another_user_may_use_it(self, theirs: Path) -> None:
        def use() -> int:
            add(store_at(theirs / "ledger.db"))
            return count(store_at(theirs / "ledger.db"))

        assert as_nobody(use) == 1

    def test_nothing_stays_open(self, shared: Path) -> None:
        (shared / "link").symlink_to("real")
        with no_descriptor_left_open():
            for name in ("link/x", "real/x/y", "link/../real/z"):
                with pytest.raises(OSError, match="No such"), opened_directory(str(shared / name)):
                    pass
                with opened_directory(str(shared / name), make=0o700) as fd:
                    assert place_of(fd)
            shared.chmod(0o777)
            with pytest.raises(Untrusted), opened_directory(str(shared / "real")):
                pass


@as_root
class TestSimulatedHosts:
    """Seen: a simulated bind of root's in a user's directory changed modes and created files elsewhere."""

    @pytest.fixture
    def file(self, theirs: Path) -> Path:
        file = theirs / "my.host"
        shutil.copy(Path(__file__).parents[2] / "hosts" / "laptop.host", file)
        os.chown(file, NOBODY, NOBODY)
        return file

    @pytest.mark.parametrize("line", ["bind gpu1 --yes", "inventory", "bind gpu1 --dry-run"])
    def test_of_another_user_are_refused(self, run: Run, file: Path, shared: Path, line: str) -> None:
        secret = shared / "secret"
        secret.touch(mode=0o400)
        (shared / "private").mkdir(mode=0o700)
        for name, target in (("my.host.ledger.db", "private/made"), ("my.host.ledger.db-shm", "secret")):
            (file.parent / name).symlink_to(shared / target)
        before = sorted(file.parent.iterdir()), file.read_bytes()
        answer = run(f"{line} --simulate {file}")
        assert answer.code == 3, answer.err
        assert f"belongs to user {NOBODY}" in answer.err
        assert (sorted(file.parent.iterdir()), file.read_bytes()) == before
        assert mode(secret) == "0400"
        assert not list((shared / "private").iterdir())

    def test_that_are_only_read_have_no_ledger_of_theirs(self, run: Run, file: Path) -> None:
        (file.parent / "my.host.ledger.db").touch()
        answer = run(f"inventory --host {file}")
        assert answer.code == 0
        assert f"belongs to user {NOBODY}" in answer.out
        assert run(f"history --host {file}").code == 3
        assert len(list(file.parent.iterdir())) == 2, "SQLite has made no files there"

    def test_that_are_bundled_are_not_kept_there(self, run: Run, theirs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_STATE_HOME", str(theirs))
        assert run("bind gpu1 --yes --simulate laptop").code == 3
        assert run("hosts --reset laptop").code == 3
        assert not list(theirs.iterdir())

    def test_can_be_used_by_their_owner(self, file: Path) -> None:
        def bind() -> str:
            host = Host.simulated(str(file))
            return host.apply(host.binding.plan_bind([GPU])).result.name

        assert REGISTRY.parts, "imported now: an interpreter in root's home directory is closed to others"
        assert as_nobody(bind) == "DONE"
        assert mode(file.with_name("my.host.ledger.db")) == "0600"

    def test_keep_to_the_directory_that_was_opened(self, shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whatever is put in its place while the file is written."""
        (shared / "mine").mkdir()
        (shared / "other").mkdir()
        genuine = os.fsync

        def swapped(fd: int) -> None:
            genuine(fd)
            if (shared / "mine").is_dir() and not (shared / "moved").exists():
                (shared / "mine").rename(shared / "moved")
                (shared / "mine").symlink_to("other")

        monkeypatch.setattr(os, "fsync", swapped)
        files.write_whole(str(shared / "mine" / "x"), b"text", mode=0o644)
        assert not list((shared / "other").iterdir())
        assert (shared / "moved" / "x").read_bytes() == b"text"


@as_root
@pytest.mark.parametrize(
    "line",
    [
        "snapshot -o {} --simulate laptop",
        "rom gpu1 -o {} --simulate workstation",
        "kata config --output {} --simulate hgx8",
        "domain build a --gpus 2 --nccl-topo {} --simulate hgx8",
    ],
)
def test_no_output_follows_a_link_of_another_user(run: Run, tmp_path: Path, line: str) -> None:
    target, link = tmp_path / "etc", tmp_path / "link"
    target.mkdir()
    link.symlink_to(target)
    os.lchown(link, NOBODY, NOBODY)
    answer = run(line.format(link / "file"))
    assert answer.code != 0
    assert "is a symbolic link of user" in answer.err
    assert not [*target.iterdir()]


@as_root
def test_an_output_may_be_in_the_home_of_the_user_who_called_sudo(run: Run, tmp_path: Path) -> None:
    home, mine = tmp_path / "ada", tmp_path / "mine"
    home.mkdir()
    mine.symlink_to(home)
    os.chown(home, NOBODY, NOBODY)
    assert run(f"snapshot -o {mine / 'mine.host'} --simulate laptop").code == 0
    assert (home / "mine.host").is_file()


class TestCraftedLedgers:
    """Nothing but vfioctl's own tables is read, and reading ends."""

    @pytest.mark.parametrize(
        "statements",
        [
            f"DROP TABLE mark; CREATE VIEW mark (subject, kind, since, why, ticket, boot_id) AS {ENDLESS}",
            "CREATE TRIGGER odd AFTER INSERT ON journal BEGIN DELETE FROM mark; END",
            "CREATE TABLE odd (x)",
            "CREATE INDEX odd ON mark (why)",
            "DROP TABLE mark; CREATE TABLE mark (subject, kind, boot_id, since, why AS (hex(zeroblob(9))), ticket)",
            "DROP TABLE mark; CREATE VIRTUAL TABLE mark USING fts5(subject, kind, boot_id, since, why, ticket)",
            'CREATE TABLE "od\x1b[2Jd" (x)',
        ],
    )
    def test_are_refused(self, fast_folder: Path, statements: str) -> None:
        ledger = store_at(fast_folder / "ledger.db")
        add(ledger)
        with closing(sqlite3.connect(ledger.file)) as db:
            db.executescript(statements)
        for use in (add, count):
            with pytest.raises(StoreDamaged, match="which vfioctl did not make") as caught:
                use(ledger)
            assert "\x1b" not in caught.value.message

    def test_that_compute_for_ever_are_given_up(self, fast_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(guarded, "SECONDS", 0.2)
        ledger = store_at(fast_folder / "ledger.db")
        add(ledger)
        with pytest.raises(StoreDamaged, match=r"cannot be used: it took more than 0\.2 s; try again") as slow:
            ledger.read(lambda db: db.execute(ENDLESS).fetchall(), [])
        assert "mv " not in slow.value.hint, "a slow disk is no reason to set a sound ledger aside"
        with pytest.raises(StoreDamaged, match=r"more than 0\.2 s"), ledger.transaction() as db:
            db.execute(ENDLESS).fetchall()

    def test_are_not_those_that_sqlite_has_analysed(self, fast_folder: Path) -> None:
        ledger = store_at(fast_folder / "ledger.db")
        add(ledger)
        with sqlite3.connect(ledger.file) as db:
            db.execute("ANALYZE")
        assert ledger.read(lambda db: db.execute("SELECT count(*) FROM journal").fetchone(), None)

    @pytest.mark.alone
    def test_are_left_when_a_signal_asks(self, fast_folder: Path) -> None:
        ledger = store_at(fast_folder / "ledger.db")
        add(ledger)
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            ledger.read(lambda db: db.execute(ENDLESS).fetchall(), [])
        assert time.monotonic() - began < 5

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_are_left_with_the_signal_that_asked(self, fast_folder: Path, number: signal.Signals) -> None:
        def asked(db: sqlite3.Connection) -> object:
            signal.pthread_kill(threading.get_ident(), number)
            return db.execute(ENDLESS).fetchall()

        ledger = store_at(fast_folder / "ledger.db")
        add(ledger)
        with pytest.raises(Interrupt) as caught:
            ledger.read(asked, None)
        assert caught.value.number == number

    def test_may_use_no_huge_values(self, fast_folder: Path) -> None:
        ledger = store_at(fast_folder / "ledger.db")
        add(ledger)
        with pytest.raises(StoreDamaged, match="too big"):
            ledger.read(lambda db: db.execute("SELECT hex(zeroblob(1000000000))").fetchone(), None)

    def test_that_are_fifos_are_refused_at_once(self, fast_folder: Path) -> None:
        os.mkfifo(fast_folder / "ledger.db")
        for use in (add, count):
            with pytest.raises(StoreDamaged, match="no regular file"):
                use(store_at(fast_folder / "ledger.db"))

    def test_of_other_users_have_a_limit(self, fast_folder: Path) -> None:
        if os.geteuid() == 0:
            os.chown(fast_folder, NOBODY, NOBODY)

        def huge() -> str:
            with (fast_folder / "ledger.db").open("wb") as file:
                file.truncate(1 << 40)
            try:
                return str(count(store_at(fast_folder / "ledger.db")))
            except StoreDamaged as error:
                return error.message

        assert "larger than 256 MiB" in (as_nobody(huge) if os.geteuid() == 0 else huge())

    @pytest.mark.skipif(os.geteuid() != 0, reason="makes a ledger of root's")
    def test_of_root_have_none(self, fast_folder: Path) -> None:
        file = fast_folder / "ledger.db"
        with file.open("wb") as made:
            made.truncate((256 << 20) + 1)
        with pytest.raises(StoreDamaged, match="not a database"):
            count(store_at(file))
