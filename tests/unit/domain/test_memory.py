"""A domain's memory: whole pages, some for each node, and none that others have or that is promised to them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.hosts.machines import copy, machine, original
from vfioctl.core.limits import read_document
from vfioctl.domain.build.build import DomainBuilder
from vfioctl.domain.build.layout.memory import divide
from vfioctl.domain.model.libvirt import NOBODY, Others
from vfioctl.domain.model.spec import DomainSpec, PageSize, Policy
from vfioctl.errors import BadSpec, NoCapacity
from vfioctl.host import Host
from vfioctl.inventory.model.values import PciAddress
from vfioctl.placement.model.capacity import HugepagePool
from vfioctl.placement.model.claims import Owner
from vfioctl.placement.model.request import ClaimRequest

MIB, GIB = 1 << 20, 1 << 30
CAPACITY = Host.recorded("hgx8").claims.capacity()
WISH = {"name": "b", "devices": ["0000:43:00.0"], "cpus": 4, "memory": "32GiB", "hugepages": "1GiB"}
FREE = {0: 800 * GIB, 1: 800 * GIB}


class TestEachNodeHasSome:
    def test_pages_of_which_there_are_too_few_are_not_taken(self) -> None:
        found = divide(GIB, {0: 4, 1: 4}, CAPACITY, FREE, pages=PageSize.AUTO, policy=Policy.STRICT)
        assert (found.by_node, found.page_size) == ({0: GIB // 2, 1: GIB // 2}, None)
        assert found.choices[0].excluded[0].endswith("1 are needed, at least one on each")

    def test_pages_that_must_be_are_refused(self) -> None:
        with pytest.raises(NoCapacity) as caught:
            divide(GIB, {0: 4, 1: 4}, CAPACITY, FREE, pages=PageSize.GIB, policy=Policy.STRICT)
        assert "say a larger --memory" in caught.value.hint

    def test_a_small_share_is_one_page(self) -> None:
        found = divide(4 * GIB, {0: 60, 1: 2}, CAPACITY, FREE, pages=PageSize.GIB, policy=Policy.STRICT)
        assert found.by_node == {0: 3 * GIB, 1: GIB}

    @pytest.mark.parametrize("policy", list(Policy))
    def test_less_than_a_mebibyte_for_each_is_refused(self, policy: Policy) -> None:
        with pytest.raises(NoCapacity, match="1 MiB are needed, at least one on each of 2 nodes"):
            divide(MIB, {0: 4, 1: 4}, CAPACITY, FREE, pages=PageSize.NONE, policy=policy)


class TestShares:
    @pytest.mark.parametrize(
        ("rooms", "weaker"),
        [
            ({0: 480, 1: 480}, ""),
            ({0: 480, 1: 16}, ""),
            (
                {0: 480, 1: 15},
                "15 GiB on node 1 for 8 of 16 vCPUs: they also use memory of other nodes, which is slower",
            ),
        ],
    )
    def test_less_than_half_of_a_share_is_told(self, rooms: dict[int, int], weaker: str) -> None:
        pools = tuple(HugepagePool(node, GIB, pages, pages) for node, pages in rooms.items())
        capacity = replace(CAPACITY, hugepages=pools)
        found = divide(64 * GIB, {0: 8, 1: 8}, capacity, FREE, pages=PageSize.GIB, policy=Policy.STRICT)
        assert found.by_node[1] == min(32, rooms[1]) * GIB
        assert found.choices[0].weaker == weaker

    def test_of_ordinary_memory_too(self) -> None:
        free = {0: 800 * GIB, 1: GIB}
        found = divide(64 * GIB, {0: 8, 1: 8}, CAPACITY, free, pages=PageSize.NONE, policy=Policy.STRICT)
        assert found.choices[0].weaker.startswith("1 GiB on node 1 for 8 of 16 vCPUs")


class TestWholePages:
    def test_memory_that_does_not_fill_them_is_refused(self) -> None:
        with pytest.raises(BadSpec, match="1500 MiB of memory are no whole number of 1GiB pages") as caught:
            divide(1500 * MIB, {0: 4}, CAPACITY, FREE, pages=PageSize.GIB, policy=Policy.STRICT)
        assert caught.value.hint == "say --memory 2GiB, or a smaller size of --hugepages"

    def test_or_the_difference_is_told(self) -> None:
        found = divide(1500 * MIB, {0: 4}, CAPACITY, FREE, pages=PageSize.GIB, policy=Policy.PREFERRED)
        assert found.by_node == {0: 2 * GIB}
        assert found.choices[0].weaker == "2 GiB instead of 1500 MiB, in whole pages"


class TestPromisedPages:
    """Node 0 has 512 pages, of which 480 are free."""

    @pytest.mark.parametrize(
        ("owner", "pages", "others", "enough"),
        [
            ("vm/a", 480, NOBODY, False),
            ("vm/a", 448, NOBODY, True),
            ("vm/a", 480, Others({}, {}, running=("a",)), True),  # the 32 pages that are used may be its own
            ("vm/a", 480, Others({}, {}, running=("c",)), False),
            ("pod/ml/a/main", 480, NOBODY, True),
        ],
    )
    def test_are_not_free(self, tmp_path: Path, owner: str, pages: int, others: Others, *, enough: bool) -> None:
        host = machine(copy(original("hgx8")), tmp_path / "ledger.db")
        gpu = PciAddress("0000:1b:00.0")
        host.claims.create(ClaimRequest(owner=Owner(owner), devices=(gpu,), hugepages=pages * GIB, bind=False))
        building, spec = DomainBuilder(host.session), read_document(DomainSpec, WISH)
        if enough:
            assert building.build(spec, others).layout.page_size == GIB
        else:
            with pytest.raises(NoCapacity, match="too few free hugepages"):
                building.build(spec, others)

    def test_are_its_own(self, tmp_path: Path) -> None:
        host = machine(copy(original("hgx8")), tmp_path / "ledger.db")
        gpu = PciAddress("0000:1b:00.0")
        request = ClaimRequest(owner=Owner("vm/a"), devices=(gpu,), hugepages=480 * GIB, bind=False)
        spec = DomainSpec(name="a", claim=host.claims.create(request).claim.id, cpus=4)
        assert host.domain.build(spec).layout.memory == 480 * GIB


def test_more_memory_than_the_host_has_is_refused() -> None:
    wish = {"name": "a", "gpus": 1, "cpus": 2, "memory": "1500GiB", "policy": "preferred"}
    with pytest.raises(NoCapacity, match="the host has 131072 MiB of memory in all, and 1536000 MiB are asked for"):
        Host.recorded("t4").domain.build(read_document(DomainSpec, wish))
