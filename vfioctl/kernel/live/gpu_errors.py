"""The critical errors (XIDs) of NVIDIA's GPUs: the feed, and its program, which waits for NVML's events. Any call of
NVML may hang for ever, so only the program makes them. It ends when its standard input does."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Sequence
from typing import Any

from vfioctl.kernel.feeds import UNWATCHED, XID, Notice
from vfioctl.kernel.live.gpu_nodes import hide_all_but
from vfioctl.kernel.live.nvml import NOT_INSTALLED, code_of, handle_of, reason_of
from vfioctl.kernel.program_feed import FOLLOWED, ProgramFeed, failed, say

_WAIT_MILLISECONDS = 3_600_000
"""Of one call, which sleeps in the kernel."""
_TIMEOUT, _UNKNOWN = 10, 999


class GpuErrors(ProgramFeed):
    """See `Feeds.gpu_errors`. It ends when NVML fails, also when a GPU is lost: opened again, it says which."""

    def __init__(self, gpus: Sequence[str]) -> None:
        """Raises Lost if the program cannot be started."""
        super().__init__(__name__, " ".join(gpus), what="NVML's events")

    def _as_notice(self, action: str, subject: str, detail: str) -> Notice:
        return Notice(action, subject, (subject,) if subject else (), detail)


def main(gpus: str) -> int:
    """Write the errors of these GPUs, whose addresses are separated by spaces. Returns the exit status: 1, if NVML
    failed."""
    hide_all_but(gpus.split())
    threading.Thread(target=_end_with_input, daemon=True).start()
    try:
        import pynvml
    except ImportError:
        return failed(NOT_INSTALLED)
    try:
        pynvml.nvmlInit()
        return _follow(pynvml, gpus.split())
    except pynvml.NVMLError as error:
        return failed(reason_of(error))


def _end_with_input() -> None:
    os.read(0, 1)
    os._exit(0)


def _follow(nvml: Any, gpus: Sequence[str]) -> int:
    events, watched = _registered(nvml, gpus)
    say(FOLLOWED, "", "")
    if not watched:
        nvml.nvmlShutdown()  # so that no GPU stays open
        threading.Event().wait()
    while True:
        try:
            event = nvml.nvmlEventSetWait_v2(events, _WAIT_MILLISECONDS)
        except nvml.NVMLError as error:
            if code_of(error) != _TIMEOUT:
                raise
            continue
        if event.eventType == nvml.nvmlEventTypeXidCriticalError:
            say(XID, watched.get(_number(event.device), ""), str(event.eventData))


def _registered(nvml: Any, gpus: Sequence[str]) -> tuple[Any, dict[int | None, str]]:
    """An event set, and the addresses of the GPUs in it by the number of their handles: NVML does not report the
    address of a lost GPU. A GPU that cannot be watched costs itself."""
    events = nvml.nvmlEventSetCreate()
    watched: dict[int | None, str] = {}
    for index, address in enumerate(gpus):
        try:
            gpu = handle_of(nvml, address)
            nvml.nvmlDeviceRegisterEvents(gpu, nvml.nvmlEventTypeXidCriticalError, events)
        except nvml.NVMLError as error:
            say(UNWATCHED, address, reason_of(error))
            if code_of(error) == _UNKNOWN:  # then the set is in an undefined state, says nvml.h
                nvml.nvmlEventSetFree(events)
                return _registered(nvml, [*watched.values(), *gpus[index + 1 :]])
        else:
            watched[_number(gpu)] = address
    return events, watched


def _number(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value
