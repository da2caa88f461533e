"""The device plugin, with the kubelet that the tests play: how soon it answers, what it costs. Figures and limits.

    python -m bench.kubelet [--runs N] [--calls N] [--seconds N] [--json FILE]

A simulated node with 64 GPUs; changes nothing of this machine. Exits with 1 when a limit is not kept.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from bench.figures import Figure, keep, show, status
from tests.conftest import memory
from tests.hosts import catalogue as parts
from tests.hosts.builder import HostBuilder
from tests.hosts.generate import NVIDIA, VFIO
from tests.kubelet.endpoint import Endpoint
from tests.kubelet.kubelet import Kubelet
from tests.kubelet.plugins import Plugins
from vfioctl.claims.ledger import rows
from vfioctl.claims.ledger.ledger import Moment, note
from vfioctl.claims.model.claim import Claim, ClaimedDevice, ClaimState
from vfioctl.config import read_config
from vfioctl.core.change import Caller
from vfioctl.host import Host
from vfioctl.kernel.protocol import PCI_DEVICES
from vfioctl.kernel.recorded.host import read_tree
from vfioctl.kernel.recorded.tree import Tree, form, parse
from vfioctl.kernel.simulated.files import replace
from vfioctl.kernel.simulated.host import Simulated
from vfioctl.kubelet.allocating.allocation import Allocation
from vfioctl.kubelet.answer.answer import Answer
from vfioctl.kubelet.model.device import LABEL
from vfioctl.kubelet.proto import deviceplugin_pb2 as api
from vfioctl.placement.model.claims import Owner
from vfioctl.session import Session

RESOURCE, DEVICES, HISTORY = "nvidia.com/GH100_H100", 64, 10_000
FIRST_LIST_S, ALLOCATE_MS, DEATH_S, MEMORY_MB, IDLE_PERCENT, OF_HISTORY = 0.3, 10.0, 1.0, 80.0, 0.1, 1.15
MOMENT = Moment("2026-01-01T00:00:00.000+00:00", "boot", Caller(user="root", pid=1, command="bench"))
_PAUSE = 0.1
_PROGRAM = "import sys; from vfioctl.app import main; sys.exit(main())"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.kubelet")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    samples: dict[str, list[float]] = {}
    with memory() as folder:
        samples |= of_the_process(folder, options.runs, options.seconds)
    with memory() as folder:
        samples |= allocating(folder, options.calls)
    figures = [
        _below("registered to the first list, 64 devices", statistics.median(samples["first list"]), FIRST_LIST_S, "s"),
        _below(f"Allocate, bound: p99 of {options.calls} calls", _p99(samples["allocate"]), ALLOCATE_MS, "ms"),
        _below("a device's death in the stream", max(samples["death"]), DEATH_S, "s"),
        _below("memory (RSS)", max(samples["memory"]), MEMORY_MB, "MB"),
        _below("processor while idle", samples["idle"][0], IDLE_PERCENT, "%"),
        Figure(
            "Allocate after 10,000 pods / after none",
            statistics.median(samples["allocate with history"]),
            statistics.median(samples["allocate"]),
            "ms",
            OF_HISTORY,
        ),
    ]
    show(figures)
    print(f"p99 of Allocate on the clock: {_p99(samples['allocate, wall']):.1f} ms, beside whatever else runs here")
    keep(options.json, figures, samples, runs=options.runs)
    return status(figures)


def _below(name: str, value: float, limit: float, unit: str) -> Figure:
    return Figure(f"{name}: / {limit:g} {unit}", value, limit, unit, 1.0)


def _p99(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=100)[98] if len(values) > 1 else values[0]


def node() -> Tree:
    """A server with 64 GPUs on two NUMA nodes, each in a group of its own."""
    host = HostBuilder("a server with 64 GPUs", release="6.8.0", cmdline="intel_iommu=on iommu=pt", boot=1)
    host.processors(["processor\t: 0"], [("0-47", 512), ("48-95", 512)])
    host.modules((*NVIDIA, "pcieportdrv"), VFIO)
    unit = host.iommu("dmar0", "/sys/devices/virtual", {"intel-iommu/version": "1:0"})
    for number in range(DEVICES):
        bus = 4 + 3 * number
        root = host.root(f"0000:{bus:02x}", node=2 * number // DEVICES, iommu=unit)
        port = host.add(parts.XEON_PORT, f"0000:{bus:02x}:01.0", root, "pcieport")
        host.add(parts.H100, f"0000:{bus + 1:02x}:00.0", port, "nvidia")
    return parse(host.text(), "bench")


def configuration(folder: Path, kubelet: Kubelet) -> Path:
    settings = {"plugins": kubelet.plugins, "pod_resources": kubelet.pod_resources, "listen": "", "run": folder / "run"}
    lines = ["[kubelet]", *(f"{name} = {json.dumps(str(value))}" for name, value in settings.items())]
    file = folder / "config.toml"
    file.write_text("\n".join([*lines, "[[kubelet.resources]]", f'name = "{RESOURCE}"', 'match = ["10de:2330"]', ""]))
    return file


class TimedPlugins(Plugins):
    """Notes when a plugin registered, and when its first list came."""

    began, first = 0.0, 0.0

    def register(self, request: api.RegisterRequest) -> None:
        self.began, self.first = time.perf_counter(), 0.0
        super().register(request)

    def update(self, endpoint: Endpoint, devices: Sequence[api.Device]) -> None:
        self.first = self.first or time.perf_counter()
        super().update(endpoint, devices)


def of_the_process(folder: Path, runs: int, seconds: float) -> dict[str, list[float]]:
    """Seconds to the first list, and to a death in the stream; megabytes; percent of a processor while idle."""
    kubelet, file = Kubelet(folder), folder / "node.host"
    timed = TimedPlugins(kubelet.state)
    kubelet.registrations = timed
    file.write_text(form(node()))
    firsts: list[float] = []
    deaths: list[float] = []
    with serving(folder, kubelet, file) as pid:
        for _ in range(runs):
            kubelet.stop()
            kubelet.start()
            kubelet.wait(lambda: len(kubelet.healthy(RESOURCE)) == DEVICES, 60)
            firsts.append(timed.first - timed.began)
        before = _processor_seconds(pid)
        time.sleep(seconds)
        idle = 100 * (_processor_seconds(pid) - before) / seconds
        deaths += [_death(kubelet, file, f"0000:{5 + 3 * number:02x}:00.0") for number in range(3)]
        memory_mb = _resident_mb(pid)
    kubelet.stop()
    return {"first list": firsts, "death": deaths, "memory": [memory_mb], "idle": [idle]}


def _death(kubelet: Kubelet, file: Path, device: str) -> float:
    """Seconds from the write of the host's file, from which a function has gone, until the kubelet has heard of it."""
    tree = read_tree(file)
    home = tree.resolve(f"{PCI_DEVICES}/{device}")
    for path in [path for path in tree.links if tree.resolve(path).startswith(home)]:
        tree.remove(path)
    tree.remove(home)
    replace(file, form(tree))
    began = time.perf_counter()
    kubelet.wait(lambda: device not in kubelet.healthy(RESOURCE), 60)
    return time.perf_counter() - began


