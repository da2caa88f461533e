"""The rate of this machine's time stamp counter, which QEMU hands to the machines that it emulates.

Their kernel measures it against a timer as it starts. Where the emulator waits for a processor meanwhile, it may find a
fraction, and its clock runs several times too fast: then udev and systemd do not wait for anything.
"""

import ctypes
import mmap
import platform
import time
from collections.abc import Callable
from functools import cache

_RDTSC = bytes.fromhex("0f31 48c1e220 4809d0 c3")
"""rdtsc; shl $32,%rdx; or %rdx,%rax; ret"""
_SECONDS = 0.3


@cache
def kernel_arguments() -> tuple[str, ...]:
    """What tells the kernel the rate (Documentation/admin-guide/kernel-parameters.txt: tsc_early_khz)."""
    if platform.machine() != "x86_64":
        return ()
    code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(_RDTSC)
    # not closed: the function is there
    read: Callable[[], int] = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
    first = _sample(read)
    time.sleep(_SECONDS)
    last = _sample(read)
    return (f"tsc_early_khz={round((last[1] - first[1]) * 1_000_000 / (last[0] - first[0]))}",)


def _sample(read: Callable[[], int]) -> tuple[int, int]:
    """Nanoseconds and the counter at one time: the closest of several, since this process may have to wait between."""
    samples = []
    for _ in range(20):
        began = time.monotonic_ns()
        counter = read()
        ended = time.monotonic_ns()
        samples.append((ended - began, began, counter))
    _, at, counter = min(samples)
    return at, counter
