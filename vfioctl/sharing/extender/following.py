"""Keeps the table of GPUs as the cluster is: lists pods and nodes, then watches them. May not change the cluster."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

from vfioctl.sharing.extender.cluster import GARBLED, GONE, ApiError, Cluster
from vfioctl.sharing.extender.names import Unit
from vfioctl.sharing.extender.reading import Node, Pod, read_node, read_pod
from vfioctl.sharing.extender.table import Table

_PAUSES = (0.2, 30.0)
"""Seconds before the first repetition of a request that failed, and at most."""
SILENT = 180.0
"""Seconds without an answer after which what is known counts as too old."""
_log = logging.getLogger("vfioctl.extender")
Value = TypeVar("Value", Pod, Node)


class Following(ABC, Generic[Value]):
    """Follows one kind of objects in a thread."""

    resource = ""
    fields = ""
    """A field selector: other objects are of no interest."""

    def __init__(self, cluster: Cluster, table: Table) -> None:
        self._cluster, self._table = cluster, table
        self._version = ""
        self._heard = 0.0
        self._problem = "they are not listed yet"
        self._stopped = threading.Event()

    def start(self) -> None:
        """Begin."""
        threading.Thread(target=self._run, name=f"follow-{self.resource}", daemon=True).start()

    def stop(self) -> None:
        """End, at the next event."""
        self._stopped.set()

    def why_not(self) -> str:
        """Return why the table is not as the cluster is; empty if it is."""
        if not self._heard:
            return f"{self.resource}: {self._problem}"
        silent = time.monotonic() - self._heard
        return f"{self.resource}: nothing heard for {silent:.0f} s: {self._problem}" if silent > SILENT else ""

    def _run(self) -> None:
        shortest, longest = _PAUSES
        pause = shortest
        while not self._stopped.is_set():
            problem = self._followed()
            if problem and problem != self._problem:
                _log.warning("%s: %s", self.resource, problem)
            self._problem = problem
            pause = min(2 * pause, longest) if problem else shortest
            self._stopped.wait(pause)

    def _followed(self) -> str:
        """Follow until a watch ends; return why it failed, if it did."""
        try:
            self._follow()
        except ApiError as error:
            if error.status in (GONE, GARBLED):
                self._version = ""
            return str(error)
        except Exception as error:  # noqa: BLE001 - a bug costs a repetition, not the service
            _log.exception("following %s failed", self.resource)
            self._version = ""
            return type(error).__name__
        return ""

    def _follow(self) -> None:
        """List if need be, then watch until the watch ends."""
        if not self._version:
            self._list()
        for event in self._cluster.watch(self.resource, self._version, self.fields):
            if self._stopped.is_set():
                return
            if event.kind in ("ADDED", "MODIFIED"):
                self.put(event.document)
            elif event.kind == "DELETED":
                self.drop(event.document)
            self._version = _version_of(event.document) or self._version
            self._heard = time.monotonic()
        self._heard = time.monotonic()

    def _list(self) -> None:
        began, values, count, version = time.monotonic(), list[Value](), 0, ""
        for page in self._cluster.pages(self.resource, self.fields):
            found = page.get("items")
            documents = found if isinstance(found, list) else []
            values += filter(None, map(self.read, documents))  # all documents of a large cluster take a gigabyte
            count += len(documents)
            version = _version_of(page)
        self.replace(values, began)
        self._version, self._heard = version, time.monotonic()
        _log.info("%d %s are listed", count, self.resource)

    @abstractmethod
    def read(self, document: object) -> Value | None:
        """Return an object as the table has it; None if it is of no interest."""

    @abstractmethod
    def put(self, document: Mapping[str, Any]) -> None:
        """An object is new, or has changed."""

    @abstractmethod
    def drop(self, document: Mapping[str, Any]) -> None:
        """An object is gone, or of no interest any more."""

    @abstractmethod
    def replace(self, values: Sequence[Value], began: float) -> None:
        """These are all objects of interest, as they were listed. `began`: when they were asked for, by the monotonic
        clock."""


class Pods(Following[Pod]):
    """Pods that have not ended."""

    resource = "pods"
    fields = "status.phase!=Succeeded,status.phase!=Failed"

    def read(self, document: object) -> Pod | None:
        return read_pod(document)

    def put(self, document: Mapping[str, Any]) -> None:
        if pod := self.read(document):
            self._table.put_pod(pod)
        else:
            self.drop(document)

    def drop(self, document: Mapping[str, Any]) -> None:
        metadata = document.get("metadata")
        if isinstance(metadata, dict):
            self._table.drop_pod(str(metadata.get("uid")))

    def replace(self, values: Sequence[Pod], began: float) -> None:
        self._table.replace_pods(values, began)


class Nodes(Following[Node]):
    """Nodes. `unit`: that in which they count memory."""

    resource = "nodes"

    def __init__(self, cluster: Cluster, table: Table, unit: Unit) -> None:
        super().__init__(cluster, table)
        self._unit = unit

    def read(self, document: object) -> Node | None:
        return read_node(document, self._unit)

    def put(self, document: Mapping[str, Any]) -> None:
        if node := self.read(document):
            self._table.put_node(node)

    def drop(self, document: Mapping[str, Any]) -> None:
        if node := self.read(document):
            self._table.drop_node(node.name)

    def replace(self, values: Sequence[Node], began: float) -> None:
        del began
        self._table.replace_nodes(values)


def _version_of(document: Mapping[str, Any]) -> str:
    metadata = document.get("metadata")
    return str(metadata.get("resourceVersion") or "") if isinstance(metadata, dict) else ""
