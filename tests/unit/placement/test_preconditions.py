"""Why a device is not chosen: each reason alone, for GPUs that are to be chosen and for devices that are named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from tests.hosts.servers import Node, asking, gpus_of, server
from vfioctl.core.limits import read_document
from vfioctl.core.marks import Mark, MarkKind
from vfioctl.errors import BadSpec, NoCapacity, UnknownDevice
from vfioctl.inventory.model.machine import Iommu
from vfioctl.inventory.model.values import PciAddress
from vfioctl.placement.model.capacity import Capacity
from vfioctl.placement.model.claims import Owner, Taken
from vfioctl.placement.model.placement import NewVgpus
from vfioctl.placement.model.settings import ClaimSettings
from vfioctl.placement.place import place, place_near, refused
from vfioctl.units import Uuid

NODES = (Node(((0, 0),)), Node(((0,),)))
FIRST, SECOND, THIRD = gpus_of(server(NODES))
PORT = PciAddress("0000:00:02.0")
MDEV = Uuid("4e8c5df7-c4fa-4719-904f-5579cd5ac35f")
CLAIM = ("c-12", Owner("vm/other"))
DEAD = Mark(address=FIRST, kind=MarkKind.DEAD, since="", why="it does not answer")
WEDGED = Mark(address=FIRST, kind=MarkKind.WEDGED, since="", why="unbind never returned")


def with_first(**facts: Any) -> Capacity:
    return server(NODES, gpu={FIRST: facts})


def with_settings(**settings: Any) -> Capacity:
    return server(NODES, settings=read_document(ClaimSettings, settings))


REASONS: Mapping[str, tuple[Capacity, str]] = {
    "dead": (with_first(mark=DEAD), "it is dead: it does not answer"),
    "wedged": (with_first(mark=WEDGED), "it is wedged: unbind never returned"),
    "claimed": (server(NODES, taken=Taken(whole={FIRST: CLAIM})), "claimed by vm/other (c-12)"),
    "parts claimed": (server(NODES, taken=Taken(shared={FIRST: (CLAIM,)})), "parts of it are claimed by vm/other"),
    "reserved": (with_settings(reserved=[FIRST]), "reserved in the configuration"),
    "reserved by its short address": (with_settings(reserved=[FIRST[5:]]), "reserved in the configuration"),
    "of another mode": (with_settings(modes={FIRST: "host"}), "its mode in the configuration is host"),
    "for vGPUs": (with_settings(modes={FIRST: "vgpu"}), "its mode in the configuration is vgpu"),
    "display": (with_first(boot_vga=True), "it is the boot display"),
    "VFs": (with_first(virtfns=(THIRD,)), "it has 1 VF"),
    "mdevs": (with_first(mdevs=(MDEV, MDEV)), "it has 2 vGPUs"),
    "no group": (with_first(iommu_group=None), "it has no IOMMU group"),
    "foreign endpoint": (
        server(NODES, gpu={FIRST: {"iommu_group": 1}, SECOND: {"iommu_group": 1}}),
        f"its IOMMU group also has {SECOND} (GH100 [H100 SXM5 80GB])",
    ),
}


def test_an_iommu_that_is_off_is_told_before_all_else() -> None:
    found = with_first(boot_vga=True, iommu_group=None)
    off = Iommu(translating=False, reason="intel_iommu=off")
    without = replace(found, inventory=replace(found.inventory, iommu=off))
    for wish in ({"devices": (FIRST,)}, {"gpus": 3}):
        with pytest.raises(NoCapacity) as caught:
            place(asking(**wish), without)
        assert "the IOMMU is off: intel_iommu=off" in f"{caught.value.message} {caught.value.hint}"
    assert place(asking(devices=(SECOND,), bind=False), without).devices == (SECOND,)


def test_a_host_without_gpus_is_told() -> None:
    found = server(NODES)
    others = tuple(each for each in found.inventory.functions if not each.is_gpu)
    with pytest.raises(NoCapacity, match="1 GPU cannot be chosen: the host has no GPU") as caught:
        place(asking(gpus=1), replace(found, inventory=replace(found.inventory, functions=others)))
    assert caught.value.hint


def test_what_is_needed_is_told_with_what_is_free() -> None:
    with pytest.raises(NoCapacity, match=r"have [0-9]+ free CPUs, and 500 are needed") as caught:
        place(asking(devices=(FIRST,), cpus=500), server(NODES))
    assert caught.value.hint
    with pytest.raises(NoCapacity, match=r"in free hugepages, and 1 TiB are needed"):
        place(asking(devices=(FIRST,), hugepages=1 << 40), server(NODES))


def test_a_boot_display_that_is_on_vfio_is_given_to_who_names_it() -> None:
    with pytest.raises(NoCapacity, match="cannot be claimed: it is the boot display") as caught:
        place(asking(devices=(FIRST,)), with_first(boot_vga=True))
    assert caught.value.next_command == f"vfioctl bind {FIRST} --allow-boot-vga"
    bound = with_first(boot_vga=True, driver="vfio-pci")
    assert place(asking(devices=(FIRST,)), bound).devices == (FIRST,)
    assert FIRST not in place(asking(gpus=1), bound).devices


@pytest.mark.parametrize("capacity", [each for each, _ in REASONS.values()], ids=list(REASONS))
def test_a_gpu_is_not_chosen_and_the_reason_is_told(capacity: Capacity, request: pytest.FixtureRequest) -> None:
    reason = REASONS[request.node.callspec.id][1]
    found = place(asking(gpus=1), capacity)
    assert FIRST not in found.devices
    (told,) = (each for each in found.others if each.device == FIRST)
    assert told.reason.startswith(reason)
    assert not told.free
    with pytest.raises(NoCapacity) as caught:
        place(asking(gpus=3), capacity)
    assert reason in str(caught.value.facts)
    with pytest.raises(NoCapacity, match="cannot be claimed") as caught:
        place(asking(devices=[FIRST]), capacity)
    assert reason in caught.value.message


def test_devices_of_one_group_can_be_had_together() -> None:
    capacity, _ = REASONS["foreign endpoint"]
    assert place(asking(devices=[FIRST, SECOND]), capacity).devices == (FIRST, SECOND)


def test_a_bridge_in_the_group_is_no_foreign_endpoint() -> None:
    capacity = server(NODES, gpu={FIRST: {"iommu_group": 1}, PORT: {"iommu_group": 1}})
    assert FIRST not in refused(asking(gpus=1), capacity)


def test_what_travels_with_a_claimed_device_is_not_chosen() -> None:
    gpu = {FIRST: {"iommu_group": 1}, SECOND: {"iommu_group": 1}}
    found = refused(asking(gpus=1), server(NODES, gpu=gpu, taken=Taken(whole={SECOND: CLAIM})))
    assert found[FIRST] == f"{SECOND}, which travels with it, is claimed by vm/other (c-12)"


def test_without_binding_groups_do_not_matter_and_the_host_s_gpus_can_be_had() -> None:
    request = asking(gpus=1, bind=False)
    assert FIRST not in refused(request, with_first(iommu_group=None))
    assert FIRST not in refused(request, with_settings(modes={FIRST: "host"}))
    assert FIRST in refused(request, with_settings(modes={FIRST: "vgpu"}))


def test_the_mode_of_an_address_goes_before_that_of_its_ids() -> None:
    capacity = with_settings(modes={"10de:2330": "host", SECOND: "passthrough"})
    assert place(asking(gpus=1), capacity).devices == (SECOND,)


class TestVirtualFunctions:
    VF: ClassVar[Mapping[str, Any]] = {"physfn": SECOND}

    def test_is_given_by_name_only(self) -> None:
        capacity = server(NODES, gpu={FIRST: self.VF})
        assert place(asking(devices=[FIRST]), capacity).devices == (FIRST,)
        with pytest.raises(NoCapacity) as caught:
            place(asking(gpus=3), capacity)
        assert FIRST not in str(caught.value.facts)

    @pytest.mark.parametrize(
        ("taken", "settings", "reason"),
        [
            (Taken(whole={SECOND: CLAIM}), {}, f"its PF {SECOND} is claimed by vm/other"),
            (Taken(), {"reserved": [SECOND]}, "reserved"),
            (Taken(), {"modes": {SECOND: "passthrough"}}, "its mode in the configuration is passthrough"),
        ],
    )
    def test_is_refused_with_its_pf(self, taken: Taken, settings: Mapping[str, Any], reason: str) -> None:
        capacity = server(NODES, gpu={FIRST: self.VF}, taken=taken, settings=read_document(ClaimSettings, settings))
        with pytest.raises(NoCapacity, match=reason):
            place(asking(devices=[FIRST]), capacity)

    def test_is_free_beside_claimed_ones(self) -> None:
        capacity = server(NODES, gpu={FIRST: self.VF}, taken=Taken(shared={SECOND: (CLAIM,)}))
        assert place(asking(devices=[FIRST]), capacity).devices == (FIRST,)


class TestMediatedDevices:
    GPU: ClassVar[Mapping[PciAddress, Any]] = {FIRST: {"mdevs": (MDEV,)}}

    def test_is_given_with_the_cpus_of_its_parent(self) -> None:
        found = place(asking(devices=[MDEV], cpus=2), server(NODES, gpu=self.GPU))
        assert (found.devices, found.functions, found.nodes, found.cpus) == ((MDEV,), (), (0,), (1, 9))

    @pytest.mark.parametrize("taken", [{MDEV: CLAIM}, {FIRST: CLAIM}])
    def test_is_refused_if_it_or_its_parent_is_claimed(self, taken: Mapping[Any, Any]) -> None:
        with pytest.raises(NoCapacity, match="claimed by vm/other"):
            place(asking(devices=[MDEV]), server(NODES, gpu=self.GPU, taken=Taken(whole=taken)))

    def test_on_no_pci_function_is_given_with_the_cpus_of_any_node(self) -> None:
        capacity = replace(server(NODES), parents={MDEV: "mtty"})
        found = place(asking(devices=[MDEV], cpus=2), capacity)
        assert (found.devices, found.functions, found.nodes, len(found.cpus)) == ((MDEV,), (), (), 2)
        with pytest.raises(NoCapacity, match="its parent mtty is claimed by vm/other"):
            place(asking(devices=[MDEV]), replace(capacity, taken=Taken(whole={"mtty": CLAIM})))

    def test_that_is_not_there_is_unknown(self) -> None:
        with pytest.raises(UnknownDevice, match="no mediated device"):
            place(asking(devices=[MDEV]), server(NODES))


class TestModelsAndMemory:
    @pytest.mark.parametrize("model", ["H100", "h100 sxm5", "10de:2330", "10DE:2330", "big", "BIG"])
    def test_a_model_is_a_part_of_the_name_or_the_ids_or_an_alias(self, model: str) -> None:
        capacity = with_settings(models={"big": ["A100", "10de:2330"]})
        assert not refused(asking(gpus=1, model=model), capacity)

    @pytest.mark.parametrize("model", ["A100", "10de:2331", "small"])
    def test_others_are_no_such_gpu(self, model: str) -> None:
        with pytest.raises(NoCapacity) as caught:
            place(asking(gpus=1, model=model), with_settings(models={"small": ["T4"]}))
        assert f"it is no {model}" in caught.value.hint

    @pytest.mark.parametrize(
        ("size", "fits"), [(80 * 10**9, True), (80 * 10**9 + 1, False), (80 << 30, False), (74 << 30, True), (1, True)]
    )
    def test_memory_is_that_of_the_name_without_nvml(self, size: int, fits: bool) -> None:
        assert (FIRST not in refused(asking(gpus=1, memory_min=size), server(NODES))) is fits

    def test_memory_that_error_correction_uses_does_not_count(self) -> None:
        from vfioctl.inventory.model.functions import Nvml

        capacity = with_first(nvml=Nvml(memory_bytes=46068 << 20), device_name="AD102GL [L40S]")
        assert FIRST not in refused(asking(gpus=1, memory_min=48 * 10**9), capacity)
        for size in (48 << 30, 64 << 30):
            assert refused(asking(gpus=1, memory_min=size), capacity)[FIRST] == "it has 45 GiB of memory"

    def test_memory_that_nobody_tells_is_not_enough(self) -> None:
        capacity = with_first(device_name="AD102GL [L40S]")
        assert refused(asking(gpus=1, memory_min=1), capacity)[FIRST].startswith("its memory is not known")


class TestNodes:
    def test_of_one_node(self) -> None:
        found = place(asking(gpus=1, numa=1), server(NODES))
        assert (found.devices, found.nodes) == ((THIRD,), (1,))
        assert {each.reason for each in found.others} == {"it is on NUMA node 0"}

    def test_the_same_for_all(self) -> None:
        assert place(asking(gpus=2, numa="same"), server(NODES)).nodes == (0,)
        with pytest.raises(NoCapacity, match="no NUMA node has 3 GPUs"):
            place(asking(gpus=3, numa="same"), server(NODES))
        assert place(asking(gpus=3), server(NODES)).nodes == (0, 1)

    def test_named_devices_of_two_nodes_are_not_of_the_same(self) -> None:
        with pytest.raises(NoCapacity, match="on NUMA nodes 0, 1, not on one"):
            place(asking(devices=[FIRST, THIRD], numa="same"), server(NODES))

    def test_a_node_that_is_not_known_is_no_node(self) -> None:
        unknown = {"numa_node": None}
        capacity = server(NODES, gpu={FIRST: unknown, PciAddress("0000:00:01.0"): unknown})
        assert refused(asking(gpus=1, numa="same"), capacity)[FIRST] == "its NUMA node is not known"
        assert refused(asking(gpus=1, numa=0), capacity)[FIRST] == "its NUMA node is not known"
        found = place(asking(devices=[FIRST], cpus=8), capacity)
        assert (found.nodes, len(found.cpus)) == ((), 8), "CPUs of any node"

    def test_the_bridge_above_a_gpu_tells_its_node(self) -> None:
        capacity = server(NODES, gpu={FIRST: {"numa_node": None}})
        assert place(asking(devices=[FIRST], cpus=1), capacity).nodes == (0,)

    def test_of_a_host_with_one_node_it_is_known(self) -> None:
        capacity = server(NODES[:1], gpu={FIRST: {"numa_node": None}})
        assert place(asking(gpus=1, numa=0, cpus=1), capacity).nodes == (0,)

    def test_a_node_without_cpus_uses_those_of_the_nearest(self) -> None:
        capacity = server([Node(((0,),), caches=()), Node(caches=(4,)), Node(caches=(4,))])
        found = place(asking(gpus=1, cpus=4), capacity)
        assert {capacity.topology.core_of[cpu].node for cpu in found.cpus} == {1}

    def test_a_node_without_enough_cpus_is_not_chosen(self) -> None:
        found = place(asking(gpus=1, cpus=8), server([Node(((0, 0),), caches=(3,)), Node(((0,),), caches=(5,))]))
        assert found.nodes == (1,)
        assert {each.reason for each in found.others} == {"NUMA node 0 has 4 free CPUs"}


class TestQuotas:
    @pytest.mark.parametrize(
        ("quotas", "gpus", "over"),
        [
            ({"vm/a": 2}, 1, ""),
            ({"vm/a": 2}, 2, "over the quota of vm/a: 2 GPUs, of which it has 1"),
            ({"vm/*": 1}, 1, "over the quota of vm/a: 1 GPU, of which it has 1"),
            ({"vm/*": 1, "vm/a": 3}, 2, ""),
            ({"user/*": 0}, 2, ""),
            ({"team=x": 2}, 1, "over the quota of team=x: 2 GPUs, of which it has 2"),
            ({"team=*": 3}, 1, ""),
            ({"other=*": 0}, 1, ""),
        ],
    )
    def test_a_quota_is_for_all_claims_of_an_owner_or_with_a_label(
        self, quotas: Mapping[str, int], gpus: int, over: str
    ) -> None:
        taken = Taken(owners={Owner("vm/a"): 1}, labels={("team", "x"): 2})
        capacity = server(NODES, taken=taken, settings=ClaimSettings(quotas=quotas))
        for wanted in ({"gpus": gpus}, {"devices": [FIRST, SECOND][:gpus]}):
            request = asking(**wanted, labels={"team": "x"})
            if over:
                with pytest.raises(NoCapacity) as caught:
                    place(request, capacity)
                assert caught.value.message == over
                assert over in str(caught.value.facts["devices"])
            else:
                assert len(place(request, capacity).devices) == gpus


class TestPartitions:
    def test_a_gpu_of_the_fabric_is_given_in_a_whole_partition(self) -> None:
        gpus = gpus_of(server([Node(((4, 4),))]))
        partitions = [gpus[:4], gpus[4:], gpus[:2], gpus[2:4]]
        capacity = server([Node(((4, 4),))], settings=read_document(ClaimSettings, {"partitions": partitions}))
        assert place(asking(gpus=4), capacity).devices in (gpus[:4], gpus[4:])
        assert place(asking(gpus=2), capacity).devices == gpus[:2]
        with pytest.raises(NoCapacity, match="no free partition has 3 GPUs"):
            place(asking(gpus=3), capacity)

    def test_one_that_spoils_the_fewest_others_is_chosen(self) -> None:
        gpus = gpus_of(server([Node(((4,),))]))
        partitions = [gpus, gpus[:2], gpus[2:], gpus[:1], gpus[1:2], gpus[2:3], gpus[3:]]
        settings = read_document(ClaimSettings, {"partitions": partitions})
        capacity = server([Node(((4,),))], settings=settings, taken=Taken(whole={gpus[1]: CLAIM}))
        assert place(asking(gpus=1), capacity).devices == gpus[:1], "the others could still be had as two"


def test_cpus_beside_cards_that_others_chose() -> None:
    vgpus = NewVgpus(THIRD, "1145", 2)
    found = place_near([vgpus], asking(vgpu="L40S-12Q", cpus=4), server(NODES))
    assert (found.devices, found.vgpus, found.nodes, len(found.cpus)) == ((), (vgpus,), (1,), 4)
    with pytest.raises(NoCapacity, match="have 6 free CPUs"):
        place_near([vgpus], asking(vgpu="L40S-12Q", cpus=8), server(NODES))
    elsewhere = place_near([NewVgpus("mtty", "mtty-2", 1)], asking(vgpu="mtty-2", cpus=4), server(NODES))
    assert (elsewhere.nodes, len(elsewhere.cpus)) == ((), 4), "a parent of no node: the CPUs of any"


def test_cards_for_vgpus_are_refused_by_other_rules() -> None:
    capacity = server(
        NODES,
        gpu={FIRST: {"mdevs": (MDEV,)}},
        taken=Taken(shared={FIRST: (CLAIM,)}, whole={SECOND: CLAIM}),
        settings=read_document(ClaimSettings, {"modes": {THIRD: "passthrough"}}),
    )
    assert set(refused(asking(vgpu="A2-4C"), capacity)) == {SECOND, THIRD}


def test_a_request_for_nothing_is_refused() -> None:
    with pytest.raises(BadSpec):
        place(asking(), server(NODES))
    with pytest.raises(UnknownDevice, match="no device"):
        place(asking(devices=["0000:ff:00.0"]), server(NODES))
