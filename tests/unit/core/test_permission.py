"""Why nothing can be changed on a host: in the words of the refusal, and without writing anything."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.hosts.machines import copy, machine, original
from tests.users import as_nobody, as_root
from vfioctl.config import Config
from vfioctl.errors import BadSpec, NotPermitted, StoreDamaged, VfioctlError
from vfioctl.host import Host
from vfioctl.kernel.live.host import Live
from vfioctl.kernel.simulated.host import Simulated
from vfioctl.session import Session

GPU = "0000:01:00.0"


def words(error: VfioctlError) -> str:
    return f"{error.message}; {error.hint}"


def refused(host: Host, kind: type[VfioctlError]) -> str:
    """What a change is refused with here."""
    with pytest.raises(kind) as refusal:
        host.apply(host.binding.plan_bind([GPU]))
    return words(refusal.value)


def test_is_empty_where_changes_are_possible_and_creates_nothing(fast_folder: Path) -> None:
    host = machine(copy(original("laptop")), fast_folder / "new" / "ledger.db")
    assert host.why_read_only() == ""
    assert list(fast_folder.iterdir()) == []
    host.apply(host.binding.plan_bind([GPU]))
    ledger = host.session.ledger
    before = ledger.read_bytes(), ledger.stat().st_mtime_ns
    assert host.why_read_only() == host.session.why_read_only() == ""
    assert (ledger.read_bytes(), ledger.stat().st_mtime_ns) == before


def test_of_a_recorded_host(tmp_path: Path) -> None:
    host = Host.recorded("laptop", tmp_path / "ledger.db")
    assert host.why_read_only() == refused(host, NotPermitted)
    assert host.why_read_only() == "a recorded host is read-only; use --simulate to try changes"


def test_of_a_captured_host(tmp_path: Path) -> None:
    for name in ("sys", "proc", "dev"):
        (tmp_path / name).mkdir()
    assert "read-only" in Host.at(tmp_path).why_read_only()
    assert "read-only" in Host.at("/").why_read_only()


def test_of_a_configuration_that_cannot_be_used(tmp_path: Path) -> None:
    config = Config(problem=BadSpec("no such timeout", hint="write it"))
    session = Session(Simulated(copy(original("laptop")), "simulated"), tmp_path / "ledger.db", config=config)
    assert Host(session).why_read_only() == refused(Host(session), BadSpec) == "no such timeout; write it"


class TestLedger:
    @pytest.fixture
    def host(self, fast_folder: Path) -> Host:
        host = machine(copy(original("laptop")), fast_folder / "ledger.db")
        host.apply(host.binding.plan_bind([GPU]))
        host.apply(host.binding.plan_unbind([GPU]))
        return host

    def test_that_is_damaged(self, host: Host) -> None:
        ledger = host.session.ledger
        for ending in ("-wal", "-shm"):
            ledger.with_name(ledger.name + ending).unlink(missing_ok=True)
        ledger.write_bytes(b"SQLite format 3\0" + b"x" * 4096)
        why = host.why_read_only()
        assert "is damaged" in why
        assert why == refused(host, StoreDamaged)

    def test_that_is_newer(self, host: Host) -> None:
        with closing(sqlite3.connect(host.session.ledger)) as db:
            db.execute("PRAGMA user_version = 9999")
        assert host.why_read_only() == refused(host, StoreDamaged)
        assert "a newer vfioctl wrote" in host.why_read_only()

    def test_of_another_host(self, host: Host) -> None:
        with host.session.store.transaction() as db:
            db.execute("DELETE FROM host")
            db.execute("INSERT INTO host VALUES (?)", ("0" * 32,))
        session = host.session
        session.__dict__.pop("store")
        session.__dict__["_machine_id"] = "f" * 32
        assert "is another host's" in host.why_read_only()

    @as_root
    def test_that_others_cannot_write(self, host: Host, fast_folder: Path) -> None:
        fast_folder.chmod(0o755)
        assert as_nobody(host.why_read_only).startswith(f"the ledger {host.session.ledger} cannot be used")
        host.session.ledger.chmod(0o666)  # but not its directory, in which the log is
        why = f"the ledger {host.session.ledger} cannot be used: Permission denied; run it as root"
        assert as_nobody(host.why_read_only) == why

    @as_root
    def test_that_others_cannot_create(self, fast_folder: Path) -> None:
        fast_folder.chmod(0o755)
        host = machine(copy(original("laptop")), fast_folder / "new" / "ledger.db")
        assert "cannot be used: Permission denied" in as_nobody(host.why_read_only)
        fast_folder.chmod(0o777)
        assert as_nobody(host.why_read_only) == ""


@as_root
def test_of_an_ordinary_user_on_this_machine(fast_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fast_folder.chmod(0o755)
    file = fast_folder / "drivers_probe"
    file.touch(0o644)
    monkeypatch.setattr("vfioctl.core.permission.DRIVERS_PROBE", str(file))
    monkeypatch.setattr(Live, "has", lambda _, path: os.path.exists(path))
    session = Session(Live(), fast_folder / "ledger.db")
    assert session.why_read_only() == ""
    assert as_nobody(session.why_read_only).startswith(f"not permitted to write {file}; run it as root")
