"""How long a command takes as a whole process, and how much memory it and its children hold at most."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

Command = Sequence[str]


def output(command: Command) -> str:
    """What the command prints; a failure ends the program with what it said."""
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}\n{done.stderr}")
    return done.stdout


def seconds(command: Command) -> float:
    """Wall time from the start of the process to its end."""
    began = time.perf_counter()
    done = subprocess.run(
        command, check=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    took = time.perf_counter() - began
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}\n{done.stderr}")
    return took


def alternating(commands: Mapping[str, Command], runs: int) -> dict[str, list[float]]:
    """Each command in turn, so that a slow spell of the machine falls on all of them. In seconds."""
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(runs):
        for name, command in commands.items():
            times[name].append(seconds(command))
    return times


def medians(times: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {name: statistics.median(samples) for name, samples in times.items()}


def peak_mib(command: Command) -> tuple[float, float]:
    """The most memory held: by one process alone (its RSS), and by it and all its children (the sum of their PSS).

    The first is the kernel's own record; the second is sampled, shared pages counted once.
    """
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    together = 0
    while True:
        together = max(together, sum(_pss_kib(pid) for pid in _family(process.pid)))
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return usage.ru_maxrss / 1024, together / 1024
        time.sleep(0.002)


def _family(pid: int) -> list[int]:
    try:
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return [pid, *(member for child in children for member in _family(child))]


def _pss_kib(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)
