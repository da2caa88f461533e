"""What the kernel writes about open DRM files in /proc/PID/fdinfo (Documentation/gpu/drm-usage-stats.rst). Reads names
and texts only: it neither opens nor stats the file itself, which may be on a file system that hangs."""

from __future__ import annotations

import errno as errnos
import os
import time
from collections.abc import Collection, Sequence
from contextlib import suppress

from vfioctl.errors import KernelRefused
from vfioctl.kernel.files import READ

_DRIVER = "drm-driver:"
_NODES = "/dri/"
_LONGEST = 16384
_SECONDS = 5.0
"""Seconds after which the files of a process are listed again."""
_MOST = 65536
"""Descriptors of one process that are looked at. One that has more is refused: any of them may be a GPU's."""
_ENDED = frozenset({errnos.ENOENT, errnos.ESRCH})


class LiveDrmClients:
    """See `vfioctl.kernel.gpu_sharing.DrmClients`. `proc`: where proc(5) is mounted."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._known: dict[int, tuple[float, list[str]]] = {}

    def texts(self, pid: int) -> Sequence[str]:
        try:
            texts = [_text(f"{self._proc}/{pid}/fdinfo/{name}") for name in self._descriptors(pid)]
        except OSError as error:
            self._known.pop(pid, None)
            if error.errno in _ENDED:
                return ()
            raise KernelRefused(f"{self._proc}/{pid}/fd", error.errno or errnos.EIO) from None
        return [text for text in texts if _DRIVER in text]

    def keep(self, pids: Collection[int]) -> None:
        for pid in self._known.keys() - pids:
            del self._known[pid]

    def _descriptors(self, pid: int) -> list[str]:
        known = self._known.get(pid)
        if known is None or known[0] < time.monotonic():
            known = self._known[pid] = (time.monotonic() + _SECONDS, self._listed(f"{self._proc}/{pid}/fd"))
        return known[1]

    def _listed(self, directory: str) -> list[str]:
        names = os.listdir(directory)
        if len(names) > _MOST:
            raise OSError(errnos.E2BIG, os.strerror(errnos.E2BIG))
        # the path is a hint: what counts is the text, which the driver writes
        return [name for name in names if _NODES in _target(f"{directory}/{name}")]


def _target(link: str) -> str:
    with suppress(OSError):
        return os.readlink(link)
    return ""


def _text(path: str) -> str:
    """Return the text; empty if the file was closed."""
    try:
        fd = os.open(path, READ)
    except FileNotFoundError:
        return ""
    try:
        return os.read(fd, _LONGEST).decode("utf-8", "replace")
    except OSError:
        return ""
    finally:
        os.close(fd)
