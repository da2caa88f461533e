"""What is free of each GPU of a cluster: its nodes, the pods on them, and what is reserved for pods being bound.

Threads share it. May not ask the API server. Nothing of it is stored: the annotations of pods have all of it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from vfioctl.sharing.extender.packing import held_by, place
from vfioctl.sharing.extender.reading import Node, Place, Pod

SETTLED = 300.0
"""Seconds after which a pod whose binding was sent is no longer waited for: a watch tells of it by then, or has been
silent for so long that nothing is bound."""
_LOGGED = 10_000
"""Messages that are remembered, so that each is logged once."""
_LONGEST = 500
"""Characters of a message: names and annotations are others' text."""
_log = logging.getLogger("vfioctl.extender")


class Gpus(NamedTuple):
    """The GPUs of a node, by index, in units."""

    node: str
    sizes: tuple[int, ...]
    free: tuple[int, ...]
    problem: str = ""
    """Why there are none, if the node tells."""


class _Reserved(NamedTuple):
    """What one request to bind a pod has selected."""

    pod: Pod
    made: float
    until: float | None = None
    """None while the pod is being bound."""


class Table:
    """The GPUs of all nodes. `clock`: returns seconds. What is free of a node is added up when something there changes,
    so that an answer for all nodes adds up a few."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.RLock()
        self._nodes: dict[str, Node] = {}
        self._pods: dict[str, Pod] = {}
        self._on: dict[str, dict[str, Pod]] = {}
        self._reserved: dict[str, tuple[_Reserved, ...]] = {}
        """By uid. Of several requests for one pod, each may turn out to have bound it."""
        self._free: dict[str, Gpus] = {}
        self._logged: dict[str, None] = {}

    def put_node(self, node: Node) -> None:
        """Add a node, or its new state."""
        with self._lock:
            self._nodes[node.name] = node
            self._free.pop(node.name, None)
            for problem in node.problems:
                self._warn(f"node {node.name}: {problem}")

    def drop_node(self, name: str) -> None:
        """Forget a node."""
        with self._lock:
            self._nodes.pop(name, None)
            self._free.pop(name, None)

    def replace_nodes(self, nodes: Iterable[Node]) -> None:
        """Set all nodes."""
        with self._lock:
            self._nodes.clear()
            self._free.clear()
            for node in nodes:
                self.put_node(node)
            self.gpus(list(self._nodes))

    def put_pod(self, pod: Pod) -> None:
        """Add a pod, or its new state. A pod that is bound needs no reservation any more. It never becomes unbound: a
        state without a node is an older one. Nor does it move: its owner may change its annotations, and the first
        places that were read count."""
        with self._lock:
            if pod.node:
                self._put_bound(_as_first_seen(pod, self._pods.get(pod.uid)))
                self._forget_reservations(pod.uid)
            elif not ((known := self._pods.get(pod.uid)) and known.node):
                self._pods[pod.uid] = pod

    def drop_pod(self, uid: str) -> None:
        """Forget a pod that has ended, or is deleted."""
        with self._lock:
            self._take_out(uid)
            self._forget_reservations(uid)

    def replace_pods(self, pods: Iterable[Pod], began: float) -> None:
        """Set all pods, as they were listed. Reservations stay of pods that are just being bound, and of those that may
        be newer than the list. `began`: when the list was asked for, in seconds of the table's clock."""
        with self._lock:
            before, self._pods = self._pods, {}
            self._on.clear()
            self._free.clear()
            for pod in pods:
                self.put_pod(_as_first_seen(pod, before.get(pod.uid)))
            self._keep(lambda kept: not kept.until or kept.made >= began or kept.pod.uid in self._pods)
            self.gpus(list(self._nodes))

    def pod(self, uid: str) -> Pod | None:
        """Return a pod, bound or not; None if it is not known."""
        return self._pods.get(uid)

    def gpus(self, names: Sequence[str], *, besides: str = "") -> list[Gpus]:
        """Return the GPUs of nodes; of one that is not known, none. `besides`: the uid of a pod that does not count."""
        with self._lock:
            return [self._gpus(name, besides) for name in names]

    def gpus_as(self, node: Node, *, besides: str = "") -> Gpus:
        """Return the GPUs of a node in another state than the last one that is known."""
        with self._lock:
            return (
                self._gpus(node.name, besides) if self._nodes.get(node.name) == node else self._counted(node, besides)
            )

    def reserve(self, pod: Pod, node: str) -> tuple[Pod, Gpus] | None:
        """Select GPUs of a node for a pod, and keep them until it is bound, or `release` is called. Return the pod with
        its places, and the GPUs as they were before; None if the pod does not fit. What an earlier request has selected
        for it is kept, too: its outcome may not be known."""
        with self._lock:
            gpus = self._gpus(node, pod.uid)
            indexes = place(pod.containers, gpus.free)
            if indexes is None:
                return None
            ids = self._nodes[node].ids
            places = {name: Place(index, ids[index] if ids else "") for name, index in indexes.items()}
            placed = pod._replace(node=node, places=places, problems=())
            self._reserved[pod.uid] = (*self._reserved.get(pod.uid, ()), _Reserved(placed, self._clock()))
            self._free.pop(node, None)
            return placed, gpus

    def settle(self, placed: Pod) -> None:
        """Keep a reservation until the pod is seen on its node, but not for ever: its binding was sent. One of another
        request for the same pod stays as it is."""
        until = self._clock() + SETTLED
        with self._lock:
            if kept := self._reserved.get(placed.uid):
                self._reserved[placed.uid] = tuple(k._replace(until=until) if k.pod is placed else k for k in kept)

    def bound(self, placed: Pod) -> None:
        """The pod is bound as it was reserved. The reservation stays for a while, as a list may be older; those of
        other requests for the pod end. Without any, the pod was seen on its node already, or is deleted."""
        now = self._clock()
        with self._lock:
            if placed.uid in self._reserved:
                self._forget_reservations(placed.uid)
                self._reserved[placed.uid] = (_Reserved(placed, now, now + SETTLED),)
                self._put_bound(placed)

    def release(self, placed: Pod) -> None:
        """End a reservation: the pod was not bound. One of another request for the same pod stays."""
        with self._lock:
            self._keep(lambda kept: kept.pod is not placed)

    def _put_bound(self, pod: Pod) -> None:
        self._take_out(pod.uid)
        self._pods[pod.uid] = pod
        self._on.setdefault(pod.node, {})[pod.uid] = pod
        self._free.pop(pod.node, None)
        for problem in pod.problems:
            self._warn(f"pod {pod.words} on {pod.node}: {problem}")

    def _forget_reservations(self, uid: str) -> None:
        for kept in self._reserved.pop(uid, ()):
            self._free.pop(kept.pod.node, None)

    def _keep(self, is_kept: Callable[[_Reserved], object]) -> None:
        """Keep these reservations only."""
        for uid, found in [*self._reserved.items()]:
            kept = tuple(filter(is_kept, found))
            if len(kept) < len(found):
                self._forget_reservations(uid)
            if kept:
                self._reserved[uid] = kept

    def _take_out(self, uid: str) -> None:
        if (before := self._pods.pop(uid, None)) and before.node:
            self._on[before.node].pop(uid)
            self._free.pop(before.node, None)

    def _gpus(self, name: str, besides: str) -> Gpus:
        node = self._nodes.get(name)
        if node is None:
            return Gpus(name, (), ())
        self._expire()
        reserved = self._reserved.get(besides, ())
        if besides in self._on.get(name, ()) or any(kept.pod.node == name for kept in reserved):
            return self._counted(node, besides)
        if name not in self._free:
            self._free[name] = self._counted(node, "")
        return self._free[name]

    def _expire(self) -> None:
        now = self._clock()
        if any(kept.until and kept.until < now for found in self._reserved.values() for kept in found):
            self._keep(lambda kept: not kept.until or kept.until >= now)

    def _counted(self, node: Node, besides: str) -> Gpus:
        free = list(node.sizes)
        pods: dict[str, list[Pod]] = {uid: [pod] for uid, pod in self._on.get(node.name, {}).items()}
        for uid, reserved in self._reserved.items():
            if uid not in pods and (own := [kept.pod for kept in reserved if kept.pod.node == node.name]):
                pods[uid] = own
        pods.pop(besides, None)
        for own in pods.values():
            for index, units in enumerate(map(max, zip(*(self._held(pod, node) for pod in own), strict=True))):
                free[index] = max(0, free[index] - units)
        return Gpus(node.name, node.sizes, tuple(free), "" if node.sizes else "; ".join(node.problems))

    def _held(self, pod: Pod, node: Node) -> list[int]:
        """The units of each GPU that a pod has."""
        indexes = {c.name: index for c in pod.containers if (index := self._index(pod, c.name, node)) is not None}
        return held_by(pod.containers, indexes, len(node.sizes))

    def _index(self, pod: Pod, container: str, node: Node) -> int | None:
        """The GPU that a container has: what its node reports comes before what was selected for it."""
        selected, given = pod.places.get(container), node.has.get(f"{pod.words}/{container}")
        gpu = given.gpu if given and given.is_of(pod) else selected.gpu if selected else ""
        if node.ids and gpu:
            if gpu in node.ids:
                return node.ids.index(gpu)
            self._warn(f"pod {pod.words} on {node.name}: its container {container} has {gpu}, which is gone")
            return None
        if selected is None or selected.index < len(node.sizes):
            return selected.index if selected else None
        self._warn(f"pod {pod.words} on {node.name}: its container {container} has GPU {selected.index}, which is gone")
        return None

    def _warn(self, message: str) -> None:
        message = message[:_LONGEST]
        if message not in self._logged:
            self._logged[message] = None
            if len(self._logged) > _LOGGED:
                del self._logged[next(iter(self._logged))]
            _log.warning("%s", message)


def _as_first_seen(pod: Pod, before: Pod | None) -> Pod:
    """Return a pod with the places that it had before, if it was on that node."""
    if before is None or before.node != pod.node or not before.places:
        return pod
    places = {**pod.places, **before.places}
    return pod._replace(places=places, problems=pod.problems if len(places) < len(pod.containers) else ())
