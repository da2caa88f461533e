"""The process environment: what a caller can leave to vfioctl as root, and what the commands that it starts get."""

from __future__ import annotations

import json
import os
import resource
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.conftest import ROOT
from vfioctl import environment
from vfioctl.kernel import files
from vfioctl.kernel.live.changes import LiveChange
from vfioctl.kernel.live.host import Live
from vfioctl.kernel.untrusted_files import read_file
from vfioctl.kernel.worker.client import ForkServer
from vfioctl.kernel.worker.job import call
from vfioctl.kernel.worker.workers import Workers

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, and a second user")
COMMAND = str(Path(sys.executable).with_name("vfioctl"))
HOSTILE = {"PYTHONPATH": str(ROOT), "VFIOCTL_LEDGER": "", "LD_AUDIT": "", "BASH_ENV": "/x", "MODPROBE_OPTIONS": "-n"}


def within(program: str, *words: str, **more: Any) -> Any:
    """What a program finds in a process that root started and vfioctl prepared."""
    whole = f"import json, os, sys\nfrom vfioctl.environment import *\nprepare_for_root(sys.argv[1:])\n{program}"
    more.setdefault("env", {**os.environ, "PYTHONPATH": str(ROOT)})
    done = subprocess.run([sys.executable, "-c", whole, *words], capture_output=True, text=True, check=False, **more)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("mask", [0o000, 0o077])
def test_the_umask_is_022(mask: int) -> None:
    assert within("print(os.umask(0))", umask=mask) == 0o022


def test_of_the_variables_those_stay_that_vfioctl_uses() -> None:
    used = {"VFIOCTL_HOST": "x", "SUDO_USER": "alice", "HOME": "/root", "TERM": "dumb", "LC_ALL": "C"}
    used |= {"NOTIFY_SOCKET": "/run/systemd/notify", "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1", "JOURNAL_STREAM": "8:1"}
    hostile = {**HOSTILE, "LD_LIBRARY_PATH": "/x", "TMPDIR": "/x", "GCC_EXEC_PREFIX": "/x", "PATH": "/tmp:."}
    found = within("print(json.dumps(dict(os.environ)))", env={**hostile, **used})
    assert found == {**used, "VFIOCTL_LEDGER": "", "PATH": environment.PATH}


class TestDescriptors:
    def test_that_the_caller_left_open_are_closed(self) -> None:
        reading, writing = os.pipe()
        try:
            found = within("print(list(open_descriptors()))", pass_fds=(reading, writing))
        finally:
            os.close(reading)
            os.close(writing)
        assert set(found) <= {0, 1, 2, 3}  # 3 has read the directory

    def test_that_are_named_stay_and_are_not_given_on(self) -> None:
        reading, writing = os.pipe()
        program = "print(json.dumps([os.read(N, 5).decode(), os.get_inheritable(N)]))".replace("N", str(reading))
        with os.fdopen(writing, "w") as stream:
            stream.write("hello")
        try:
            for word in (f"/dev/fd/{reading}", f"--host=/proc/self/fd/{reading}"):
                assert environment.named_descriptors([word]) == {reading}
            assert within(program, "apply", f"/dev/fd/{reading}", pass_fds=(reading,)) == ["hello", False]
        finally:
            os.close(reading)

    def test_of_which_the_process_has_no_more_are_closed(self) -> None:
        """With all of them used, Python itself can still start; after that, files can be opened."""

        def use_all() -> None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
            for fd in range(12, 256):
                os.dup2(0, fd, inheritable=True)

        assert within("print(len(open_descriptors()))", preexec_fn=use_all, close_fds=False) < 10

    @pytest.mark.parametrize(
        "word", ["/dev/fd/", "/dev/fd/x", "/dev/fd/-1", "/dev/fd/99999999999", "/dev/fd/²", "fd/3"]
    )
    def test_are_named_by_numbers_only(self, word: str) -> None:
        assert environment.named_descriptors([word]) == frozenset()

    def test_of_libraries_are_left_alone(self) -> None:
        with open(os.devnull) as ours:
            environment.close_inherited(keep=())
            assert os.fstat(ours.fileno())


