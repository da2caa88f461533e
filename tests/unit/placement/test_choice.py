"""Which GPUs are chosen, on servers where it can be seen at a glance."""

from __future__ import annotations

from typing import Any

import pytest

from tests.hosts.servers import Node, asking, gpus_of, server
from vfioctl.errors import NoCapacity
from vfioctl.inventory.model.values import PciAddress
from vfioctl.placement.model.capacity import Capacity
from vfioctl.placement.model.claims import Owner, Taken
from vfioctl.placement.model.placement import Placement
from vfioctl.placement.place import place

CLAIM = ("c-12", Owner("vm/other"))
MIB, GIB = 1 << 20, 1 << 30


def indices(found: Placement, capacity: Capacity) -> list[int]:
    """The chosen GPUs by their number on the host."""
    return [gpus_of(capacity).index(gpu) for gpu in found.functions]


@pytest.mark.parametrize(
    ("bridges", "number", "chosen", "why"),
    [
        (((2, 4),), 2, [0, 1], "behind one PCIe switch, 0000:01:00.0"),
        (((2, 4),), 4, [2, 3, 4, 5], "behind one PCIe switch, 0000:05:00.0"),
        (((2, 4),), 3, [2, 3, 4], "behind one PCIe switch, 0000:05:00.0"),
        (((1, 1), (2,)), 2, [2, 3], "behind one PCIe switch, 0001:01:00.0"),
        (((1,), (1, 1), (1,)), 2, [1, 2], "at one PCIe host bridge, 0001:00"),
        (((1,), (1,), (1,)), 2, [0, 1], "at several PCIe host bridges"),
        (((4, 1),), 1, [4], ""),
    ],
)
def test_the_closest_are_chosen_and_large_groups_stay_whole(
    bridges: tuple[tuple[int, ...], ...], number: int, chosen: list[int], why: str
) -> None:
    capacity = server([Node(bridges)])
    found = place(asking(gpus=number), capacity)
    assert indices(found, capacity) == chosen
    assert not why or why in found.why


def test_one_node_goes_before_close_pcie_paths() -> None:
    capacity = server([Node(((3,),)), Node(((1,), (1,), (1,), (1,)))])
    found = place(asking(gpus=4), capacity)
    assert (indices(found, capacity), found.nodes) == ([3, 4, 5, 6], (1,))


def test_the_node_on_which_fewer_are_stranded_goes_first() -> None:
    """Below both nodes a choice strands as many; node 0 has one more GPU."""
    capacity = server([Node(((0,), (0, 0))), Node(((0, 0),))])
    assert place(asking(gpus=1), capacity).nodes == (1,)


class TestUnknownNodes:
    """A node that is not known is no node: others go first, and it is always reported."""

    @staticmethod
    def host(*unknown: int) -> Capacity:
        nodes = [Node(((2,),)), Node(((4,),))]
        plain = server(nodes)
        gpus = gpus_of(plain)
        above = [function.address for function in plain.inventory.functions if function.address not in gpus]
        return server(nodes, gpu={name: {"numa_node": None} for name in (*above, *(gpus[n] for n in unknown))})

    @pytest.mark.parametrize(
        ("unknown", "number", "chosen", "nodes"),
        [
            ([0], 1, [1], (0,)),
            ([0, 1], 1, [2], (1,)),
            ([0], 5, [1, 2, 3, 4, 5], (0, 1)),
            ([0], 6, [0, 1, 2, 3, 4, 5], (0, 1)),
            ([0, 1, 2, 3], 3, [0, 4, 5], (1,)),
            ([0, 1, 2, 3, 4, 5], 2, [0, 1], ()),
        ],
    )
    def test_known_ones_go_first(
        self, unknown: list[int], number: int, chosen: list[int], nodes: tuple[int, ...]
    ) -> None:
        capacity = self.host(*unknown)
        found = place(asking(gpus=number, cpus=2), capacity)
        assert (indices(found, capacity), found.nodes) == (chosen, nodes)
        reported = any("not known of" in why for why in found.why)
        assert reported is bool({*unknown} & {*chosen})

    def test_a_named_one_is_reported(self) -> None:
        capacity = self.host(0)
        (gpu, *_) = gpus_of(capacity)
        found = place(asking(devices=(gpu,), cpus=2), capacity)
        assert found.warnings == (f"warning: the NUMA node is not known of {gpu}: CPUs and memory may be far away",)


