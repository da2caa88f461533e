"""How much each process uses NVIDIA's GPUs: the feed, and its program, which asks NVML again and again. Any call of
NVML may hang for ever, so only the program makes them. It ends when its standard input does."""

from __future__ import annotations

import binascii
import ctypes
import os
import struct
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from vfioctl.kernel.feeds import UNWATCHED, Lost, Notice
from vfioctl.kernel.gpu_sharing import ProcessSample, Samples
from vfioctl.kernel.live.gpu_nodes import hide_all_but
from vfioctl.kernel.live.nvml import LIBRARY, NOT_INSTALLED, code_of, handle_of, reason_of
from vfioctl.kernel.program_feed import FOLLOWED, ProgramFeed, failed, say

_SAMPLES, _MEMORY = "samples", "memory"
_NOT_FOUND = 6
"""What NVML returns when no process has used the GPU since."""
_SAMPLE_BYTES = 32
"""Of nvmlProcessUtilizationSample_t: the process, 4 bytes of padding, the time in 8, the percentage, and others. Slices
of memory take its fields in a third of the time of a loop."""
_WRITTEN_BYTES = 16
"""Of a sample as the program writes it: all times, then all processes, then all percentages."""
_HELD = struct.Struct("=IQ")
"""A process, and bytes."""
_TOO_SMALL, _ROOM, _MOST_ROOM = 7, 512, 16384
_MOST_PERCENT, _MOST_READS = 100, 32
_LEAST_PERIOD, _MEMORY_PERIOD, _SILENT = 1 / 6, 5.0, 60.0
"""Seconds: the program writes at least a line of each GPU's memory in a period; after so long without any, it hangs."""


class NvmlSamples(ProgramFeed):
    """See `vfioctl.kernel.gpu_sharing.SampleFeed`."""

    longest_line = longest_detail = 1 << 20

    def __init__(self, gpus: Sequence[str], period: float) -> None:
        """Raises Lost if the program cannot be started."""
        super().__init__(__name__, " ".join([f"{period:.6f}", *gpus]), what="NVML's process samples")


class SampledGpus:
    """The samples of a feed, by GPU."""

    def __init__(self, gpus: Sequence[str], period: float) -> None:
        self._feed, self._heard = NvmlSamples(gpus, period), time.monotonic()

    def read(self) -> list[Samples]:
        """A pipe has room for the samples of some 1,500 processes: what comes meanwhile is read, too."""
        found: list[Samples] = []
        for _ in range(_MOST_READS):
            notices = self._feed.read()
            if notices:
                self._heard = time.monotonic()
            found += [sampled for notice in notices for sampled in _samples(notice)]
            if not self._feed.is_within_line:
                break
        if time.monotonic() > self._heard + _SILENT:
            raise Lost(f"NVML's process samples cannot be followed: no answer for {_SILENT:g} s")
        return found

    def close(self) -> None:
        self._feed.close()


def _samples(notice: Notice) -> list[Samples]:
    if notice.action == UNWATCHED:
        return [Samples(notice.subject, (), notice.detail)]
    if notice.action not in (_SAMPLES, _MEMORY):
        return []
    try:
        packed = binascii.a2b_base64(notice.detail)
        if notice.action == _MEMORY:
            return [Samples(notice.subject, memory=[*_HELD.iter_unpack(packed)])]
        used = _unpacked(packed)
        return [Samples(notice.subject, used)] if used else []
    except (binascii.Error, struct.error, TypeError):
        raise Lost("NVML's process samples cannot be followed: an answer that vfioctl does not understand") from None


def _unpacked(packed: bytes) -> list[ProcessSample]:
    """Raises TypeError."""
    count, memory = len(packed) // _WRITTEN_BYTES, memoryview(packed)
    times, words = memory[: 8 * count].cast("Q").tolist(), memory[8 * count :].cast("I").tolist()
    samples = [*zip(words, times, words[count:], strict=False)]
    return samples if max(words[count:], default=0) <= _MOST_PERCENT else [s for s in samples if s[2] <= _MOST_PERCENT]


def main(arguments: str) -> int:
    """Write the samples of GPUs. `arguments`: the period in seconds, and their addresses, separated by spaces. Returns
    the exit status: 1, if NVML failed."""
    period, *gpus = arguments.split()
    hide_all_but(gpus)
    threading.Thread(target=_end_with_input, daemon=True).start()
    try:
        import pynvml
    except ImportError:
        return failed(NOT_INSTALLED)
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return failed(reason_of(error))
    say(FOLLOWED, "", "")
    return _follow(pynvml, gpus, max(float(period), _LEAST_PERIOD))


