"""What holds for every placement on every small server: against all choices that there are."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.hosts.machines import unhurried
from tests.hosts.servers import Node, asking, gpus_of, server
from vfioctl.errors import NoCapacity
from vfioctl.inventory.model.values import PciAddress
from vfioctl.placement.choosing.cpus import FreeCores, choose_cores, free_cores, shares
from vfioctl.placement.choosing.gpus import Pool
from vfioctl.placement.choosing.tree import path_of
from vfioctl.placement.model.capacity import Capacity, Core
from vfioctl.placement.model.claims import Owner, Taken
from vfioctl.placement.model.placement import Placement
from vfioctl.placement.model.request import ClaimRequest
from vfioctl.placement.model.settings import ClaimSettings
from vfioctl.placement.place import place, refused
from vfioctl.units import CpuSet

MIB, GIB = 1 << 20, 1 << 30
CLAIM = ("c1", Owner("vm/other"))

pools = st.fixed_dictionaries(
    {2 * MIB: st.tuples(st.integers(0, 600), st.integers(0, 600)), GIB: st.tuples(st.integers(0, 4), st.integers(0, 4))}
)
nodes = st.builds(
    Node,
    bridges=st.lists(st.lists(st.integers(0, 3), max_size=2).map(tuple), max_size=2).map(tuple),
    caches=st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple),
    threads=st.integers(1, 2),
    hugepages=pools,
)


@st.composite
def capacities(draw: st.DrawFn) -> Capacity:
    """Servers of up to three nodes, with claims, settings, pinned guests, NVLink peers and partitions."""
    shape = draw(st.lists(nodes, min_size=1, max_size=3))
    plain = server(shape)
    gpus, cpus = gpus_of(plain), [cpu for core in plain.topology.cores for cpu in core.cpus]
    assume(len(gpus) <= 7)
    some_gpus = st.lists(st.sampled_from(gpus), max_size=3, unique=True) if gpus else st.just([])
    some_cpus = st.lists(st.sampled_from(cpus), max_size=3, unique=True)
    pairs = st.lists(st.sampled_from([*combinations(gpus, 2)]), max_size=4) if len(gpus) > 1 else st.just([])
    groups = [*combinations(gpus, 2)] + [(gpu,) for gpu in gpus]
    partitions = st.lists(st.sampled_from(groups), max_size=3, unique=True) if gpus else st.just([])
    pages = {(pool.node, pool.size): draw(st.integers(0, 5)) for pool in plain.hugepages}
    return server(
        shape,
        taken=Taken(
            whole=dict.fromkeys(draw(some_gpus), CLAIM),
            cpus=dict.fromkeys(draw(some_cpus), CLAIM),
            hugepages=pages,
        ),
        settings=ClaimSettings(
            reserved=tuple(draw(some_gpus)),
            reserved_cpus=CpuSet(sorted(draw(some_cpus))),
            housekeeping_cpus=draw(st.none() | some_cpus.map(lambda found: CpuSet(sorted(found)))),
            partitions=tuple(draw(st.just([]) | partitions)),
        ),
        pinned=dict.fromkeys(draw(some_cpus), "a guest"),
        peers=peers_of(draw(pairs)),
    )


def peers_of(pairs: Sequence[tuple[PciAddress, PciAddress]]) -> Mapping[PciAddress, frozenset[PciAddress]]:
    found: dict[PciAddress, frozenset[PciAddress]] = {}
    for one, other in pairs:
        found[one] = found.get(one, frozenset()) | {other}
        found[other] = found.get(other, frozenset()) | {one}
    return found


requests = st.builds(
    asking,
    gpus=st.integers(1, 4),
    cpus=st.integers(0, 10),
    hugepages=st.sampled_from((0, 1, 2 * MIB, 100 * MIB, GIB, GIB + 1, 3 * GIB)),
    numa=st.sampled_from(("any", "any", "same", 0, 1)),
)


def placed(request: ClaimRequest, capacity: Capacity) -> Placement | NoCapacity:
    try:
        return place(request, capacity)
    except NoCapacity as error:
        return error


def pool_of(request: ClaimRequest, capacity: Capacity) -> Pool:
    reasons = refused(request, capacity)
    return Pool(request, capacity, tuple(gpu for gpu in gpus_of(capacity) if gpu not in reasons))


def choices(pool: Pool) -> Iterator[tuple[PciAddress, ...]]:
    """All choices that are possible. A partition is not mixed with other GPUs."""
    for gpus in combinations(pool.gpus, pool.request.gpus):
        if pool.allows(gpus):
            yield gpus


@unhurried
@given(requests, capacities())
def test_no_possible_choice_has_a_better_score(request: ClaimRequest, capacity: Capacity) -> None:
    pool, found = pool_of(request, capacity), placed(request, capacity)
    possible = list(choices(pool))
    if isinstance(found, NoCapacity):
        assert not possible
    else:
        assert found.functions in possible
        assert pool.score(found.functions) == min(map(pool.score, possible))


@unhurried
@given(requests, capacities())
def test_never_over_capacity(request: ClaimRequest, capacity: Capacity) -> None:
    found = placed(request, capacity)
    if isinstance(found, NoCapacity):
        return
    taken, settings = capacity.taken, capacity.settings
    assert len(found.functions) == request.gpus == len({*found.functions})
    assert {*found.functions}.isdisjoint({*taken.whole, *settings.reserved})
    assert len(found.cpus) >= request.cpus
    used = {*taken.cpus, *capacity.pinned, *settings.reserved_cpus, *capacity.housekeeping}
    assert used.isdisjoint(found.cpus)
    assert sum(pages.size * pages.pages for pages in found.hugepages) >= request.hugepages
    for pages in found.hugepages:
        (pool,) = (p for p in capacity.hugepages if (p.node, p.size) == (pages.node, pages.size))
        assert 0 < pages.pages <= min(pool.free, pool.total - taken.hugepages[pool.node, pool.size])


@unhurried
@given(requests, capacities())
def test_never_a_split_core_and_never_one_more_than_needed(request: ClaimRequest, capacity: Capacity) -> None:
    found = placed(request, capacity)
    if isinstance(found, NoCapacity):
        return
    cores = [core for core in capacity.topology.cores if {*core.cpus} & {*found.cpus}]
    assert {cpu for core in cores for cpu in core.cpus} == {*found.cpus}
    assert {core.node for core in cores} <= {*found.nodes}
    assert not request.cpus or len(found.cpus) - request.cpus < sum(
        max(len(core.cpus) for core in cores if core.node == node) for node in {core.node for core in cores}
    )


@unhurried
@given(requests, capacities())
def test_each_gpu_is_chosen_or_has_its_reason(request: ClaimRequest, capacity: Capacity) -> None:
    found = placed(request, capacity)
    if isinstance(found, NoCapacity):
        told = found.facts["devices"]
        assert isinstance(told, list)
        assert {each["device"] for each in told} == {*gpus_of(capacity)}
        assert all(each["reason"] for each in told)
    else:
        assert {*found.functions, *(each.device for each in found.others)} == {*gpus_of(capacity)}
        assert all(each.reason for each in found.others)
        assert {each.device for each in found.others if not each.free} == {*refused(request, capacity)}


@unhurried
@given(requests, capacities())
def test_the_same_question_has_the_same_answer(request: ClaimRequest, capacity: Capacity) -> None:
    again = Capacity(**{name: getattr(capacity, name) for name in Capacity.__dataclass_fields__})
    one, other = placed(request, capacity), placed(request, again)
    assert str(one) == str(other)


def test_the_same_question_has_the_same_answer_in_another_process() -> None:
    """Whatever the order of sets is there."""
    program = (
        "from tests.hosts.servers import *\nfrom vfioctl.placement.place import place\n"
        "host = server([Node(((2, 0, 3), (4,)), (4, 4)), Node(((2, 2), (0,)), (4, 4))])\n"
        "peers = {gpu: frozenset(gpus_of(host)[:3]) - {gpu} for gpu in gpus_of(host)[:3]}\n"
        "host = server([Node(((2, 0, 3), (4,)), (4, 4)), Node(((2, 2), (0,)), (4, 4))], peers=peers)\n"
        "for n in range(1, 12): print(place(asking(gpus=n, cpus=n), host).document())\n"
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("0", "1", "2")
    }
    assert len(answers) == 1


@unhurried
@given(capacities())
def test_the_score_is_what_its_parts_say(capacity: Capacity) -> None:
    """Against the sum over all pairs."""
    request = asking(gpus=2)
    pool = pool_of(request, capacity.__class__(inventory=capacity.inventory, topology=capacity.topology))
    for gpus in combinations(pool.gpus, 3):
        score = pool.score(gpus)
        nodes = {capacity.inventory.by_address[gpu].numa_node for gpu in gpus}
        assert score.nodes == len(nodes)
        assert score.distance == sum(apart(capacity, one, other) for one, other in combinations(gpus, 2))


@unhurried
@given(capacities(), st.integers(1, 3), st.data())
def test_the_nearest_to_a_named_device_are_chosen(capacity: Capacity, number: int, data: st.DataObject) -> None:
    gpus = gpus_of(capacity)
    assume(len(gpus) > number)
    named = data.draw(st.sampled_from(gpus))
    request = asking(gpus=number, devices=(named,))
    free = capacity.__class__(inventory=capacity.inventory, topology=capacity.topology, peers=capacity.peers)
    pool = Pool(request, free, tuple(gpu for gpu in gpus if gpu != named))
    found = placed(request, free)
    assert not isinstance(found, NoCapacity)
    (*chosen, last), possible = found.functions, list(choices(pool))
    assert (last, tuple(chosen) in possible) == (named, True)
    score = pool.score(chosen)
    assert score == min(map(pool.score, possible))
    assert score.near == sum(apart(capacity, named, gpu) for gpu in chosen)
    assert score.nodes == len({capacity.inventory.by_address[gpu].numa_node for gpu in (named, *chosen)})


def apart(capacity: Capacity, one: PciAddress, other: PciAddress) -> int:
    """The distance of two GPUs, from the ports above them: none of these servers has a switch above another."""
    functions = capacity.inventory.by_address
    if functions[one].numa_node != functions[other].numa_node:
        return 32
    paths = path_of(capacity.inventory, one), path_of(capacity.inventory, other)
    shared = sum(a == b for a, b in zip(*paths, strict=False))
    return {0: 16, 1: 8}.get(shared, 1)


# -- CPUs ------------------------------------------------------------------------------------------------

sizes = st.lists(st.integers(1, 4), min_size=1, max_size=7)


def cores_in(sizes: Sequence[int], threads: int) -> FreeCores:
    found, number = [], 0
    for cache, size in enumerate(sizes):
        cores = range(number, number + size)
        found.append(tuple(Core(tuple(threads * core + t for t in range(threads)), 0, cache) for core in cores))
        number += size
    return FreeCores(0, tuple(found))


@unhurried
@given(sizes, st.integers(1, 2), st.integers(1, 56))
def test_no_choice_of_caches_is_better(sizes: Sequence[int], threads: int, cpus: int) -> None:
    assume(cpus <= threads * sum(sizes))
    free = cores_in(sizes, threads)
    cores = choose_cores(free, cpus)
    used = {core.cache for core in cores if core.cache is not None}
    found = len(used), sum(threads * sizes[cache] for cache in used) - len(cores) * threads
    needed = -(-cpus // threads)
    best = min(
        (number, threads * (sum(chosen) - needed))
        for number in range(1, len(sizes) + 1)
        for chosen in combinations(sizes, number)
        if sum(chosen) >= needed
    )
    assert found == best
    assert len(cores) == needed


@unhurried
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), min_size=1, max_size=5), st.integers(0, 40))
def test_shares_have_room_and_are_all_that_was_wanted(parts: Sequence[tuple[int, int]], wanted: int) -> None:
    rooms, weights = [room for room, _ in parts], [weight for _, weight in parts]
    assume(wanted <= sum(rooms))
    found = shares(wanted, rooms, weights)
    assert sum(found) == wanted
    assert all(0 <= share <= room for share, room in zip(found, rooms, strict=True))


def test_shares_are_in_proportion() -> None:
    assert shares(16, [48, 48], [3, 1]) == [12, 4]
    assert shares(16, [48, 48], [1, 1], unit=4) == [8, 8]
    assert shares(16, [6, 48], [1, 1]) == [6, 10]
    assert shares(16, [48, 6], [1, 1]) == [10, 6]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_whole_cache_is_taken_where_it_fits(threads: int) -> None:
    free = free_cores(server([Node(caches=(4, 4, 4), threads=threads)]))[0]
    assert {core.cache for core in choose_cores(free, 4 * threads)} == {4}
    assert {core.cache for core in choose_cores(free, 3 * threads)} == {0}, "the first core stays with the host"
    assert {core.cache for core in choose_cores(free, 8 * threads)} == {4, 8}
