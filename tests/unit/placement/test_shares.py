"""Which GPU gives a share: never more than all of one, the least free that fits, and reasons for each other GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hosts.machines import function, inventory_of, unhurried
from vfioctl.errors import BadSpec, NoCapacity
from vfioctl.inventory.model.functions import Function, Nvml
from vfioctl.inventory.model.values import PciAddress
from vfioctl.placement.model.capacity import Capacity
from vfioctl.placement.model.claims import Owner, Taken
from vfioctl.placement.model.placement import Placement
from vfioctl.placement.model.request import ClaimRequest
from vfioctl.placement.model.settings import ClaimSettings, Mode
from vfioctl.placement.model.share import MEMORY_UNIT, GpuShare, cores_in, memory_in
from vfioctl.placement.place import place

GIB = 1 << 30
ADDRESSES = tuple(PciAddress(f"0000:{bus:02x}:00.0") for bus in (1, 2, 3, 4))
CLAIM = ("c1", Owner("pod/ml/a/main"))
POD = "pod/ml/b/main"


def gpu(address: str, **facts: object) -> Function:
    nvml = Nvml(uuid=f"GPU-{address}", memory_bytes=16 * GIB)
    return replace(function(address, driver="nvidia", nvml=nvml), **facts)  # type: ignore[arg-type]


def capacity(*gpus: Function, taken: Taken | None = None, settings: ClaimSettings | None = None) -> Capacity:
    some = gpus or tuple(map(gpu, ADDRESSES))
    return Capacity(inventory_of(*some), taken=taken or Taken(), settings=settings or ClaimSettings())


def shared(*shares: tuple[int, int, int]) -> Taken:
    """What claims take: (the number of the GPU, cores, GiB)."""
    by_gpu: dict[str, tuple[GpuShare, ...]] = {}
    for number, cores, memory in shares:
        address = ADDRESSES[number]
        by_gpu[address] = (*by_gpu.get(address, ()), GpuShare(address, cores, memory * GIB, 16 * GIB))
    return Taken(shared=dict.fromkeys(by_gpu, (CLAIM,)), shares=by_gpu)


def asked(cores: int = 0, memory: int = 0, **more: object) -> ClaimRequest:
    return ClaimRequest(owner=POD, cores=cores, gpu_memory=memory * GIB, bind=False, **more)  # type: ignore[arg-type]


def chosen(placement: Placement) -> str:
    (share,) = placement.shares
    return share.address


class TestUnits:
    @pytest.mark.parametrize("cores", [101, 150, 250, 199])
    def test_a_part_of_several_gpus_is_refused_with_what_is_possible(self, cores: int) -> None:
        with pytest.raises(BadSpec, match="a part of several GPUs") as refused:
            cores_in(cores)
        assert str(cores // 100 * 100) in refused.value.hint
        assert str((cores // 100 + 1) * 100) in refused.value.hint

    @given(st.integers(0, 1 << 40))
    def test_memory_is_rounded_up_to_whole_units(self, size: int) -> None:
        rounded = memory_in(size)
        assert rounded % MEMORY_UNIT == 0
        assert size <= rounded < size + MEMORY_UNIT

    @pytest.mark.parametrize(
        ("request_", "words"),
        [
            ({"cores": 100, "gpu_memory": GIB}, "whole GPUs, with all of their memory"),
            ({"cores": 40, "gpus": 1}, "make two claims"),
            ({"cores": 40, "vgpu": "A2-4C"}, "make two claims"),
            ({"cores": 40, "enforce": "luck"}, "no enforcement"),
            ({"gpus": 1, "enforce": "mps"}, "for shares of a GPU"),
            ({"gpus": 1, "spread": True}, "for shares of a GPU"),
            ({"cores": 40, "devices": ADDRESSES[:2]}, "and 2 are named"),
            ({"cores": 40, "owner": "vm/web1"}, "a virtual machine cannot have"),
        ],
    )
    def test_an_unclear_request_is_refused(self, request_: dict[str, object], words: str) -> None:
        with pytest.raises(BadSpec) as refused:
            ClaimRequest(**{"owner": POD, "bind": False, **request_})  # type: ignore[arg-type]
        assert words in f"{refused.value.message} {refused.value.hint}"

    def test_a_request_without_a_share_reads_as_in_earlier_releases(self) -> None:
        text = ClaimRequest(owner=POD, gpus=1).canonical()
        assert not any(name in text for name in ("cores", "gpu_memory", "enforce", "spread"))


class TestAShare:
    def test_is_of_the_gpu_with_the_least_free_that_fits(self) -> None:
        taken = shared((0, 30, 0), (1, 60, 0), (2, 90, 0))
        assert chosen(place(asked(40), capacity(taken=taken))) == ADDRESSES[1]

    def test_is_of_the_gpu_with_the_most_free_if_spread(self) -> None:
        taken = shared((0, 30, 0), (1, 60, 0), (2, 90, 0))
        assert chosen(place(asked(40, spread=True), capacity(taken=taken))) == ADDRESSES[3]

    def test_of_memory_alone_needs_no_free_cores(self) -> None:
        assert chosen(place(asked(memory=4), capacity(taken=shared((0, 99, 8))))) == ADDRESSES[0]

    def test_says_what_was_free_and_why_not_each_other_gpu(self) -> None:
        placement = place(asked(40, 4), capacity(taken=shared((0, 70, 0), (1, 10, 14))))
        assert placement.why[0].startswith(f"{ADDRESSES[2]} had 100 of 100 cores and 16 GiB of 16 GiB free")
        reasons = {other.device: other.reason for other in placement.others}
        assert reasons[ADDRESSES[0]] == "30 of its 100 cores are free"
        assert reasons[ADDRESSES[1]] == "2 GiB of its memory is free"
        assert reasons[ADDRESSES[3]] == "100 of 100 cores and 16 GiB of 16 GiB free"

    def test_names_its_gpu_for_containers(self) -> None:
        (share,) = place(asked(40), capacity()).shares
        assert share.cdi == f"nvidia.com/gpu=GPU-{ADDRESSES[0]}"

    @pytest.mark.parametrize(
        ("facts", "why"),
        [
            ({"driver": "vfio-pci"}, "it is on vfio-pci, for guests"),
            ({"driver": None}, "no driver has it"),
            ({"driver": "ast"}, "its driver ast runs no programs on it"),
            ({"virtfns": (PciAddress("0000:01:00.4"),)}, "it has 1 VF"),
            ({"nvml": Nvml(memory_bytes=16 * GIB, mig_mode=True)}, "MIG is on"),
        ],
    )
    def test_is_of_no_gpu_that_cannot_be_shared(self, facts: dict[str, object], why: str) -> None:
        with pytest.raises(NoCapacity) as refused:
            place(asked(40), capacity(gpu(ADDRESSES[0], **facts)))
        assert why in refused.value.hint + refused.value.message

    @pytest.mark.parametrize(
        ("settings", "taken"),
        [
            (ClaimSettings(modes={ADDRESSES[0]: Mode.PASSTHROUGH}), Taken()),
            (ClaimSettings(reserved=(ADDRESSES[0],)), Taken()),
            (ClaimSettings(), Taken(whole={ADDRESSES[0]: CLAIM})),
            (ClaimSettings(), Taken(shared={ADDRESSES[0]: (CLAIM,)})),
        ],
    )
    def test_is_of_no_gpu_that_is_for_others(self, settings: ClaimSettings, taken: Taken) -> None:
        with pytest.raises(NoCapacity):
            place(asked(40), capacity(gpu(ADDRESSES[0]), taken=taken, settings=settings))

    def test_of_the_boot_display_is_given_where_it_is_named_only(self) -> None:
        display = capacity(gpu(ADDRESSES[0], boot_vga=True))
        with pytest.raises(NoCapacity):
            place(asked(40), display)
        assert chosen(place(asked(40, devices=(ADDRESSES[0],)), display)) == ADDRESSES[0]

    def test_keeps_vfs_of_its_gpu_from_guests(self) -> None:
        physical, virtual = gpu(ADDRESSES[0], virtfns=(ADDRESSES[1],)), gpu(ADDRESSES[1], physfn=ADDRESSES[0])
        request = ClaimRequest(owner="vm/web1", gpus=1, virtual=True, bind=False)
        with pytest.raises(NoCapacity) as refused:
            place(request, capacity(physical, virtual, taken=shared((0, 10, 0))))
        assert f"its PF {ADDRESSES[0]}: shares of it are claimed by" in refused.value.hint + refused.value.message

    def test_counts_for_quotas(self) -> None:
        settings = ClaimSettings(quotas={POD: 0})
        with pytest.raises(NoCapacity, match="over the quota"):
            place(asked(10), capacity(settings=settings))


class TestWholeGpus:
    def test_stay_with_their_driver_and_have_no_shares(self) -> None:
        placement = place(asked(200), capacity(taken=shared((0, 10, 0))))
        assert placement.devices == ()
        assert [share.address for share in placement.shares] == [*ADDRESSES[1:3]]
        assert all(share.is_whole and share.memory == 0 for share in placement.shares)

    def test_are_those_that_are_named(self) -> None:
        placement = place(asked(100, devices=(ADDRESSES[2],)), capacity())
        assert [share.address for share in placement.shares] == [ADDRESSES[2]]

    def test_are_not_on_vfio(self) -> None:
        with pytest.raises(NoCapacity):
            place(asked(100, devices=(ADDRESSES[0],)), capacity(gpu(ADDRESSES[0], driver="vfio-pci")))

    def test_are_given_beside_those_of_their_iommu_group(self) -> None:
        """All four are in one; nothing is bound, so that nothing travels together."""
        taken = Taken(whole={ADDRESSES[0]: CLAIM})
        placement = place(asked(100), capacity(taken=taken))
        assert [share.address for share in placement.shares] == [ADDRESSES[1]]
        place(asked(100, devices=(ADDRESSES[1],)), capacity(taken=taken))
        with pytest.raises(NoCapacity, match="claimed by"):
            place(asked(100, devices=(ADDRESSES[0],)), capacity(taken=taken))

    def test_are_none_of_which_others_have_shares(self) -> None:
        with pytest.raises(NoCapacity, match="shares of it are claimed by"):
            place(asked(100, devices=(ADDRESSES[0],)), capacity(taken=shared((0, 10, 0))))

    def test_of_the_boot_display_are_given_where_it_is_named_only(self) -> None:
        display = capacity(gpu(ADDRESSES[0], boot_vga=True))
        with pytest.raises(NoCapacity):
            place(asked(100), display)
        placement = place(asked(100, devices=(ADDRESSES[0],)), display)
        assert [share.address for share in placement.shares] == [ADDRESSES[0]]

    def test_on_no_known_node_are_not_on_the_same(self) -> None:
        with pytest.raises(NoCapacity) as refused:
            place(asked(100, numa="same"), capacity(gpu(ADDRESSES[0])))
        assert "its NUMA node is not known" in refused.value.hint + refused.value.message

    def test_count_for_quotas(self) -> None:
        for devices in ((), ADDRESSES[:1]):
            with pytest.raises(NoCapacity, match="over the quota"):
                place(asked(100, devices=devices), capacity(settings=ClaimSettings(quotas={POD: 0})))

    def test_for_guests_are_none_of_which_containers_have_shares(self) -> None:
        request = ClaimRequest(owner="vm/web1", gpus=4, bind=False)
        with pytest.raises(NoCapacity):
            place(request, capacity(taken=shared((0, 10, 0))))


amounts = st.tuples(st.integers(0, 99), st.integers(0, 16)).filter(any)


class TestEachSequenceOfRequests:
    @unhurried
    @given(st.lists(st.tuples(amounts, st.booleans()), max_size=30))
    def test_gives_never_more_than_all_of_a_gpu_and_refuses_only_what_does_not_fit(
        self, requests: list[tuple[tuple[int, int], bool]]
    ) -> None:
        given_: list[tuple[int, int, int]] = []
        for (cores, memory), spread in requests:
            fits = [
                number
                for number in range(len(ADDRESSES))
                if cores + sum(c for n, c, _ in given_ if n == number) <= 100
                and memory + sum(m for n, _, m in given_ if n == number) <= 16
            ]
            try:
                placement = place(asked(cores, memory, spread=spread), capacity(taken=shared(*given_)))
            except NoCapacity:
                assert not fits
                continue
            number = ADDRESSES.index(PciAddress(chosen(placement)))
            assert number in fits
            given_.append((number, cores, memory))