@contextmanager
def serving(folder: Path, kubelet: Kubelet, file: Path) -> Iterator[int]:
    """The service as a process; yields its pid."""
    kubelet.start()
    config = configuration(folder, kubelet)
    words = ("--simulate", str(file), "kubelet", "serve", "--config", str(config))
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen([sys.executable, "-c", _PROGRAM, *words], stderr=log) as service,
    ):
        try:
            kubelet.wait(lambda: len(kubelet.healthy(RESOURCE)) == DEVICES, 60)
            yield service.pid
        finally:
            service.terminate()


def _processor_seconds(pid: int) -> float:
    """Seconds that its threads have run, exactly: /proc/PID/stat counts in steps of 10 ms."""
    ran = (Path(task, "schedstat").read_text().split()[0] for task in Path(f"/proc/{pid}/task").iterdir())
    return sum(map(int, ran)) / 1e9


def _resident_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1000 for line in lines if line.startswith("VmRSS:"))


def allocating(folder: Path, calls: int) -> dict[str, list[float]]:
    """Milliseconds of an Allocate of a device that is bound: the processor's time in the plugin, and what passes there;
    without history, and with. In turn, so that a slow spell of the machine falls on both."""
    sides = {"": Side(folder / "none"), " with history": Side(folder / "history")}
    add_history(sides[" with history"].host)
    times: dict[str, list[float]] = {}
    with timed_allocations() as timed:
        for number in range(calls):
            for name, side in sides.items():
                side.allocate(number)
                used, passed = timed.pop()
                times.setdefault(f"allocate{name}", []).append(used)
                times.setdefault(f"allocate{name}, wall", []).append(passed)
    for side in sides.values():
        side.end()
    return times


