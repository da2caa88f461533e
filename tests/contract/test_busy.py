"""A busy machine gives the same answers as an idle one, later: what is read, planned, changed and refused.

The simulated kernel has no workers that could be frozen.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import pytest

from tests.contract.conftest import IN_LAB, HostWithPair
from vfioctl.core.change import Plan
from vfioctl.errors import UnknownDevice
from vfioctl.host import Host
from vfioctl.kernel.live.host import Live
from vfioctl.session import Session

pytestmark = pytest.mark.alone  # it keeps the processors busy

LOOPS = 8
"""Twice as many as the lab has processors."""
FROZEN = 5.0 if IN_LAB else 0.1
"""Seconds: longer than both readings of a function, each of which may take two, where there are workers."""


def workers() -> set[int]:
    """The processes below this one that read and write for it."""
    parents = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(status.parent.name)] = int(status.read_text().rpartition(")")[2].split()[1])
    below = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    return below - {os.getpid()}


@contextmanager
def beside_busy_loops() -> Iterator[None]:
    """Programs that never wait, each in a session: the kernel may share the processors by sessions."""
    loop = ["sh", "-c", "while :; do :; done"]
    programs = [subprocess.Popen(loop, start_new_session=True) for _ in range(LOOPS)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
        for program in programs:
            program.wait()


@contextmanager
def with_frozen_workers() -> Iterator[None]:
    """Stops each worker for longer than two readings."""
    frozen = workers()

    def send(number: int) -> None:
        for pid in frozen:
            os.kill(pid, number)

    send(signal.SIGSTOP)
    timer = threading.Timer(FROZEN, send, [signal.SIGCONT])
    timer.start()
    try:
        yield
    finally:
        timer.join()


CONDITIONS = (beside_busy_loops, with_frozen_workers)


@pytest.fixture
def host(machine: HostWithPair, tmp_path: Path) -> Host:
    """A host with workers of its own."""
    kernel = Live() if isinstance(machine.kernel, Live) else machine.kernel
    return Host(Session(kernel, tmp_path / "ledger.db"))


def bind(host: Host, gpu: str) -> Plan:
    return host.binding.plan_bind([gpu], allow_boot_vga=True)


def seen(host: Host, gpu: str) -> tuple[object, ...]:
    """All that is read and planned."""
    inventory = host.inventory()
    plan = bind(host, gpu)
    with pytest.raises(UnknownDevice):
        host.binding.plan_bind(["0000:7f:1f.7"])
    return inventory, plan.id, plan.changes, host.holders([gpu]).holders


@pytest.mark.parametrize("condition", CONDITIONS)
def test_what_is_read_and_planned_is_the_same(
    machine: HostWithPair, host: Host, condition: Callable[[], AbstractContextManager[None]]
) -> None:
    expected = seen(host, machine.gpu)
    began = time.monotonic()
    with condition():
        assert seen(host, machine.gpu) == expected
    assert condition is not with_frozen_workers or not IN_LAB or time.monotonic() - began > FROZEN


def test_a_change_is_made_and_taken_back(machine: HostWithPair, host: Host) -> None:
    with beside_busy_loops():
        host.apply(bind(host, machine.gpu))
        assert {machine.driver_of(a) for a in (machine.gpu, machine.companion)} == {"vfio-pci"}
        host.apply(host.binding.plan_unbind([machine.gpu]))
    assert machine.driver_of(machine.gpu) == machine.gpu_driver
    assert machine.driver_of(machine.companion) == machine.companion_driver
