"""The answers of the extender: which nodes have room for a pod, which are best, and the binding of one.

filter and prioritize only look at the table; bind changes the cluster, through its client."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence

from vfioctl.sharing.extender.annotations import annotations_of
from vfioctl.sharing.extender.cluster import (
    CONFLICT,
    NOT_FOUND,
    REFUSED,
    SERVER_ERROR,
    ApiError,
    Cluster,
    Target,
)
from vfioctl.sharing.extender.messages import (
    HIGHEST,
    ExtenderArgs,
    ExtenderBindingArgs,
    ExtenderBindingResult,
    ExtenderFilterResult,
    HostPriority,
    HostPriorityList,
    SentNodes,
)
from vfioctl.sharing.extender.names import MEMORY, Unit
from vfioctl.sharing.extender.packing import MOST_CONTAINERS, held_by, place
from vfioctl.sharing.extender.reading import Pod, read_node, read_pod
from vfioctl.sharing.extender.table import Gpus, Table

_log = logging.getLogger("vfioctl.extender")


class CannotBind(Exception):
    """Why a pod is not bound, for the scheduler, which shows it in an event of the pod."""


class Verbs:
    """The extender's verbs, on one table of GPUs."""

    def __init__(self, table: Table, cluster: Cluster, unit: Unit) -> None:
        self._table, self._cluster, self._unit = table, cluster, unit

    def filter(self, args: ExtenderArgs) -> ExtenderFilterResult:
        """Return the nodes that have room for a pod, and why the others have none."""
        pod = read_pod(args.pod)
        answer = _Reasons() if pod is None else self._judged(pod, args)
        fitting = [name for name, _ in _named(args) if name not in answer.failed and name not in answer.unresolvable]
        if args.nodes is None:
            return ExtenderFilterResult(node_names=fitting, failed=answer.failed, unresolvable=answer.unresolvable)
        kept = set(fitting)
        nodes = SentNodes(items=[document for name, document in _named(args) if name in kept and document])
        return ExtenderFilterResult(nodes=nodes, failed=answer.failed, unresolvable=answer.unresolvable)

    def prioritize(self, args: ExtenderArgs) -> HostPriorityList:
        """Return a score for each node: the less a node's GPUs have left after the pod, the higher."""
        pod = read_pod(args.pod)
        if pod is None:
            return HostPriorityList([HostPriority(host=name, score=0) for name, _ in _named(args)])
        return HostPriorityList(
            [HostPriority(host=gpus.node, score=_score(pod, gpus)) for gpus in self._gpus(pod, args)]
        )

    def bind(self, args: ExtenderBindingArgs) -> ExtenderBindingResult:
        """Select GPUs for a pod, write them to its annotations, and bind it to its node, in one request.

        The Binding carries the annotations: the API server sets both or none of them, and checks the pod's uid (source:
        pkg/registry/core/pod/storage/storage.go, BindingREST). A separate patch could succeed alone."""
        try:
            self._bind(args)
        except (CannotBind, ApiError) as error:
            _log.warning("pod %s/%s is not bound: %s", args.podnamespace, args.podname, error)
            return ExtenderBindingResult(error=str(error))
        return ExtenderBindingResult()

    def _bind(self, args: ExtenderBindingArgs) -> None:
        pod = self._table.pod(args.poduid) or self._asked(args)
        if (pod.uid, pod.namespace, pod.name) != (args.poduid, args.podnamespace, args.podname):
            raise CannotBind(f"there is another pod {pod.words} now")
        if pod.node:
            if pod.node != args.node:
                raise CannotBind(f"it is bound to node {pod.node}")
            return
        reserved = self._table.reserve(pod._replace(assumed=time.time_ns()), args.node)
        if reserved is None:
            (gpus,) = self._table.gpus([args.node], besides=pod.uid)
            raise CannotBind(f"node {args.node}: {next(_whys(pod, gpus, self._unit), 'no room is left')}")
        placed, gpus = reserved
        try:
            is_new = self._send(placed, gpus, args)
        except ApiError as error:
            if REFUSED <= error.status < SERVER_ERROR:
                self._table.release(placed)
            else:
                self._table.settle(placed)  # it may be bound: the watch tells, or the scheduler tries again
            raise
        except BaseException:
            self._table.release(placed)
            raise
        if is_new:
            self._table.bound(placed)
        _log.info("pod %s is bound to %s, GPU %s", pod.words, args.node, _indexes(placed))

    def _send(self, pod: Pod, gpus: Gpus, args: ExtenderBindingArgs) -> bool:
        """Send the binding; once more if there is a conflict. A pod that has a GPU of that node already is bound: the
        answer to an earlier request was lost. Return whether it is bound as it was sent now."""
        annotations = annotations_of(pod, gpus)
        target = Target(pod.uid, pod.namespace, pod.name, pod.node)
        try:
            self._cluster.bind(target, annotations)
        except ApiError as error:
            if error.status != CONFLICT:
                raise
            now = self._asked(args)
            if now.uid != pod.uid:
                raise
            if not now.node:
                self._cluster.bind(target, annotations)
                return True
            self._table.put_pod(now)  # where it is comes from its annotations, not from this choice
            if now.node != pod.node or not now.places:
                raise
            return False
        return True

    def _asked(self, args: ExtenderBindingArgs) -> Pod:
        """The pod as the API server has it."""
        try:
            document = self._cluster.pod(args.podnamespace, args.podname)
        except ApiError as error:
            if error.status == NOT_FOUND:
                raise CannotBind("there is no such pod") from None
            raise
        pod = read_pod(document)
        if pod is None:
            raise CannotBind(f"it asks for no {MEMORY}, or has ended")
        return pod

    def _judged(self, pod: Pod, args: ExtenderArgs) -> _Reasons:
        answer = _Reasons()
        for gpus in self._gpus(pod, args):
            if place(pod.containers, gpus.free) is not None:
                continue
            why = next(_whys(pod, gpus, self._unit))
            if place(pod.containers, gpus.sizes) is None:
                answer.unresolvable[gpus.node] = why
            else:
                answer.failed[gpus.node] = why
        return answer

    def _gpus(self, pod: Pod, args: ExtenderArgs) -> Iterator[Gpus]:
        if args.nodes is None:
            yield from self._table.gpus(args.nodenames or (), besides=pod.uid)
            return
        for document in args.nodes.items or ():
            if node := read_node(document, self._unit):
                yield self._table.gpus_as(node, besides=pod.uid)