def _end_with_input() -> None:
    os.read(0, 1)
    os._exit(0)


def _follow(nvml: Any, gpus: Sequence[str], period: float) -> int:
    now = int(time.time() * 1e6)
    last = dict.fromkeys(gpus, now)  # of what was before, it is not known who used it
    handles, buffer = _handles(nvml, last), _Buffer(nvml)
    memory_at = -_MEMORY_PERIOD
    while last:
        begun = time.monotonic()
        asks_memory = begun >= memory_at + _MEMORY_PERIOD
        memory_at = begun if asks_memory else memory_at
        for gpu in [*last]:
            try:
                if asks_memory:
                    _say_memory(nvml, gpu, handles[gpu])
                _sample(buffer, gpu, handles[gpu], last)
            except nvml.NVMLError as error:
                if code_of(error) != _NOT_FOUND:
                    del last[gpu]
                    say(UNWATCHED, gpu, reason_of(error))
        time.sleep(max(0.0, begun + period - time.monotonic()))
    return failed("no GPU is left that it samples")


def _handles(nvml: Any, last: dict[str, int]) -> dict[str, Any]:
    handles: dict[str, Any] = {}
    for gpu in [*last]:
        try:
            handles[gpu] = handle_of(nvml, gpu)
        except nvml.NVMLError as error:
            del last[gpu]
            say(UNWATCHED, gpu, reason_of(error))
    return handles


def _say_memory(nvml: Any, gpu: str, handle: Any) -> None:
    """Write the memory of all processes of a GPU. NVML lists a process that computes and draws twice."""
    held: dict[int, int] = {}
    try:
        for ask in (nvml.nvmlDeviceGetComputeRunningProcesses_v3, nvml.nvmlDeviceGetGraphicsRunningProcesses_v3):
            for process in ask(handle)[:_MOST_ROOM]:
                held[process.pid] = max(held.get(process.pid, 0), process.usedGpuMemory or 0)  # None: not known
    except nvml.NVMLError:  # the driver does not tell; a GPU that is lost has no samples either
        held = {}
    _say(_MEMORY, gpu, b"".join(_HELD.pack(*process) for process in held.items()))


def _say(action: str, gpu: str, packed: bytes) -> None:
    text = binascii.b2a_base64(packed, newline=False).decode()  # it needs no escapes in JSON, nor has an address any
    with suppress(BrokenPipeError):
        sys.stdout.write(f'["{action}","{gpu}","{text}"]\n')
        sys.stdout.flush()


class _Buffer:
    """Asks NVML itself, without pynvml's function, which makes an object of each sample."""

    def __init__(self, nvml: Any) -> None:
        self._ask = ctypes.CDLL(LIBRARY).nvmlDeviceGetProcessUtilization
        self._nvml = nvml
        self._room = _ROOM
        self._samples = ctypes.create_string_buffer(self._room * _SAMPLE_BYTES)

    def since(self, handle: Any, last: int) -> memoryview:
        """Return the samples of a GPU since a time, in microseconds since 1970. Raises NVMLError."""
        number = ctypes.c_uint(self._room)
        code = self._ask(handle, self._samples, ctypes.byref(number), ctypes.c_ulonglong(last))
        if code == _TOO_SMALL and self._room < _MOST_ROOM:
            self._room = min(2 * max(number.value, self._room), _MOST_ROOM)
            self._samples = ctypes.create_string_buffer(self._room * _SAMPLE_BYTES)
            return self.since(handle, last)
        if code:
            raise self._nvml.NVMLError(code)
        return memoryview(ctypes.string_at(self._samples, min(number.value, self._room) * _SAMPLE_BYTES))


def _sample(buffer: _Buffer, gpu: str, handle: Any, last: dict[str, int]) -> None:
    last[gpu] = min(last[gpu], int(time.time() * 1e6))  # the clock may have been set back
    samples = buffer.since(handle, last[gpu])
    times, words = samples.cast("Q")[1::4], samples.cast("I")
    newest = max(times.tolist(), default=0)
    if newest > last[gpu]:
        last[gpu] = newest
        _say(_SAMPLES, gpu, b"".join(field.tobytes() for field in (times, words[0::8], words[4::8])))
