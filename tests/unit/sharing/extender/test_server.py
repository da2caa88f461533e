"""What whoever can connect to the extender gets, and how little of it may keep others waiting."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path

import pytest

from tests.unit.sharing.extender.api_server import ApiServer, node, pod
from tests.unit.sharing.extender.conftest import Start
from vfioctl.errors import HostError
from vfioctl.sharing.extender import server as module
from vfioctl.sharing.extender.cluster import ApiError, Cluster
from vfioctl.sharing.extender.names import Unit
from vfioctl.sharing.extender.server import ExtenderServer
from vfioctl.sharing.extender.service import ExtenderService
from vfioctl.sharing.extender.settings import checked

Serve = Callable[[Callable[[str, bytes], bytes]], ExtenderServer]


@pytest.fixture
def serve() -> Iterator[Serve]:
    served = list[ExtenderServer]()

    def begin(answer: Callable[[str, bytes], bytes]) -> ExtenderServer:
        served.append(ExtenderServer("127.0.0.1:0", ("filter", "bind"), answer, list))
        served[-1].start()
        return served[-1]

    yield begin
    for server in served:
        server.close()


def ask(server: ExtenderServer, method: str, path: str, body: bytes | None = None) -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=20)
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def echo(verb: str, body: bytes) -> bytes:
    return json.dumps([verb, body.decode()]).encode()


def test_verbs_with_any_prefix(serve: Serve) -> None:
    """Gpushare's configurations have one."""
    server = serve(echo)
    assert ask(server, "POST", "/filter", b"a") == (200, '["filter", "a"]')
    assert ask(server, "POST", "/gpushare-scheduler/bind", b"b") == (200, '["bind", "b"]')


def test_nothing_else(serve: Serve) -> None:
    server = serve(echo)
    words = "there are POST bind filter, GET /healthz /livez\n"
    assert ask(server, "POST", "/prioritize", b"") == (404, words)
    assert ask(server, "GET", "/filter") == (404, words)
    assert ask(server, "GET", "/x/healthz") == (404, words)
    assert ask(server, "DELETE", "/bind")[0] == 501
    assert ask(server, "GET", "/livez") == ask(server, "GET", "/healthz") == (200, "ok\n")


def test_requests_are_counted(start: Start, api: ApiServer) -> None:
    api.put("nodes", node("gpu1", 1, 8))
    scheduler = start()
    scheduler.filter(pod("a", 4), "gpu1")
    scheduler.filter(pod("b", 9), "gpu1")
    assert scheduler.ask("bind", b"nonsense")[0] == 400
    status, text = scheduler.ask("metrics", b"", "GET")
    assert status == 200
    assert 'vfioctl_extender_requests_total{outcome="answered",verb="filter"} 2.0\n' in text
    assert 'vfioctl_extender_requests_total{outcome="garbled",verb="bind"} 1.0\n' in text
    assert 'vfioctl_extender_request_seconds_count{verb="filter"} 2.0\n' in text


def test_what_cannot_be_read_and_what_fails_cost_their_request(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    def answer(verb: str, body: bytes) -> bytes:
        raise ValueError("no message") if verb == "filter" else ZeroDivisionError("secret")

    server = serve(answer)
    assert ask(server, "POST", "/filter", b"") == (400, "no message\n")
    assert ask(server, "POST", "/bind", b"") == (500, "an error, which is in the log\n")
    assert "ZeroDivisionError" in caplog.text
    assert ask(server, "GET", "/livez")[0] == 200


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (b"", 411),
        (b"Transfer-Encoding: chunked\r\n", 411),
        (b"Content-Length: -1\r\n", 411),
        (b"Content-Length: 99999999999\r\n", 413),
        (b"Content-Length: 9999999999999999\r\n", 411),
    ],
)
def test_requests_without_a_length_and_too_large_ones(serve: Serve, header: bytes, status: int) -> None:
    with socket.create_connection(("127.0.0.1", serve(echo).port), timeout=10) as connection:
        connection.sendall(b"POST /filter HTTP/1.1\r\n" + header + b"\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.0 %d " % status)


