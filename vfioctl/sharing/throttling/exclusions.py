"""Which control groups are never frozen, and why: those of the system, of vfioctl itself, and of displays. A group of
which that is not known is not frozen either. May not write."""

from __future__ import annotations

import errno as errnos
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from vfioctl.errors import KernelRefused
from vfioctl.kernel.protocol import Reader, Unanswered, per_subject

if TYPE_CHECKING:
    from vfioctl.kernel.gpu_sharing import ControlGroups

_OF_SYSTEM = frozenset({"/init.scope", "/system.slice"})
_INIT = 1
_DRM, _MOST_PRIMARY = "c 226:", 64
"""DRM's major number. Minors below 64 are primary nodes, /dev/dri/cardN (drivers/gpu/drm/drm_drv.c)."""
_NVIDIA_MODESET = "c 195:254"
_KNOWN_FOR = 5.0
"""Seconds for which an answer is good."""
_SURVEY_SECONDS = 5.0
_MOST_PROCESSES = 4096


@per_subject
def display_of(kernel: Reader, pid: str) -> str:
    """Return how a process may drive a display: by a primary DRM node, through which one becomes DRM master, or by
    nvidia-modeset; empty if it has neither open. Rendering and computing need render nodes only."""
    try:
        opened = kernel.open_nodes(pid)
    except KernelRefused as refused:
        return "" if refused.errno in (errnos.ENOENT, errnos.ESRCH) else f"its open files are unknown: {refused.symbol}"
    for node in opened.nodes:
        if node.number == _NVIDIA_MODESET or _is_primary(node.number):
            return f"it has {node.path} open, as a display server has"
    return f"its open files are unknown: {opened.unread}" if opened.unread else ""


def _is_primary(number: str) -> bool:
    minor = number.removeprefix(_DRM)
    return minor != number and minor.isdecimal() and int(minor) < _MOST_PRIMARY


class Exclusions:
    """Looks at groups. `own`: processes of vfioctl."""

    def __init__(self, kernel: Reader, groups: ControlGroups, own: Callable[[], Collection[int]]) -> None:
        self._kernel, self._groups, self._own = kernel, groups, own
        self._known: dict[str, tuple[float, str]] = {}

    def known(self, path: str) -> str:
        """As `why`, for those who look: the answer may be some seconds old."""
        now = time.monotonic()
        known = self._known.get(path)
        if known is None or known[0] < now:
            known = self._known[path] = (now + _KNOWN_FOR, self.why(path))
        return known[1]

    def why(self, path: str) -> str:
        """Return why a group is not frozen; empty if it may be."""
        own = self._groups.own()
        if path == "/" or f"{own}/".startswith(f"{path}/"):
            return "vfioctl itself is in it"
        if path in _OF_SYSTEM:
            return "systemd keeps the system's services in it"
        try:
            pids = self._groups.processes(path)
        except KernelRefused as refused:
            return f"its processes are unknown: {refused.symbol}"
        return self._reserved(pids) or self._display(pids)

    def _reserved(self, pids: Collection[int]) -> str:
        if _INIT in pids:
            return "process 1 is in it"
        if not {*self._own()}.isdisjoint(pids):
            return "vfioctl itself is in it"
        if len(pids) > _MOST_PROCESSES:
            return f"it has more than {_MOST_PROCESSES} processes"
        return ""

    def _display(self, pids: Collection[int]) -> str:
        for pid, answer in self._kernel.survey(display_of, [*map(str, pids)], total=_SURVEY_SECONDS):
            if isinstance(answer, Unanswered):
                return f"process {pid}: its open files are unknown: {answer.reason}"
            if answer:
                return f"process {pid}: {answer}"
        return ""
