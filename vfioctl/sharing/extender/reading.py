"""Reads pods and nodes, as the API server sends them, into values. Pure; what is damaged costs its own figures only.

How much a container has is read from its resources, which nobody changes; only where it is comes from annotations."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from vfioctl.core.frozen import value_class
from vfioctl.sharing.extender.names import ALLOCATION, COUNT, INDEX, MEMORY, REPORT, SHARES, Unit
from vfioctl.sharing.extender.packing import Container
from vfioctl.units import exact_size
from vfioctl.untrusted_text import parse_json

_MOST_GPUS = 256
"""GPUs of a node: a count above that is taken for damaged."""
_LONGEST = 1 << 18
"""Bytes of an annotation: the API server takes no more of all annotations of an object (262,144)."""
_MOST = 1 << 53
_QUANTITY = re.compile(r"([0-9]{1,18})(?:([kMGTPE]|[KMGTPE]i)|[eE]\+?([0-9]{1,2}))?", re.ASCII)
_LONGEST_GPU = 64
"""Characters of the identity of a GPU."""
_DECIMAL, _BINARY = "kMGTPE", "KMGTPE"
_MIRROR = "kubernetes.io/config.mirror"
"""The annotation of a static pod: the kubelet may create it in the API server long after its containers run."""
_ENDED = ("Succeeded", "Failed")
_SKEW = 10 * 10**9
"""Nanoseconds by which the clock of a node may be behind the API server's. A container has its GPU after its pod was
created, a time that no owner of the pod can change: what is reported of an older one is of another pod with that name.
If a node is further behind, what its containers really have is not believed for as long as they run; what is believed
wrongly, of a pod that was replaced within this time, is right again with the next report. So the limit is above what
clocks differ that are kept in time."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@value_class
class Place:
    """The GPU that was selected for a container."""

    index: int
    gpu: str = ""
    """Its identity, which stays when the index changes; empty if not known."""


class Pod(NamedTuple):
    """A pod that asks for memory of GPUs."""

    uid: str
    namespace: str
    name: str
    node: str
    """Empty until it is bound."""
    containers: tuple[Container, ...]
    places: Mapping[str, Place]
    """By container; some may be missing."""
    problems: tuple[str, ...] = ()
    """Why places are missing, of a pod that is bound."""
    created: int = 0
    """Nanoseconds since 1970, whole seconds; 0 if not known, as of a static pod."""
    assumed: int = 0
    """When its GPUs were selected, of one that is being bound: nanoseconds since 1970."""

    @property
    def words(self) -> str:
        """Its namespace and name."""
        return f"{self.namespace}/{self.name}"


class Given(NamedTuple):
    """The GPU that a container has, as its node reports it."""

    gpu: str
    """Its identity."""
    since: int | None = None
    """Nanoseconds since 1970; None if not known."""

    def is_of(self, pod: Pod) -> bool:
        """Whether the pod has it, and not an earlier one of its name."""
        return self.since is None or self.since >= pod.created - _SKEW


class Node(NamedTuple):
    """A node, and its GPUs by index."""

    name: str
    sizes: tuple[int, ...] = ()
    """Units of memory of each GPU."""
    ids: tuple[str, ...] = ()
    """The identity of each GPU; empty if the node reports none."""
    has: Mapping[str, Given] = {}
    """By `NAMESPACE/POD/CONTAINER`."""
    problems: tuple[str, ...] = ()


def read_pod(document: object) -> Pod | None:
    """Return a pod; None if it asks for no memory of GPUs, has ended, or has no identity."""
    metadata, spec = _dict(document, "metadata"), _dict(document, "spec")
    uid, namespace, name = (_text(metadata, key) for key in ("uid", "namespace", "name"))
    containers = tuple(_containers(spec))
    if not (uid and name and containers) or _dict(document, "status").get("phase") in _ENDED:
        return None
    node = _text(spec, "nodeName")
    annotations = _dict(metadata, "annotations")
    places, problems = _places(annotations, containers) if node else ({}, ())
    created = 0 if _MIRROR in annotations else _time(_text(metadata, "creationTimestamp"))
    return Pod(uid, namespace or "default", name, node, containers, places, tuple(problems), created)


