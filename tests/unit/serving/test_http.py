"""What whoever can connect gets over HTTP: metrics and health, for a few seconds each, and nothing else."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from http.client import HTTPConnection

import pytest

from vfioctl.errors import HostError
from vfioctl.serving import http
from vfioctl.serving.http import HttpServer


class Service:
    """A server, and what it is to say."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.broken = False
        self.server = HttpServer("127.0.0.1:0", self.metrics, lambda: self.reasons, table="kubelet")
        self.server.start()

    def metrics(self) -> bytes:
        if self.broken:
            raise ZeroDivisionError
        return b"vfioctl_wedged 0.0\n"

    def ask(self, path: str, method: str = "GET") -> tuple[int, str, str]:
        """Status, type and text."""
        connection = HTTPConnection("127.0.0.1", self.server.port, timeout=10)
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.headers["Content-Type"], answer.read().decode()

    def connect(self) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.server.port), timeout=10)
        connection.sendall(b"GET /metr")
        return connection


@pytest.fixture
def service() -> Iterator[Service]:
    there = Service()
    yield there
    there.server.close()


def test_metrics(service: Service) -> None:
    text = (200, "text/plain; version=0.0.4; charset=utf-8", "vfioctl_wedged 0.0\n")
    assert service.ask("/metrics") == service.ask("/metrics?name[]=x") == text


def test_health_has_a_reason_a_line(service: Service) -> None:
    assert service.ask("/healthz")[::2] == (200, "ok\n")
    service.reasons += ["the ledger is locked", "no kubelet"]
    assert service.ask("/healthz")[::2] == (503, "the ledger is locked\nno kubelet\n")


def test_nothing_else(service: Service) -> None:
    assert service.ask("/../etc/passwd")[0] == 404
    assert service.ask("/metrics", "POST")[0] == 501
    assert service.ask("/metrics", "DELETE")[0] == 501


def test_a_bug_costs_its_request(service: Service) -> None:
    service.broken = True
    status, _, text = service.ask("/metrics")
    assert (status, "ZeroDivisionError" in text) == (500, False)
    assert service.ask("/healthz")[0] == 200


def test_a_client_that_sends_a_byte_at_a_time_is_ended(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http._Server, "longest_wait", 0.2)
    connection, began = service.connect(), time.monotonic()
    with pytest.raises(ConnectionError):  # noqa: PT012 - it takes some bytes until it is refused
        while time.monotonic() < began + 8:
            connection.sendall(b"x")
            time.sleep(0.05)
    connection.close()


def test_a_connection_too_many_takes_the_place_of_the_oldest(service: Service) -> None:
    idle = [service.connect() for _ in range(3 * http._Server.most_waiting)]
    assert service.ask("/healthz")[0] == 200
    assert idle[0].recv(1) == b"", "it was ended at once, not after its time"
    assert service.server.server
    assert len(service.server.server.waiting) <= http._Server.most_waiting
    for connection in idle:
        connection.close()


def test_close_ends_connections_and_gives_the_address_back(service: Service) -> None:
    idle, port = service.connect(), service.server.port
    service.ask("/healthz")
    service.server.close()
    assert idle.recv(1) == b""
    idle.close()
    again = HttpServer(f"127.0.0.1:{port}", lambda: b"", list, table="kubelet")
    again.start()
    again.close()


@pytest.mark.parametrize("listen", ["[::1]:0", "localhost:0"])
def test_other_addresses(listen: str) -> None:
    if listen.startswith("[") and not socket.has_dualstack_ipv6():
        pytest.skip("needs IPv6")
    server = HttpServer(listen, lambda: b"", list, table="kubelet")
    server.start()
    server.close()


def test_an_address_in_use_is_told(service: Service) -> None:
    other = HttpServer(f"127.0.0.1:{service.server.port}", lambda: b"", list, table="kubelet")
    with pytest.raises(HostError, match=r"cannot listen on 127\.0\.0\.1:\d+: Address already in use"):
        other.start()
    other.close()
