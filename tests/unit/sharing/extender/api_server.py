"""A stand-in of the API server, over HTTP: lists, watches, bindings of pods, annotations of nodes, and faults."""

from __future__ import annotations

import copy
import json
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from vfioctl.sharing.extender.names import COUNT, MEMORY

Document = dict[str, Any]


def pod(
    name: str,
    *memories: int,
    node: str = "",
    annotations: dict[str, str] | None = None,
    namespace: str = "ml",
    uid: str = "",
) -> Document:
    """A pod with a container for each number of units, named c0, c1 and so on."""
    containers = [{"name": f"c{i}", "resources": {"limits": {MEMORY: str(m)}}} for i, m in enumerate(memories)]
    metadata = {"name": name, "namespace": namespace, "uid": uid or f"uid-{name}", "annotations": annotations or {}}
    spec = {"containers": containers, **({"nodeName": node} if node else {})}
    return {"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}


def node(name: str, gpus: int, each: int, annotations: dict[str, str] | None = None) -> Document:
    """A node whose GPUs have `each` units."""
    allocatable = {MEMORY: str(gpus * each), COUNT: str(gpus)} if gpus else {}
    return {"metadata": {"name": name, "annotations": annotations or {}}, "status": {"allocatable": allocatable}}


class ApiServer:
    """An API server with pods and nodes. `page`: the most objects in one answer of a list."""

    def __init__(self, page: int = 500) -> None:
        self.page = page
        self.objects: dict[str, dict[str, Document]] = {"pods": {}, "nodes": {}}
        self.events: list[tuple[int, str, Document]] = []
        self.requests: list[tuple[str, str]] = []
        self.oldest = 0
        """Versions before it are gone."""
        self.version = 1
        self.faults: list[Callable[[_Request], bool]] = []
        """Called before a request is answered: true if they have answered it. Each that did is removed."""
        self.watch_ends = threading.Event()
        self.changed = threading.Condition(threading.RLock())
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Request)
        self._server.daemon_threads = True
        self._server.api = self  # type: ignore[attr-defined]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self.watch_ends.set()
        with self.changed:
            self.changed.notify_all()
        self._server.shutdown()
        self._server.server_close()

    def put(self, kind: str, document: Document) -> None:
        """Create or change an object."""
        with self.changed:
            key = _key(document)
            event = "MODIFIED" if key in self.objects[kind] else "ADDED"
            document["metadata"].setdefault("creationTimestamp", datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
            self.objects[kind][key] = document
            self.tell(kind, event, document)

    def delete(self, kind: str, name: str) -> None:
        with self.changed:
            key = next(key for key, found in self.objects[kind].items() if found["metadata"]["name"] == name)
            self.tell(kind, "DELETED", self.objects[kind].pop(key))

    def tell(self, kind: str, event: str, document: Document) -> None:
        """Send an event to those who watch."""
        with self.changed:
            self.version += 1
            document["metadata"]["resourceVersion"] = str(self.version)
            self.events.append((self.version, kind, {"type": event, "object": copy.deepcopy(document)}))
            self.changed.notify_all()

    def pod(self, name: str) -> Document:
        return next(found for found in self.objects["pods"].values() if found["metadata"]["name"] == name)

    def places(self, name: str) -> dict[str, Any]:
        """What vfioctl's annotation says of a pod."""
        shares: dict[str, Any] = json.loads(self.pod(name)["metadata"]["annotations"]["vfioctl.io/gpu-shares"])
        return shares

    def count(self, verb: str, part: str) -> int:
        """How many requests came with this method, and this part in the path."""
        return sum(method == verb and part in path for method, path in self.requests)


def _key(document: Document) -> str:
    metadata = document["metadata"]
    return f"{metadata.get('namespace', '')}/{metadata['name']}"


class _Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def api(self) -> ApiServer:
        found: ApiServer = self.server.api  # type: ignore[attr-defined]
        return found

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        self.api.requests.append(("WATCH" if "watch" in query else "GET", self.path))
        if self._at_fault():
            return
        parts = url.path.split("/")[3:]
        if len(parts) == 4:
            found = self.api.objects["pods"].get(f"{parts[1]}/{parts[3]}")
            self.answer(200, found) if found else self.answer(404, status(404, "not found"))
        elif "watch" in query:
            self._watch(parts[0], int(query["resourceVersion"]))
        else:
            self._list(parts[0], query)

    def _list(self, kind: str, query: dict[str, str]) -> None:
        with self.api.changed:
            items = [copy.deepcopy(found) for found in self.api.objects[kind].values()]
            start, most = int(query.get("continue", 0)), min(self.api.page, int(query["limit"]))
            more = {"continue": str(start + most)} if start + most < len(items) else {}
            metadata = {"resourceVersion": str(self.api.version), **more}
        self.answer(200, {"metadata": metadata, "items": items[start : start + most]})

    def _watch(self, kind: str, version: int) -> None:
        if version < self.api.oldest:
            event = {"type": "ERROR", "object": status(410, "too old resource version")}
            self.answer(200, event)
            return
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        is_ending = False
        while not is_ending:
            is_ending = self.api.watch_ends.is_set()
            with self.api.changed:
                news = [event for at, of, event in self.api.events if of == kind and at > version]
                version = max(version, self.api.version)
                if not news and not is_ending:
                    self.api.changed.wait(0.1)
            for event in news:
                text = json.dumps(event).encode() + b"\n"
                self.wfile.write(b"%x\r\n%s\r\n" % (len(text), text))
        self.wfile.write(b"0\r\n\r\n")

    def do_POST(self) -> None:
        self.api.requests.append(("POST", self.path))
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self._at_fault():
            return
        _, _, _, _, namespace, _, name, what = self.path.split("/")
        assert what == "binding"
        with self.api.changed:
            found = self.api.objects["pods"].get(f"{namespace}/{name}")
            if found is None:
                self.answer(404, status(404, f'pods "{name}" not found'))
            elif found["metadata"]["uid"] != body["metadata"]["uid"]:
                self.answer(409, status(409, "the UID in the precondition does not match"))
            elif "nodeName" in found["spec"]:
                self.answer(409, status(409, f"pod {name} is already assigned to node {found['spec']['nodeName']}"))
            else:
                assert body["target"]["kind"] == "Node"
                bound = copy.deepcopy(found)
                bound["spec"]["nodeName"] = body["target"]["name"]
                bound["metadata"]["annotations"] |= body["metadata"]["annotations"]
                self.api.put("pods", bound)
                self.answer(201, status(201, ""))

    def do_PATCH(self) -> None:
        self.api.requests.append(("PATCH", self.path))
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self._at_fault():
            return
        assert self.headers["Content-Type"] == "application/merge-patch+json"
        assert {key: [*value] for key, value in body.items()} == {"metadata": ["annotations"]}
        name = self.path.removeprefix("/api/v1/nodes/")
        with self.api.changed:
            found = copy.deepcopy(self.api.objects["nodes"].get(f"/{name}"))
            if found is None:
                self.answer(404, status(404, f'nodes "{name}" not found'))
                return
            found["metadata"]["annotations"] |= body["metadata"]["annotations"]
            self.api.put("nodes", found)
            self.answer(200, found)

    def _at_fault(self) -> bool:
        for fault in self.api.faults[:]:
            if fault(self):
                self.api.faults.remove(fault)
                return True
        return False

    def answer(self, code: int, document: object, text: bytes | None = None) -> None:
        body = json.dumps(document).encode() if text is None else text
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name in http.server
        pass


def status(code: int, message: str) -> Document:
    return {"kind": "Status", "code": code, "message": message}


def once(
    method: str, part: str, code: int, text: str | None = None, *, after: Callable[[], None] | None = None
) -> Callable[[_Request], bool]:
    """Answer the next request of that method, with this part in its path, so. `text`: in place of a status."""

    def fault(request: _Request) -> bool:
        if request.command != method or part not in request.path:
            return False
        if after:
            after()
        request.answer(code, status(code, "for a test"), None if text is None else text.encode())
        return True

    return fault


def hanging(method: str, part: str, seconds: float) -> Callable[[_Request], bool]:
    """Say nothing to the next request of that method, with this part in its path, and then end the connection."""

    def fault(request: _Request) -> bool:
        if request.command != method or part not in request.path:
            return False
        time.sleep(seconds)
        request.close_connection = True
        return True

    return fault
