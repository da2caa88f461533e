"""Control groups in a tree of files as the kernel shows them, and which one a process is in."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from vfioctl.errors import KernelRefused
from vfioctl.kernel.gpu_sharing import GroupState
from vfioctl.kernel.live.control_groups import LiveControlGroups, LiveProcessGroups, group_in


def group(root: Path, path: str, *pids: int, frozen: int = 0, populated: int = 1) -> Path:
    place = root / path.lstrip("/")
    place.mkdir(parents=True, exist_ok=True)
    (place / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
    (place / "cgroup.events").write_text(f"populated {populated}\nfrozen {frozen}\n")
    (place / "cgroup.freeze").write_text(f"{frozen}\n")
    return place


class TestGroups:
    def test_processes_are_those_of_a_group_and_below(self, tmp_path: Path) -> None:
        group(tmp_path, "/a", 10)
        group(tmp_path, "/a/b", 11, 12)
        group(tmp_path, "/c", 13)
        assert sorted(LiveControlGroups(str(tmp_path)).processes("/a")) == [10, 11, 12]

    @pytest.mark.parametrize(
        ("name", "depth", "is_too_long"), [("a", 60, False), ("a", 70, True), ("n" * 250, 20, True)]
    )
    def test_a_user_may_nest_groups_as_deep_as_he_likes(
        self, tmp_path: Path, name: str, depth: int, is_too_long: bool
    ) -> None:
        """A path that the kernel does not take costs the listed group above it only."""
        group(tmp_path, "", 9)
        place = group(tmp_path, "/a", 10)
        program = f"cd {place}; for i in $(seq {depth}); do mkdir {name}; cd -P {name}; done; echo 11 >cgroup.procs"
        subprocess.run(["bash", "-c", program], check=True)
        groups = LiveControlGroups(str(tmp_path))
        try:
            if is_too_long:
                assert set(groups.processes("/")) == {9, 10}
                with pytest.raises(KernelRefused) as refused:
                    groups.processes("/a")
                assert refused.value.symbol == "ENAMETOOLONG"
            else:
                assert set(groups.processes("/")) == {9, 10, 11}
        finally:
            subprocess.run(["rm", "-rf", str(place / name)], check=True)

    def test_processes_of_another_pid_namespace_have_no_number(self, tmp_path: Path) -> None:
        group(tmp_path, "/a", 0, 10)
        assert LiveControlGroups(str(tmp_path)).processes("/a") == (10,)

    def test_a_group_that_is_gone_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(KernelRefused, match="failed") as refused:
            LiveControlGroups(str(tmp_path)).processes("/gone")
        assert refused.value.symbol == "ENOENT"

    def test_state(self, tmp_path: Path) -> None:
        place = group(tmp_path, "/a", frozen=1)
        groups = LiveControlGroups(str(tmp_path))
        assert groups.state("/a") == GroupState(populated=True, frozen=True, asked=True)
        (place / "cgroup.events").write_text("populated 0\nfrozen 0\nmore 1\n")
        assert groups.state("/a") == GroupState(populated=False, frozen=False, asked=True)

    def test_freezing_writes_the_freezer_only(self, tmp_path: Path) -> None:
        place = group(tmp_path, "/a")
        groups = LiveControlGroups(str(tmp_path))
        groups.set_frozen("/a", frozen=True)
        assert (place / "cgroup.freeze").read_text()[0] == "1"
        groups.set_frozen("/a", frozen=False)
        assert (place / "cgroup.freeze").read_text()[0] == "0"

    @pytest.mark.parametrize("path", ["/", "a", "/a/../b", "/../etc", "//a", "/a/", "/a\0b", "/a\nb", ""])
    def test_a_path_that_leads_elsewhere_is_refused(self, tmp_path: Path, path: str) -> None:
        with pytest.raises(KernelRefused) as refused:
            LiveControlGroups(str(tmp_path)).set_frozen(path, frozen=True)
        assert refused.value.symbol == "EINVAL"

    def test_waiting_ends_when_it_is_frozen_or_the_time_is_over(self, tmp_path: Path) -> None:
        place = group(tmp_path, "/a")
        groups = LiveControlGroups(str(tmp_path))
        assert not groups.await_frozen("/a", 0.05)
        freezer = threading.Timer(0.1, (place / "cgroup.events").write_text, ["populated 1\nfrozen 1\n"])
        freezer.start()
        assert groups.await_frozen("/a", 10)
        freezer.join()


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("0::/user.slice/a\n", "/user.slice/a"),
        ("4:memory:/x\n0::/\n", "/"),
        ("0::/gone (deleted)\n", "/gone"),
        ("0::/../outside\n", None),
        ("4:memory:/x\n", None),
        ("", None),
    ],
)
def test_the_group_in_proc(text: str, path: str | None) -> None:
    assert group_in(text) == path


def named(path: str | None) -> str:
    return path or "?"


class TestProcesses:
    @staticmethod
    def proc(folder: Path, pid: int, path: str) -> None:
        (folder / str(pid)).mkdir(exist_ok=True)
        (folder / str(pid) / "cgroup").write_text(f"0::{path}\n")
        stat = Path(f"/proc/{pid}/stat").read_text()
        (folder / str(pid) / "stat").write_text(stat)

    def test_a_process_has_its_group_until_it_ends(self, tmp_path: Path) -> None:
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        self.proc(tmp_path, child.pid, "/a")
        groups = LiveProcessGroups(named, str(tmp_path))
        assert groups.name_of(child.pid, time.time() + 1) == "/a"
        child.communicate(b"\n")
        (tmp_path / str(child.pid) / "cgroup").unlink()
        groups.refresh()
        assert groups.name_of(child.pid, time.time()) == "/a", "its last samples come now"
        groups.refresh()
        assert groups.name_of(child.pid, time.time() + 1) == "?"
        groups.close()

    def test_what_began_later_is_another_process(self, tmp_path: Path) -> None:
        self.proc(tmp_path, os.getpid(), "/a")
        groups = LiveProcessGroups(named, str(tmp_path))
        assert groups.name_of(os.getpid(), time.time() - 10 * 365 * 86400) == "?"
        assert groups.name_of(os.getpid(), time.time()) == "/a"
        groups.close()

    def test_a_process_that_moves_is_seen_soon(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(LiveProcessGroups, "_SECONDS", -1.0)
        self.proc(tmp_path, os.getpid(), "/a")
        groups = LiveProcessGroups(named, str(tmp_path))
        assert groups.name_of(os.getpid(), time.time()) == "/a"
        self.proc(tmp_path, os.getpid(), "/b")
        assert groups.name_of(os.getpid(), time.time()) == "/b"
        groups.close()

    def test_no_descriptor_is_left_open(self, tmp_path: Path) -> None:
        self.proc(tmp_path, os.getpid(), "/a")
        before = len(os.listdir("/proc/self/fd"))
        groups = LiveProcessGroups(named, str(tmp_path))
        for pid in (os.getpid(), 1 << 29):
            groups.name_of(pid, time.time())
        groups.close()
        assert len(os.listdir("/proc/self/fd")) == before

    def test_a_damaged_stat_costs_the_process(self, tmp_path: Path) -> None:
        self.proc(tmp_path, os.getpid(), "/a")
        (tmp_path / str(os.getpid()) / "stat").write_text("nonsense")
        assert LiveProcessGroups(named, str(tmp_path)).name_of(os.getpid(), time.time()) == "?"
