"""Runs the lab's machine once, from start to power-off or deadline; never outlives the deadline it is given."""

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO

from tests.lab.outside import topology
from tests.lab.outside.requirements import Found
from tests.lab.outside.say import say

RESULTS_IN_LAB = "/run/lab/results"
# the machine may hang in its own shutdown when a test left a device wedged: its verdict is in by then
POWER_OFF_SECONDS = 15
DEADLINE_PASSED = 124
NO_VERDICT = 125


def run(found: Found, devices: list[str], results: Path, seconds: float) -> int:
    """Boots, streams the output, returns pytest's status (124: the deadline passed, 125: it never came to an end).

    `devices` are QEMU's arguments. `results` holds `start.sh`, which the machine runs; the console is kept in
    `console.log` beside it.
    """
    machine = subprocess.Popen(
        _command(found, devices, results),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PATH": f"{found.vng.parent}:/usr/sbin:/sbin:{os.environ.get('PATH', '')}"},
        start_new_session=True,
    )
    assert machine.stdout
    assert machine.stderr
    with (results / "console.log").open("wb", buffering=0) as console:
        # pipes, since QEMU opens /proc/self/fd/1 anew and would truncate a plain file there
        copiers = [_copy(machine.stdout, sys.stdout.buffer), _copy(machine.stderr, console)]
        try:
            in_time = _wait(machine, results / "status", seconds)
        finally:
            _kill_session(machine)
            for copier in copiers:
                copier.join(timeout=5)
            machine.stdout.close()
            machine.stderr.close()
    return _verdict(results / "status", in_time=in_time)


def _command(found: Found, devices: list[str], results: Path) -> list[str]:
    # without --verbose there is no console to keep
    command = [str(found.vng), "--verbose", "--run", str(found.kernel), "--force-9p", "--disable-microvm"]
    command += topology.MEMORY
    if not found.kvm:
        command.append("--disable-kvm")
    for argument in topology.KERNEL_ARGUMENTS:
        command += ["--append", argument]
    command += [f"--rwdir={RESULTS_IN_LAB}={results}", "--exec", f"bash {RESULTS_IN_LAB}/start.sh"]
    return [*command, f"--qemu-opts={shlex.join(devices)}"]


def _copy(source: IO[bytes], sink: IO[bytes]) -> threading.Thread:
    def copy() -> None:
        while chunk := os.read(source.fileno(), 65536):
            sink.write(chunk)
            sink.flush()

    thread = threading.Thread(target=copy, daemon=True)
    thread.start()
    return thread


def _wait(machine: "subprocess.Popen[bytes]", status: Path, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while machine.poll() is None:
        if status.exists():
            deadline = min(deadline, time.monotonic() + POWER_OFF_SECONDS)
            break
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    try:
        machine.wait(timeout=max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        say("the machine did not power off after its tests and was ended")
    return True


def _kill_session(machine: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(machine.pid, signal.SIGKILL)
    machine.wait()


def _verdict(status: Path, *, in_time: bool) -> int:
    if status.exists() and (text := status.read_text().strip()):
        return int(text)
    return NO_VERDICT if in_time else DEADLINE_PASSED
