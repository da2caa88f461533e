"""Keeps resources registered: serves their sockets, then tells the kubelet, again whenever its socket is made anew.

A kubelet that starts removes all sockets in its directory, and forgets who was registered."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from grpclib.const import Status

from vfioctl.kernel.feeds import stamp
from vfioctl.kubelet.serving.messages import Unanswered, register

if TYPE_CHECKING:
    from vfioctl.kubelet.serving.loop import Loop
    from vfioctl.kubelet.serving.plugin import Plugin
    from vfioctl.kubelet.serving.state import State

SOCKET = "kubelet.sock"
_SECONDS = 5.0
"""Timeout of a registration."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 30.0
"""Seconds before a registration is tried again; doubled each time."""
_SILENCE = 30.0
"""Seconds after which a kubelet that has registered a resource, and does not listen to it, is told again."""


class Registrations:
    """The registrations of one service, in one thread."""

    def __init__(self, directory: str, plugins: Mapping[str, Plugin], loop: Loop, state: State) -> None:
        """`plugins`: by resource."""
        self._socket, self._plugins, self._loop, self._state = Path(directory, SOCKET), plugins, loop, state
        self._stamp: object = None
        self._due: dict[str, tuple[float, float]] = {}  # when to try again, and the pause after that

    def keep(self) -> None:
        """Serve what is not served, and register what is due. Takes seconds only if the kubelet does not answer."""
        if (now := stamp(self._socket)) != self._stamp:  # a kubelet that has started knows no resource
            self._stamp = now
            self._due = dict.fromkeys(self._plugins, (0.0, _FIRST_PAUSE))
        moment = time.monotonic()
        for resource, plugin in self._plugins.items():
            if not plugin.is_served:
                self._serve(resource, plugin)
                self._due[resource] = (0.0, _FIRST_PAUSE)
            elif resource not in self._due and plugin.devices.is_silent(moment - _SILENCE):
                self._due[resource] = (0.0, _LONGEST_PAUSE)
            due, pause = self._due.get(resource, (moment + 1, 0.0))
            if moment >= due and plugin.is_served and not self._register(resource, plugin, pause):
                return  # the others would wait as long for a kubelet that does not answer

    def _serve(self, resource: str, plugin: Plugin) -> None:
        try:
            plugin.serve()
        except OSError as error:
            self._failed(resource, f"its socket cannot be served: {error.strerror or error}")

    def _register(self, resource: str, plugin: Plugin, pause: float) -> bool:
        """Register a resource; return False if the kubelet did not answer in time."""
        if not self._socket.exists():
            self._failed(resource, f"no kubelet: there is no {self._socket}")
            self._later(resource, pause)
            return True
        try:
            self._loop.run(register(str(self._socket), plugin.socket.name, resource, _SECONDS))
        except Unanswered as error:
            self._failed(resource, str(error))
            self._later(resource, pause)
            return error.status is not Status.DEADLINE_EXCEEDED
        self._due.pop(resource, None)
        self._state.registered(resource)
        return True

    def _later(self, resource: str, pause: float) -> None:
        self._due[resource] = (time.monotonic() + pause, min(2 * pause, _LONGEST_PAUSE))

    def _failed(self, resource: str, problem: str) -> None:
        known = self._state.registration(resource)
        if known.registered or known.problem != problem:
            self._state.registered(resource, problem)
