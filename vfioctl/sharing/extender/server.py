"""Answers a scheduler over HTTP: POST of a verb, GET of the health. Knows nothing of what it answers.

Whoever can connect may ask. So the size and the time of a request are limited, and only so many requests are answered
at the same time."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from http import HTTPStatus

from vfioctl.serving.connections import TEXT, Handler, Listener, Reply, Server, health_reply

_MOST_ANSWERED = 16
"""Requests that are being answered at the same time."""
_MOST_BYTES = 64 << 20
"""Bytes of a request: 5,000 nodes have some 50 MB."""
_LARGE = 1 << 20
"""Bytes above which requests are read and answered one by one: an answer takes up to ten times as much memory. Names of
5,000 nodes have less; kube-scheduler sends whole nodes only if the extender is not nodeCacheCapable, and pod by pod."""
_POLL = 0.5
_HEALTH, _ALIVE, _METRICS = "/healthz", "/livez", "/metrics"
_JSON = "application/json"
_BUSY = Reply(HTTPStatus.SERVICE_UNAVAILABLE, TEXT, b"too many requests\n")


class ExtenderServer(Listener):
    """Serves verbs. `answer` returns the JSON that answers a body; it raises ValueError for one that it cannot read.
    `health` returns the reasons why answers would be wrong; `metrics`, Prometheus' text. All are called in threads.
    `tls`: called for each connection, in one thread; returns what it is served with."""

    def __init__(
        self,
        address: str,
        verbs: Sequence[str],
        answer: Callable[[str, bytes], bytes],
        health: Callable[[], Sequence[str]],
        tls: Callable[[], ssl.SSLContext] | None = None,
        metrics: Callable[[], bytes] | None = None,
    ) -> None:
        self._verbs, self._answer, self._health, self._metrics = frozenset(verbs), answer, health, metrics
        super().__init__(
            address,
            lambda host_and_port: _Server(host_and_port, self.reply, tls),
            poll=_POLL,
            hint="--listen names another address",
        )

    def reply(self, method: str, path: str, body: bytes) -> Reply:
        """Return the reply to a request. The verb is the last part of the path, as schedulers have prefixes."""
        verb = path.partition("?")[0].rpartition("/")[2]
        if method == "GET" and path == _ALIVE:
            return Reply(HTTPStatus.OK, TEXT, b"ok\n")
        if method == "GET" and path == _HEALTH:
            return health_reply(self._health())
        if method == "GET" and path == _METRICS and self._metrics:
            return Reply(HTTPStatus.OK, TEXT, self._metrics())
        if method != "POST" or verb not in self._verbs:
            names = " ".join(sorted(self._verbs))
            gets = " ".join((_HEALTH, _ALIVE, *((_METRICS,) if self._metrics else ())))
            return Reply(HTTPStatus.NOT_FOUND, TEXT, f"there are POST {names}, GET {gets}\n".encode())
        try:
            return Reply(HTTPStatus.OK, _JSON, self._answer(verb, body))
        except ValueError as error:
            return Reply(HTTPStatus.BAD_REQUEST, TEXT, f"{error}\n"[:1000].encode("utf-8", "replace"))


class _Server(Server):
    log = logging.getLogger("vfioctl.extender")
    most_waiting, longest_wait = 32, 10.0

    def __init__(
        self,
        address: tuple[str, int],
        reply: Callable[[str, str, bytes], Reply],
        tls: Callable[[], ssl.SSLContext] | None,
    ) -> None:
        self.reply, self._tls = reply, tls
        self.slots = threading.BoundedSemaphore(_MOST_ANSWERED)
        self.large = threading.Lock()
        """Held while a large request is read and answered."""
        super().__init__(address, _Request)

    def get_request(self) -> tuple[socket.socket, object]:
        connection, address = super().get_request()
        if self._tls:  # the handshake is made by the connection's thread, when it reads
            connection = self._tls().wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        return connection, address


class _Request(Handler):
    server: _Server
    timeout = _Server.longest_wait

    def do_GET(self) -> None:  # noqa: N802 - its name in http.server
        self._reply(b"")

    def do_POST(self) -> None:  # noqa: N802 - its name in http.server
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdecimal() and len(length) < 12):
            return self.send(Reply(HTTPStatus.LENGTH_REQUIRED, TEXT, b"Content-Length is missing\n"))
        if int(length) > _MOST_BYTES:
            return self.send(Reply(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, TEXT, b"the request is too large\n"))
        if int(length) <= _LARGE:
            return self._read(int(length))
        if not self.server.large.acquire(timeout=self.server.longest_wait):
            return self.send(_BUSY)
        try:
            self._read(int(length))
        finally:
            self.server.large.release()
        return None

    def _read(self, length: int) -> None:
        body = self.rfile.read(length)
        if len(body) == length:
            self._reply(body)

    def _reply(self, body: bytes) -> None:
        self.server.has_come(self.connection)
        if not self.server.slots.acquire(timeout=self.server.longest_wait):
            return self.send(_BUSY)
        try:
            reply = self.reply_of(lambda: self.server.reply(self.command, self.path, body))
        finally:
            self.server.slots.release()
        return self.send(reply)
