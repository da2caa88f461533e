"""A host whose MPS is a real program: a stand-in for NVIDIA's, in processes of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.hosts.machines import FOUR_GPUS, copy, reduced
from vfioctl import environment
from vfioctl.errors import HostError
from vfioctl.host import Host
from vfioctl.kernel.live import mps as program
from vfioctl.kernel.live.host import Live
from vfioctl.kernel.protocol import Kernel
from vfioctl.kernel.recorded.tree import Tree
from vfioctl.kernel.simulated.host import Simulated
from vfioctl.kernel.worker import client
from vfioctl.session import Session

STANDIN = Path(__file__).resolve().parents[3] / "standin" / "nvidia-cuda-mps-control"
GPU, OTHER = FOUR_GPUS[:2]
NAME = "0000-1b-00.0"


class HostWithMps(Simulated):
    """A simulated host on which MPS is a program, started and ended as systemd does with its unit."""

    def __init__(self, tree: Tree, pipes: Path) -> None:
        super().__init__(tree, "a host with MPS")
        self.pipes = pipes
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.live: Kernel = Live()
        self.systemd_is_busy = self.busy_after_start = False

    def unit_states(self, names: Sequence[str]) -> Mapping[str, str]:
        if self.systemd_is_busy:
            return {}
        known = {unit: "active" if process.poll() is None else "failed" for unit, process in self.daemons.items()}
        return {name: known.get(name, "inactive") for name in names}

    def set_unit(self, name: str, *, active: bool) -> None:
        if process := self.daemons.pop(name, None):
            process.kill()
            process.wait()
        self.systemd_is_busy = self.systemd_is_busy or self.busy_after_start
        if active:
            instance = name.partition("@")[2].removesuffix(".service")
            lines = self.read(f"/run/vfioctl/mps/{instance}.env").split("\n")
            told = dict(line.split("=", 1) for line in lines)
            assert told["CUDA_MPS_PIPE_DIRECTORY"] == f"/run/vfioctl/mps/{instance}"
            own = {**environment.OF_COMMANDS, **told, "CUDA_MPS_PIPE_DIRECTORY": str(self.pipes / instance)}
            self.daemons[name] = subprocess.Popen(["nvidia-cuda-mps-control", "-f"], env=own)

    def mps_usage(self) -> str:
        return self.live.mps_usage()

    def ask_mps(self, pipes: str, question: str) -> str:
        return self.live.ask_mps(str(self.pipes / Path(pipes).name), question)

    def tell_mps(self, pipes: str, order: str) -> None:
        self.live.tell_mps(str(self.pipes / Path(pipes).name), order)

    def hidden(self, command: str, name: str = NAME) -> str:
        """What the stand-in answers to a command of its own."""
        code, output = program.talk(str(self.pipes / name), command)
        if code:
            raise HostError(output)
        return output

    def close(self) -> None:
        for name in [*self.daemons]:
            self.set_unit(name, active=False)


@pytest.fixture
def standin(fast_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the stand-in, which commands find there; a file `fault` in it spoils it."""
    text = STANDIN.read_text().split("\n", 1)[1]
    target = fast_folder / "bin" / STANDIN.name
    target.parent.mkdir()
    target.write_text(f"#!{sys.executable} -IS\n{text}")
    target.chmod(0o755)
    monkeypatch.setitem(environment.OF_COMMANDS, "PATH", str(target.parent))
    # The server of a process with threads, such as those that other tests leave, is no fork of it.
    path = f"import vfioctl.environment as e; e.OF_COMMANDS['PATH'] = {str(target.parent)!r}"
    monkeypatch.setattr(client, "_START", client._START.replace("; from", f"; {path}; from", 1))
    return target.parent


@pytest.fixture
def kernel(standin: Path, fast_folder: Path) -> Iterator[HostWithMps]:
    kernel = HostWithMps(copy(reduced("hgx8", *FOUR_GPUS)), fast_folder / "pipes")
    yield kernel
    kernel.close()
    shutil.rmtree(standin)


@pytest.fixture
def host(kernel: HostWithMps, tmp_path: Path) -> Host:
    return Host(Session(kernel, tmp_path / "ledger.db", settle=5.0, lock_wait=0.0))


def kill(process: subprocess.Popen[bytes]) -> None:
    """End a daemon as a crash does."""
    os.kill(process.pid, 9)
    process.wait()
