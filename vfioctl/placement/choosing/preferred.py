"""Orders devices that are no GPUs to choose from, such as mediated devices, by their NUMA nodes. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from vfioctl.inventory.model.values import Subject


def on_few_nodes(
    available: Sequence[Subject], must: Sequence[Subject], count: int, nodes: Mapping[Subject, int | None]
) -> tuple[Subject, ...]:
    """Return `count` of these devices, with those of `must`, on as few NUMA nodes as possible: first on the nodes of
    `must`, then where enough are, and the fewest are left over. An unknown node comes last."""
    chosen = list(dict.fromkeys(must))[:count]
    others = [device for device in dict.fromkeys(available) if device not in chosen]
    wanted = count - len(chosen)
    ours = {nodes.get(device) for device in chosen} - {None}
    sizes = Counter(nodes.get(device) for device in others)

    def order(device: Subject) -> tuple[bool, bool, bool, int, int]:
        node = nodes.get(device)
        enough = sizes[node] >= wanted
        return node is None, node not in ours, not enough, sizes[node] if enough else -sizes[node], node or 0

    return (*chosen, *sorted(others, key=order)[:wanted])
