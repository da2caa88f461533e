"""Runs the lab's machine once, from start to power-off. Ends it when it makes no progress, however long it may run."""

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from math import inf
from pathlib import Path
from typing import IO

from tests.lab.outside import topology, tsc
from tests.lab.outside.requirements import Found
from tests.lab.outside.say import say

RESULTS_IN_LAB = "/run/lab/results"
# the machine may hang in its own shutdown when a test left a device wedged: its verdict is in by then
POWER_OFF_SECONDS = 15
NO_PROGRESS = 124
NO_VERDICT = 125
STALLED = 126
STALL = b"rcu_preempt kthread starved"
"""What Linux says when an emulated processor does not run any more, or did not for a while."""
LOCKUP = b"watchdog: BUG: soft lockup"
"""What Linux says again and again when an emulated processor traps for ever at an instruction that was patched."""
PANIC = (b"Kernel panic", b"Oops:", b"BUG:")
SILENT_SECONDS = 180.0
"""The longest that a machine may say nothing after that; the slowest test says nothing for about a minute."""
DEAD_SECONDS = 120.0
"""The longest that a machine may neither say anything nor renew the file `alive`, which it does every 5 s."""
GRACE_SECONDS = 60.0
"""The machine ends a test that takes too long by itself, and leaves evidence; so wait longer here."""


def run(found: Found, devices: list[str], results: Path, limit: float) -> int:
    """Boots, streams the output, returns pytest's status.

    Or 124: no test ended for `limit` seconds; 125: it never came to an end; 126: the emulated processor stalled, or was
    reset.

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
        copiers = [_Copier(machine.stdout, sys.stdout.buffer), _Copier(machine.stderr, console)]
        try:
            ended = wait(machine, results, limit + GRACE_SECONDS, copiers)
        finally:
            _kill_session(machine)
            for copier in copiers:
                copier.join(timeout=5)
            machine.stdout.close()
            machine.stderr.close()
    return _verdict(results / "status", otherwise=ended)


def _command(found: Found, devices: list[str], results: Path) -> list[str]:
    # without --verbose there is no console to keep
    command = [str(found.vng), "--verbose", "--run", str(found.kernel), "--force-9p", "--disable-microvm"]
    command += topology.MEMORY
    if not found.kvm:
        command.append("--disable-kvm")
        devices = [*topology.emulator_arguments(), *devices]
    for argument in (*topology.KERNEL_ARGUMENTS, *(() if found.kvm else tsc.kernel_arguments())):
        command += ["--append", argument]
    command += [f"--rwdir={RESULTS_IN_LAB}={results}", "--exec", f"bash {RESULTS_IN_LAB}/start.sh"]
    return [*command, f"--qemu-opts={shlex.join(devices)}"]


class _Copier(threading.Thread):
    """Copies a stream to its end, and knows when it last said anything."""

    def __init__(self, source: IO[bytes], sink: IO[bytes]) -> None:
        super().__init__(daemon=True)
        self._source, self._sink = source, sink
        self.last = time.monotonic()
        self.start()

    def run(self) -> None:
        while chunk := os.read(self._source.fileno(), 65536):
            self.last = time.monotonic()
            self._sink.write(chunk)
            self._sink.flush()


def wait(machine: "subprocess.Popen[bytes]", results: Path, limit: float, copiers: list[_Copier]) -> int:
    """Wait until the machine ends, and return why: see `run`. `limit`: seconds without a test that ends."""
    ended, progressed = -1, time.monotonic()
    while machine.poll() is None and not (results / "status").exists():
        now = time.monotonic()
        if (size := _size(results / "ended.txt")) != ended:
            ended, progressed = size, now
        if now > progressed + limit:
            return NO_PROGRESS
        silent = now - max((copier.last for copier in copiers), default=now)
        dead = _since_alive(results)
        if dead > DEAD_SECONDS and silent > DEAD_SECONDS:
            return STALLED
        if inf > dead > DEAD_SECONDS and LOCKUP in (results / "console.log").read_bytes():
            return STALLED
        if silent > SILENT_SECONDS and STALL in (results / "console.log").read_bytes():
            return STALLED
        time.sleep(0.1)
    try:
        machine.wait(timeout=POWER_OFF_SECONDS)
    except subprocess.TimeoutExpired:
        say("the machine did not power off after its tests and was ended")
        return NO_VERDICT
    console = (results / "console.log").read_bytes()
    # without a word of Linux: not the kernel ended it
    return NO_VERDICT if any(word in console for word in PANIC) else STALLED


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def _since_alive(results: Path) -> float:
    """Seconds since the machine renewed its file; for ever before it has one."""
    try:
        return time.time() - (results / "alive").stat().st_mtime
    except FileNotFoundError:
        return inf


def _kill_session(machine: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(machine.pid, signal.SIGKILL)
    machine.wait()


def _verdict(status: Path, *, otherwise: int) -> int:
    if status.exists() and (text := status.read_text().strip()):
        return int(text)
    return otherwise
