"""Files that anyone may have written: only regular ones are read, and only up to a size; nothing else is opened."""

from __future__ import annotations

import errno
import io
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.conftest import Run
from vfioctl.config import read_config
from vfioctl.errors import BadDocument, KernelRefused
from vfioctl.kernel.captured.host import Captured
from vfioctl.kernel.live.host import Live
from vfioctl.kernel.recorded.host import read_tree
from vfioctl.kernel.untrusted_files import read_file, read_start, read_stream

MIB = 1 << 20
ODD = {"fifo": "a FIFO", "socket": "a socket", "null": "a device", "zero": "a device", "folder": "directory"}


@pytest.fixture(autouse=True)
def _at_once() -> Iterator[None]:
    """Fail, instead of hanging, when something blocks."""
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it blocks"))
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(params=sorted(ODD))
def odd(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What is no regular file, below the root of a capture."""
    (tmp_path / "sys").mkdir()
    file: Path = tmp_path / "sys" / request.param
    if request.param == "fifo":
        os.mkfifo(file)
    elif request.param == "socket":
        monkeypatch.chdir(tmp_path / "sys")  # the name of a socket is short
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("socket")
    elif request.param == "folder":
        file.mkdir()
    else:
        file.symlink_to(f"/dev/{request.param}")
    return file


class TestWhatIsNoRegularFile:
    def test_is_refused_with_its_kind(self, odd: Path) -> None:
        with pytest.raises(OSError, match=ODD[odd.name]) as caught:
            read_file(odd, MIB)
        assert caught.value.errno in (errno.ENXIO, errno.EISDIR)

    def test_is_not_opened(self, odd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        opened, genuine = [], os.open

        def watched(path: object, flags: int, *more: int) -> int:
            opened.append(flags & os.O_PATH)
            return genuine(path, flags, *more)  # type: ignore[arg-type] # a path

        monkeypatch.setattr(os, "open", watched)
        with pytest.raises(OSError, match=ODD[odd.name]):
            read_start(odd, MIB)
        assert opened == [os.O_PATH]

    def test_is_no_plan(self, run: Run, odd: Path) -> None:
        answer = run("apply --simulate laptop", str(odd))
        assert answer.code == 2
        assert ODD[odd.name] in answer.err

    def test_is_no_host(self, run: Run, odd: Path) -> None:
        for option in ("--host", "--simulate"):
            answer = run("inventory", option, str(odd))
            assert answer.code == 2
            assert ODD[odd.name] in answer.err

    def test_is_no_configuration(self, odd: Path) -> None:
        problem = read_config(odd).problem
        assert problem
        assert ODD[odd.name] in problem.message

    def test_is_no_file_of_this_machine_and_of_no_capture(self, odd: Path, tmp_path: Path) -> None:
        for read, path in (
            (Live().read, str(odd)),
            (Captured(str(tmp_path)).read, f"/sys/{odd.name}"),
        ):
            with pytest.raises(KernelRefused) as caught:
                read(path)
            assert caught.value.symbol in ("ENXIO", "EISDIR", "ENOENT")


def test_a_file_of_any_size_is_refused(tmp_path: Path) -> None:
    (tmp_path / "huge").touch()
    os.truncate(tmp_path / "huge", 1 << 40)
    with pytest.raises(BadDocument, match="larger than 64 MiB"):
        read_tree(tmp_path / "huge")
    problem = read_config(tmp_path / "huge").problem
    assert problem
    assert "larger than 1 MiB" in problem.message


def test_a_plan_of_any_size_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "huge").touch()
    os.truncate(tmp_path / "huge", 1 << 40)
    answer = run("apply --simulate laptop", str(tmp_path / "huge"))
    assert answer.code == 2
    assert "larger than 4 MiB" in answer.err


@pytest.mark.parametrize(("size", "fits"), [(0, True), (1023, True), (1024, True), (1025, False)])
def test_the_size_is_a_limit(tmp_path: Path, size: int, *, fits: bool) -> None:
    (tmp_path / "file").write_bytes(b"x" * size)
    ways: tuple[Callable[[], bytes], ...] = (
        lambda: read_file(tmp_path / "file", 1024),
        lambda: read_stream(io.BytesIO(b"x" * size), 1024),
    )
    for read in ways:
        if fits:
            assert len(read()) == size
        else:
            with pytest.raises(OSError, match="larger than 1 KiB"):
                read()


def test_a_plan_on_stdin_may_come_through_a_pipe(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = run("bind 01:00.0 --with-group --dry-run --json --simulate workstation", "--allow-boot-vga").out
    for text, code in ((plan, None), ("x" * ((4 << 20) + 1), 2)):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        answer = run("apply - --simulate workstation --json")
        assert ("larger than 4 MiB" in answer.out) == (code == 2)


@pytest.mark.parametrize("name", ["\0", "\ud800", "", "x" * 5000])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(OSError):  # noqa: PT011 - of several kinds
        read_file(name, MIB)


def test_a_deep_configuration_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config").write_text(f"a = {'[' * 100_000}")
    problem = read_config(tmp_path / "config").problem
    assert problem
    assert "nested too deeply" in problem.message
