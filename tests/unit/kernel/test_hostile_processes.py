"""What an ordinary user's process has open, seen by root although the user tries to hide it."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import fuse
from tests.processes import end_in_time
from vfioctl.inventory.probe import processes as scan
from vfioctl.kernel.live import processes
from vfioctl.kernel.live.host import Live
from vfioctl.kernel.open_nodes import Opened, OpenNode

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="acts as root and as another user")

NOBODY = 65534
FULL = "c 1:7"
PR_SET_NAME = 15


@contextmanager
def nobodys(work: Callable[[], object]) -> Iterator[str]:
    """The pid of a process of another user that has done `work`, keeps what it gave, and waits."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            end_in_time()
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            kept = [work()]
            os.write(writing, b"." * len(kept))
            while True:
                signal.pause()
        finally:
            os._exit(1)
    os.close(writing)
    try:
        assert os.read(reading, 1) == b"."
        yield str(pid)
    finally:
        os.close(reading)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def has(found: Opened, number: str = FULL) -> bool:
    return any(node.number == number for node in found.nodes)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A directory of the other user."""
    for each in tmp_path.parents:
        if each.stat().st_uid == 0 and each not in (Path("/"), Path("/tmp")):
            each.chmod(0o755)
    there = tmp_path / "nobody"
    there.mkdir()
    os.chown(there, NOBODY, NOBODY)
    tmp_path.chmod(0o755)
    here = os.getcwd()
    yield there
    os.chdir(here)


def deep_file(place: Path) -> int:
    """An open file whose path is longer than the kernel can tell."""
    os.chdir(place)
    for _ in range(25):
        os.mkdir("d" * 200)
        os.chdir("d" * 200)
    return os.open("file", os.O_CREAT | os.O_RDWR)


def test_a_path_that_is_too_long_hides_nothing(place: Path) -> None:
    def work() -> object:
        long = deep_file(place)
        return long, os.open("/dev/full", os.O_RDONLY)

    with nobodys(work) as pid:
        found = Live().open_nodes(pid)
    assert has(found)
    assert found.unread == ""


def test_a_mapped_file_with_such_a_path_hides_nothing(place: Path) -> None:
    def work() -> object:
        os.truncate(long := deep_file(place), 4096)
        return mmap.mmap(long, 4096), os.open("/dev/full", os.O_RDONLY)

    with nobodys(work) as pid:
        found = Live().open_nodes(pid)
    assert has(found)
    assert found.unread == ""


def test_a_name_that_looks_like_more_fields_of_its_line_hides_nothing() -> None:
    def work() -> object:
        ctypes.CDLL(None).prctl(PR_SET_NAME, b") S 2 0 0 0 -1")
        return os.open("/dev/full", os.O_RDONLY)

    with nobodys(work) as pid:
        assert Path(f"/proc/{pid}/stat").read_text().startswith(f"{pid} () S 2 0 0 0 -1) ")
        found = Live().open_nodes(pid)
    assert has(found)
    assert found.unread == ""


def test_a_kernel_thread_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has nothing open; here a process that has is said to be one."""
    with open("/dev/full", "rb"):
        pid = str(os.getpid())
        assert has(processes.open_nodes(pid))
        monkeypatch.setattr(processes, "read_bytes", lambda _: b"2 (kthreadd) S 0 0 0 0 -1 2129984 0 0")
        assert processes.open_nodes(pid) == Opened((), "")


@contextmanager
def on_fuse(place: Path, flags: int) -> Iterator[tuple[str, int]]:
    """A process with a file of its own FUSE and a device open, and the server of the file system."""
    try:
        with (
            fuse.mounted(place, NOBODY, flags) as server,
            nobodys(lambda: (os.open(place / "file", os.O_RDONLY), os.open("/dev/full", os.O_RDONLY))) as pid,
        ):
            yield pid, server
    except (FileNotFoundError, PermissionError) as error:
        if error.filename not in (None, "/dev/fuse"):
            raise
        pytest.skip(f"no FUSE here: {error}")


def test_a_file_on_the_users_own_fuse_hides_nothing_and_is_no_doubt(place: Path) -> None:
    with on_fuse(place, fuse.NODEV) as (pid, server):
        with pytest.raises(PermissionError):
            os.stat(f"/proc/{pid}/fd/{_of_fuse(pid, place)}")
        assert has(Live().open_nodes(pid))
        assert Live().open_nodes(pid).unread == ""
        os.kill(server, signal.SIGKILL)
        os.waitpid(server, 0)
        assert has(Live().open_nodes(pid))
        assert Live().open_nodes(pid).unread == ""


