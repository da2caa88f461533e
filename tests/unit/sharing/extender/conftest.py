"""The extender as it is served, on a stand-in of the API server, and the scheduler's side of HTTP."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from typing import Any, Protocol

import pytest

from tests.unit.sharing.extender.api_server import ApiServer, Document
from tests.unit.sharing.extender.schema import check
from vfioctl.sharing.extender import following
from vfioctl.sharing.extender.names import Unit
from vfioctl.sharing.extender.service import ExtenderService
from vfioctl.sharing.extender.settings import checked


class Scheduler:
    """Speaks to a served extender as kube-scheduler does; each message is compared with the published types."""

    def __init__(self, service: ExtenderService, api: ApiServer) -> None:
        self.service, self.api = service, api

    def ask(self, verb: str, body: bytes, method: str = "POST") -> tuple[int, str]:
        connection = HTTPConnection("127.0.0.1", self.service.server.port, timeout=20)
        try:
            connection.request(method, f"/{verb}", body)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def message(self, verb: str, arguments: Document, kind: str) -> Any:
        status, text = self.ask(verb, json.dumps(arguments).encode())
        assert status == 200, text
        answer = json.loads(text)
        check(answer, kind)
        return answer

    def filter(self, document: Document, *names: str) -> Any:
        """With names only: the extender is nodeCacheCapable."""
        arguments = {"Pod": document, "Nodes": None, "NodeNames": [*names]}
        check(arguments, "ExtenderArgs")
        return self.message("filter", arguments, "ExtenderFilterResult")

    def scores(self, document: Document, *names: str) -> dict[str, int]:
        arguments = {"Pod": document, "Nodes": None, "NodeNames": [*names]}
        scores = self.message("prioritize", arguments, "HostPriorityList")
        return {score["Host"]: score["Score"] for score in scores}

    def bind(self, document: Document, node: str) -> str:
        """The error; empty if it is bound."""
        metadata = document["metadata"]
        arguments = {
            "PodName": metadata["name"],
            "PodNamespace": metadata["namespace"],
            "PodUID": metadata["uid"],
            "Node": node,
        }
        check(arguments, "ExtenderBindingArgs")
        error: str = self.message("bind", arguments, "ExtenderBindingResult")["Error"]
        return error

    def place(self, document: Document, node: str) -> Any:
        """Create a pod, schedule it to a node, and return what the annotation says of its containers."""
        self.api.put("pods", document)
        assert self.filter(document, node)["NodeNames"] == [node]
        assert self.bind(document, node) == ""
        return self.api.places(document["metadata"]["name"])

    def wait(self, condition: Callable[[], object], seconds: float = 10) -> None:
        until = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < until, "it did not come to pass"
            time.sleep(0.01)

    def health(self) -> tuple[int, str]:
        return self.ask("healthz", b"", "GET")


@pytest.fixture
def api() -> Iterator[ApiServer]:
    server = ApiServer()
    yield server
    server.close()


class Start(Protocol):
    """Starts the service. `wait`: until it is ready."""

    def __call__(self, *, wait: bool = True) -> Scheduler: ...


@pytest.fixture
def start(api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts the service on what the API server has now, as often as it is called."""
    monkeypatch.setattr(following, "_PAUSES", (0.01, 0.05))
    stop, threads = threading.Event(), list[threading.Thread]()

    def begin(*, wait: bool = True) -> Scheduler:
        service = ExtenderService(checked("127.0.0.1:0", Unit.GIB, api.url))
        ready = threading.Event()
        thread = threading.Thread(target=service.run, args=(stop.is_set, lambda _: ready.set()), daemon=True)
        thread.start()
        threads.append(thread)
        assert ready.wait(10)
        scheduler = Scheduler(service, api)
        if wait:
            scheduler.wait(lambda: scheduler.health()[0] == 200)
        return scheduler

    yield begin
    stop.set()
    for thread in threads:
        thread.join(10)
