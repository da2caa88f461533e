"""Asks the API server of a cluster: lists, watches, the binding of a pod, and annotations of a node. Knows nothing of
GPUs.

Over http.client: six requests, one form of authentication, and no library whose threads, pools and models of all of
Kubernetes would take more to understand, and more memory, than this. Answers are limited in size and time."""

from __future__ import annotations

import http.client
import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from urllib.parse import quote, urlencode, urlsplit

from pydantic_core import from_json

from vfioctl.sharing.extender.tls import AskingContext

if TYPE_CHECKING:
    from vfioctl.sharing.extender.settings import ApiServer

NO_ANSWER, GARBLED, TOO_LONG = 0, -1, -2
"""Statuses of an ApiError: there was no answer in time; it could not be read; it is too long."""
REFUSED, NOT_FOUND, CONFLICT, GONE, SERVER_ERROR = 300, 404, 409, 410, 500
"""Those of HTTP. REFUSED is the first of those after which nothing was changed, SERVER_ERROR of those after which a
change may have been made."""
_SECONDS = 10.0
"""How long one answer may take, but for a watch."""
_WATCHED = 60
"""Seconds after which the API server ends a watch, so that one that hangs is noticed."""
_PAGE = 250
"""Objects in one answer of a list, at most: of large ones, fewer are asked for."""
_MOST = 64 << 20
"""Bytes of one answer."""
_LONGEST_LINE = 16 << 20
"""Bytes of one event: etcd keeps no object above 1.5 MiB, of which JSON may write each byte as six (`\\u003c`)."""
_TOKEN = re.compile(rb"[!-~]+")
_LONGEST_REFUSAL, _LONGEST_WORDS = 1 << 20, 300


