"""Placement of 8 GPUs and 128 CPUs on a host with 1,024 GPUs: the work of choosing and of all reasons, in this process.

    python -m bench.placement [--runs N] [--json FILE]

Exits with 1 when a limit is not kept. bench/README.md says how to read the table.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.figures import keep, medians, show, status
from tests.hosts.servers import Node, asking, gpus_of, server
from vfioctl.placement.model.capacity import Capacity
from vfioctl.placement.model.claims import Owner, Taken
from vfioctl.placement.model.request import ClaimRequest
from vfioctl.placement.place import place

LIMIT_MS = 50.0
GPUS, CPUS = 8, 128
GIB = 1 << 30
_CLAIM = ("c1", Owner("vm/other"))


def large_host(*, claimed: int) -> Capacity:
    """16 nodes of 64 GPUs, 4 at each switch, and 96 cores. Each `claimed`th GPU and a sixth of the cores is used."""
    node = Node(bridges=((4, 4, 4, 4),) * 4, caches=(8,) * 12, hugepages={GIB: (2048, 2048)})
    nodes = [node] * 16
    free = server(nodes)
    taken = Taken(
        whole=dict.fromkeys(gpus_of(free)[::claimed], _CLAIM),
        cpus={cpu: _CLAIM for core in free.topology.cores[::6] for cpu in core.cpus},
    )
    return server(nodes, taken=taken)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.placement")
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    request = asking(gpus=GPUS, cpus=CPUS, hugepages=512 * GIB)
    samples = {}
    for name, claimed in (("1,024 GPUs, one in 1,024 taken", 1024), ("1,024 GPUs, one in 3 taken", 3)):
        samples[name] = [_milliseconds(request, claimed) for _ in range(options.runs)]
    figures = medians(samples, LIMIT_MS)
    show(figures)
    keep(options.json, figures, samples, runs=options.runs)
    return status(figures)


def _milliseconds(request: ClaimRequest, claimed: int) -> float:
    """With a new host each time: nothing is remembered from the last one."""
    host = large_host(claimed=claimed)
    begin = time.perf_counter()
    found = place(request, host)
    spent = time.perf_counter() - begin
    if len(found.functions) != GPUS or len(found.cpus) != CPUS or len(found.others) != len(gpus_of(host)) - GPUS:
        sys.exit("the placement is not what was asked for")
    return spent * 1000


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
