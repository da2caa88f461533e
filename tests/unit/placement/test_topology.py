"""The CPUs, hugepages and pinned guests that a claim's host has: against a reader of its own, and with odd files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from csv import DictReader
from pathlib import Path

import pytest

from tests import captures
from tests.hosts.machines import HOSTS, copy, original
from tests.probing import read_inventory
from tests.users import as_root
from vfioctl.host import Host
from vfioctl.inventory.model.machine import NumaNode
from vfioctl.inventory.probe.machine import read_nodes
from vfioctl.kernel.recorded.host import Recorded, read_tree
from vfioctl.kernel.recorded.tree import Tree
from vfioctl.placement.model.capacity import Capacity, HugepagePool, Topology
from vfioctl.placement.model.claims import Taken
from vfioctl.placement.model.settings import ClaimSettings
from vfioctl.placement.probe.capacity import read_capacity, read_hugepages, read_pinned
from vfioctl.placement.probe.topology import CPUS, read_topology
from vfioctl.units import CpuSet

HOST_FILES = sorted(HOSTS.glob("**/*.host"))
WITH_CPUS = [file for file in HOST_FILES if "thread_siblings_list" in file.read_text(encoding="utf-8")]
DUMPS = Path(__file__).resolve().parents[2] / "data/topologies"
PAGES = "/sys/devices/system/node/node0/hugepages/hugepages-{}kB"


def capacity_of(host: Host) -> Capacity:
    return read_capacity(host.session.kernel, host.inventory(), Taken(), ClaimSettings())


def as_sets(topology: Topology) -> tuple[set[frozenset[int]], set[frozenset[int]], dict[int, set[int]]]:
    """The CPUs of each core, of each L3 cache, and of each node."""
    caches: dict[int | None, set[int]] = {}
    nodes: dict[int, set[int]] = {}
    for core in topology.cores:
        caches.setdefault(core.cache, set()).update(core.cpus)
        nodes.setdefault(core.node, set()).update(core.cpus)
    caches.pop(None, None)
    return {frozenset(core.cpus) for core in topology.cores}, {frozenset(each) for each in caches.values()}, nodes


# -- machines ------------------------------------------------------------------------------------------


def test_there_are_machines() -> None:
    assert len(WITH_CPUS) > 3
    assert any("recorded" in file.parts for file in WITH_CPUS)


@pytest.mark.parametrize("form", ["host", "root"])
@pytest.mark.parametrize("file", WITH_CPUS, ids=lambda file: file.stem)
def test_the_topology_is_what_the_files_of_each_cpu_say(file: Path, form: str, tmp_path: Path) -> None:
    tree = captures.unpack(file, tmp_path / "tree")
    host = Host.recorded(str(file)) if form == "host" else Host.at(tree)
    found, facts = capacity_of(host), captures.cpus(tree)
    cores, caches, nodes = as_sets(found.topology)
    assert cores == {frozenset(each.core) for each in facts.values()}
    assert caches == {frozenset(each.cache) for each in facts.values() if each.cache}
    assert nodes == {node: cpus for node, cpus in captures.nodes(tree).items() if cpus}
    assert {(pool.node, pool.size): (pool.total, pool.free) for pool in found.hugepages} == captures.hugepages(tree)


@pytest.mark.parametrize("file", sorted(DUMPS.glob("*.host")), ids=lambda file: file.stem)
def test_lscpu_sees_real_processors_in_the_same_way(file: Path) -> None:
    """Against what util-linux expects of its lscpu."""
    kernel = Recorded(read_tree(file), "")
    cores, caches, nodes = as_sets(read_topology(kernel, read_nodes(kernel)[0]))
    with file.with_suffix(".csv").open(encoding="ascii", newline="") as stream:
        rows = list(DictReader(stream))
    assert cores == sets_by(rows, "Core")
    assert caches == sets_by(rows, "L3")
    assert {frozenset(cpus) for cpus in nodes.values()} == sets_by(rows, "Node")


def sets_by(rows: list[dict[str, str]], column: str) -> set[frozenset[int]]:
    found: dict[str, set[int]] = {}
    for row in rows:
        if row[column]:
            found.setdefault(row[column], set()).add(int(row["CPU"]))
    return {frozenset(each) for each in found.values()}


@pytest.mark.skipif(not shutil.which("lscpu"), reason="needs lscpu")
def test_lscpu_sees_this_machine_in_the_same_way() -> None:
    cores, caches, nodes = as_sets(capacity_of(Host.live()).topology)
    done = subprocess.run(["lscpu", "--parse=CPU,CORE,NODE,CACHE"], capture_output=True, text=True, check=True)
    rows = [line.split(",") for line in done.stdout.splitlines() if not line.startswith("#")]
    by_core: dict[str, set[int]] = {}
    by_cache: dict[str, set[int]] = {}
    for cpu, core, _, *levels in rows:
        by_core.setdefault(core, set()).add(int(cpu))
        _, *inner, last = ":".join(levels).split(":")
        if len(inner) >= 2:  # L1d, L1i, L2, L3
            by_cache.setdefault(last, set()).add(int(cpu))
    assert cores == {frozenset(each) for each in by_core.values()}
    assert caches == {frozenset(each) for each in by_cache.values()}
    assert {cpu for cpus in nodes.values() for cpu in cpus} == {int(row[0]) for row in rows}


# -- odd files -----------------------------------------------------------------------------------------


def with_cpus(*, siblings: dict[int, str], caches: dict[int, str] | None = None, online: str = "0-3") -> Tree:
    tree = Tree()
    tree.put(f"{CPUS}/online", online)
    for cpu, text in siblings.items():
        tree.put(f"{CPUS}/cpu{cpu}/topology/thread_siblings_list", text)
    for cpu, text in (caches or {}).items():
        level, shared = text.split(":")
        tree.put(f"{CPUS}/cpu{cpu}/cache/index3/level", level)
        tree.put(f"{CPUS}/cpu{cpu}/cache/index3/shared_cpu_list", shared)
    return tree


NODES = (NumaNode(id=0, cpus=CpuSet(range(4)), memory_bytes=None),)


def read(tree: Tree, nodes: tuple[NumaNode, ...] = NODES) -> Topology:
    return read_topology(Recorded(tree, ""), nodes)


@pytest.mark.parametrize(
    ("siblings", "cores"),
    [
        ({0: "0,2", 1: "1,3"}, [(0, 2), (1, 3)]),
        ({0: "0,2", 1: "1,3", 2: "rubbish", 3: "3"}, [(0, 2), (1, 3)]),
        ({0: "0-1", 1: "1", 2: "2-9"}, [(0, 1), (2, 3)]),
        ({0: "0-1", 2: "1-2"}, [(0, 1, 2), (3,)]),
        ({0: "rubbish", 1: "0-1"}, [(0, 1), (2,), (3,)]),
        ({}, [(0,), (1,), (2,), (3,)]),
    ],
)
def test_cores_with_odd_files(siblings: dict[int, str], cores: list[tuple[int, ...]]) -> None:
    found = read(with_cpus(siblings=siblings))
    assert [core.cpus for core in found.cores] == cores
    unread = {cpu for cpu in range(4) if not any(cpu in core and len(core) > 1 for core in cores)}
    assert bool(unread) is any(what.startswith("the cores of") for what in found.unknown)


@pytest.mark.parametrize(
    ("caches", "expected"),
    [
        ({0: "3:0-1", 2: "3:2-3"}, [0, 0, 2, 2]),
        ({0: "3:0-3"}, [0, 0, 0, 0]),
        ({0: "2:0-3", 1: "2:0-3", 2: "3:2-3"}, [None, None, 2, 2]),
        ({0: "3:rubbish", 1: "3:1-3"}, [None, 1, 1, 1]),
        ({}, [None, None, None, None]),
    ],
)
def test_caches_with_odd_files(caches: dict[int, str], expected: list[int | None]) -> None:
    found = read(with_cpus(siblings={cpu: str(cpu) for cpu in range(4)}, caches=caches))
    assert [core.cache for core in found.cores] == expected


def test_an_l3_cache_may_have_another_index() -> None:
    tree = with_cpus(siblings={cpu: str(cpu) for cpu in range(4)})
    for cpu in range(4):
        for index, (level, shared) in enumerate((("1", cpu), ("3", "0-3"))):
            tree.put(f"{CPUS}/cpu{cpu}/cache/index{index}/level", str(level))
            tree.put(f"{CPUS}/cpu{cpu}/cache/index{index}/shared_cpu_list", str(shared))
    assert {core.cache for core in read(tree).cores} == {0}


def test_offline_cpus_are_not_there() -> None:
    found = read(with_cpus(siblings={0: "0", 1: "1,3"}, online="0-1,3"))
    assert [core.cpus for core in found.cores] == [(0,), (1, 3)]


def test_cpus_of_no_node_are_not_used_and_told() -> None:
    found = read(with_cpus(siblings={cpu: str(cpu) for cpu in range(6)}, online="0-5"))
    assert [core.cpus for core in found.cores] == [(0,), (1,), (2,), (3,)]
    assert found.unknown["CPUs 4-5"] == "they are of no NUMA node, and are not used"


def test_without_numa_all_are_of_node_0() -> None:
    assert {core.node for core in read(with_cpus(siblings={0: "0-3"}), ()).cores} == {0}


def test_without_the_list_of_online_cpus_those_of_the_nodes_are_used() -> None:
    tree = with_cpus(siblings={0: "0-3"})
    tree.remove(f"{CPUS}/online")
    found = read(tree)
    assert [core.cpus for core in found.cores] == [(0, 1, 2, 3)]
    assert found.unknown["online CPUs"] == "ENOENT"


# -- hugepages -----------------------------------------------------------------------------------------


def put_pages(tree: Tree, place: str, **texts: str) -> None:
    for name, text in texts.items():
        tree.put(f"{place}/{name}", text)


def test_hugepages_are_read_by_size() -> None:
    tree = Tree()
    put_pages(tree, PAGES.format(2048), nr_hugepages="512", free_hugepages="500")
    put_pages(tree, PAGES.format(1048576), nr_hugepages="4", free_hugepages="0")
    assert set(read_hugepages(Recorded(tree, ""), [0, 1])) == {
        HugepagePool(0, 2 << 20, 512, 500),
        HugepagePool(0, 1 << 30, 4, 0),
    }


def test_pages_that_a_mapping_has_reserved_are_not_free() -> None:
    tree = Tree()
    put_pages(tree, PAGES.format(2048), nr_hugepages="512", free_hugepages="500")
    tree.put("/sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", "100")
    assert read_hugepages(Recorded(tree, ""), [0])[0].free == 400


@pytest.mark.parametrize("text", ["", "many", "-1", "99999999999999999999"])
def test_an_odd_pool_is_left_out(text: str) -> None:
    tree = Tree()
    put_pages(tree, PAGES.format(2048), nr_hugepages=text, free_hugepages="1")
    put_pages(tree, PAGES.format(1048576), nr_hugepages="4", free_hugepages="1")
    put_pages(tree, PAGES.format("x"), nr_hugepages="4", free_hugepages="1")
    assert [pool.size for pool in read_hugepages(Recorded(tree, ""), [0])] == [1 << 30]


def test_without_numa_those_of_the_host_are_of_node_0() -> None:
    tree = Tree()
    put_pages(tree, "/sys/kernel/mm/hugepages/hugepages-2048kB", nr_hugepages="8", free_hugepages="8")
    assert read_hugepages(Recorded(tree, ""), []) == (HugepagePool(0, 2 << 20, 8, 8),)


# -- pinned guests -------------------------------------------------------------------------------------


def add_guest(tree: Tree, pid: int, *threads: tuple[str, str], name: str = "qemu-system-x86", uid: int = 0) -> None:
    users = "\t".join([str(uid)] * 4)
    tree.put(f"/proc/{pid}/comm", name)
    tree.put(f"/proc/{pid}/status", f"Name:\t{name}\nUid:\t{users}\nCpus_allowed_list:\t0-7")
    for number, (thread, allowed) in enumerate(threads):
        tree.put(f"/proc/{pid}/task/{pid + number}/status", f"Name:\t{thread}\nCpus_allowed_list:\t{allowed}")


@pytest.mark.parametrize(
    ("threads", "name", "uid", "cpus"),
    [
        ([("CPU 0/KVM", "2"), ("CPU 1/KVM", "6")], "qemu-system-x86", 0, {2, 6}),
        ([("qemu-system-x86", "0-1"), ("CPU 0/KVM", "2-3")], "qemu-system-x86", 0, {2, 3}),
        ([("CPU 0/TCG", "2")], "qemu-kvm", 0, {2}),
        ([("vcpu0", "5"), ("vmm", "0-7")], "cloud-hyperviso", 0, {5}),
        ([("fc_vcpu 0", "5")], "firecracker", 0, {5}),
        ([("CPU 0/KVM", "0-7")], "qemu-system-x86", 0, set()),
        ([("CPU 0/KVM", "0-3")], "qemu-system-x86", 0, set()),
        ([("CPU 0/KVM", "2")], "qemu-system-x86", 1000, set()),
        ([("CPU 0/KVM", "2")], "bash", 0, set()),
        ([("CPU 0/KVM", "rubbish")], "qemu-system-x86", 0, set()),
        ([], "qemu-system-x86", 0, set()),
    ],
)
def test_cpus_of_pinned_guests(threads: list[tuple[str, str]], name: str, uid: int, cpus: set[int]) -> None:
    """Not of those that may run on a whole node, nor of programs that others call so."""
    tree = Tree()
    add_guest(tree, 100, *threads, name=name, uid=uid)
    found = read_pinned(Recorded(tree, ""), [range(4), range(4, 8)])
    assert set(found) == cpus
    assert set(found.values()) <= {f"process 100 ({name})"}


GUEST = """
import os, sys, threading, time
def name(thread, text):
    with open(f"/proc/self/task/{thread}/comm", "w") as file:
        file.write(text)
