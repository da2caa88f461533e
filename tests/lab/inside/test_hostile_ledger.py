"""The live host's own ledger, on a machine with another user: who can open it, and what others are told."""

import json
import os
import shutil
import signal
import sqlite3
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.lab.inside import pci
from tests.lab.inside.command import Answer
from tests.lab.inside.topology import Topology
from tests.users import NOBODY, as_nobody
from vfioctl.app import main
from vfioctl.core.change import Result
from vfioctl.core.marks import Mark, MarkKind
from vfioctl.errors import StoreDamaged
from vfioctl.host import Host
from vfioctl.published_ledger import PUBLIC
from vfioctl.session import LEDGER

ENDINGS = ("", "-wal", "-shm", ".lock")


@pytest.fixture
def host() -> Iterator[Host]:
    """The live host, with its default ledger: new, and removed with the test."""
    for folder in (LEDGER.parent, PUBLIC.parent):
        shutil.rmtree(folder, ignore_errors=True)
    yield Host.live()
    for folder in (LEDGER.parent, PUBLIC.parent):
        shutil.rmtree(folder)


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


def mode(path: Path) -> str:
    return f"{stat.S_IMODE(path.lstat().st_mode):04o}"


def theirs(*words: str) -> Answer:
    """A command line of another user's."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:

        def run() -> int:
            for number, stream in ((1, out), (2, err)):
                os.dup2(stream.fileno(), number)
            sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
            code = main(list(words))
            sys.stdout.flush()
            sys.stderr.flush()
            return code

        code = as_nobody(run)
        out.seek(0)
        err.seek(0)
        return Answer(code, out.read().decode(), err.read().decode())


@contextmanager
def lockers(path: Path) -> Iterator[None]:
    """Meanwhile another user tries, all the time, to open each file of the ledger and to take read locks."""
    pid = os.fork()
    if pid == 0:
        with suppress(BaseException):
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            held = []
            while True:
                with suppress(OSError, sqlite3.Error):
                    held.append(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=0))
                    held[-1].execute("BEGIN")
                    held[-1].execute("SELECT * FROM journal").fetchall()
                for ending in ENDINGS:
                    with suppress(OSError):
                        os.lockf(os.open(f"{path}{ending}", os.O_RDONLY), os.F_LOCK, 0)
        os._exit(1)
    try:
        yield
        assert os.waitpid(pid, os.WNOHANG) == (0, 0), "the other user has given up"
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_another_user_cannot_lock_it(host: Host, lab: Topology) -> None:
    """Seen: root's change failed after 30 s."""
    device = [lab.far_display]
    host.apply(host.binding.plan_bind(device))
    with lockers(LEDGER):
        began = time.monotonic()
        assert host.apply(host.binding.plan_unbind(device)).result == Result.DONE
        assert time.monotonic() - began < 20
    assert pci.driver_of(lab.far_display) != "vfio-pci"


@pytest.mark.usefixtures("umask")
def test_modes_and_what_others_are_told(host: Host, lab: Topology) -> None:
    host.apply(host.binding.plan_bind([lab.far_display]))
    with host.session.store.one_connection():
        found = {ending: mode(LEDGER.with_name(f"{LEDGER.name}{ending}")) for ending in ENDINGS}
    assert found == dict.fromkeys(ENDINGS, "0600")
    assert (mode(LEDGER.parent), mode(PUBLIC.parent), mode(PUBLIC)) == ("0700", "0755", "0644")

    plan = host.binding.plan_unbind([lab.far_display])
    host.session.journal.begin(plan, boot_id=host.session.boot_id, now="2026-01-01T00:00:00Z")
    mark = Mark(address=lab.audio, kind=MarkKind.WEDGED, since="t", why="it hangs", ticket="1:2")
    host.session.journal.mark([mark], boot_id=host.session.boot_id)
    answer = theirs("inventory", "--all", "--json")
    assert answer.returncode == 0, answer.stderr
    marks = {each["address"]: (each["mark"] or {}).get("kind") for each in json.loads(answer.stdout)["functions"]}
    assert {address: kind for address, kind in marks.items() if kind} == {lab.audio: "wedged"}
    assert f"a change of {lab.far_display} was interrupted" in answer.stderr
    assert "cannot" not in answer.stderr
    known = theirs("history")
    assert (known.returncode, "Traceback" in known.stderr) == (0, False), known.stderr
    assert f"unbind {lab.far_display}" in known.stdout
    refused = theirs("history", "show", "999")
    assert refused.returncode == 3, refused.stderr
    assert "only root may read changes other than" in refused.stderr
    host.recover()
    host.session.journal.unmark([lab.audio], boot_id=host.session.boot_id)
    assert "cut short" not in theirs("inventory").stderr


def test_a_ledger_where_others_can_write_is_refused_before_anything_is_touched(lab: Topology, tmp_path: Path) -> None:
    os.chown(tmp_path, NOBODY, NOBODY)
    (tmp_path / "ledger.db").symlink_to("/etc/made-by-root")
    host = Host.live(tmp_path / "ledger.db")
    plan = host.binding.plan_bind([lab.far_display])
    before = pci.drivers()
    with pytest.raises(Exception, match="is refused"):
        host.apply(plan)
    with pytest.raises(StoreDamaged, match="is refused"):
        host.session.journal.entries()
    assert pci.drivers() == before
    assert not Path("/etc/made-by-root").exists()
    assert sorted(tmp_path.iterdir()) == [tmp_path / "ledger.db"]
