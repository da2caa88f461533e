"""Answers a scheduler over HTTP: POST of a verb, GET of the health. Knows nothing of what it answers.

Whoever can connect may ask. So the size and the time of a request are limited, a new connection takes the place of the
oldest whose request has not come, and only so many requests are answered at the same time."""

from __future__ import annotations

import logging
import socket
import socketserver
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import NamedTuple

from vfioctl.errors import HostError
from vfioctl.serving.address import split

_MOST_WAITING, _MOST_ANSWERED = 32, 16
"""Connections whose request has not come yet, and requests that are being answered, at the same time."""
_MOST_OPEN = 128
"""All connections, with those that are slow to take their answer."""
_COMES = 10.0
"""Seconds in which a request must have come."""
_MOST_BYTES = 64 << 20
"""Bytes of a request: 5,000 nodes have some 50 MB."""
_LARGE = 1 << 20
"""Bytes above which requests are read and answered one by one: an answer takes up to ten times as much memory. Names of
5,000 nodes have less; kube-scheduler sends whole nodes only if the extender is not nodeCacheCapable, and pod by pod."""
_POLL = 0.5
_HEALTH, _ALIVE, _METRICS = "/healthz", "/livez", "/metrics"
_JSON, _TEXT = "application/json", "text/plain; charset=utf-8"
_log = logging.getLogger("vfioctl.extender")


class Reply(NamedTuple):
    """What is sent back."""

    status: HTTPStatus
    kind: str
    body: bytes


_BUSY = Reply(HTTPStatus.SERVICE_UNAVAILABLE, _TEXT, b"too many requests\n")


class ExtenderServer:
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
        self._metrics = metrics
        self._text, self._tls = address, tls
        self._address = split(address)
        self._verbs, self._answer, self._health = frozenset(verbs), answer, health
        self._server: _Server | None = None

    @property
    def port(self) -> int:
        """The port in use; 0 before `start`."""
        return self._server.server_address[1] if self._server else 0

    def start(self) -> None:
        """Listen, and answer in threads. Raises HostError if the address cannot be used."""
        try:
            self._server = _Server(self._address, self.reply, self._tls)
        except OSError as error:
            raise HostError(
                f"cannot listen on {self._text}: {error.strerror or error}", hint="--listen names another address"
            ) from None
        threading.Thread(target=self._server.serve_forever, args=(_POLL,), name="http", daemon=True).start()

    def close(self) -> None:
        """Stop listening and end all connections."""
        if self._server:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def reply(self, method: str, path: str, body: bytes) -> Reply:
        """Return the reply to a request. The verb is the last part of the path, as schedulers have prefixes."""
        verb = path.partition("?")[0].rpartition("/")[2]
        if method == "GET" and path == _ALIVE:
            return Reply(HTTPStatus.OK, _TEXT, b"ok\n")
        if method == "GET" and path == _HEALTH:
            reasons = self._health()
            status = HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK
            return Reply(
                status, _TEXT, "".join(f"{reason}\n" for reason in reasons or ["ok"]).encode("utf-8", "replace")
            )
        if method == "GET" and path == _METRICS and self._metrics:
            return Reply(HTTPStatus.OK, _TEXT, self._metrics())
        if method != "POST" or verb not in self._verbs:
            names = " ".join(sorted(self._verbs))
            gets = " ".join((_HEALTH, _ALIVE, *((_METRICS,) if self._metrics else ())))
            return Reply(HTTPStatus.NOT_FOUND, _TEXT, f"there are POST {names}, GET {gets}\n".encode())
        try:
            return Reply(HTTPStatus.OK, _JSON, self._answer(verb, body))
        except ValueError as error:
            return Reply(HTTPStatus.BAD_REQUEST, _TEXT, f"{error}\n"[:1000].encode("utf-8", "replace"))


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = _MOST_WAITING

    def __init__(
        self,
        address: tuple[str, int],
        reply: Callable[[str, str, bytes], Reply],
        tls: Callable[[], ssl.SSLContext] | None,
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.reply, self._tls = reply, tls
        self._waiting: dict[socket.socket, float] = {}
        self._all: set[socket.socket] = set()
        self._lock, self.slots = threading.Lock(), threading.BoundedSemaphore(_MOST_ANSWERED)
        self.large = threading.Lock()
        """Held while a large request is read and answered."""
        super().__init__(address, _Request)

    def get_request(self) -> tuple[socket.socket, object]:
        connection, address = super().get_request()
        if self._tls:  # the handshake is made by the connection's thread, when it reads
            connection = self._tls().wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        return connection, address

    def process_request(self, request: socket.socket | tuple[bytes, socket.socket], client_address: object) -> None:
        assert isinstance(request, socket.socket)
        if len(self._all) >= _MOST_OPEN:
            self.shutdown_request(request)
            return
        with self._lock:
            if len(self._waiting) >= _MOST_WAITING:
                oldest = next(iter(self._waiting))
                del self._waiting[oldest]
                _end(oldest)
            self._waiting[request] = time.monotonic()
            self._all.add(request)
        super().process_request(request, client_address)

    def has_come(self, connection: socket.socket) -> None:
        """The request of a connection is complete: it may take the time that its answer takes."""
        with self._lock:
            self._waiting.pop(connection, None)

    def service_actions(self) -> None:
        """Called once in a poll: ends connections whose request does not come."""
        oldest = time.monotonic() - _COMES
        with self._lock:
            for connection in [connection for connection, since in self._waiting.items() if since < oldest]:
                _end(connection)

    def shutdown_request(self, request: socket.socket | tuple[bytes, socket.socket]) -> None:
        assert isinstance(request, socket.socket)
        with self._lock:
            self._waiting.pop(request, None)
            self._all.discard(request)
        _end(request)
        request.close()

    def server_close(self) -> None:
        super().server_close()
        with self._lock:
            for connection in self._all:
                _end(connection)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is no error; anything else is logged, and costs this connection."""
        _log.debug("a request over HTTP failed", exc_info=True)


def _end(connection: socket.socket) -> None:
    """End a connection whose thread may wait for it: the thread closes it. A TLS socket is ended without a farewell,
    which could block."""
    with suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


class _Request(BaseHTTPRequestHandler):
    server: _Server
    timeout = _COMES

    def do_GET(self) -> None:
        self._reply(b"")

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdecimal() and len(length) < 12):
            return self._send(Reply(HTTPStatus.LENGTH_REQUIRED, _TEXT, b"Content-Length is missing\n"))
        if int(length) > _MOST_BYTES:
            return self._send(Reply(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, _TEXT, b"the request is too large\n"))
        if int(length) <= _LARGE:
            return self._read(int(length))
        if not self.server.large.acquire(timeout=_COMES):
            return self._send(_BUSY)
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
        if not self.server.slots.acquire(timeout=_COMES):
            return self._send(_BUSY)
        try:
            reply = self.server.reply(self.command, self.path, body)
        except Exception:  # noqa: BLE001 - a bug here costs its request
            _log.exception("no answer to %s %s", self.command, self.path[:40])
            reply = Reply(HTTPStatus.INTERNAL_SERVER_ERROR, _TEXT, b"an error, which is in the log\n")
        finally:
            self.server.slots.release()
        return self._send(reply)

    def _send(self, reply: Reply) -> None:
        self.send_response(reply.status)
        self.send_header("Content-Type", reply.kind)
        self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        self.wfile.write(reply.body)

    def version_string(self) -> str:
        """The header Server."""
        return "vfioctl"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name in http.server
        """Nobody needs a line for each request."""