def vcpu():
    name(threading.get_native_id(), "CPU 0/KVM")
    os.sched_setaffinity(threading.get_native_id(), {int(sys.argv[1])})
    print(flush=True)
    time.sleep(60)
name(os.getpid(), "qemu-system-x86")
threading.Thread(target=vcpu, daemon=True).start()
time.sleep(60)
"""


@as_root
def test_a_pinned_thread_of_a_running_process_is_found() -> None:
    """A process with the names of a VMM and of its threads, one of them on one CPU, on a machine with several."""
    cpus = os.sched_getaffinity(0)
    if len(cpus) < 2:
        pytest.skip("needs two CPUs")
    command = [sys.executable, "-c", GUEST, str(min(cpus))]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            found = read_pinned(Host.live().session.kernel, [cpus])
        finally:
            child.kill()
    assert found[min(cpus)] == f"process {child.pid} (qemu-system-x86)"


def test_processes_are_looked_at_only_for_cpus() -> None:
    tree = copy(original("laptop"))
    add_guest(tree, 4000, ("CPU 0/KVM", "2"))
    kernel = Recorded(tree, "")
    inventory = read_inventory(kernel)
    assert set(read_capacity(kernel, inventory, Taken(), ClaimSettings()).pinned) == {2}
    assert not read_capacity(kernel, inventory, Taken(), ClaimSettings(), cpus=False).pinned


# -- together ------------------------------------------------------------------------------------------


def test_each_host_has_a_capacity() -> None:
    for file in HOST_FILES:
        found = capacity_of(Host.recorded(str(file)))
        nodes = {node.id for node in found.inventory.numa_nodes if node.cpus}
        assert set(found.topology.by_node) >= nodes
        assert len(found.topology.core_of) == sum(len(core.cpus) for core in found.topology.cores)
