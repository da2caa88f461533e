"""Answers GET /metrics and GET /healthz over HTTP. Knows nothing of what it serves, and may not wait for a change.

Whoever can connect may ask, so a connection lives for seconds only and there are at most a few: a new one takes the
place of the oldest."""

from __future__ import annotations

import logging
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler

from vfioctl.errors import HostError
from vfioctl.serving.address import split

METRICS, HEALTH = "/metrics", "/healthz"
"""The paths that are served."""
_log = logging.getLogger("vfioctl.serving")
_MOST = 16
"""Connections at the same time."""
_LONGEST = 5.0
"""Lifetime of a connection in seconds, whatever the client does."""
_POLL = 1.0
"""Seconds between two looks at the age of connections."""
_EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"
"""Prometheus, "Text-based format"."""
_TEXT = "text/plain; charset=utf-8"


class HttpServer:
    """Serves metrics and health. `listen`: HOST:PORT as the settings check it; port 0 takes any. `table`: the table of
    the configuration that has it, for messages.

    `metrics` returns the text of /metrics. `health` returns the reasons why the service does not work, none if it
    does: whatever asks restarts the service, so a broken device is none. Both are called in threads."""

    def __init__(
        self, listen: str, metrics: Callable[[], bytes], health: Callable[[], Sequence[str]], *, table: str
    ) -> None:
        self._address = split(listen)
        self._listen, self._table = listen, table
        self._metrics, self._health = metrics, health
        self._server: _Server | None = None

    @property
    def port(self) -> int:
        """The port in use; 0 before `start`."""
        return self._server.server_address[1] if self._server else 0

    def start(self) -> None:
        """Listen, and answer in threads. Raises HostError if the address cannot be used."""
        try:
            self._server = _Server(self._address, self._answer)
        except OSError as error:
            raise HostError(
                f"cannot listen on {self._listen}: {error.strerror or error}",
                hint=f"listen in [{self._table}] of the configuration names another address; empty for none",
            ) from None
        threading.Thread(target=self._server.serve_forever, args=(_POLL,), name="http", daemon=True).start()

    def close(self) -> None:
        """Stop listening and end all connections."""
        if self._server:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def _answer(self, path: str) -> tuple[HTTPStatus, str, bytes]:
        if path == METRICS:
            return HTTPStatus.OK, _EXPOSITION, self._metrics()
        if path != HEALTH:
            return HTTPStatus.NOT_FOUND, _TEXT, f"there are {METRICS} and {HEALTH}\n".encode()
        reasons = self._health()
        status = HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK
        return status, _TEXT, "".join(f"{reason}\n" for reason in reasons or ["ok"]).encode("utf-8", "replace")


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = _MOST

    def __init__(self, address: tuple[str, int], answer: Callable[[str], tuple[HTTPStatus, str, bytes]]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.answer = answer
        self._opened: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        super().__init__(address, _Request)

    def server_bind(self) -> None:
        if self.server_address[0] == "::":  # IPv4, too, whatever net.ipv6.bindv6only says
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def process_request(self, request: socket.socket | tuple[bytes, socket.socket], client_address: object) -> None:
        assert isinstance(request, socket.socket)
        with self._lock:
            if len(self._opened) >= _MOST:
                oldest = next(iter(self._opened))
                del self._opened[oldest]
                _end(oldest)
            self._opened[request] = time.monotonic()
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """Called once in a poll: ends connections that are too old."""
        oldest = time.monotonic() - _LONGEST
        with self._lock:
            for connection in [connection for connection, since in self._opened.items() if since < oldest]:
                _end(connection)

    def shutdown_request(self, request: socket.socket | tuple[bytes, socket.socket]) -> None:
        assert isinstance(request, socket.socket)
        with self._lock:
            self._opened.pop(request, None)
        super().shutdown_request(request)

    def server_close(self) -> None:
        super().server_close()
        with self._lock:
            for connection in self._opened:
                _end(connection)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is no error; anything else is logged, and costs this connection."""
        _log.debug("a request over HTTP failed", exc_info=True)


def _end(connection: socket.socket) -> None:
    """End a connection whose thread may wait for it: the thread closes it."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class _Request(BaseHTTPRequestHandler):
    server: _Server
    timeout = _LONGEST

    def do_GET(self) -> None:
        try:
            status, kind, body = self.server.answer(self.path.partition("?")[0])
        except Exception:  # noqa: BLE001 - a bug here must not look like a dead service
            _log.exception("no answer to GET %s", self.path[:40])
            status, kind, body = HTTPStatus.INTERNAL_SERVER_ERROR, _TEXT, b"an error, which is in the log\n"
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def version_string(self) -> str:
        """The header Server."""
        return "vfioctl"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name in http.server
        """Nobody needs a line for each scrape."""
