"""Placement on a real kernel: its CPUs, hugepages and pinned threads, against lscpu and what the kernel then gives."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests import captures
from tests.lab.inside.command import vfioctl
from tests.lab.inside.topology import Topology
from tests.unit.placement.test_topology import GUEST, as_sets, capacity_of
from vfioctl.host import Host

PAGES = Path("/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages")
MIB = 1 << 20


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


def place(ledger: Path, *words: str, code: int = 0) -> dict[str, Any]:
    done = vfioctl(ledger, "place", *words, "--json")
    assert done.returncode == code, done.stdout + done.stderr
    document = json.loads(done.stdout)
    assert isinstance(document, dict)
    return document


def test_the_processors_are_those_that_lscpu_and_the_files_tell() -> None:
    found = capacity_of(Host.live())
    cores, caches, nodes = as_sets(found.topology)
    files = captures.cpus(Path("/"))
    assert cores == {frozenset(each.core) for each in files.values()}
    assert caches == {frozenset(each.cache) for each in files.values() if each.cache}
    assert nodes == {0: {0, 1}, 1: {2, 3}} == captures.nodes(Path("/"))
    done = subprocess.run(["lscpu", "--parse=CPU,CORE,NODE"], capture_output=True, text=True, check=True)
    rows = [line.split(",") for line in done.stdout.splitlines() if not line.startswith("#")]
    assert {int(cpu): int(node) for cpu, _, node in rows} == {cpu: node for node in nodes for cpu in nodes[node]}
    by_core: dict[str, set[int]] = {}
    for cpu, core, _ in rows:
        by_core.setdefault(core, set()).add(int(cpu))
    assert cores == {frozenset(each) for each in by_core.values()}


def test_a_gpu_has_the_cpus_of_its_node(ledger: Path, lab: Topology) -> None:
    found = place(ledger, "--gpus", "1", "--numa", "1", "--cpus", "1")
    assert (found["devices"], found["nodes"]) == ([lab.far_display], [1])
    assert captures.cpu_list(found["cpus"]) == {3}, "the node's first core stays with the host"
    place(ledger, "--gpus", "1", "--numa", "1", "--cpus", "2", code=4)


@contextmanager
def hugepages(number: int) -> Iterator[int]:
    """So many pages of 2 MiB on the second node, as far as the kernel finds them."""
    before = PAGES.read_text(encoding="ascii")
    PAGES.write_text(str(number), encoding="ascii")
    try:
        yield int(PAGES.read_text(encoding="ascii"))
    finally:
        PAGES.write_text(before, encoding="ascii")


def test_hugepages_are_those_that_the_node_has(ledger: Path) -> None:
    with hugepages(8) as there:
        assert there > 0
        found = place(ledger, "--gpus", "1", "--numa", "1", "--hugepages", f"{2 * there}MiB")
        assert found["hugepages"] == [{"node": 1, "size": 2 * MIB, "pages": there}]
        place(ledger, "--gpus", "1", "--numa", "1", "--hugepages", f"{2 * there + 2}MiB", code=4)
        place(ledger, "--gpus", "1", "--numa", "0", "--hugepages", "2MiB", code=4)
    place(ledger, "--gpus", "1", "--numa", "1", "--hugepages", "2MiB", code=4)


def test_cpus_of_a_pinned_guest_are_not_placed(ledger: Path) -> None:
    """A process with the names that QEMU gives itself and its threads."""
    command = [sys.executable, "-c", GUEST, "3"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            place(ledger, "--gpus", "1", "--numa", "1", "--cpus", "1", code=4)
            assert place(ledger, "--gpus", "1", "--cpus", "1")["cpus"] == "1"
        finally:
            child.kill()
    assert place(ledger, "--gpus", "1", "--numa", "1", "--cpus", "1")["cpus"] == "3"
