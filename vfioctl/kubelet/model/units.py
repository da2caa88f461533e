"""The ids of parts of GPUs, and which of them a claim has. May not do I/O.

The kubelet counts devices that have ids: a GPU of which 100 cores are given has 100, `0000:1b:00.0/0` to
`0000:1b:00.0/99`. Which of them a container has is noted in labels of its claim, to find its pod again. They say how
much it has, not of which GPU: the kubelet chooses ids of each resource by itself, and may choose those of several."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from vfioctl.kubelet.model.device import LABEL
from vfioctl.kubelet.model.settings import MOST_UNITS

if TYPE_CHECKING:
    from vfioctl.claims.model.claim import Claim
    from vfioctl.kubelet.model.settings import ResourceSettings

BESIDE = "kubelet-beside"
"""The label of a claim that has parts of a second resource, too. Its value is that resource."""
_PARTS = {LABEL: "kubelet-parts ", BESIDE: "kubelet-beside-parts "}
"""The beginning of the labels that note parts of each resource; a GPU's address follows. The value is a hexadecimal
number with a bit for each part."""


def is_whole(claim: Claim) -> bool:
    """Return whether a claim has whole GPUs."""
    return any(share.is_whole for share in claim.shares)


def is_half(resource: ResourceSettings, claim: Claim) -> bool:
    """Return whether a claim has one resource of a pair only. Whole GPUs need no memory."""
    return bool(resource.beside) and BESIDE not in claim.labels and not is_whole(claim)


def unit_id(gpu: str, number: int) -> str:
    """Return the kubelet's name for a part of a GPU."""
    return f"{gpu}/{number}"


def gpu_of(name: str) -> str:
    """Return the address of the GPU in the name of a part."""
    return name.rpartition("/")[0]


def number_of(name: str) -> int:
    """Return the number in the name of a part."""
    return int(name.rpartition("/")[2])


def labels_for(resource: str, names: Iterable[str], beside: str = "", others: Iterable[str] = ()) -> dict[str, str]:
    """Return the labels of a claim of these parts. `beside`: the second resource. `others`: its parts."""
    labels = {LABEL: resource, **({BESIDE: beside} if beside else {})}
    for key, parts in ((LABEL, names), (BESIDE, others)):
        bits: dict[str, int] = {}
        for name in parts:
            bits[gpu_of(name)] = bits.get(gpu_of(name), 0) | 1 << number_of(name)
        labels |= {f"{_PARTS[key]}{gpu}": f"{number:x}" for gpu, number in bits.items()}
    return labels


def units_of(claim: Claim) -> Iterator[tuple[str, str]]:
    """Yield the resource and the name of each part that a claim has."""
    for key, beginning in _PARTS.items():
        if resource := claim.labels.get(key):
            yield from ((resource, name) for name in _noted(claim.labels, beginning))


def without(claim: Claim, parts: Collection[tuple[str, str]]) -> dict[str, str]:
    """Return the labels of a claim that has these parts no more. `parts`: each as `units_of` has it."""
    kept = [unit for unit in units_of(claim) if unit not in parts]
    labels = {key: value for key, value in claim.labels.items() if not key.startswith(tuple(_PARTS.values()))}
    first, second = claim.labels[LABEL], claim.labels.get(BESIDE, "")
    names, others = ([name for kind, name in kept if kind == resource] for resource in (first, second))
    return labels | labels_for(first, names, second, others)


def _noted(labels: Mapping[str, str], beginning: str) -> Iterator[str]:
    for label, text in labels.items():
        if label.startswith(beginning):
            for number in _numbers(text):
                yield unit_id(label.removeprefix(beginning), number)


def _numbers(text: str) -> list[int]:
    """Return the numbers that a label notes; none if somebody else has written it."""
    try:
        bits = int(text, 16)
    except ValueError:
        return []
    return [number for number in range(MOST_UNITS) if bits >> number & 1] if bits > 0 else []