@contextmanager
def timed_allocations() -> Iterator[list[tuple[float, float]]]:
    """The milliseconds of each call: of the processor, and on the clock."""
    taken: list[tuple[float, float]] = []
    plain = Allocation.allocate

    def timed(work: Allocation, *arguments: Any) -> Sequence[Answer]:
        began = time.thread_time(), time.perf_counter()
        answer = plain(work, *arguments)
        taken.append((1000 * (time.thread_time() - began[0]), 1000 * (time.perf_counter() - began[1])))
        return answer

    with patch.object(Allocation, "allocate", timed):
        yield taken


class Side:
    """A service in a thread, on a node in memory whose devices are bound already."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.kubelet = Kubelet(folder)
        self.kubelet.start()
        config = read_config(configuration(folder, self.kubelet))
        self.host = Host(Session(Simulated(node(), "simulated"), folder / "ledger.db", settle=0.0, config=config))
        settings = self.host.kubelet.settings
        assert settings.resources
        self.devices = sorted(str(gpu.address) for gpu in self.host.inventory().gpus)[:8]
        self.host.apply(self.host.binding.plan_bind(self.devices))
        self._stop = threading.Event()
        arguments = {"stop": self._stop.is_set, "ready": lambda _: None}
        self._thread = threading.Thread(target=self.host.kubelet.serve, kwargs=arguments, daemon=True)
        self._thread.start()
        self.kubelet.wait(lambda: len(self.kubelet.healthy(RESOURCE)) == DEVICES, 60)

    def allocate(self, number: int) -> None:
        """One Allocate; the claim ends, and the service looks at its devices, before the next one."""
        self.kubelet.state.endpoints[RESOURCE].allocate([self.devices[number % len(self.devices)]])
        for claim in self.host.claims.claims():
            self.host.claims.release(claim.id)
        time.sleep(_PAUSE)

    def end(self) -> None:
        self._stop.set()
        self._thread.join(30)
        self.kubelet.stop()


def add_history(host: Host) -> None:
    """The claims of pods that have ended."""
    insert = f"INSERT INTO claim VALUES ({', '.join('?' * 20)})"  # noqa: S608 - constants
    with host.session.store.transaction() as db:
        for number in range(HISTORY):
            claim = Claim(
                id=f"{number:08x}",
                owner=Owner(f"pod/default/pod{number}/app"),
                state=ClaimState.RELEASED,
                devices=(ClaimedDevice("0000:05:00.0"),),
                since=MOMENT.now,
                boot_id="",
                labels={LABEL: RESOURCE},
            )
            db.execute(insert, rows.columns_of(claim, "{}"))
            note(db, claim, MOMENT)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