def test_near_nodes_are_chosen_where_one_is_not_enough() -> None:
    capacity = server([Node(((1,),)), Node(), Node(((1,),)), Node(((1,),))])
    assert place(asking(gpus=2), capacity).nodes == (2, 3)


def test_what_is_broken_already_goes_first() -> None:
    bridges = ((4, 4),)
    gpus = gpus_of(server([Node(bridges)]))
    capacity = server([Node(bridges)], taken=Taken(whole={gpus[5]: CLAIM, gpus[6]: CLAIM}))
    found = place(asking(gpus=2), capacity)
    assert indices(found, capacity) == [4, 7]
    assert {each.reason for each in found.others if each.free} == {
        "free, behind 0000:01:00.0; the chosen ones are as good"
    }


def test_nvlink_peers_are_chosen_where_pcie_makes_no_difference() -> None:
    bridges = ((0, 0, 0, 0),)
    gpus = gpus_of(server([Node(bridges)]))
    peers = {gpus[1]: frozenset({gpus[3]}), gpus[3]: frozenset({gpus[1]})}
    capacity = server([Node(bridges)], peers=peers)
    found = place(asking(gpus=2), capacity)
    assert indices(found, capacity) == [1, 3]
    assert "all are peers of each other over NVLink" in found.why
    assert indices(place(asking(gpus=1), capacity), capacity) == [0], "a pair stays together"


def test_cpus_come_from_the_nodes_of_the_devices_in_proportion() -> None:
    capacity = server([Node(((3,),), caches=(9,)), Node(((1,),), caches=(9,))])
    found = place(asking(gpus=4, cpus=16), capacity)
    nodes = [capacity.topology.core_of[cpu].node for cpu in found.cpus]
    assert (nodes.count(0), nodes.count(1)) == (12, 4)


def test_a_number_of_cpus_that_is_not_whole_cores_is_rounded_up_and_said() -> None:
    found = place(asking(gpus=1, cpus=3), server([Node(((1,),))]))
    assert found.cpus == (1, 2, 5, 6)
    assert "2 whole cores of NUMA node 0 at 1 L3 cache: 1-2,5-6" in " ".join(found.why)
    assert "4 CPUs instead of 3, because cores are given whole" in found.why


class TestHugepages:
    @pytest.mark.parametrize(
        ("wanted", "size", "pages"),
        [
            (2 * GIB, GIB, 2),
            (100 * MIB, 2 * MIB, 50),
            (GIB + 2 * MIB, 2 * MIB, 513),
            (4 * GIB, GIB, 4),
            (5 * GIB, 2 * MIB, 2560),
            (1, 2 * MIB, 1),
        ],
    )
    def test_are_of_the_size_that_wastes_least_then_the_largest(self, wanted: int, size: int, pages: int) -> None:
        node = Node(((1,),), hugepages={2 * MIB: (4096, 4096), GIB: (4, 4)})
        (found,) = place(asking(gpus=1, hugepages=wanted), server([node])).hugepages
        assert (found.node, found.size, found.pages) == (0, size, pages)

    def test_are_those_that_no_claim_has_and_that_are_free(self) -> None:
        node = Node(((1,),), hugepages={GIB: (8, 6)})
        for claimed, room in ((0, 6), (1, 6), (3, 5), (8, 0)):
            capacity = server([node], taken=Taken(hugepages={(0, GIB): claimed}))
            with pytest.raises(NoCapacity) as caught:
                place(asking(gpus=1, hugepages=(room + 1) * GIB), capacity)
            assert f"NUMA node 0 has {f'{room} GiB' if room else '0 B'} in free hugepages" in caught.value.hint
            if room:
                assert place(asking(gpus=1, hugepages=room * GIB), capacity).hugepages[0].pages == room

    def test_come_from_the_nodes_of_the_devices(self) -> None:
        node = Node(((1,),), hugepages={GIB: (4, 4)})
        found = place(asking(gpus=2, hugepages=6 * GIB), server([node, node]))
        assert [(each.node, each.pages) for each in found.hugepages] == [(0, 3), (1, 3)]
        with pytest.raises(NoCapacity):
            place(asking(gpus=1, hugepages=6 * GIB), server([node, node]))