def test_a_process_substitution_can_be_applied(tmp_path: Path) -> None:
    host = tmp_path / "laptop.host"
    host.write_bytes((ROOT / "tests/hosts/laptop.host").read_bytes())
    line = f"{COMMAND} --simulate {host}"
    script = f"{line} apply --yes --json <({line} bind gpu0 --dry-run --json) | grep '\"result\"'"
    done = subprocess.run(
        ["bash", "-c", script], env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert '"done"' in done.stdout, done.stderr


def test_only_the_pipe_itself_is_read_not_a_link_to_it(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    try:
        (tmp_path / "plan").symlink_to(f"/dev/fd/{reading}")
        with pytest.raises(OSError, match="FIFO"):
            read_file(tmp_path / "plan", 100)
        os.write(writing, b"x")
        os.close(writing)
        assert read_file(f"/dev/fd/{reading}", 100) == b"x"
        assert os.fstat(reading)
    finally:
        os.close(reading)


class TestCommands:
    @pytest.fixture
    def tool(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
        """Runs a script as a command of vfioctl's; the lines that it wrote."""
        monkeypatch.setitem(environment.OF_COMMANDS, "PATH", str(tmp_path))

        def run(script: str) -> list[str]:
            (tmp_path / "tool").write_text(f"#!/bin/sh\n{script}\n")
            (tmp_path / "tool").chmod(0o755)
            return files.run(["tool"])[1].splitlines()

        return run

    def test_get_an_environment_of_their_own(
        self, tool: Callable[[str], list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        for name, value in HOSTILE.items():
            monkeypatch.setenv(name, value)
        lines = tool("/usr/bin/env")
        assert {line.split("=")[0] for line in lines} <= {"PATH", "LC_ALL", "PWD", "SHLVL", "_", "OLDPWD"}
        assert {f"PATH={tmp_path}", "LC_ALL=C"} <= set(lines)

    def test_begin_in_the_root_directory(self, tool: Callable[[str], list[str]]) -> None:
        assert tool("pwd") == ["/"]

    def test_may_write_any_bytes(self, tool: Callable[[str], list[str]]) -> None:
        assert tool(r"printf '\377x'") == ["\ufffdx"]

    def test_are_found_where_only_root_writes(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        (tmp_path / "modprobe-of-nobody").write_text("#!/bin/sh\n")
        (tmp_path / "modprobe-of-nobody").chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        assert files.run(["modprobe-of-nobody"])[0] == 127
        for place in environment.PATH.split(":"):
            found = os.stat(place)
            assert found.st_uid == 0
            assert not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def test_workers_are_in_the_root_directory_and_find_modules_all_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    (tmp_path / "only_here_xyz.py").write_text("import os\ndef where() -> str:\n    return os.getcwd()\n")
    import only_here_xyz  # type: ignore[import-not-found]

    workers = Workers(ForkServer(), ("builtins:object", {}))
    try:
        assert call(workers.server, only_here_xyz.where, timeout=10) == "/"
    finally:
        workers.close()
        del sys.modules["only_here_xyz"]


def test_a_relative_ledger_is_that_of_the_caller(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    kernel: LiveChange = Live()
    with kernel.exclusive(Path("ledger.lock"), wait=0):
        assert kernel._locks.verdicts == tmp_path / "ledger.verdicts"
    kernel.close()


@pytest.mark.parametrize("mask", [0o000, 0o077])
def test_directories_and_files_have_modes_of_their_own(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        files.replace_file(str(tmp_path / "etc/vfioctl/vgpu.d/x.json"), "{}")
    finally:
        os.umask(before)
    for path in ("etc", "etc/vfioctl", "etc/vfioctl/vgpu.d"):
        assert stat.S_IMODE((tmp_path / path).stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "etc/vfioctl/vgpu.d/x.json").stat().st_mode) == 0o644


@as_root
@pytest.mark.parametrize("mask", [0o000, 0o077])
def test_root_in_the_directory_of_another_user(tmp_path: Path, mask: int) -> None:
    """Nothing in it runs, and nothing that root writes elsewhere can be written by others."""
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    ours.mkdir(mode=0o755)
    (ours / "laptop.host").write_bytes((ROOT / "tests/hosts/laptop.host").read_bytes())
    _hostile_directory(theirs)
    line = f"--simulate {ours}/laptop.host bind gpu0 --yes"
    done = subprocess.run(
        [COMMAND, *line.split()],
        cwd=theirs,
        env={"PATH": f"{theirs}:/usr/bin:/bin", "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        umask=mask,
    )
    assert done.returncode == 0, done.stderr
    assert not (theirs / "ran").exists()
    assert sorted(path.name for path in ours.iterdir()) != ["laptop.host"]
    assert not [str(path) for path in ours.iterdir() if path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)]


def _hostile_directory(place: Path) -> None:
    (place / "vfioctl").mkdir(parents=True)
    for name in ("json.py", "sqlite3.py", "vfioctl/__init__.py"):
        (place / name).write_text(f"open({str(place / 'ran')!r}, 'w')\n")
    for name in ("modprobe", "systemctl", "sriov-manage", "ldconfig", "gcc"):
        (place / name).write_text(f"#!/bin/sh\necho {name} >> {place}/ran\n")
        (place / name).chmod(0o755)
    for path in (place, *place.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
