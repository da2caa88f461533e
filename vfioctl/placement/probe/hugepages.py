"""Reads the hugepages of each NUMA node. May not write.

Source: Documentation/admin-guide/mm/hugetlbpage.rst.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from vfioctl.errors import KernelRefused
from vfioctl.kernel.lenient import names_in, number_in, text_of
from vfioctl.kernel.protocol import FileReader
from vfioctl.placement.model.capacity import HugepagePool

NODE = "/sys/devices/system/node/node{}/hugepages"
HOST = "/sys/kernel/mm/hugepages"
_SIZE = re.compile(r"hugepages-([0-9]{1,9})kB", re.ASCII)


def read_hugepages(kernel: FileReader, nodes: Sequence[int]) -> tuple[HugepagePool, ...]:
    """Return the hugepages by node and size; those of node 0 are all of the host on a kernel without NUMA.

    A pool that cannot be read is left out. Pages that a mapping has reserved and not touched are not free.
    """
    homes = {node: NODE.format(node) for node in nodes} or {0: HOST}
    reserved = {name: number_in(text_of(kernel, f"{HOST}/{name}/resv_hugepages")) or 0 for name in _sizes(kernel, HOST)}
    return tuple(
        pool
        for node, home in homes.items()
        for name in _sizes(kernel, home)
        if (pool := _pool(kernel, node, f"{home}/{name}", reserved.get(name, 0)))
    )


def _sizes(kernel: FileReader, home: str) -> Iterator[str]:
    return filter(_SIZE.fullmatch, names_in(kernel, home))


def _pool(kernel: FileReader, node: int, place: str, reserved: int) -> HugepagePool | None:
    """`reserved`: pages of all nodes. The kernel does not say of which node they will be: each may lack them all."""
    try:
        texts = kernel.entries(place, ("nr_hugepages", "free_hugepages"), ()).texts
    except KernelRefused:
        return None
    total, free = number_in(texts.get("nr_hugepages", "")), number_in(texts.get("free_hugepages", ""))
    size = _SIZE.fullmatch(place.rpartition("/")[2])
    if total is None or free is None or size is None:
        return None
    return HugepagePool(node, int(size[1]) * 1024, total, max(0, free - reserved))
