"""Shared GPU time on a real kernel: control groups with real processes are frozen, and thawed however the one who froze
them ends."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.lab.inside.command import Running, vfioctl
from vfioctl.kernel.gpu_sharing import Samples
from vfioctl.kernel.live.control_groups import LiveControlGroups, LiveProcessGroups, hierarchy
from vfioctl.kernel.live.drm_fdinfo import LiveDrmClients
from vfioctl.kernel.live.host import Live
from vfioctl.kernel.live.thaw_watchdog import LiveThawWatchdog, thaw_abandoned
from vfioctl.sharing.fairness.deficit_rounds import DeficitRounds
from vfioctl.sharing.measuring.drm_fdinfo import client_in
from vfioctl.sharing.measuring.nvml_time import NvmlTime
from vfioctl.sharing.throttling.exclusions import Exclusions
from vfioctl.sharing.throttling.throttle import Throttle

SECONDS, MEMBERS = 30.0, 5
COUNT = "import sys, time\nwhile True:\n    print('.', end='', flush=True); time.sleep(0.002)"
FREEZER = """
import sys, time
from vfioctl.kernel.live.control_groups import LiveControlGroups
from vfioctl.kernel.live.thaw_watchdog import LiveThawWatchdog
from vfioctl.sharing.throttling.throttle import Throttle
root, record, *paths = sys.argv[1:]
groups = LiveControlGroups(root)
throttle = Throttle(groups, lambda: LiveThawWatchdog(root, record), lambda path: "", lambda seconds: None)
throttle.apply(set(paths), lambda path: 600.0)
print(throttle.watchdog_pid, *throttle.frozen, flush=True)
time.sleep(600)
"""


class Group:
    """A control group of its own, and processes in it that write all the time."""

    def __init__(self, name: str) -> None:
        self.path = f"/vfioctl-lab-{name}"
        self.place = Path(hierarchy() + self.path)
        self.place.mkdir()
        self.children: list[subprocess.Popen[bytes]] = []

    def start(self, count: int = MEMBERS, program: str = COUNT) -> None:
        for _ in range(count):
            child = subprocess.Popen([sys.executable, "-S", "-c", program], stdout=subprocess.PIPE)
            (self.place / "cgroup.procs").write_text(str(child.pid))
            assert child.stdout
            os.set_blocking(child.stdout.fileno(), False)
            self.children.append(child)

    @property
    def is_frozen(self) -> bool:
        return "frozen 1" in (self.place / "cgroup.events").read_text()

    def works(self) -> bool:
        """Whether all processes write."""
        for child in self.children:
            self._drain(child)
        time.sleep(0.2)
        wrote = [self._drain(child) for child in self.children]
        return all(wrote)

    @staticmethod
    def _drain(child: subprocess.Popen[bytes]) -> int:
        assert child.stdout
        return len(child.stdout.read() or b"")

    def close(self) -> None:
        with suppress(OSError):
            (self.place / "cgroup.freeze").write_text("0")
        for child in self.children:
            child.kill()
            child.wait()
            assert child.stdout
            child.stdout.close()
        assert within(self._is_removed)

    def _is_removed(self) -> bool:
        with suppress(OSError):
            self.place.rmdir()
        return not self.place.exists()


def within(happened: Callable[[], bool], seconds: float = SECONDS) -> bool:
    until = time.monotonic() + seconds
    while not happened() and time.monotonic() < until:
        time.sleep(0.01)
    return happened()


@pytest.fixture
def make() -> Iterator[Callable[[str], Group]]:
    groups: list[Group] = []

    def made(name: str) -> Group:
        groups.append(Group(name))
        groups[-1].start()
        assert within(groups[-1].works), "the processes have started"
        return groups[-1]

    yield made
    for group in groups:
        group.close()


@pytest.fixture
def groups() -> LiveControlGroups:
    return LiveControlGroups(hierarchy())


class TestFreezer:
    def test_a_frozen_group_stands_still_and_another_one_works(
        self, groups: LiveControlGroups, make: Callable[[str], Group]
    ) -> None:
        one, other = make("one"), make("other")
        groups.set_frozen(one.path, frozen=True)
        assert groups.await_frozen(one.path, SECONDS)
        assert groups.state(one.path).frozen
        assert not one.works()
        assert within(other.works)
        groups.set_frozen(one.path, frozen=False)
        assert groups.await_frozen(one.path, SECONDS, frozen=False)
        assert within(one.works)

    def test_processes_and_their_groups(self, groups: LiveControlGroups, make: Callable[[str], Group]) -> None:
        one, known = make("one"), LiveProcessGroups(lambda path: path or "(other)")
        pids = {child.pid for child in one.children}
        assert set(groups.processes(one.path)) == pids
        assert {known.name_of(pid, time.time()) for pid in pids} == {one.path}
        one.children[0].kill()
        one.children[0].wait()
        known.refresh()
        assert known.name_of(one.children[0].pid, time.time()) == one.path, "its last samples come now"
        known.refresh()
        assert known.name_of(one.children[0].pid, time.time()) == "(other)"
        known.close()

    def test_a_group_that_is_gone(self, groups: LiveControlGroups) -> None:
        throttle = Throttle(groups, lambda: LiveThawWatchdog(hierarchy()), lambda _: "", lambda _: None)
        throttle.apply({"/vfioctl-lab-gone"}, lambda _: 600)
        assert "ENOENT" in throttle.refused["/vfioctl-lab-gone"]
        throttle.close()


class TestThaw:
    @staticmethod
    def freeze(record: Path, *frozen: Group) -> tuple[subprocess.Popen[str], int]:
        command = [sys.executable, "-c", FREEZER, hierarchy(), str(record), *(group.path for group in frozen)]
        daemon = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": _path()})
        assert daemon.stdout
        watchdog, *paths = daemon.stdout.readline().split()
        assert set(paths) == {group.path for group in frozen}
        return daemon, int(watchdog)

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
    def test_all_are_thawed_when_the_daemon_ends(
        self, tmp_path: Path, make: Callable[[str], Group], number: signal.Signals
    ) -> None:
        one, other, theirs = make("one"), make("other"), make("theirs")
        (theirs.place / "cgroup.freeze").write_text("1")
        daemon, _ = self.freeze(tmp_path / "record", one, other)
        assert one.is_frozen
        assert other.is_frozen
        daemon.send_signal(number)
        daemon.communicate()
        begun = time.monotonic()
        assert within(lambda: not one.is_frozen and not other.is_frozen)
        print(f"thawed {time.monotonic() - begun:.3f} s after the end by {number.name}")
        assert within(one.works)
        assert other.works()
        assert theirs.is_frozen, "what another one froze is left alone"

    def test_a_daemon_that_stands_still_keeps_nothing_frozen(
        self, tmp_path: Path, make: Callable[[str], Group]
    ) -> None:
        one = make("one")
        watchdog = LiveThawWatchdog(hierarchy(), str(tmp_path / "record"))
        watchdog.announce(one.path, 0.5)
        LiveControlGroups(hierarchy()).set_frozen(one.path, frozen=True)
        assert within(lambda: one.is_frozen, 1)
        assert within(lambda: not one.is_frozen)
        watchdog.close()

    def test_what_both_left_when_they_were_killed_is_thawed(self, tmp_path: Path, make: Callable[[str], Group]) -> None:
        one, record = make("one"), tmp_path / "record"
        daemon, watchdog = self.freeze(record, one)
        os.kill(watchdog, signal.SIGKILL)
        daemon.kill()
        daemon.communicate()
        time.sleep(0.2)
        assert one.is_frozen
        assert thaw_abandoned(hierarchy(), str(record)) == {one.path: ""}
        assert within(one.works)


def _path() -> str:
    return os.pathsep.join(filter(None, sys.path))


class TestExclusions:
    def test_the_groups_of_the_system_and_of_vfioctl(
        self, groups: LiveControlGroups, make: Callable[[str], Group]
    ) -> None:
        host, one = Live(), make("one")
        exclusions = Exclusions(host, groups, lambda: {os.getpid()})
        assert exclusions.why("/")
        assert exclusions.why(groups.own())
        assert exclusions.why("/init.scope")
        assert exclusions.why(one.path) == ""

    def test_a_process_that_has_the_display_open(self, groups: LiveControlGroups, make: Callable[[str], Group]) -> None:
        cards = sorted(Path("/dev/dri").glob("card*"))
        assert cards, "the lab has a display, with a driver"
        one = make("one")
        one.start(1, f"card = open('{cards[0]}', 'rb'); print('ready', flush=True); import time; time.sleep(600)")
        assert within(lambda: "as a display server has" in Exclusions(Live(), groups, set).why(one.path))


class TestFdinfo:
    def test_a_drm_file_is_found_and_read(self) -> None:
        """The lab's display driver counts nothing; what it writes must not mislead."""
        nodes = sorted(Path("/dev/dri").glob("*[0-9]"))
        assert nodes, "the lab has a display, with a driver"
        clients = LiveDrmClients()
        assert clients.texts(os.getpid()) == []
        for node in nodes:
            descriptor = os.open(node, os.O_RDWR)
            try:
                texts = LiveDrmClients().texts(os.getpid())
                assert all("drm-driver:" in text for text in texts)
                assert all(client is None or client.gpu for client in map(client_in, texts))
                print(f"{node}: {len(texts)} texts: {[text.split() for text in texts]}")
            finally:
                os.close(descriptor)


