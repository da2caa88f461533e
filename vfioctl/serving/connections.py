"""An HTTP server for whoever can connect: of connections whose request has not come there are a few, for seconds only,
and a new one takes the place of the oldest. Knows nothing of what it serves."""

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
from typing import ClassVar, NamedTuple

from vfioctl.errors import HostError
from vfioctl.serving.address import split

TEXT = "text/plain; charset=utf-8"
_MOST_OPEN = 128
"""All connections, with those that are slow to take their answer."""


class Reply(NamedTuple):
    """What is sent back."""

    status: HTTPStatus
    kind: str
    body: bytes


def health_reply(reasons: Sequence[str]) -> Reply:
    """Return the reply to a question for the health: `reasons` why the service does not work, none if it does."""
    status = HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK
    return Reply(status, TEXT, "".join(f"{reason}\n" for reason in reasons or ["ok"]).encode("utf-8", "replace"))


class Server(socketserver.ThreadingTCPServer):
    """Answers each connection in a thread. `address`: as `split` returns it."""

    log: ClassVar[logging.Logger]
    most_waiting: ClassVar[int]
    """Connections at the same time whose request has not come, or whose server never says `has_come`."""
    longest_wait: ClassVar[float]
    """Seconds for which such a connection lives, whatever the client does."""
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], handler: type[Handler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.request_queue_size = self.most_waiting
        self.waiting: dict[socket.socket, float] = {}
        """When each connection came, by the monotonic clock; the oldest first."""
        self._all: set[socket.socket] = set()
        self._lock = threading.Lock()
        super().__init__(address, handler)

    def server_bind(self) -> None:
        if self.server_address[0] == "::":  # IPv4, too, whatever net.ipv6.bindv6only says
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def process_request(self, request: socket.socket | tuple[bytes, socket.socket], client_address: object) -> None:
        assert isinstance(request, socket.socket)
        if len(self._all) >= _MOST_OPEN:
            self.shutdown_request(request)
            return
        with self._lock:
            if len(self.waiting) >= self.most_waiting:
                oldest = next(iter(self.waiting))
                del self.waiting[oldest]
                _end(oldest)
            self.waiting[request] = time.monotonic()
            self._all.add(request)
        super().process_request(request, client_address)

    def has_come(self, connection: socket.socket) -> None:
        """The request of a connection is complete: it may take the time that its answer takes."""
        with self._lock:
            self.waiting.pop(connection, None)

    def service_actions(self) -> None:
        """Called once in a poll: ends connections that have waited too long."""
        oldest = time.monotonic() - self.longest_wait
        with self._lock:
            for connection in [connection for connection, since in self.waiting.items() if since < oldest]:
                _end(connection)

    def shutdown_request(self, request: socket.socket | tuple[bytes, socket.socket]) -> None:
        assert isinstance(request, socket.socket)
        with self._lock:
            self.waiting.pop(request, None)
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
        self.log.debug("a request over HTTP failed", exc_info=True)  # noqa: LOG014 - called where it was caught


class Listener:
    """Serves from `start` to `close`. `listen`: HOST:PORT as the settings check it; port 0 takes any. `poll`: seconds
    between two looks at the age of connections. `hint`: what to do if the address cannot be used."""

    def __init__(self, listen: str, serve: Callable[[tuple[str, int]], Server], *, poll: float, hint: str) -> None:
        self._listen, self._serve, self._poll, self._hint = listen, serve, poll, hint
        self.server: Server | None = None

    @property
    def port(self) -> int:
        """The port in use; 0 before `start`."""
        return self.server.server_address[1] if self.server else 0

    def start(self) -> None:
        """Listen, and answer in threads. Raises HostError if the address cannot be used."""
        try:
            server = self._serve(split(self._listen))
        except OSError as error:
            raise HostError(f"cannot listen on {self._listen}: {error.strerror or error}", hint=self._hint) from None
        threading.Thread(target=server.serve_forever, args=(self._poll,), name="http", daemon=True).start()
        self.server = server

    def close(self) -> None:
        """Stop listening and end all connections."""
        if self.server:
            self.server.shutdown()
            self.server.server_close()
            self.server = None


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: Server

    def send(self, reply: Reply) -> None:
        """Send the reply."""
        self.send_response(reply.status)
        self.send_header("Content-Type", reply.kind)
        self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        self.wfile.write(reply.body)

    def reply_of(self, ask: Callable[[], Reply]) -> Reply:
        """Return the reply, or that of an error: a bug costs its request, and must not look like a dead service."""
        try:
            return ask()
        except Exception:
            self.server.log.exception("no answer to %s %s", self.command, self.path[:40])
            return Reply(HTTPStatus.INTERNAL_SERVER_ERROR, TEXT, b"an error, which is in the log\n")

    def version_string(self) -> str:
        """The header Server."""
        return "vfioctl"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name in http.server
        """Nobody needs a line for each request."""


def _end(connection: socket.socket) -> None:
    """End a connection whose thread may wait for it: the thread closes it. A TLS socket is ended without a farewell,
    which could block."""
    with suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