def read_node(document: object, unit: Unit) -> Node | None:
    """Return a node; None if it has no name. A node without GPUs to share has no sizes."""
    metadata, has = _dict(document, "metadata"), _dict(_dict(document, "status"), "allocatable")
    if not (name := _text(metadata, "name")):
        return None
    try:
        total, count = (quantity(has[key]) if key in has else 0 for key in (MEMORY, COUNT))
        if count > _MOST_GPUS:
            raise ValueError(f"it counts {count} GPUs")
    except ValueError as error:
        return Node(name, problems=(str(error),))
    equal = Node(name, (total // count,) * count if count and total else ())
    text = _dict(metadata, "annotations").get(REPORT)
    if text is None or not total:
        return equal
    try:
        return _reported(name, _json(text), unit)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return equal._replace(problems=(f"annotation {REPORT}: {_brief(error)}",))


def quantity(value: object) -> int:
    """Return the whole number in a quantity of Kubernetes, such as 8, "16Ki" or "2k". Raises ValueError.

    Source: apimachinery/pkg/api/resource/quantity.go; extended resources have whole numbers only."""
    match = _QUANTITY.fullmatch(str(value)) if isinstance(value, str | int) and not isinstance(value, bool) else None
    if match is None:
        raise ValueError(f"{str(value)[:40]!r} is no whole quantity")
    suffix, exponent = match[2] or "", match[3]
    number: int = int(match[1]) * 10 ** int(exponent or 0)
    if suffix.endswith("i"):
        number <<= 10 * (_BINARY.index(suffix[0]) + 1)
    elif suffix:
        number *= 1000 ** (_DECIMAL.index(suffix) + 1)
    if number > _MOST:
        raise ValueError(f"{str(value)[:40]!r} is too much")
    return number


def _containers(spec: Mapping[str, Any]) -> Iterator[Container]:
    """Init containers that go on beside the others count like these; so do all where one of them does."""
    found = [*_asking(spec.get("initContainers"))]
    goes_on = any(_text(document, "restartPolicy") == "Always" for document, *_ in found)
    for document, memory, position in found:
        yield Container(_text(document, "name"), memory, is_first=not goes_on, position=position)
    for document, memory, position in _asking(spec.get("containers")):
        yield Container(_text(document, "name"), memory, position=position)


def _asking(documents: object) -> Iterator[tuple[Mapping[str, Any], int, int]]:
    for position, document in enumerate(documents if isinstance(documents, list) else ()):
        limits = _dict(_dict(document, "resources"), "limits") or _dict(_dict(document, "resources"), "requests")
        try:
            memory = quantity(limits.get(MEMORY, 0))
        except ValueError:  # the API server refuses such a pod
            continue
        if memory and isinstance(document, dict):
            yield document, memory, position


def _places(
    annotations: Mapping[str, Any], containers: Sequence[Container]
) -> tuple[Mapping[str, Place], tuple[str, ...]]:
    """The places from the first of the annotations that can be read, and why some are missing."""
    problems: list[str] = []
    for name, read in ((SHARES, _from_shares), (ALLOCATION, _from_allocation), (INDEX, _from_index)):
        if name not in annotations:
            continue
        try:
            places = dict(read(annotations[name], containers))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            problems.append(f"annotation {name}: {_brief(error)}")
            continue
        if missing := [container.name for container in containers if container.name not in places]:
            problems.append(f"annotation {name} names no GPU of {', '.join(missing)[:200]}")
        return places, tuple(problems)
    return {}, tuple(problems) or ("it was bound without a GPU: by another scheduler, or by hand",)


def _from_shares(text: object, containers: Sequence[Container]) -> Iterable[tuple[str, Place]]:
    shares = _json(text)
    for container in containers:
        if container.name in shares:
            share = shares[container.name]
            gpu = str(share.get("gpu", ""))
            if len(gpu) > _LONGEST_GPU:
                raise ValueError(f"{gpu[:40]!r} is too long for a GPU")
            yield container.name, Place(_index(share["idx"]), gpu)


def _from_allocation(text: object, containers: Sequence[Container]) -> Iterable[tuple[str, Place]]:
    allocation = _json(text)
    for container in containers:
        if not container.is_first and (gpus := allocation.get(str(container.position))):
            (index,) = gpus
            yield container.name, Place(_index(index))


def _from_index(text: object, containers: Sequence[Container]) -> Iterable[tuple[str, Place]]:
    index = _index(text)
    return [(container.name, Place(index)) for container in containers]


def _index(value: object) -> int:
    text = str(value)
    if isinstance(value, bool) or not (text.isascii() and text.isdecimal() and len(text) < 6):
        raise ValueError(f"{text[:40]!r} is no index")
    return int(text)


def _reported(name: str, report: Mapping[str, Any], unit: Unit) -> Node:
    """Raises what a damaged report raises. A node that counts in another unit has nothing to share: each number of its
    pods would mean another size."""
    if "unit" in report and (own := quantity(report["unit"])) != unit.bytes:
        return Node(name, problems=(f"it counts {MEMORY} in {exact_size(own)}, the extender in {unit} (--unit)",))
    gpus = report["gpus"]
    if not isinstance(gpus, list) or len(gpus) > _MOST_GPUS:
        raise ValueError("gpus is no list of GPUs")
    sizes = tuple(quantity(gpu["memory"]) // unit.bytes for gpu in gpus)
    ids = tuple(str(gpu["id"]) for gpu in gpus)
    if len(set(ids)) != len(ids) or "" in ids:
        raise ValueError("two GPUs have one id, or one has none")
    containers = report.get("containers", {})
    return Node(name, sizes, ids, {str(key): _given(value) for key, value in containers.items()})


def _given(value: Any) -> Given:
    if isinstance(value, str):  # of an older reporter
        return Given(value)
    return Given(str(value["id"]), _nanoseconds(value["since"]))


def _nanoseconds(text: str) -> int:
    """Nanoseconds since 1970. Raises ValueError, TypeError."""
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError("a time without an offset")
    return (time - _EPOCH) // timedelta(microseconds=1) * 1000


def _time(text: str) -> int:
    """The same; 0 for no such time."""
    try:
        return _nanoseconds(text)
    except ValueError:
        return 0


def _json(text: object) -> Any:
    value = parse_json(text, most=_LONGEST) if isinstance(text, str) else None
    if not isinstance(value, dict):
        raise ValueError("it is no JSON object")  # noqa: TRY004 - the text is wrong, not a type in the program
    return value


def _brief(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:200]


def _dict(document: object, key: str) -> Mapping[str, Any]:
    value = document.get(key) if isinstance(document, dict) else None
    return value if isinstance(value, dict) else {}


def _text(document: Mapping[str, Any], key: str) -> str:
    value = document.get(key)
    return value if isinstance(value, str) else ""