class TestShares:
    def test_a_greedy_group_is_slowed_to_its_part(
        self, tmp_path: Path, groups: LiveControlGroups, make: Callable[[str], Group]
    ) -> None:
        """Real groups, frozen for real; the GPU is played by their processes, each of which takes what it can get."""
        greedy, modest = make("greedy"), make("modest")
        weights = {greedy.path: 1.0, modest.path: 3.0}
        rounds = DeficitRounds(weights, quantum=0.4, min_run=0.2)
        latencies: list[float] = []
        record = str(tmp_path / "record")
        throttle = Throttle(groups, lambda: LiveThawWatchdog(hierarchy(), record), lambda _: "", latencies.append)
        used, tick = dict.fromkeys(weights, 0.0), 0.1
        for _ in range(300):
            running = [path for path in weights if path not in throttle.frozen]
            whole = sum({greedy.path: 9.0, modest.path: 1.0}[path] for path in running)
            part = {path: tick * {greedy.path: 9.0, modest.path: 1.0}[path] / whole for path in running}
            for path, seconds in part.items():
                used[path] += seconds
            throttle.apply(rounds.tick(tick, part), rounds.longest_freeze)
            time.sleep(0.02)
        throttle.close()
        share = used[modest.path] / sum(used.values())
        print(f"share {share:.3f}, {len(latencies)} freezes, median {1000 * statistics.median(latencies):.2f} ms")
        assert share == pytest.approx(0.75, abs=0.04)
        assert greedy.works()
        assert modest.works()

    def test_samples_of_real_processes_count_for_their_groups(self, make: Callable[[str], Group]) -> None:
        one, known = make("one"), LiveProcessGroups(lambda path: path or "(other)")
        time_of = NvmlTime(known.name_of)
        now = time.time()
        for at in (now, now + 0.5):
            samples = [(child.pid, round(at * 1e6), 20) for child in one.children]
            usages = time_of.take(Samples("0000:01:00.0", samples))
        assert [usage.group for usage in usages] == [one.path]
        assert usages[0].seconds == pytest.approx(0.5 * 0.2 * MEMBERS)
        known.close()


class TestCommand:
    def test_once(self, tmp_path: Path) -> None:
        answer = vfioctl(tmp_path / "ledger.db", "share", "serve", "--once", "--for", "1s", "--json")
        assert answer.returncode == 0, answer.stderr
        assert '"usages": []' in answer.stdout

    def test_serving_ends_with_sigterm(self, tmp_path: Path, make: Callable[[str], Group]) -> None:
        one, file = make("one"), tmp_path / "config.toml"
        file.write_text(
            f'[sharing]\nthrottle = true\nlisten = ""\npoll = "0.2s"\n[[sharing.groups]]\npath = "{one.path}"\n'
        )
        running = Running(tmp_path / "ledger.db", "share", "serve", "--config", str(file))
        time.sleep(3)
        os.kill(running.pid, signal.SIGTERM)
        answer = running.answer()
        assert answer.returncode == 0, answer.stderr
        assert not one.is_frozen
