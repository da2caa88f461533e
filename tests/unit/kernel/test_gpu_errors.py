"""The errors of GPUs that NVML reports: the program that waits for them, with pynvml and the stand-in for NVIDIA's
library or with a stand-in for pynvml; and those of recorded and simulated hosts."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.hosts.machines import copy, original
from tests.unit.kernel.conftest import lost
from vfioctl.kernel import program_feed
from vfioctl.kernel.feeds import Feed, Lost, Notice
from vfioctl.kernel.live import gpu_errors
from vfioctl.kernel.live.gpu_errors import GpuErrors
from vfioctl.kernel.live.host import Live
from vfioctl.kernel.protocol import NOT_LISTED, PCI_DRIVERS
from vfioctl.kernel.recorded.host import Recorded
from vfioctl.kernel.recorded.tree import form
from vfioctl.kernel.simulated.host import Simulated

SECONDS = 30.0
_UNINITIALIZED = 1
FIRST, SECOND, ABSENT = "0000:0a:00.0", "0000:0b:00.0", "0000:0c:00.0"
GPUS = """\
00000000:0A:00.0|NVIDIA H100|GPU-aaaa|85899345920|0|0|-|0
00000000:0B:00.0|NVIDIA H100|GPU-bbbb|85899345920|0|0|-|{code}
"""
LOST = "the GPU is lost, it no longer answers its driver: dmesg | grep -i xid, then reboot"


def xid(address: str, number: int) -> Notice:
    return Notice("xid", address, (address,), str(number))


def unwatched(address: str, reason: str) -> Notice:
    return Notice("unwatched", address, (address,), reason)


@contextmanager
def following(*gpus: str) -> Iterator[GpuErrors]:
    feed = GpuErrors(gpus)
    try:
        yield feed
    finally:
        feed.close()
        assert feed._process.poll() is not None


def notices(feed: Feed, count: int) -> list[Notice]:
    """So many notices, which may come one by one."""
    got: list[Notice] = []
    until = time.monotonic() + SECONDS
    while len(got) < count and time.monotonic() < until:
        select.select([feed.fileno()], [], [], 1)
        got += feed.read()
    return got


def followed(feed: GpuErrors) -> None:
    """Waits until the GPUs are registered."""
    until = time.monotonic() + SECONDS
    while feed._start_until is not None and time.monotonic() < until:
        assert feed.read() == []
        time.sleep(0.02)
    assert feed._start_until is None


class TestNvml:
    """With pynvml, and the stand-in for NVIDIA's library."""

    @pytest.fixture(autouse=True)
    def state(self, nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        state = tmp_path / "gpus"
        state.write_text(GPUS.format(code=0))
        monkeypatch.setenv("LD_LIBRARY_PATH", str(nvml_library))
        monkeypatch.setenv("NVML_STANDIN_STATE", str(state))
        return state

    @staticmethod
    def report(state: Path, *errors: str, code: int = 0) -> None:
        state.write_text(GPUS.format(code=code) + "".join(f"xid|00000000:{error}\n" for error in errors))

    def test_each_error_is_a_notice_with_the_address_of_its_gpu(self, state: Path) -> None:
        self.report(state, "0B:00.0|79", "0A:00.0|31", "0A:00.0|31")
        with following(FIRST, SECOND) as feed:
            assert notices(feed, 3) == [xid(SECOND, 79), xid(FIRST, 31), xid(FIRST, 31)]
            assert feed.read() == []

    def test_those_of_other_gpus_are_not_followed(self, state: Path) -> None:
        self.report(state, "0B:00.0|79", "0A:00.0|48")
        with following(FIRST) as feed:
            assert notices(feed, 1) == [xid(FIRST, 48)]

    def test_a_gpu_that_nvml_does_not_list_costs_itself(self, state: Path) -> None:
        self.report(state, "0A:00.0|48")
        with following(ABSENT, FIRST) as feed:
            assert notices(feed, 2) == [unwatched(ABSENT, NOT_LISTED), xid(FIRST, 48)]

    def test_a_lost_gpu_costs_itself(self, state: Path) -> None:
        self.report(state, "0A:00.0|48", code=15)
        with following(SECOND, FIRST) as feed:
            assert notices(feed, 2) == [unwatched(SECOND, LOST), xid(FIRST, 48)]

    def test_an_unknown_error_at_registration_costs_itself_and_a_new_set(self, state: Path) -> None:
        self.report(state, "0A:00.0|48", code=-999)
        with following(FIRST, SECOND) as feed:
            assert notices(feed, 2) == [unwatched(SECOND, "NVML: Unknown Error"), xid(FIRST, 48)]

    def test_without_any_gpu_the_program_waits_with_none_open(self) -> None:
        with following(ABSENT) as feed:
            assert notices(feed, 1) == [unwatched(ABSENT, NOT_LISTED)]
            followed(feed)
            time.sleep(0.2)
            assert feed.read() == []
            assert feed._process.poll() is None

    @pytest.mark.parametrize(
        ("faults", "reason"),
        [
            ("nvmlInitWithFlags=9", "the nvidia driver does not answer NVML: dmesg | grep -i nvrm"),
            ("nvmlEventSetCreate=3", "NVML: Not Supported"),
            ("nvmlEventSetWait_v2=15", LOST),
        ],
    )
    def test_a_failure_ends_it_with_the_reason(self, monkeypatch: pytest.MonkeyPatch, faults: str, reason: str) -> None:
        monkeypatch.setenv("NVML_STANDIN_FAULTS", faults)
        with following(FIRST) as feed:
            ended = lost(feed)
        assert ended.ended
        assert str(ended) == f"NVML's events cannot be followed: {reason}"

    @pytest.mark.parametrize("function", ["nvmlInitWithFlags", "nvmlDeviceRegisterEvents"])
    def test_a_library_that_hangs_is_told_and_ended(self, monkeypatch: pytest.MonkeyPatch, function: str) -> None:
        monkeypatch.setenv("NVML_STANDIN_FAULTS", f"{function}=hang")
        monkeypatch.setattr(program_feed, "_START_SECONDS", 1.0)
        with following(FIRST) as feed:
            assert str(lost(feed)) == "NVML's events cannot be followed: no answer within 1 s"
            assert feed._process.wait(SECONDS) == -signal.SIGKILL

    def test_it_costs_no_time_to_wait(self) -> None:
        with following(FIRST, SECOND) as feed:
            followed(feed)
            before = cpu_ticks(feed)
            time.sleep(1.5)
            assert cpu_ticks(feed) == before

    def test_the_program_ends_with_the_one_who_started_it(self) -> None:
        program = (
            "import time; from vfioctl.kernel.live.gpu_errors import GpuErrors\n"
            f"feed = GpuErrors(['{FIRST}'])\n"
            "while feed._start_until is not None: feed.read(); time.sleep(0.02)\n"
            "print(feed._process.pid, flush=True); time.sleep(600)"
        )
        root = Path(__file__).resolve().parents[3]
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=root) as parent:
            assert parent.stdout
            child = Path("/proc") / parent.stdout.readline().strip()
            assert b"gpu_errors" in (child / "cmdline").read_bytes()
            parent.kill()
        until = time.monotonic() + SECONDS
        while has_not_ended(child) and time.monotonic() < until:
            time.sleep(0.02)
        assert not has_not_ended(child)