class ApiError(Exception):
    """The API server refused a request, or did not answer."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


class Event(NamedTuple):
    """One event of a watch."""

    kind: str
    """ADDED, MODIFIED, DELETED or BOOKMARK."""
    document: Mapping[str, Any]


class Target(NamedTuple):
    """What of a pod its binding needs."""

    uid: str
    namespace: str
    name: str
    node: str


class Cluster:
    """The API server. `url`: https://HOST:PORT or http://HOST:PORT. `token`: a file, which is read for each request, as
    the kubelet replaces it within the hour; it is sent over https only. `authority`: a file of certificates.
    `certificate`: a file of this client's own, with its key."""

    def __init__(
        self, url: str, token: Path | None = None, authority: Path | None = None, certificate: Path | None = None
    ) -> None:
        """Raises HostError if the certificates cannot be read."""
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port
        self._path = parts.path.rstrip("/")
        self._token = token
        self._tls = AskingContext(authority, certificate) if parts.scheme == "https" else None

    @classmethod
    def of(cls, api_server: ApiServer) -> Self:
        """Return the API server of settings. Raises HostError if the certificates cannot be read."""
        return cls(api_server.url, api_server.token, api_server.authority, api_server.certificate)

    def pages(self, resource: str, fields: str = "") -> Iterator[Mapping[str, Any]]:
        """Yield all objects as lists of a limited length. `resource`: pods or nodes. `fields`: a field selector. Raises
        ApiError."""
        more, limit = "", _PAGE
        while True:
            query = {"limit": str(limit), "fieldSelector": fields, "continue": more}
            try:
                page = self._asked("GET", f"/api/v1/{resource}", query)
            except ApiError as error:  # a few large objects must not keep the rest from being listed
                if error.status != TOO_LONG or limit == 1:
                    raise
                limit //= 2  # the API server takes another limit with the same `continue`
                continue
            limit = min(2 * limit, _PAGE)
            yield page
            metadata = page.get("metadata")
            more = str(metadata.get("continue") or "") if isinstance(metadata, dict) else ""
            if not more:
                return

    def watch(self, resource: str, version: str, fields: str = "") -> Iterator[Event]:
        """Yield events since a version until the API server ends the watch, within a minute or so. Raises ApiError; its
        status is GONE if the version is too old."""
        query = {"watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": str(_WATCHED)}
        query |= {"resourceVersion": version, "fieldSelector": fields}
        with self._answered("GET", f"/api/v1/{resource}", query, seconds=_WATCHED + _SECONDS) as response:
            while line := response.readline(_LONGEST_LINE + 1):
                if len(line) > _LONGEST_LINE:
                    raise ApiError(GARBLED, "an event is too long")
                yield _event(_parsed(line))

    def pod(self, namespace: str, name: str) -> Mapping[str, Any]:
        """Return a pod. Raises ApiError."""
        return self._asked("GET", f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}")

    def bind(self, target: Target, annotations: Mapping[str, str]) -> None:
        """Bind a pod to its node, and add annotations to it, in one request. Raises ApiError."""
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {
                "name": target.name,
                "namespace": target.namespace,
                "uid": target.uid,
                "annotations": dict(annotations),
            },
            "target": {"apiVersion": "v1", "kind": "Node", "name": target.node},
        }
        namespace, name = quote(target.namespace, safe=""), quote(target.name, safe="")
        self._asked("POST", f"/api/v1/namespaces/{namespace}/pods/{name}/binding", body=binding)

    def annotate_node(self, name: str, annotations: Mapping[str, str]) -> None:
        """Set annotations of a node, and leave its others. Raises ApiError."""
        self._asked("PATCH", f"/api/v1/nodes/{quote(name, safe='')}", body={"metadata": {"annotations": annotations}})

    def _asked(
        self, method: str, path: str, query: Mapping[str, str] | None = None, body: object = None
    ) -> Mapping[str, Any]:
        until = time.monotonic() + _SECONDS
        with self._answered(method, path, query, body) as response:
            parts, size = [], 0
            while part := response.read1(1 << 20):
                parts.append(part)
                size += len(part)
                if size > _MOST:
                    raise ApiError(TOO_LONG, "its answer is too long")
                if time.monotonic() > until:
                    raise ApiError(NO_ANSWER, "its answer takes too long")
        return _parsed(b"".join(parts))

    @contextmanager
    def _answered(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: object = None,
        seconds: float = _SECONDS,
    ) -> Iterator[http.client.HTTPResponse]:
        """The answer to a request, if its status is one of success."""
        connection = self._connection(seconds)
        words = urlencode({key: value for key, value in (query or {}).items() if value})
        try:
            text = None if body is None else json.dumps(body).encode()
            connection.request(method, f"{self._path}{path}{'?' if words else ''}{words}", text, self._headers(method))
            response = connection.getresponse()
            if response.status >= REFUSED:
                raise _refused(response.status, response.read(_LONGEST_REFUSAL))
            yield response
        except (OSError, http.client.HTTPException, UnicodeError) as error:  # UnicodeError: no name of a host
            words = str(error) or type(error).__name__
            raise ApiError(NO_ANSWER, f"no answer from the API server: {words}"[:_LONGEST_WORDS]) from None
        finally:
            connection.close()

    def _connection(self, seconds: float) -> http.client.HTTPConnection:
        if self._tls:
            return http.client.HTTPSConnection(self._host, self._port, timeout=seconds, context=self._tls.context())
        return http.client.HTTPConnection(self._host, self._port, timeout=seconds)

    def _headers(self, method: str) -> dict[str, str]:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Accept": "application/json", "Content-Type": kind, "User-Agent": "vfioctl-extender"}
        if self._token and self._tls:
            token = self._token.read_bytes().strip()
            if not _TOKEN.fullmatch(token):
                raise ApiError(NO_ANSWER, f"{self._token} has no token")
            headers["Authorization"] = f"Bearer {token.decode()}"
        return headers


def _parsed(text: bytes) -> Mapping[str, Any]:
    try:
        document = from_json(text)
    except ValueError as error:
        raise ApiError(GARBLED, f"the API server's answer cannot be read: {error}"[:_LONGEST_WORDS]) from None
    if not isinstance(document, dict):
        raise ApiError(GARBLED, "the API server's answer is no JSON object")
    return document


def _event(document: Mapping[str, Any]) -> Event:
    kind, content = document.get("type"), document.get("object")
    if not isinstance(kind, str) or not isinstance(content, dict):
        raise ApiError(GARBLED, "an event of the API server has no type or no object")
    if kind == "ERROR":
        code = content.get("code")
        raise ApiError(code if isinstance(code, int) else GARBLED, str(content.get("message", ""))[:_LONGEST_WORDS])
    return Event(kind, content)


def _refused(status: int, text: bytes) -> ApiError:
    try:
        document = from_json(text)
    except ValueError:
        document = None
    message = document.get("message") if isinstance(document, dict) else None
    return ApiError(status, f"the API server answers {status}: {message or 'no reason'}"[:_LONGEST_WORDS])