class _Reasons:
    """Why nodes are left out, by name."""

    def __init__(self) -> None:
        self.failed: dict[str, str] = {}
        self.unresolvable: dict[str, str] = {}


def _named(args: ExtenderArgs) -> Iterator[tuple[str, dict[str, object] | None]]:
    """The names of the nodes, each with its document if it came."""
    if args.nodes is None:
        yield from ((name, None) for name in args.nodenames or ())
        return
    for document in args.nodes.items or ():
        metadata = document.get("metadata")
        name = metadata.get("name") if isinstance(metadata, dict) else None
        if isinstance(name, str) and name:
            yield name, document


def _whys(pod: Pod, gpus: Gpus, unit: Unit) -> Iterator[str]:
    """Yield why a pod does not fit, the best reason first."""
    if not gpus.sizes:
        yield f"it has no GPUs to share: {gpus.problem or f'it reports no {MEMORY}'}"
        return
    if len(pod.containers) > MOST_CONTAINERS:
        yield f"more than {MOST_CONTAINERS} of its containers ask for {MEMORY}"
    largest = max(pod.containers, key=lambda container: container.memory)
    asks = f"container {largest.name} asks for {largest.memory} {unit}"
    if largest.memory > max(gpus.sizes):
        yield f"{asks}, and its largest GPU has {max(gpus.sizes)} {unit}"
    elif largest.memory > max(gpus.free):
        yield f"{asks}, and the most that is free of one GPU is {max(gpus.free)} {unit}"
    sizes = " + ".join(str(container.memory) for container in pod.containers)[:200]
    yield f"the containers ({sizes} {unit}) do not fit into what is free of its GPUs, {sum(gpus.free)} {unit} in all"


def _score(pod: Pod, gpus: Gpus) -> int:
    """Return HIGHEST if the GPUs that the pod would get are full then, less for what is left; 0 without room."""
    indexes = place(pod.containers, gpus.free)
    if indexes is None:
        return 0
    held = held_by(pod.containers, indexes, len(gpus.free))
    used = set(indexes.values())
    left = sum(gpus.free[index] - held[index] for index in used)
    return HIGHEST - HIGHEST * left // sum(gpus.sizes[index] for index in used)


def _indexes(pod: Pod) -> Sequence[str]:
    return sorted(f"{name}: {place.index}" for name, place in pod.places.items())
