"""Which of a set of devices a claim of so many would choose, why it would not get others, and what a word means."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hosts.machines import FOUR_GPUS, copy, machine, original
from vfioctl.errors import VfioctlError
from vfioctl.host import Host
from vfioctl.inventory.model.values import PciAddress, Subject
from vfioctl.placement.choosing.preferred import on_few_nodes
from vfioctl.placement.model.claims import Owner, Taken
from vfioctl.placement.model.request import ClaimRequest
from vfioctl.units import Uuid

GPUS = tuple(map(PciAddress, (*FOUR_GPUS, "0000:9d:00.0", "0000:c3:00.0", "0000:d1:00.0", "0000:df:00.0")))
"""Of hgx8: four on each NUMA node."""
NOBODY = Taken()
MDEVS = tuple(Uuid(f"00000000-0000-4000-8000-{number:012}") for number in range(6))


@pytest.fixture
def host(fast_folder: Path) -> Host:
    return machine(copy(original("hgx8")), fast_folder / "ledger.db")


def preferred(host: Host, available: tuple[Subject, ...], count: int, *must: Subject) -> tuple[Subject, ...]:
    return host.placement.prefer(available, must, count, NOBODY, {})


class TestWholeGpus:
    def test_are_those_that_a_claim_would_get(self, host: Host) -> None:
        for count in (1, 2, 4):
            placement, _ = host.claims.place(ClaimRequest(owner=Owner("vm/a"), gpus=count))
            assert set(preferred(host, GPUS, count)) == set(placement.devices)

    def test_are_on_one_node(self, host: Host) -> None:
        inventory = host.inventory()
        chosen = preferred(host, GPUS[2:], 4)
        assert {inventory.by_address[gpu].numa_node for gpu in chosen} == {1}  # type: ignore[index]

    def test_are_near_those_that_must_be_there(self, host: Host) -> None:
        inventory = host.inventory()
        chosen = preferred(host, GPUS, 3, GPUS[5])
        assert chosen[0] == GPUS[5]
        assert {inventory.by_address[gpu].numa_node for gpu in chosen} == {1}  # type: ignore[index]

    def test_are_as_many_as_asked_for_and_no_others(self, host: Host) -> None:
        for count in range(1, 9):
            chosen = preferred(host, GPUS, count)
            assert len(set(chosen)) == len(chosen) == count
        assert set(preferred(host, GPUS[:3], 3)) == set(GPUS[:3])

    def test_are_those_that_must_be_there_alone(self, host: Host) -> None:
        assert preferred(host, GPUS, 2, GPUS[0], GPUS[7]) == (GPUS[0], GPUS[7])

    def test_are_chosen_even_if_one_was_claimed_a_moment_ago(self, host: Host) -> None:
        host.claims.create(ClaimRequest(owner=Owner("vm/a"), devices=GPUS[:1]))
        chosen = host.placement.prefer(GPUS[:2], (), 2, host.claims.ledger.taken(), {})
        assert set(chosen) == set(GPUS[:2])

    def test_are_chosen_even_if_one_is_gone(self, host: Host) -> None:
        gone = PciAddress("0000:fe:00.0")
        assert set(preferred(host, (GPUS[0], gone), 2)) == {GPUS[0], gone}


class TestOthers:
    NODES: Mapping[Subject, int | None] = MappingProxyType(dict(zip(MDEVS, (0, 0, 1, 1, 1, None), strict=True)))

    @pytest.mark.parametrize(
        ("count", "must", "chosen"),
        [
            (2, (), (0, 1)),  # the node where the fewest are left over
            (3, (), (2, 3, 4)),
            (1, (), (0,)),
            (2, (3,), (3, 2)),
            (4, (0,), (0, 1, 2, 3)),
            (6, (), (2, 3, 4, 0, 1, 5)),
            (1, (5,), (5,)),
            (0, (), ()),
        ],
    )
    def test_are_on_few_nodes(self, count: int, must: tuple[int, ...], chosen: tuple[int, ...]) -> None:
        found = on_few_nodes(MDEVS, tuple(MDEVS[n] for n in must), count, self.NODES)
        assert found == tuple(MDEVS[n] for n in chosen)

    @given(st.data())
    def test_are_always_as_many_as_there_can_be(self, data: st.DataObject) -> None:
        available = data.draw(st.lists(st.sampled_from(MDEVS), unique=True))
        must = data.draw(st.lists(st.sampled_from(available), unique=True)) if available else []
        count = data.draw(st.integers(len(must), max(len(must), len(available))))
        nodes: dict[Subject, int | None] = {m: data.draw(st.sampled_from([None, 0, 1, 2])) for m in available}
        chosen = on_few_nodes(available, must, count, nodes)
        assert len(set(chosen)) == len(chosen) == count
        assert set(must) <= set(chosen) <= set(available)

    def test_with_and_without_a_function_are_ordered_by_node(self, host: Host) -> None:
        nodes: dict[Subject, int | None] = {GPUS[0]: 1, MDEVS[0]: 0, MDEVS[1]: 0}
        chosen = host.placement.prefer((GPUS[0], *MDEVS[:2]), (), 2, NOBODY, nodes)
        assert chosen == MDEVS[:2]


class TestWhyNot:
    def test_is_nothing_for_what_a_claim_gets(self, host: Host) -> None:
        inventory = host.inventory()
        gpus = [inventory.by_address[gpu] for gpu in GPUS]
        assert host.placement.why_not(gpus, inventory, NOBODY, bind=True) == {}

    @pytest.mark.parametrize("host_name", ["busy", "laptop", "shared-group", "mi300x", "iommu-off", "l40s"])
    @pytest.mark.parametrize("bind", [True, False])
    def test_is_what_a_claim_says(self, fast_folder: Path, host_name: str, bind: bool) -> None:
        """What a claim would get is got, and what it would not get is refused."""
        host = machine(copy(original(host_name)), fast_folder / "ledger.db")
        inventory = host.inventory()
        whole = [gpu for gpu in inventory.gpus if not gpu.is_vf]
        reasons = host.placement.why_not(whole, inventory, NOBODY, bind=bind)
        for gpu in whole:
            request = ClaimRequest(owner=Owner("vm/a"), devices=(gpu.address,), bind=bind)
            refused = False
            try:
                host.claims.create(request)
            except VfioctlError:
                refused = True
            assert refused == (gpu.address in reasons), (gpu.address, reasons.get(gpu.address))


class TestWords:
    @pytest.mark.parametrize(
        ("word", "count"),
        [
            ("10de:2330", 8),
            ("H100", 8),
            ("h100 sxm5", 8),
            (str(GPUS[0]), 1),
            ("10de:0000", 0),
            ("big", 8),
            ("small", 0),
        ],
    )
    def test_mean_functions(
        self, host: Host, word: str, count: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        config = tmp_path / "config.toml"
        config.write_text('[claims.models]\nbig = ["H100"]\nsmall = ["T4"]\n')
        monkeypatch.setenv("VFIOCTL_CONFIG", str(config))
        gpus = host.inventory().gpus
        found = host.placement.are_of([word], gpus)
        assert len(found) == count

    def test_none_mean_all(self, host: Host) -> None:
        assert len(host.placement.are_of([], host.inventory().functions)) == len(host.inventory().functions)

    def test_of_a_pf_mean_its_vfs(self, fast_folder: Path) -> None:
        host = machine(copy(original("mi300x-vf")), fast_folder / "ledger.db")
        found = host.placement.are_of(["0000:05:00.0"], host.inventory().gpus)
        assert len(found) == 9
