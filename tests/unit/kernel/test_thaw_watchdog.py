"""The watchdog that thaws: it ends with the one who freezes, however that ends, and touches nothing but what was
announced. The groups are files; the processes are real."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from vfioctl.errors import HostError, KernelRefused
from vfioctl.kernel.live.thaw_watchdog import LiveThawWatchdog, thaw_abandoned

ROOT = Path(__file__).resolve().parents[3]
SECONDS = 30.0


def group(root: Path, name: str, value: str = "0") -> Path:
    (root / name).mkdir(parents=True, exist_ok=True)
    file = root / name / "cgroup.freeze"
    file.write_text(value)
    return file


def within(seconds: float, happened: Callable[[], bool]) -> bool:
    until = time.monotonic() + seconds
    while not happened() and time.monotonic() < until:
        time.sleep(0.01)
    return happened()


@pytest.fixture
def record(tmp_path: Path) -> Path:
    return tmp_path / "run/frozen"


@pytest.fixture
def watchdog(tmp_path: Path, record: Path) -> Iterator[LiveThawWatchdog]:
    there = LiveThawWatchdog(str(tmp_path), str(record))
    yield there
    there.close()
    assert not there.is_alive


class TestEnds:
    def test_the_end_thaws_what_is_announced_and_nothing_else(self, tmp_path: Path, watchdog: LiveThawWatchdog) -> None:
        ours, other, done = (group(tmp_path, name, "1") for name in ("ours", "other", "done"))
        watchdog.announce("/ours", 600)
        watchdog.announce("/done", 600)
        watchdog.retract("/done")
        watchdog.close()
        assert [file.read_text() for file in (ours, other, done)] == ["0", "1", "1"]

    def test_sigterm_thaws(self, tmp_path: Path, watchdog: LiveThawWatchdog) -> None:
        ours = group(tmp_path, "ours", "1")
        watchdog.announce("/ours", 600)
        os.kill(watchdog.pid, signal.SIGTERM)
        assert within(SECONDS, lambda: ours.read_text() == "0")
        assert within(SECONDS, lambda: not watchdog.is_alive)
        with pytest.raises(HostError, match="watchdog that thaws"):
            watchdog.announce("/ours", 600)

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
    def test_other_signals_do_not_end_it(self, tmp_path: Path, watchdog: LiveThawWatchdog, number: int) -> None:
        ours = group(tmp_path, "ours", "1")
        watchdog.announce("/ours", 600)
        os.kill(watchdog.pid, number)
        time.sleep(0.2)
        assert watchdog.is_alive
        assert ours.read_text() == "1"

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
    def test_it_outlives_the_one_who_freezes_and_thaws(self, tmp_path: Path, record: Path, number: int) -> None:
        ours = group(tmp_path, "ours", "1")
        program = (
            "import time; from vfioctl.kernel.live.thaw_watchdog import LiveThawWatchdog\n"
            f"watchdog = LiveThawWatchdog({str(tmp_path)!r}, {str(record)!r}); watchdog.announce('/ours', 600)\n"
            "print(watchdog.pid, flush=True); time.sleep(600)"
        )
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=ROOT) as parent:
            assert parent.stdout
            pid = int(parent.stdout.readline())
            assert ours.read_text() == "1"
            assert record.read_text() == "/ours\n"
            parent.send_signal(number)
        assert within(SECONDS, lambda: ours.read_text() == "0")
        assert within(SECONDS, lambda: not record.exists())
        assert within(SECONDS, lambda: not _runs(pid))

    def test_workers_of_the_one_who_freezes_do_not_keep_it_waiting(self, tmp_path: Path, record: Path) -> None:
        """A fork of the process must not hold the pipe whose end the watchdog waits for."""
        ours = group(tmp_path, "ours", "1")
        program = (
            "import time; from vfioctl.kernel.live.thaw_watchdog import LiveThawWatchdog\n"
            "from vfioctl.kernel.live.host import Live\nfrom vfioctl.sharing.throttling.exclusions import display_of\n"
            f"watchdog = LiveThawWatchdog({str(tmp_path)!r}, {str(record)!r}); watchdog.announce('/ours', 600)\n"
            "import os; host = Live(); print(list(host.survey(display_of, [str(os.getpid())])), flush=True)\n"
            "time.sleep(600)"
        )
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=ROOT) as parent:
            assert parent.stdout
            parent.stdout.readline()
            parent.kill()
        assert within(SECONDS, lambda: ours.read_text() == "0")


class TestTime:
    def test_a_group_whose_time_is_over_is_thawed(self, tmp_path: Path, watchdog: LiveThawWatchdog) -> None:
        soon, later = group(tmp_path, "soon", "1"), group(tmp_path, "later", "1")
        watchdog.announce("/later", 600)
        watchdog.announce("/soon", 0.2)
        assert within(SECONDS, lambda: soon.read_text() == "0")
        assert later.read_text() == "1"

    def test_a_second_announcement_prolongs_it(self, tmp_path: Path, watchdog: LiveThawWatchdog) -> None:
        ours = group(tmp_path, "ours", "1")
        watchdog.announce("/ours", 0.3)
        watchdog.announce("/ours", 600)
        time.sleep(0.6)
        assert ours.read_text() == "1"


class TestRefusals:
    def test_a_group_that_is_gone_is_refused_and_others_go_on(self, tmp_path: Path, watchdog: LiveThawWatchdog) -> None:
        with pytest.raises(KernelRefused, match="/gone") as caught:
            watchdog.announce("/gone", 600)
        assert caught.value.symbol == "ENOENT"
        ours = group(tmp_path, "ours", "1")
        watchdog.announce("/ours", 600)
        watchdog.close()
        assert ours.read_text() == "0"

    def test_without_a_record_none_is_frozen(self, tmp_path: Path, record: Path, watchdog: LiveThawWatchdog) -> None:
        """As with a full /run. One that is killed itself would leave it frozen."""
        ours = group(tmp_path, "ours", "1")
        record.parent.write_text("no directory")
        with pytest.raises(KernelRefused) as refused:
            watchdog.announce("/ours", 600)
        assert refused.value.symbol in ("EEXIST", "ENOTDIR")
        watchdog.close()
        assert ours.read_text() == "1", "nobody announced it"

    def test_names_with_spaces_and_odd_bytes(self, tmp_path: Path, watchdog: LiveThawWatchdog) -> None:
        name = os.fsdecode(b"a b \xff")
        ours = group(tmp_path, name, "1")
        watchdog.announce(f"/{name}", 600)
        watchdog.close()
        assert ours.read_text() == "0"


class TestAbandoned:
    def test_what_a_killed_watchdog_left_is_thawed_once(self, tmp_path: Path, record: Path) -> None:
        ours, other = group(tmp_path, "ours", "1"), group(tmp_path, "other", "1")
        watchdog = LiveThawWatchdog(str(tmp_path), str(record))
        watchdog.announce("/ours", 600)
        os.kill(watchdog.pid, signal.SIGKILL)
        watchdog.close()
        assert ours.read_text() == "1"
        assert thaw_abandoned(str(tmp_path), str(record)) == {"/ours": ""}
        assert (ours.read_text(), other.read_text()) == ("0", "1")
        assert thaw_abandoned(str(tmp_path), str(record)) == {}

    def test_one_that_cannot_be_thawed_stays_in_the_record(self, tmp_path: Path, record: Path) -> None:
        ours = group(tmp_path, "ours", "1")
        (tmp_path / "other/cgroup.freeze").mkdir(parents=True)
        record.parent.mkdir()
        record.write_text("/other\n/ours\n")
        assert thaw_abandoned(str(tmp_path), str(record)) == {"/other": "Is a directory", "/ours": ""}
        assert ours.read_text() == "0"
        assert record.read_text() == "/other\n"

    def test_a_damaged_record_thaws_what_it_names(self, tmp_path: Path, record: Path) -> None:
        ours = group(tmp_path, "ours", "1")
        record.parent.mkdir()
        record.write_text("/../etc\n/gone\n/ours\n\0\n")
        done = thaw_abandoned(str(tmp_path), str(record))
        assert ours.read_text() == "0"
        assert {path for path, why in done.items() if not why} == {"/gone", "/ours"}

    def test_a_link_is_not_followed(self, tmp_path: Path, record: Path) -> None:
        ours = group(tmp_path, "ours", "1")
        record.parent.mkdir()
        (tmp_path / "elsewhere").write_text("/ours\n")
        record.symlink_to(tmp_path / "elsewhere")
        assert list(thaw_abandoned(str(tmp_path), str(record))) == [str(record)]
        assert ours.read_text() == "1"


def _runs(pid: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
