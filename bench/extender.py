"""filter and prioritize of the scheduler extender for 1,000 nodes with 8 GPUs each, in use, over HTTP.

    python -m bench.extender [--runs N] [--json FILE]

Exits with 1 when a limit is not kept. bench/README.md says how to read the table.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from itertools import cycle
from pathlib import Path
from typing import Any

from bench.figures import keep, medians, show, status
from vfioctl.sharing.extender.cluster import Cluster
from vfioctl.sharing.extender.messages import ExtenderArgs, sent
from vfioctl.sharing.extender.names import COUNT, MEMORY, SHARES, Unit
from vfioctl.sharing.extender.packing import pack
from vfioctl.sharing.extender.reading import read_node, read_pod
from vfioctl.sharing.extender.server import ExtenderServer
from vfioctl.sharing.extender.table import Table
from vfioctl.sharing.extender.verbs import Verbs

LIMIT_MS = 50.0
NODES, GPUS, UNITS = 1000, 8, 80
CHANGED = 20
"""Nodes on which something has changed between two questions."""
ONE, TWO = (24,), (40, 30)
"""What the containers of the pod ask for."""


def pod(name: str, memories: Sequence[int], node: str = "", places: Sequence[int] = ()) -> dict[str, Any]:
    """A pod with a container for each number of units."""
    names = [f"c{index}" for index in range(len(memories))]
    shares = {name: {"idx": index} for name, index in zip(names, places, strict=False)}
    containers = [
        {"name": name, "resources": {"limits": {MEMORY: str(memory)}}}
        for name, memory in zip(names, memories, strict=True)
    ]
    metadata = {"name": name, "namespace": "ml", "uid": name, "annotations": {SHARES: json.dumps(shares)}}
    return {"metadata": metadata, "spec": {"nodeName": node, "containers": containers}, "status": {}}


def in_use() -> Table:
    """A cluster with three pods on each GPU, of random sizes: no two nodes have the same left."""
    table, draw = Table(), random.Random(1)
    for number in range(NODES):
        name = f"node-{number:04}"
        allocatable = {MEMORY: str(GPUS * UNITS), COUNT: str(GPUS)}
        node = read_node({"metadata": {"name": name}, "status": {"allocatable": allocatable}}, Unit.GIB)
        assert node
        table.put_node(node)
        for gpu in range(GPUS):
            for part in range(3):
                found = read_pod(pod(f"{name}-{gpu}-{part}", (draw.randint(5, 26),), name, (gpu,)))
                assert found
                table.put_pod(found)
    return table


@contextmanager
def served(table: Table) -> Iterator[Callable[[str, bytes], bytes]]:
    """Ask an extender for a verb over HTTP, as the scheduler does."""
    verbs = Verbs(table, Cluster("http://127.0.0.1:1"), Unit.GIB)

    def answer(verb: str, body: bytes) -> bytes:
        args = ExtenderArgs.model_validate_json(body)
        return sent(verbs.filter(args) if verb == "filter" else verbs.prioritize(args))

    server = ExtenderServer("127.0.0.1:0", ("filter", "prioritize"), answer, list)
    server.start()

    def ask(verb: str, body: bytes) -> bytes:
        connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
        connection.request("POST", f"/{verb}", body)
        text = connection.getresponse().read()
        connection.close()
        return text

    try:
        yield ask
    finally:
        server.close()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.extender")
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    names = [f"node-{number:04}" for number in range(NODES)]
    samples: dict[str, list[float]] = {}
    table, changing = in_use(), cycle(names)
    with served(table) as ask:
        for _ in range(options.runs):
            for words, memories in (("one container", ONE), ("two containers", TWO)):
                body = json.dumps({"Pod": pod("new", memories), "NodeNames": names}).encode()
                for verb in ("filter", "prioritize"):
                    change(table, changing)
                    spent = _milliseconds(ask, verb, body)
                    samples.setdefault(f"{verb}, {words}", []).append(spent)
    figures = medians(samples, LIMIT_MS)
    show(figures)
    keep(options.json, figures, samples, runs=options.runs)
    return status(figures)


def change(table: Table, name: Iterator[str]) -> None:
    """What happens between two questions: some pods have come, and no answer to an earlier one helps."""
    pack.cache_clear()
    for _ in range(CHANGED):
        node = next(name)
        found = read_pod(pod(f"{node}-0-0", (5,), node, (0,)))
        assert found
        table.put_pod(found)


def _milliseconds(ask: Callable[[str, bytes], bytes], verb: str, body: bytes) -> float:
    began = time.perf_counter()
    answer = json.loads(ask(verb, body))
    spent = time.perf_counter() - began
    judged = len(answer["NodeNames"]) + len(answer["FailedNodes"]) if verb == "filter" else len(answer)
    if judged != NODES:
        sys.exit("the extender did not judge each node")
    return spent * 1000


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
