"""NVIDIA's control program, run as vfioctl runs it: a stand-in, and what a program may do that is not as documented."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import pytest

from vfioctl.errors import HostError
from vfioctl.kernel.captured.host import Captured
from vfioctl.kernel.live import mps
from vfioctl.kernel.live.host import Live
from vfioctl.kernel.mps import MOST_OUTPUT, refuse_order, refuse_question
from vfioctl.kernel.recorded.host import Recorded
from vfioctl.kernel.recorded.tree import Tree


def write(folder: Path, script: str) -> None:
    (folder / "nvidia-cuda-mps-control").write_text(f"#!/bin/sh\n{script}\n")


class TestTheProgram:
    def test_gets_the_command_and_nothing_of_the_callers(self, standin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("LD_PRELOAD_SECRET", "x")
        write(standin, 'read -r line; echo "$line|$CUDA_MPS_PIPE_DIRECTORY|$LD_PRELOAD_SECRET|$PWD"')
        assert mps.talk("/run/x", "get_server_list") == (0, "get_server_list|/run/x||/")

    @pytest.mark.usefixtures("standin")
    def test_without_a_daemon_says_so(self, tmp_path: Path) -> None:
        with pytest.raises(HostError, match="get_server_list failed") as caught:
            Live().ask_mps(str(tmp_path), "get_server_list")
        assert caught.value.kernel_said == "Cannot find MPS control daemon process"

    def test_may_be_missing(self, standin: Path, tmp_path: Path) -> None:
        (standin / "nvidia-cuda-mps-control").unlink()
        for ask in (partial(Live().ask_mps, str(tmp_path), "ps"), Live().mps_usage):
            with pytest.raises(HostError, match="this host has no MPS"):
                ask()

    @pytest.mark.parametrize("script", ["exec /bin/sleep 100", "/bin/sleep 100 & wait", "echo 1; exec /bin/sleep 100"])
    def test_that_hangs_is_ended_with_all_that_it_started(self, standin: Path, script: str) -> None:
        write(standin, script)
        begun = time.monotonic()
        assert mps.talk("", "ps", seconds=0.3)[0] == mps.NO_ANSWER
        assert time.monotonic() - begun < 3

    @pytest.mark.alone  # what it sets is in forks of a process with one thread only
    def test_that_hangs_is_reported(self, standin: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        write(standin, "exec /bin/sleep 100")
        monkeypatch.setattr(mps, "SECONDS", 3.0)  # its worker is waited for twice as long
        monkeypatch.setattr(mps.talk, "__kwdefaults__", {"seconds": 0.3})
        with pytest.raises(HostError, match="no answer within 3 s"):
            Live().ask_mps(str(tmp_path), "ps")

    def test_that_prints_without_end_is_cut_off(self, standin: Path) -> None:
        (standin / "fault").write_text("endless")
        code, output = mps.talk("/tmp", "ps", seconds=20)
        assert code not in (mps.NOT_FOUND, mps.NO_ANSWER)
        assert len(output) <= MOST_OUTPUT

    def test_that_closes_its_output_and_stays_is_ended(self, standin: Path) -> None:
        write(standin, "exec >&- 2>&-; exec /bin/sleep 100")
        assert mps.talk("", "ps", seconds=0.3)[0] == mps.NO_ANSWER

    def test_that_reads_nothing_is_no_failure(self, standin: Path) -> None:
        write(standin, "exec <&-; echo no; exit 3")
        assert mps.talk("", "ps") == (3, "no")

    def test_may_print_what_is_no_text(self, standin: Path) -> None:
        (standin / "fault").write_text("garbage")
        assert "�" in mps.talk("/tmp", "ps")[1]

    def test_of_which_only_the_usage_is_read_may_fail(self, standin: Path) -> None:
        write(standin, "echo unknown option; exit 1")
        assert Live().mps_usage() == "unknown option"


class TestWords:
    @pytest.mark.parametrize(
        "text", ["ps", "get_server_list", "get_client_list 123", "get_device_pinned_mem_limit 1 0"]
    )
    def test_questions(self, text: str) -> None:
        refuse_question(text)

    @pytest.mark.parametrize(
        "text", ["", "quit", "set_default_active_thread_percentage 1", "get_x\nquit", "ps\n", "get_a ٣", "get_a 1 2 3"]
    )
    def test_no_questions(self, text: str) -> None:
        with pytest.raises(ValueError, match="not a question"):
            Live().ask_mps("/run/x", text)

    @pytest.mark.parametrize(
        "text",
        [
            "quit",
            "set_default_active_thread_percentage 40",
            "set_device_pinned_mem_limit 9 0 2048M",
            "set_default_device_pinned_mem_limit 0 2G",
        ],
    )
    def test_orders(self, text: str) -> None:
        refuse_order(text)

    @pytest.mark.parametrize(
        "text", ["", "ps", "shutdown_server 1", "set_x 1\nquit", "set_x", "quit\n", "set_x 0 $(x)"]
    )
    def test_no_orders(self, text: str) -> None:
        with pytest.raises(ValueError, match="not an order"):
            Live().tell_mps("/run/x", text)


def test_hosts_that_cannot_be_changed_run_no_program(standin: Path, tmp_path: Path) -> None:
    write(standin, f"touch {tmp_path}/ran")
    for kernel in (Captured(str(tmp_path)), Recorded(Tree(), "recorded")):
        for ask in (kernel.mps_usage, partial(kernel.ask_mps, "/run/x", "ps")):
            with pytest.raises(HostError):
                ask()
        for change in (
            partial(kernel.tell_mps, "/run/x", "quit"),
            partial(kernel.set_compute_mode, "0000:01:00.0", "Default"),
        ):
            with pytest.raises(HostError, match="read-only"):
                change()
    assert not (tmp_path / "ran").exists()
