"""A crowd of processes with open files, some with a device file: what a search for holders has to go through.

    python -m bench.crowd PROCESSES FILES NODE HOLDERS

Says the pids of those that have NODE open, one line, when all are there; ends them when its stdin ends.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn


@contextmanager
def crowd(processes: int, files: int, node: str, holders: int) -> Iterator[frozenset[int]]:
    """The pids of those processes that have `node` open, among as many others."""
    command = [sys.executable, "-m", "bench.crowd", str(processes), str(files), node, str(holders)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        yield frozenset(map(int, parent.stdout.readline().split()))


def main(processes: int, files: int, node: str, holders: int) -> None:
    reading, writing = os.pipe()
    with tempfile.NamedTemporaryFile() as plain:
        pids = [_start(plain.name, files // processes, node if n < holders else "", writing) for n in range(processes)]
        try:
            ready = 0
            while ready < processes:
                ready += len(os.read(reading, 1 << 16))
            print(*pids[:holders], flush=True)
            sys.stdin.read()
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)


def _start(plain: str, files: int, node: str, ready: int) -> int:
    pid = os.fork()
    if pid == 0:
        _stay(plain, files, node, ready)
    return pid


def _stay(plain: str, files: int, node: str, ready: int) -> NoReturn:
    """With as many files: half of them sockets and pipes, the others files, /dev/null among them."""
    try:
        if node:
            os.open(node, os.O_RDONLY)
        kept = [*_files(plain, files - len(os.listdir("/proc/self/fd")))]
        os.write(ready, b"." if kept else b"-")
        while True:
            signal.pause()
    finally:
        os._exit(1)


def _files(plain: str, count: int) -> Iterator[int]:
    for number in range(count):
        kind = number % 4
        if kind == 0:
            yield socket.socket(socket.AF_UNIX).detach()
        elif kind == 1:
            yield os.memfd_create("memory") if number % 8 == 1 else os.eventfd(0)
        else:
            yield os.open(plain if kind == 2 else os.devnull, os.O_RDONLY)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
