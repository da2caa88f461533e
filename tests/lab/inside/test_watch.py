"""`vfioctl watch` on the real kernel, where no udevd runs: binding, mediated devices, VFs, claims, and a storm."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.lab.inside import mdev, pci
from tests.lab.inside.command import vfioctl
from tests.lab.inside.conftest import Load
from tests.lab.inside.topology import Topology

PROGRAM = (sys.executable, "-c", "from vfioctl.app import console; console()")
SECONDS = 120.0
STORM = 3000


class Watch:
    """The events that a process prints."""

    def __init__(self, process: "subprocess.Popen[str]", output: Path) -> None:
        self._process, self._output = process, output

    @property
    def events(self) -> list[dict[str, Any]]:
        text = self._output.read_text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def until(self, is_there: Callable[[dict[str, Any]], bool], again: Callable[[], object] = lambda: None) -> None:
        """Wait for an event; `again` is called between looks."""
        until = time.monotonic() + SECONDS
        while not any(map(is_there, self.events)):
            assert self._process.poll() is None, "it has ended"
            assert time.monotonic() < until, self.events[-20:]
            again()
            time.sleep(0.3)

    def has(self, subject: str, action: str, source: str = "kernel") -> None:
        """Wait for the event of this subject."""
        self.until(lambda e: (e["source"], e["subject"], e["action"]) == (source, subject, action))


def change(address: str) -> None:
    """Have the kernel send a uevent."""
    (pci.DEVICES / address / "uevent").write_text("change")


@contextmanager
def watching(ledger: Path, address: str) -> Iterator[Watch]:
    """Watch this machine; begins when events of `address` arrive."""
    output = ledger.with_name("events.json")
    with output.open("w") as stdout:
        command = [*PROGRAM, "--ledger", str(ledger), "watch", "--json"]
        process = subprocess.Popen(command, stdout=stdout, text=True)
    try:
        watch = Watch(process, output)
        watch.until(lambda event: event["subject"] == address, again=lambda: change(address))
        yield watch
        assert process.poll() is None, "it has ended"
    finally:
        process.terminate()
        assert process.wait(60) == 143


def test_it_tells_what_happens(tmp_path: Path, lab: Topology, load: Load) -> None:
    ledger = tmp_path / "ledger.db"
    load("mbochs")
    with watching(ledger, lab.nvme) as watch:
        made = vfioctl(ledger, "claim", "create", "--owner", "vm/a", "--device", lab.far_display, "--yes", "--json")
        assert made.returncode == 0, made.stderr
        claim = json.loads(made.stdout)["id"]
        watch.has(lab.far_display, "bind")
        watch.has(claim, "held", "ledger")
        assert pci.driver_of(lab.far_display) == "vfio-pci"
        assert vfioctl(ledger, "claim", "release", claim, "--yes").returncode == 0
        watch.has(lab.far_display, "unbind")
        watch.has(claim, "released", "ledger")
        created = vfioctl(ledger, "vgpu", "create", "mbochs-small", "--yes", "--json")
        assert created.returncode == 0, created.stderr
        (vgpu,) = json.loads(created.stdout)["report"]["vgpus"]
        watch.has(vgpu["id"], "add")
        assert vfioctl(ledger, "vgpu", "remove", vgpu["id"], "--yes").returncode == 0
        watch.has(vgpu["id"], "remove")
        (function,) = mdev.enable_vfs(lab.nvme, 1, autoprobe=False)
        watch.has(function, "add")
        before = binds(watch)
        for _ in range(STORM):
            change(lab.display)
        pci.bind_to_vfio(lab.far_display)
        watch.until(lambda _: binds(watch) > before or any(map(is_loss, watch.events)))
        stormed = [event for event in watch.events if event["subject"] == lab.display]
        lost = any(map(is_loss, watch.events))
    assert len(stormed) < STORM / 10
    assert lost or sum(event["count"] for event in stormed) > len(stormed)


def binds(watch: Watch) -> int:
    """How often a function was bound until now; a release binds one again."""
    return sum((event["action"], event["source"]) == ("bind", "kernel") for event in watch.events)


def is_loss(event: dict[str, Any]) -> bool:
    """Whether it says that events of the kernel were lost; those of libvirt are where there is none."""
    return event["action"] == "lost" and event["subject"] in ("", "kernel")