def test_a_request_that_comes_slowly_is_ended(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module._Server, "longest_wait", 0.2)
    with socket.create_connection(("127.0.0.1", serve(echo).port), timeout=10) as connection:
        connection.sendall(b"POST /filter HTTP/1.1\r\nContent-Length: 1000\r\n\r\n")
        began = time.monotonic()
        with pytest.raises(ConnectionError):  # noqa: PT012 - it takes some bytes until it is refused
            while time.monotonic() < began + 8:
                connection.sendall(b"x")
                time.sleep(0.05)


def test_idle_connections_keep_nobody_out(serve: Serve) -> None:
    server = serve(echo)
    idle = [
        socket.create_connection(("127.0.0.1", server.port), timeout=10) for _ in range(3 * module._Server.most_waiting)
    ]
    assert ask(server, "POST", "/filter", b"")[0] == 200
    assert idle[0].recv(1) == b"", "the oldest was ended at once"
    for connection in idle:
        connection.close()


def test_an_answer_may_take_longer_than_its_request(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Binding waits for the API server. Meanwhile idle connections do not take its place."""
    monkeypatch.setattr(module._Server, "longest_wait", 0.2)
    is_running, go = threading.Event(), threading.Event()

    def answer(verb: str, body: bytes) -> bytes:
        is_running.set()
        return b"done" if go.wait(10) else b"late"

    server, answers = serve(answer), list[tuple[int, str]]()
    thread = threading.Thread(target=lambda: answers.append(ask(server, "POST", "/bind", b"")))
    thread.start()
    assert is_running.wait(10)
    for _ in range(2 * module._Server.most_waiting):
        socket.create_connection(("127.0.0.1", server.port), timeout=10).close()
    time.sleep(1.2)
    go.set()
    thread.join(10)
    assert answers == [(200, "done")]


def test_too_many_answers_at_once_are_refused(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module._Server, "longest_wait", 0.3)
    go, running = threading.Event(), list[int]()

    def answer(verb: str, body: bytes) -> bytes:
        running.append(1)
        return b"done" if go.wait(20) else b"late"

    server, answers = serve(answer), list[tuple[int, str]]()
    threads = [
        threading.Thread(target=lambda: answers.append(ask(server, "POST", "/bind", b"")))
        for _ in range(module._MOST_ANSWERED)
    ]
    for thread in threads:
        thread.start()
    until = time.monotonic() + 10
    while len(running) < module._MOST_ANSWERED and time.monotonic() < until:
        time.sleep(0.01)
    assert ask(server, "POST", "/bind", b"") == (503, "too many requests\n")
    go.set()
    for thread in threads:
        thread.join(10)
    assert answers == [(200, "done")] * module._MOST_ANSWERED


def test_large_requests_are_answered_one_by_one(serve: Serve) -> None:
    """Sixteen at once would take more memory than the Deployment allows. Small ones do not wait for them."""
    running, most = list[int](), list[int]()

    def answer(verb: str, body: bytes) -> bytes:
        if verb == "filter":
            running.append(len(body))
            most.append(len(running))
            time.sleep(0.2)
            running.pop()
        return b"done"

    server, answers = serve(answer), list[tuple[int, str]]()
    large = b" " * (module._LARGE + 1)
    threads = [threading.Thread(target=lambda: answers.append(ask(server, "POST", "/filter", large))) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert ask(server, "POST", "/bind", b"") == (200, "done")
    for thread in threads:
        thread.join(20)
    assert (answers, max(most)) == ([(200, "done")] * 4, 1)
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(b"POST /filter HTTP/1.1\r\nContent-Length: 9000000\r\n\r\n")
    assert ask(server, "POST", "/filter", large) == (200, "done"), "one that breaks off keeps nobody out"


def test_an_address_in_use_is_told(serve: Serve) -> None:
    other = ExtenderServer(f"127.0.0.1:{serve(echo).port}", ("filter",), echo, list)
    with pytest.raises(HostError, match=r"cannot listen on 127\.0\.0\.1:\d+: Address already in use"):
        other.start()
    other.close()


BAD: Sequence[bytes] = (
    b"",
    b"{",
    b"[]",
    b"null",
    b"\xff",
    b"[" * 100_000,
    b'{"Pod": 3}',
    b'{"NodeNames": "n"}',
    b'{"NodeNames": [3]}',
    b'{"Nodes": {"items": {}}}',
)


@pytest.mark.parametrize("body", BAD, ids=range(len(BAD)))
@pytest.mark.parametrize("verb", ["filter", "prioritize", "bind"])
def test_what_is_no_message_is_refused_with_the_reason(start: Start, verb: str, body: bytes) -> None:
    scheduler = start()
    status, text = scheduler.ask(verb, body)
    assert (status, text.startswith("no message of a scheduler: ")) == (400, True)
    assert scheduler.health()[0] == 200


def test_a_pod_of_garbage_fits_everywhere_and_is_not_bound(start: Start) -> None:
    scheduler = start()
    damaged = {"metadata": 3, "spec": {"containers": [{"resources": {"limits": {"aliyun.com/gpu-mem": "-4"}}}, 3]}}
    assert scheduler.filter(damaged, "n")["NodeNames"] == ["n"]
    assert scheduler.scores(damaged, "n") == {"n": 0}


class TestTls:
    @pytest.fixture
    def files(self, tmp_path: Path) -> Path:
        return self.renewed(tmp_path)

    def renewed(self, folder: Path) -> Path:
        """Write a certificate for 127.0.0.1 that is its own authority."""
        command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=test"
        names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key", "-out", "certificate"]
        subprocess.run([*command.split(), *names], cwd=folder, check=True, capture_output=True)
        return folder

    def served(self, api: ApiServer, files: Path, *, clients: bool = False) -> ExtenderService:
        paths = {"certificate": files / "certificate", "key": files / "key"}
        authority = {"clients": files / "certificate"} if clients else {}
        service = ExtenderService(checked("127.0.0.1:0", Unit.GIB, api.url, {**paths, **authority}))
        service.server.start()
        return service

    def get(self, service: ExtenderService, context: ssl.SSLContext) -> int:
        connection = HTTPSConnection("127.0.0.1", service.server.port, timeout=10, context=context)
        try:
            connection.request("GET", "/livez")
            return connection.getresponse().status
        finally:
            connection.close()

    def test_https(self, api: ApiServer, files: Path) -> None:
        service = self.served(api, files)
        idle = socket.create_connection(("127.0.0.1", service.server.port), timeout=10)
        try:
            trusting = ssl.create_default_context(cafile=files / "certificate")
            assert self.get(service, trusting) == 200, "a handshake that does not come keeps nobody waiting"
            with pytest.raises(ssl.SSLError):
                self.get(service, ssl.create_default_context())
        finally:
            idle.close()
            service.server.close()

    def test_clients_without_a_certificate_are_refused(self, api: ApiServer, files: Path) -> None:
        service = self.served(api, files, clients=True)
        try:
            trusting = ssl.create_default_context(cafile=files / "certificate")
            with pytest.raises((ssl.SSLError, ConnectionError)):
                self.get(service, trusting)
            trusting.load_cert_chain(files / "certificate", files / "key")
            assert self.get(service, trusting) == 200
        finally:
            service.server.close()

    def test_certificates_that_are_renewed_are_served_and_asked_for(self, api: ApiServer, files: Path) -> None:
        """cert-manager renews them while the extender runs."""
        service = self.served(api, files, clients=True)
        try:
            for _ in range(2):
                trusting = ssl.create_default_context(cafile=files / "certificate")
                trusting.load_cert_chain(files / "certificate", files / "key")
                assert self.get(service, trusting) == 200
                before = trusting
                self.renewed(files)
            with pytest.raises((ssl.SSLError, ConnectionError)):
                self.get(service, before)
        finally:
            service.server.close()

    def test_a_certificate_is_served_until_its_successor_can_be_used(
        self, api: ApiServer, files: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        service = self.served(api, files)
        try:
            old = ssl.create_default_context(cafile=files / "certificate")
            key = (files / "key").read_bytes()
            self.renewed(files)
            new, new_key = ssl.create_default_context(cafile=files / "certificate"), (files / "key").read_bytes()
            (files / "key").write_bytes(key)
            assert [self.get(service, old) for _ in range(3)] == [200] * 3, "the key is not that of the certificate"
            assert caplog.text.count("the one before it stays in use") == 1
            (files / "key").unlink()
            assert self.get(service, old) == 200
            (files / "key").write_bytes(new_key)
            assert self.get(service, new) == 200
        finally:
            service.server.close()

    def test_files_that_are_no_certificates(self, api: ApiServer, files: Path) -> None:
        (files / "certificate").write_text("garbage")
        with pytest.raises(HostError, match="cannot use the certificate"):
            self.served(api, files)
        with pytest.raises(HostError, match="cannot read the certificates in"):
            Cluster("https://127.0.0.1:1", None, files / "certificate")

    def test_the_token_is_sent_over_tls_only_and_read_each_time(self, files: Path) -> None:
        token, seen = files / "token", list[str]()
        token.write_text("first\n")
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(files / "certificate", files / "key")
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.settimeout(20)

            def accept() -> None:
                for _ in range(2):
                    plain, _ = listener.accept()
                    with context.wrap_socket(plain, server_side=True) as connection:
                        seen.append(connection.recv(4000).decode())
                        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

            thread = threading.Thread(target=accept)
            thread.start()
            url = f"https://127.0.0.1:{listener.getsockname()[1]}"
            cluster = Cluster(url, token, files / "certificate")
            cluster.pod("a", "b")
            token.write_text("second")
            cluster.pod("a", "b")
            thread.join(10)
        assert ["Authorization: Bearer first\r\n" in seen[0], "Authorization: Bearer second\r\n" in seen[1]] == [
            True
        ] * 2

    def test_over_http_no_token_is_sent(self, files: Path) -> None:
        (files / "token").write_text("secret")
        cluster = Cluster("http://127.0.0.1:1", files / "token")
        assert "Authorization" not in cluster._headers("GET")

    def test_a_token_that_is_none(self, files: Path) -> None:
        (files / "token").write_text("secret\r\nX-Evil: b")
        with pytest.raises(ApiError, match="token has no token") as refused:
            Cluster("https://127.0.0.1:1", files / "token", files / "certificate").pod("a", "b")
        assert "secret" not in str(refused.value)

    def test_an_authority_that_is_renewed_is_asked_with(self, api: ApiServer, files: Path) -> None:
        """That of a service account is replaced while the extender runs."""
        service = self.served(api, files)
        try:
            cluster = Cluster(f"https://127.0.0.1:{service.server.port}", None, files / "certificate")
            for _ in range(2):
                with pytest.raises(ApiError, match="answers 404"):
                    cluster.pod("a", "b")
                self.renewed(files)
        finally:
            service.server.close()


def test_names_of_pods_stay_names_in_paths(api: ApiServer, start: Start) -> None:
    api.put("nodes", node("n", 1, 8))
    scheduler = start()
    evil = pod("x/../../nodes?a=b#c", 1, namespace="../kube-system")
    assert scheduler.bind(evil, "n") == "there is no such pod"
    assert api.requests[-1][1] == "/api/v1/namespaces/..%2Fkube-system/pods/x%2F..%2F..%2Fnodes%3Fa%3Db%23c"