def has_not_ended(process: Path) -> bool:
    """Whether it runs; a zombie that its new parent has not collected has ended."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def cpu_ticks(feed: GpuErrors) -> int:
    fields = Path(f"/proc/{feed._process.pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


PYNVML = """
import ctypes, sys, time
class NVMLError(Exception): pass
nvmlEventTypeXidCriticalError = 8
handle = lambda number: ctypes.c_void_p(number)
nvmlInit = lambda: None
nvmlEventSetCreate = lambda: None
nvmlDeviceGetHandleByPciBusId = lambda bus: handle(0x1000)
nvmlDeviceRegisterEvents = lambda *_: None
class Event:
    def __init__(self, device, type, data): self.device, self.eventType, self.eventData = handle(device), type, data
left = []
def nvmlEventSetWait_v2(events, timeout):
    next = left.pop(0) if left else time.sleep(600)
    if isinstance(next, Exception): raise next
    return next
"""


class TestBinding:
    """With a stand-in for pynvml."""

    @pytest.fixture
    def library(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.syspath_prepend(tmp_path)
        return tmp_path / "pynvml.py"

    def test_an_error_of_a_gpu_that_nvml_does_not_name_has_no_address(self, library: Path) -> None:
        library.write_text(f"{PYNVML}left += [Event(0x2000, 8, 79)]")
        with following(FIRST) as feed:
            assert notices(feed, 1) == [Notice("xid", "", (), "79")]

    def test_an_end_of_the_wait_and_events_of_other_types_are_no_errors(self, library: Path) -> None:
        library.write_text(f"{PYNVML}left += [NVMLError(10), Event(0x1000, 2, 1), NVMLError(10), Event(0x1000, 8, 48)]")
        with following(FIRST) as feed:
            assert notices(feed, 1) == [xid(FIRST, 48)]

    def test_what_was_reported_before_the_library_failed_is_not_lost(self, library: Path) -> None:
        library.write_text(f"{PYNVML}left += [Event(0x1000, 8, 79), NVMLError(15)]")
        with following(FIRST) as feed:
            feed._process.wait(SECONDS)
            assert feed.read() == [xid(FIRST, 79)]
            assert str(lost(feed)) == f"NVML's events cannot be followed: {LOST}"

    @pytest.mark.parametrize("garbage", ["NVML: warning", '{"a": 1}', '["xid"]', "[1, 2, 3, 4]", "null"])
    def test_what_is_no_notice_ends_it(self, library: Path, garbage: str) -> None:
        library.write_text(f"{PYNVML}nvmlDeviceRegisterEvents = lambda *_: print({garbage!r})")
        with following(FIRST) as feed:
            ended = lost(feed)
            assert feed._process.wait(SECONDS) == -signal.SIGKILL
        assert ended.ended
        assert str(ended) == "NVML's events cannot be followed: an answer that vfioctl does not understand"

    def test_what_is_no_notice_costs_nothing_before(self, library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        library.write_text(PYNVML)
        with following(FIRST) as feed:
            pieces = [f'["xid", "{FIRST}", "79"]\nNVML: warning\n["xid", "{FIRST}", "48"]\n'.encode(), b""]
            monkeypatch.setattr(feed, "_available", lambda: pieces.pop(0))
            assert feed.read() == [xid(FIRST, 79)]
            with pytest.raises(Lost, match="does not understand"):
                feed.read()

    def test_a_program_that_dies_is_lost(self, library: Path) -> None:
        library.write_text(f"{PYNVML}import os\nnvmlInit = lambda: os.abort()")
        with following(FIRST) as feed:
            assert str(lost(feed)) == "NVML's events ended"

    def test_a_binding_without_the_functions_is_lost(self, library: Path) -> None:
        library.write_text(f"{PYNVML}del nvmlEventSetCreate")
        with following(FIRST) as feed:
            assert lost(feed).ended

    def test_an_absent_binding_is_a_reason(self, library: Path) -> None:
        library.write_text("raise ImportError")
        with following(FIRST) as feed:
            assert "pynvml (nvidia-ml-py) is not installed" in str(lost(feed))

    def test_one_that_cannot_be_killed_is_abandoned(self, library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        library.write_text(f"{PYNVML}import signal\nnvmlInit = lambda: [time.sleep(9) for _ in range(99)]")
        monkeypatch.setattr(program_feed, "_KILL_SECONDS", 0.1)
        feed = GpuErrors([FIRST])
        with monkeypatch.context() as patched:
            patched.setattr(feed._process, "kill", lambda: None)
            os.kill(feed._process.pid, signal.SIGSTOP)  # so that it does not see the end of its input
            began = time.monotonic()
            feed.close()
            assert time.monotonic() - began < 3
            assert feed._process.poll() is None
        feed._process.kill()
        feed._process.wait(SECONDS)


def test_other_gpus_are_hidden_before_nvml_looks_for_any(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[object] = []

    class NVMLError(Exception):
        pass

    def init() -> None:
        calls.append("init")
        raise NVMLError(_UNINITIALIZED)

    library = SimpleNamespace(NVMLError=NVMLError, nvmlInit=init)
    monkeypatch.setitem(sys.modules, "pynvml", library)
    monkeypatch.setattr(gpu_errors, "hide_all_but", calls.append)
    monkeypatch.setattr(gpu_errors, "_end_with_input", lambda: None)
    assert gpu_errors.main(f"{FIRST} {SECOND}") == 1
    assert calls == [[FIRST, SECOND], "init"]
    assert capsys.readouterr().out == '["", "NVML: 1", ""]\n'


class TestLive:
    def test_without_the_driver_there_is_no_program(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Live, "has", lambda _, path: path != f"{PCI_DRIVERS}/nvidia")
        assert type(Live().gpu_errors([FIRST])) is Feed

    def test_without_gpus_there_is_no_program(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Live, "has", lambda *_: True)
        assert type(Live().gpu_errors([])) is Feed

    def test_a_captured_directory_has_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Live, "has", lambda *_: True)
        assert type(Live(read_only=True).gpu_errors([FIRST])) is Feed

    def test_with_both_there_is_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Live, "has", lambda *_: True)
        feed = Live().gpu_errors([FIRST])
        assert type(feed) is GpuErrors
        feed.close()


GPU, OTHER = "0000:0a:00.0", "0000:0b:00.0"


class TestOthers:
    def test_a_recorded_host_reports_nothing(self) -> None:
        feed = Recorded(original("workstation"), "").gpu_errors([GPU])
        assert (feed.read(), feed.fileno()) == ([], -1)

    def test_a_simulated_host_reports_what_it_is_told(self) -> None:
        kernel = Simulated(copy(original("workstation")), "")
        kernel.report_xid(GPU, 13)
        feed = kernel.gpu_errors([GPU, OTHER])
        assert feed.read() == []
        kernel.report_xid(GPU, 31)
        kernel.report_xid(GPU, 31)
        kernel.report_xid(OTHER, 79)
        assert feed.read() == [xid(GPU, 31), xid(GPU, 31), xid(OTHER, 79)]
        assert feed.read() == []

    def test_a_simulated_gpu_on_another_driver_is_not_watched(self) -> None:
        kernel = Simulated(copy(original("workstation")), "")
        kernel.load("vfio-pci")
        kernel.write(f"/sys/bus/pci/devices/{GPU}/driver_override", "vfio-pci")
        kernel.write(f"{PCI_DRIVERS}/nvidia/unbind", GPU)
        feed = kernel.gpu_errors([GPU, "0000:ff:00.0"])
        kernel.report_xid(GPU, 79)
        assert feed.read() == [unwatched(GPU, NOT_LISTED), unwatched("0000:ff:00.0", NOT_LISTED)]
        assert feed.read() == []

    def test_another_process_may_tell_it_in_the_file(self, tmp_path: Path) -> None:
        file = tmp_path / "host"
        file.write_text(form(original("workstation")))
        feed = Simulated.at(file).gpu_errors([GPU])
        uevents = Simulated.at(file).uevents()
        Simulated.at(file).report_xid(GPU, 79)
        assert feed.read() == [xid(GPU, 79)]
        assert uevents.read() == []
        file.write_text("nothing")
        with pytest.raises(Lost):
            feed.read()
