"""Answers GET /metrics and GET /healthz over HTTP. Knows nothing of what it serves, and may not wait for a change."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from http import HTTPStatus

from vfioctl.serving.connections import TEXT, Handler, Listener, Reply, Server, health_reply

METRICS, HEALTH = "/metrics", "/healthz"
"""The paths that are served."""
_POLL = 1.0
_EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"
"""Prometheus, "Text-based format"."""


class HttpServer(Listener):
    """Serves metrics and health. `listen`: HOST:PORT as the settings check it; port 0 takes any. `table`: the table of
    the configuration that has it, for messages.

    `metrics` returns the text of /metrics. `health` returns the reasons why the service does not work, none if it
    does: whatever asks restarts the service, so a broken device is none. Both are called in threads."""

    def __init__(
        self, listen: str, metrics: Callable[[], bytes], health: Callable[[], Sequence[str]], *, table: str
    ) -> None:
        self._metrics, self._health = metrics, health
        hint = f"listen in [{table}] of the configuration names another address; empty for none"
        super().__init__(listen, lambda address: _Server(address, self._answer), poll=_POLL, hint=hint)

    def _answer(self, path: str) -> Reply:
        if path == METRICS:
            return Reply(HTTPStatus.OK, _EXPOSITION, self._metrics())
        if path != HEALTH:
            return Reply(HTTPStatus.NOT_FOUND, TEXT, f"there are {METRICS} and {HEALTH}\n".encode())
        return health_reply(self._health())


class _Server(Server):
    """A connection lives for the longest wait, its answer included."""

    log = logging.getLogger("vfioctl.serving")
    most_waiting, longest_wait = 16, 5.0

    def __init__(self, address: tuple[str, int], answer: Callable[[str], Reply]) -> None:
        self.answer = answer
        super().__init__(address, _Request)


class _Request(Handler):
    server: _Server
    timeout = _Server.longest_wait

    def do_GET(self) -> None:  # noqa: N802 - its name in http.server
        self.send(self.reply_of(lambda: self.server.answer(self.path.partition("?")[0])))
