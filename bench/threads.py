"""A process with the threads, the names and the command line of QEMU, and no guest: for measuring `domain verify`.

    python -m bench.threads VCPUS -uuid UUID

Prints a line when all threads are there, and ends when its standard input does. vCPU N runs on the N-th of the CPUs
that this process may use, counted around.
"""

from __future__ import annotations

import mmap
import os
import sys
import threading
from pathlib import Path

MEMORY = 256 << 20


def main(vcpus: int) -> None:
    cpus, ready = sorted(os.sched_getaffinity(0)), threading.Barrier(vcpus + 1)
    memory = mmap.mmap(-1, MEMORY)
    for start in range(0, MEMORY, mmap.PAGESIZE):
        memory[start] = 1
    for vcpu in range(vcpus):
        arguments = (f"CPU {vcpu}/KVM", cpus[vcpu % len(cpus)], ready)
        threading.Thread(target=_run, args=arguments, daemon=True).start()
    ready.wait()
    _name("qemu-system-x86")
    print("ready", flush=True)
    sys.stdin.read()


def _run(name: str, cpu: int, ready: threading.Barrier) -> None:
    _name(name)
    os.sched_setaffinity(0, {cpu})
    ready.wait()
    threading.Event().wait()


def _name(name: str) -> None:
    Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(name)


if __name__ == "__main__":
    main(int(sys.argv[1]))