def test_a_failure_says_what_is_missing_for_gpus_that_are_free() -> None:
    capacity = server([Node(((2,),), caches=(3,)), Node(((1,),), caches=(2,))])
    with pytest.raises(NoCapacity) as caught:
        place(asking(gpus=2, numa="same", cpus=8), capacity)
    assert caught.value.exit_code == 4
    assert caught.value.message == "2 GPUs cannot be chosen: no NUMA node has 2 GPUs and 8 free CPUs"
    assert "NUMA node 0 has 4 free CPUs" in caught.value.hint
    assert "NUMA node 1 has 2 free CPUs" in caught.value.hint


class TestSharesOfNodes:
    """CPUs are divided by the cards on each node."""

    def shares(self, *, gpu: dict[PciAddress, dict[str, Any]], devices: tuple[PciAddress, ...]) -> list[int]:
        found = place(asking(devices=devices, cpus=8), server(self.NODES, gpu=gpu))
        cores = server(self.NODES).topology.core_of
        return [sum(cores[cpu].node == node for cpu in found.cpus) for node in (0, 1)]

    NODES = (Node(((1,), (1,), (1,)), caches=(8,)), Node(((1,),), caches=(8,)))

    def test_switches_of_a_fabric_do_not_count(self) -> None:
        gpus = gpus_of(server(self.NODES))
        switches = {each: {"class_code": "068000"} for each in gpus[1:3]}
        assert self.shares(gpu={}, devices=gpus) == [6, 2]
        assert self.shares(gpu=switches, devices=gpus) == [4, 4]
        assert self.shares(gpu=switches, devices=gpus[1:3]) == [8, 0]

    def test_functions_of_a_card_count_once(self) -> None:
        first, *_, last = gpus_of(server(self.NODES))
        audio = PciAddress(f"{first[:-1]}1")
        moved = {gpus_of(server(self.NODES))[1]: {"address": audio, "class_code": "040300"}}
        assert self.shares(gpu=moved, devices=(first, audio, last)) == [4, 4]


class TestModels:
    """GPUs of different models are not mixed, or it is said."""

    @staticmethod
    def host(*others: int) -> Capacity:
        nodes = [Node(((4,),)), Node(((2,),))]
        gpus = gpus_of(server(nodes))
        return server(nodes, gpu={gpus[number]: {"device_id": "20b5", "device_name": "A100"} for number in others})

    def test_one_model_goes_before_close_pcie_paths(self) -> None:
        capacity = self.host(0, 1, 4)
        found = place(asking(gpus=3), capacity)
        assert (indices(found, capacity), found.nodes) == ([0, 1, 4], (0, 1))
        assert not any("different models" in why for why in found.why)

    def test_a_mixture_is_reported(self) -> None:
        capacity = self.host(0, 1, 4)
        found = place(asking(gpus=4), capacity)
        assert indices(found, capacity) == [0, 1, 2, 3]
        assert any("they are of different models" in why for why in found.why)


class TestNumberAndNames:
    """A number of GPUs and the devices that go with them."""

    def test_the_gpus_are_others_than_those_named(self) -> None:
        capacity = server([Node(((4,),))])
        (first, *_) = gpus_of(capacity)
        found = place(asking(gpus=2, devices=(first,), cpus=4), capacity)
        assert indices(found, capacity) == [1, 2, 0]
        assert len(found.cpus) == 4

    def test_what_cannot_be_had_is_refused(self) -> None:
        capacity = server([Node(((4,),))], taken=Taken(whole={gpus_of(server([Node(((4,),))]))[0]: CLAIM}))
        (first, *_) = gpus_of(capacity)
        with pytest.raises(NoCapacity, match="claimed by vm/other"):
            place(asking(gpus=2, devices=(first,)), capacity)
        with pytest.raises(NoCapacity, match="4 GPUs cannot be chosen"):
            place(asking(gpus=4), capacity)