def test_a_refused_file_that_may_be_a_device_is_a_doubt(place: Path) -> None:
    with on_fuse(place, 0) as (pid, _):
        live = Live()
        found = live.open_nodes(pid)
        assert has(found)
        assert found.unread == f"its file descriptor {_of_fuse(pid, place)} could not be read (EACCES)"
        assert (pid, found.unread) in [(p.pid, p.unread) for p in scan.Processes(live).running.suspects]


def _of_fuse(pid: str, place: Path) -> str:
    return next(fd for fd in os.listdir(f"/proc/{pid}/fd") if os.readlink(f"/proc/{pid}/fd/{fd}") == f"{place}/file")


@pytest.mark.parametrize("leader_ends", [False, True])
def test_a_thread_with_descriptors_of_its_own_hides_nothing(tmp_path: Path, *, leader_ends: bool) -> None:
    """Its table is not that of the process; and a process can go on without the thread that began it."""
    program = tmp_path / "threads.py"
    program.write_text(
        "import ctypes, os, threading, time\n"
        "libc = ctypes.CDLL(None)\n"
        "def hold():\n"
        "    libc.unshare(0x400)  # CLONE_FILES\n"
        "    os.open('/dev/full', os.O_RDONLY)\n"
        "    os.write(1, b'.')\n"
        "    time.sleep(600)\n"
        "threading.Thread(target=hold).start()\n"
        f"{'libc.pthread_exit(None)' if leader_ends else 'time.sleep(600)'}\n"
    )
    words = [sys.executable, "-S", "-E", str(program)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout
            assert process.stdout.read(1) == b"."
            if leader_ends:
                _until_ended(process.pid)
            assert FULL in {node.number for node in Live().open_nodes(str(process.pid)).nodes}
        finally:
            process.kill()


def _until_ended(pid: int) -> None:
    for _ in range(100):
        if "State:\tZ" in Path(f"/proc/{pid}/status").read_text():
            return
        time.sleep(0.05)
    pytest.fail("the first thread has not ended")


def moving_descriptor(wait: Callable[[], object], moved: Callable[[], object] = int) -> Callable[[], None]:
    """Work that never ends: behind many others, the descriptor of a device goes from number to number, each time after
    `wait`."""

    def move() -> None:
        for _ in range(800):
            os.open("/dev/zero", os.O_RDONLY)
        full = os.open("/dev/full", os.O_RDONLY)
        while True:
            wait()
            other = os.dup(full)
            os.close(full)
            full = other
            moved()

    return move


@contextmanager
def restless(work: Callable[[], None]) -> Iterator[str]:
    """The pid of a process of another user that is at `work`."""
    pid = os.fork()
    if pid == 0:
        try:
            end_in_time()
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            work()
        finally:
            os._exit(1)
    try:
        time.sleep(0.3)
        yield str(pid)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_a_descriptor_that_moves_hides_nothing() -> None:
    with restless(moving_descriptor(int)) as pid:
        for _ in range(20):
            found = Live().open_nodes(pid)
            assert has(found) or "descriptors change while they are read" in found.unread


def test_a_process_that_opens_and_closes_files_at_times_is_no_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does so once, while its descriptors are read."""
    (waits, wake), (tells, told) = os.pipe(), os.pipe()
    genuine, read = processes._descriptor, list[str]()

    def descriptor(pid: str, name: str, directory: int) -> Iterator[OpenNode]:
        if not read:
            os.write(wake, b".")
            assert os.read(tells, 1)
        read.append(name)
        return genuine(pid, name, directory)

    with restless(moving_descriptor(lambda: os.read(waits, 1), lambda: os.write(told, b"."))) as pid:
        os.close(told)  # so that its end is heard
        monkeypatch.setattr(processes, "_descriptor", descriptor)
        found = Live().open_nodes(pid)
    for end in (waits, wake, tells):
        os.close(end)
    assert len(read) > len(set(read)), "they were read again"
    assert has(found)
    assert found.unread == ""


def test_a_mapping_that_moves_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = os.stat

    def vanished(path: object, *args: object, **how: object) -> os.stat_result:
        if isinstance(path, bytes) and b"/map_files/" in path:
            raise FileNotFoundError(2, "moved")
        return genuine(path, *args, **how)  # type: ignore[arg-type]

    with nobodys(lambda: mmap.mmap(os.open("/dev/zero", os.O_RDWR), 4096)) as pid:
        monkeypatch.setattr(os, "stat", vanished)
        monkeypatch.setattr(processes, "_numbers", {})
        assert "mappings change while they are read" in Live().open_nodes(pid).unread
        assert processes._numbers == {}, "what one process hides is not taken for true of others"
