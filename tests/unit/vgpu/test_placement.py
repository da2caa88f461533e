"""Where vGPUs are placed: on made-up cards, by example, by property, and against all splits that there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hosts.machines import unhurried
from vfioctl.errors import BadSpec, NoCapacity, UnknownDevice
from vfioctl.vgpu.model.vgpu import Count, Dialect, Sharing, SizeMode, Strategy, VgpuCard, VgpuParent, VgpuType
from vfioctl.vgpu.placement import packing
from vfioctl.vgpu.placement.candidates import Candidate
from vfioctl.vgpu.placement.capacity import GIB, after, counted
from vfioctl.vgpu.placement.placement import Placement, placed

SIZES = (16, 8, 4, 2, 1)
NAMES = tuple(f"{size}{series}" for size in SIZES for series in "QC")


@dataclass(frozen=True)
class Twin:
    """An NVIDIA card of 16 GiB as it is: what its VFs carry, and whether it may have several sizes at a time."""

    bus: str
    there: tuple[str, ...] = ()
    mixed: bool = False
    vfs: int = 16
    node: int | None = 0
    memory: bool = False

    @property
    def id(self) -> str:
        return f"0000:{self.bus}:00.0"

    def vf(self, index: int) -> str:
        return f"0000:{self.bus}:{(index + 4) // 8:02x}.{(index + 4) % 8}"

    def has_room_for(self, *more: str) -> bool:
        sizes = [int(name[:-1]) for name in (*self.there, *more)]
        return sum(sizes) <= 16 and len(sizes) <= self.vfs and (self.mixed or len(set(sizes)) < 2)

    @property
    def card(self) -> VgpuCard:
        offers = {f"nvidia-{name}": int(self.has_room_for(name)) for name in NAMES}
        carrying = [VgpuParent(self.vf(n), dict.fromkeys(offers, 0), 1) for n in range(len(self.there))]
        free = [VgpuParent(self.vf(n), offers) for n in range(len(self.there), self.vfs)]
        return counted(
            VgpuCard(
                self.id,
                Dialect.MDEV,
                numa_node=self.node,
                driver="nvidia",
                memory_bytes=16 * GIB if self.memory else None,
                types=tuple(nvidia(name, self.there.count(name)) for name in NAMES),
                parents=(*carrying, *free),
            )
        )


def nvidia(name: str, existing: int = 0) -> VgpuType:
    size = int(name[:-1])
    return VgpuType(
        f"nvidia-{name}",
        f"NVIDIA A2-{name}",
        f"A2-{name}",
        framebuffer_bytes=size * GIB,
        max_instances=16 // size,
        existing=existing,
    )


def pool(name: str, free: int, there: int = 0, node: int | None = None) -> VgpuCard:
    """A device whose types share one stock, of 256."""
    sizes = {"small": 4, "medium": 16, "large": 64}
    parent = VgpuParent(name, {kind: free // size for kind, size in sizes.items()}, there)
    types = tuple(
        VgpuType(kind, takes={"video memory": size}, framebuffer_bytes=size << 20, existing=there if size == 4 else 0)
        for kind, size in sizes.items()
    )
    return counted(VgpuCard(name, Dialect.MDEV, numa_node=node, types=types, parents=(parent,)))


def cards_of(*twins: Twin) -> list[VgpuCard]:
    return [twin.card for twin in twins]


def by_card(placement: Placement) -> dict[str, int]:
    return dict(Counter(place.card for place in placement.places))


USED, IDLE, OTHER = Twin("08", ("4C", "4C")), Twin("0a"), Twin("0b", ("8Q",))


class TestWhichType:
    @pytest.mark.parametrize("word", ["nvidia-4C", "NVIDIA A2-4C", "a2-4c"])
    def test_by_id_name_or_profile_of_all_twins(self, word: str) -> None:
        placement = placed(cards_of(USED, IDLE), word, 6)
        assert by_card(placement) == {USED.id: 2, IDLE.id: 4}
        assert {place.type for place in placement.places} == {"nvidia-4C"}

    def test_an_id_on_one_card_is_no_name_on_another(self) -> None:
        named = replace(IDLE.card, types=tuple(replace(kind, name="nvidia-4C") for kind in IDLE.card.types[:1]))
        with pytest.raises(NoCapacity, match="at most 2"):
            placed([named, USED.card], "nvidia-4C", 3)

    def test_several_of_one_card_are_named(self) -> None:
        twice = replace(IDLE.card, types=tuple(replace(kind, name="same") for kind in IDLE.card.types[:2]))
        with pytest.raises(BadSpec, match=r"'same' matches several types on 0000:0a:00\.0: nvidia-16Q, nvidia-16C"):
            placed([twice], "same", 1)

    def test_what_no_card_has(self) -> None:
        with pytest.raises(BadSpec, match="no card has a type 'A2-5C'") as error:
            placed(cards_of(USED), "A2-5C", 1)
        assert error.value.hint.startswith("there are A2-16Q, A2-16C")
        with pytest.raises(BadSpec, match=r"0000:0a:00\.0 has no type 'A2-5C'"):
            placed(cards_of(USED, IDLE), "A2-5C", 1, parent=IDLE.id)

    def test_of_many_types_twenty_are_named(self) -> None:
        kinds = tuple(replace(IDLE.card.types[0], id=f"nvidia-{n}", name=f"T-{n}", profile=f"T-{n}") for n in range(25))
        with pytest.raises(BadSpec) as error:
            placed([replace(IDLE.card, types=kinds)], "A2-5C", 1)
        named = ", ".join(f"T-{n}" for n in range(20))
        assert error.value.hint == f"there are {named} and 5 more"

    def test_vfs_that_are_off_have_no_types(self) -> None:
        off = vfs_of("0000:0c:00.0", driver="nvidia")
        with pytest.raises(BadSpec) as error:
            placed([off], "A2-4C", 1)
        assert error.value.hint == "the VFs of 0000:0c:00.0 are off: vfioctl sriov set 0000:0c:00.0 all"
        with pytest.raises(NoCapacity) as full:
            placed([Twin("08", ("16C",)).card, off], "A2-16C", 1)
        assert full.value.hint == error.value.hint
        with pytest.raises(BadSpec) as other:
            placed([vfs_of("0000:0c:00.0", driver="amdgpu")], "A2-4C", 1)
        assert "VFs" not in other.value.hint
        on = replace(off, parents=(replace(off.parents[0], instances=2),))
        with pytest.raises(BadSpec) as lacking:
            placed([on], "A2-4C", 1)
        assert lacking.value.hint == "vfioctl vgpu types lists them"

    def test_vfs_are_made_all_at_once(self) -> None:
        with pytest.raises(BadSpec, match="VFs are created together") as error:
            placed([vfs_of("0000:0c:00.0", driver="xe")], "vf", 3)
        assert error.value.next_command == "vfioctl sriov set 0000:0c:00.0 3"
        with pytest.raises(BadSpec, match="VFs are created together") as several:
            placed([vfs_of("0000:0c:00.0", driver="xe"), vfs_of("0000:0d:00.0", driver="xe")], "vf", 3)
        assert several.value.next_command == ""
        with pytest.raises(BadSpec, match="VFs are created together") as by_module:
            placed([vfs_of("0000:0c:00.0", driver="gim")], "vf", 3)
        assert "vf_num" in by_module.value.hint
        assert by_module.value.next_command == ""

    def test_nothing_is_no_number(self) -> None:
        with pytest.raises(BadSpec, match="0 vGPUs"):
            placed(cards_of(USED), "A2-4C", 0)


def vfs_of(address: str, *, driver: str) -> VgpuCard:
    kind = VgpuType("vf", "virtual function", "VF", available=Count(0, 8), max_instances=8)
    return counted(
        VgpuCard(address, Dialect.SRIOV, Sharing.VFS, driver=driver, types=(kind,), parents=(VgpuParent(address),))
    )


class TestWhere:
    def test_on_a_card_or_on_one_of_its_vfs(self) -> None:
        cards = cards_of(USED, IDLE)
        assert by_card(placed(cards, "A2-4C", 1, parent="0a:00.0")) == {IDLE.id: 1}
        assert [place.parent for place in placed(cards, "A2-4C", 1, parent="0a:01.1").places] == ["0000:0a:01.1"]

    def test_a_vf_takes_one(self) -> None:
        with pytest.raises(NoCapacity, match=r"^0000:0a:01\.1 has no room for 2 of A2-4C: at most 1$") as error:
            placed(cards_of(USED, IDLE), "A2-4C", 2, parent="0000:0a:01.1")
        assert error.value.facts == {"fits": 1, "left": {"0000:0a:01.1": 1}}

    def test_a_vf_that_carries_one_takes_none(self) -> None:
        with pytest.raises(NoCapacity, match=r"0000:08:00\.4 has no room for 1 of A2-4C: none"):
            placed(cards_of(USED), "A2-4C", 1, parent="08:00.4")

    def test_a_vendor_vf_that_carries_one_may_still_list_types(self) -> None:
        """What could be written there in its stead: its list is not about more."""
        card = USED.card
        listing = [replace(parent, offers=card.parents[-1].offers) for parent in card.parents]
        vendor = counted(replace(card, dialect=Dialect.VENDOR, parents=tuple(listing)))
        assert placed([vendor], "A2-4C", 2).places[0].parent == USED.vf(2)
        with pytest.raises(NoCapacity):
            placed([vendor], "A2-4C", 1, parent=USED.vf(0))

    def test_a_parent_that_is_none(self) -> None:
        with pytest.raises(UnknownDevice):
            placed(cards_of(USED), "A2-4C", 1, parent="0000:99:00.0")

    def test_on_one_node(self) -> None:
        cards = cards_of(USED, Twin("41", node=1))
        assert by_card(placed(cards, "A2-4C", 3, numa=1)) == {"0000:41:00.0": 3}
        with pytest.raises(BadSpec, match="no card with A2-4C is on NUMA node 2") as error:
            placed(cards, "A2-4C", 1, numa=2)
        assert error.value.hint == "they are on NUMA node 0, NUMA node 1"
        with pytest.raises(BadSpec, match="no card with A2-4C is on NUMA node 2"):
            placed(cards[:1], "A2-4C", 1, numa=2)
        with pytest.raises(NoCapacity, match=r"0000:08:00\.0 has no room for 3 of A2-4C: at most 2") as full:
            placed(cards, "A2-4C", 3, numa=0)
        assert full.value.hint == "elsewhere there is room for 4 on NUMA node 1"
        everywhere = {parent.name for parent in cards[1].parents}
        with pytest.raises(NoCapacity) as lost:
            placed(cards, "A2-4C", 3, numa=0, exclude=everywhere)
        assert lost.value.hint == "vfioctl vgpu types shows what there is room for"

    def test_where_somebody_was_faster_it_is_not_tried_again(self) -> None:
        lost = {USED.vf(2), USED.vf(3)}
        first, second = placed(cards_of(USED), "A2-4C", 2), placed(cards_of(USED), "A2-4C", 2, exclude=lost)
        assert [place.parent for place in first.places] == [USED.vf(2), USED.vf(3)]
        assert [place.parent for place in second.places] == [USED.vf(4), USED.vf(5)]
        alone = pool("mbochs", 100)
        with pytest.raises(NoCapacity):
            placed([alone], "small", 1, exclude={"mbochs"})

    def test_the_vf_that_is_least_use_to_others(self) -> None:
        card = IDLE.card
        only_small = {kind: number for kind, number in card.parents[0].offers.items() if kind[7:-1] in {"1", "4"}}
        poor = replace(card.parents[5], offers=only_small)
        parents = tuple(poor if parent.name == poor.name else parent for parent in card.parents)
        chosen = placed([counted(replace(card, parents=parents))], "A2-4C", 2)
        assert [place.parent for place in chosen.places] == [poor.name, card.parents[0].name]

    def test_a_vf_with_an_orphan_comes_last(self) -> None:
        """Its share went back, and its place may not have."""
        parents = (replace(IDLE.card.parents[0], instances=1), *IDLE.card.parents[1:])
        chosen = placed([counted(replace(IDLE.card, parents=parents))], "A2-4C", 1)
        assert chosen.places[0].parent == IDLE.vf(1)

    def test_a_vf_that_could_not_be_read_comes_last(self) -> None:
        mute = VgpuParent(IDLE.vf(0), {}, 0, {"nvidia-4C": "EIO"})
        card = counted(replace(IDLE.card, parents=(mute, *IDLE.card.parents[1:])))
        assert placed([card], "A2-4C", 1).places[0].parent == IDLE.vf(1)


class TestAllOrNone:
    def test_says_how_many_fit_and_what_is_left_of_each_card(self) -> None:
        with pytest.raises(NoCapacity) as error:
            placed(cards_of(USED, IDLE, OTHER), "A2-4C", 7)
        assert error.value.message == (
            "there is no room for 7 of A2-4C: at most 6 (2 on 0000:08:00.0, 4 on 0000:0a:00.0, 0 on 0000:0b:00.0)"
        )
        assert error.value.facts == {"fits": 6, "left": {USED.id: 2, IDLE.id: 4, OTHER.id: 0}}

    def test_one_place_may_take_many(self) -> None:
        chosen = placed([pool("mbochs", 100)], "medium", 6)
        assert [place.parent for place in chosen.places] == ["mbochs"] * 6
        assert chosen.certain
        assert chosen.why == ("mbochs takes 6 of 6 medium: it is empty; no more would fit",)

    def test_what_could_not_be_read_may_fit(self) -> None:
        mute = (VgpuParent(parent.name, {}, 0, {"nvidia-4C": "EIO"}) for parent in IDLE.card.parents)
        unread = counted(replace(IDLE.card, parents=tuple(mute)))
        chosen = placed([unread], "A2-4C", 3)
        assert len({place.parent for place in chosen.places}) == 3
        assert not chosen.certain
        assert chosen.why[-1] == "0000:0a:00.0: how many A2-4C it has room for could not be read everywhere"
        assert by_card(placed([unread, Twin("0c").card], "A2-4C", 3)) == {"0000:0c:00.0": 3}
        used = counted(
            replace(
                USED.card, parents=tuple(replace(p, offers={}, unknown={"nvidia-4C": "EIO"}) for p in USED.card.parents)
            )
        )
        assert by_card(placed([used, Twin("0c").card], "A2-4C", 1)) == {"0000:0c:00.0": 1}
        for strategy in (Strategy.SPREAD, Strategy.NUMA):
            cards = [
                replace(unread, numa_node=1),
                *cards_of(Twin("0c"), Twin("0d", ("16C",)), Twin("0e", ("4C", "4C"))),
            ]
            assert IDLE.id not in by_card(placed(cards, "A2-4C", 3, strategy=strategy))
            cards = [replace(unread, numa_node=1), Twin("0c", ("4C",)).card]
            assert by_card(placed(cards, "A2-4C", 3, strategy=strategy)) == {"0000:0c:00.0": 3}
        with pytest.raises(NoCapacity, match="at most 4"):
            placed([unread], "A2-4C", 5)

    def test_a_device_alone_that_could_not_be_read_is_tried(self) -> None:
        kind = VgpuType("odd")
        parents = (VgpuParent("odd-device", {}, 0, {"odd": "EIO"}),)
        card = counted(VgpuCard("odd-device", Dialect.MDEV, types=(kind,), parents=parents))
        chosen = placed([card], "odd", 2)
        assert ([place.parent for place in chosen.places], chosen.certain) == (["odd-device"] * 2, False)
        assert "how many more would fit is not known" in chosen.why[0]

    def test_certain_is_what_a_card_of_one_size_says(self) -> None:
        assert placed(cards_of(USED), "A2-4C", 2).certain
        unsaid = tuple(replace(kind, max_instances=None) for kind in USED.card.types)
        vendor = counted(replace(USED.card, dialect=Dialect.VENDOR, sharing=Sharing.SIZES, types=unsaid))
        assert vendor.size_mode is SizeMode.SAME
        assert not placed([vendor], "A2-4C", 2).certain
        doubtful = placed(cards_of(IDLE), "A2-4C", 3)
        assert not doubtful.certain
        assert doubtful.why[-1] == "0000:0a:00.0: only 1 of 3 certainly fits; the others show when they are created"

    @pytest.mark.parametrize(("count", "certain"), [(1, True), (2, False), (3, False)])
    def test_what_several_places_offer_each_alone_is_not_certain_together(self, count: int, *, certain: bool) -> None:
        offers: tuple[Mapping[str, int], ...] = ({"odd": 1}, {"odd": 1}, {"odd": 3}, {})
        mute = {3: {"odd": "EIO"}}
        parents = tuple(VgpuParent(f"p{n}", each, 0, mute.get(n, {})) for n, each in enumerate(offers))
        card = counted(VgpuCard("card", Dialect.MDEV, types=(VgpuType("odd"),), parents=parents))
        chosen = placed([card], "odd", count, exclude={"p2"})
        assert ([place.parent for place in chosen.places], chosen.certain) == (["p0", "p1", "p3"][:count], certain)
        assert not placed([card], "odd", 1, exclude={"p0", "p1", "p2"}).certain


def unruled(name: str, big: int, small: int, *, has_small: bool = False) -> VgpuCard:
    """A device that says no more than what is left of each type."""
    sizes = {"big": 4 * GIB, "small": GIB}
    there = {"big": int(not has_small), "small": int(has_small)}
    types = tuple(VgpuType(kind, framebuffer_bytes=size, existing=there[kind]) for kind, size in sizes.items())
    parents = (VgpuParent(name, {"big": big, "small": small}, 1),)
    return counted(VgpuCard(name, Dialect.MDEV, types=types, parents=parents))


class TestBinpack:
    def test_what_is_certain_counts_where_the_rest_is_not_told(self) -> None:
        cards = [unruled("a", 1, 4), unruled("b", 0, 4)]
        assert {card.sharing for card in cards} == {Sharing.UNKNOWN}
        assert by_card(placed(cards, "small", 1)) == {"b": 1}

    def test_of_equals_takes_the_one_that_has_some_of_that_size(self) -> None:
        assert by_card(placed([unruled("a", 0, 4), unruled("b", 0, 4, has_small=True)], "small", 1)) == {"b": 1}

    def test_an_empty_stock_is_opened_only_where_that_keeps_a_large_one(self) -> None:
        assert by_card(placed([pool("a", 100), pool("b", 100, there=39)], "small", 1)) == {"b": 1}
        assert by_card(placed([pool("a", 100), pool("b", 100, there=39)], "medium", 1)) == {"b": 1}
        assert by_card(placed([pool("a", 100), pool("b", 64, there=48)], "small", 1)) == {"a": 1}

    def test_of_equal_splits_takes_the_one_on_fewest_cards_then_the_first_in_order(self) -> None:
        assert by_card(placed([pool("a", 4, there=63), pool("b", 40, there=54)], "small", 2)) == {"b": 2}
        assert by_card(placed([pool("aa", 40, there=54), pool("b", 40, there=54)], "small", 2)) == {"b": 2}

    def test_fills_the_card_of_that_size_and_leaves_the_empty_one_free(self) -> None:
        chosen = placed(cards_of(IDLE, OTHER, USED), "A2-4C", 2)
        assert by_card(chosen) == {USED.id: 2}
        assert chosen.why == (
            "0000:08:00.0 takes 2 of 2 A2-4C: 2 of that size are there; no more would fit",
            "0000:0a:00.0 stays free, with room for 1 A2-16Q",
            "0000:0b:00.0 has no room for A2-4C",
        )

    def test_tells_the_largest_type_that_a_card_keeps_its_room_for(self) -> None:
        half, other = Twin("01", ("8C",), mixed=True), Twin("02", ("4C", "4C", "4C"), mixed=True)
        why = placed(cards_of(half, other), "A2-4C", 1).why
        assert "0000:01:00.0 keeps its room for 1 A2-8Q" in why

    def test_opens_as_few_empty_cards_as_it_must(self) -> None:
        empty = [Twin(f"{bus:02x}") for bus in range(1, 5)]
        assert by_card(placed(cards_of(*empty), "A2-4C", 4)) == {"0000:01:00.0": 4}
        assert by_card(placed(cards_of(*empty), "A2-4C", 5)) == {"0000:01:00.0": 4, "0000:02:00.0": 1}

    def test_of_mixed_cards_takes_the_one_that_loses_no_large_one(self) -> None:
        half, full = (Twin(bus, there, mixed=True) for bus, there in (("01", ("4C", "2C")), ("02", ("8C", "4C"))))
        assert by_card(placed(cards_of(half, full), "A2-4C", 1)) == {full.id: 1}

    def test_a_card_of_that_size_alone_comes_before_one_that_several_sizes_can_have(self) -> None:
        cards = cards_of(Twin("01", ("1C", "2C"), mixed=True), Twin("02", ("4C",)))
        assert by_card(placed(cards, "A2-4C", 2)) == {"0000:02:00.0": 2}

    def test_fills_the_card_of_that_size_before_it_opens_another(self) -> None:
        assert by_card(placed(cards_of(Twin("01", vfs=32), Twin("02", ("4C",), vfs=32)), "A2-4C", 4)) == {
            "0000:01:00.0": 1,
            "0000:02:00.0": 3,
        }

    def test_of_stocks_takes_what_the_largest_type_cannot_use(self) -> None:
        """One at a time would take from the second stock what the first three leave of a large one's room."""
        cards = [pool("a", 76, there=45), pool("b", 72, there=46)]
        assert by_card(placed(cards, "small", 5)) == {"a": 3, "b": 2}
        assert by_card(placed([pool("a", 128, there=32), pool("b", 64, there=48)], "medium", 4)) != {"a": 2, "b": 2}

    def test_a_card_in_use_that_is_not_taken_keeps_its_room(self) -> None:
        chosen = placed([pool("a", 64, there=48), pool("b", 60, there=49)], "small", 1)
        assert chosen.why == (
            "a keeps its room for 1 large",
            "b takes 1 of 1 small: 49 of that size are there; 14 more would fit",
        )


class TestSpread:
    def test_to_the_card_with_the_fewest_vgpus_then_with_most_room(self) -> None:
        cards = cards_of(USED, IDLE, Twin("0c", vfs=3))
        assert by_card(placed(cards, "A2-4C", 3, strategy=Strategy.SPREAD)) == {IDLE.id: 2, "0000:0c:00.0": 1}
        chosen = placed(cards, "A2-4C", 1, strategy=Strategy.SPREAD)
        assert chosen.why == (
            "0000:08:00.0 takes none: 2 vGPUs are there",
            "0000:0a:00.0 takes 1 of 1 A2-4C: it is empty; at most 3 more would fit",
            "0000:0c:00.0 takes none: 0 vGPUs are there",
        )

    def test_of_equals_to_the_one_with_most_room(self) -> None:
        chosen = placed(cards_of(Twin("01", vfs=3), Twin("02")), "A2-4C", 1, strategy=Strategy.SPREAD)
        assert by_card(chosen) == {"0000:02:00.0": 1}


def test_an_unread_offer_of_another_type_counts_when_cards_are_compared() -> None:
    """What is left on a card whose offers were not all read has a higher bound, so it is the better one to fill."""
    first, second = cards_of(*(Twin(bus, mixed=True, vfs=2, memory=True) for bus in ("08", "09")))
    assert by_card(placed([first, second], "A2-4Q", 1)) == {first.id: 1}
    *read, last = second.parents
    unread = replace(last, unknown={"nvidia-16C": "EIO"})
    doubtful = counted(replace(second, parents=(*read, unread), sharing=Sharing.UNKNOWN))
    assert by_card(placed([first, doubtful], "A2-4Q", 1)) == {second.id: 1}


class TestNuma:
    def test_the_node_with_the_tightest_fit_that_takes_all(self) -> None:
        cards = cards_of(Twin("01"), Twin("02", node=1), Twin("03", node=1), replace(USED, node=2))
        assert by_card(placed(cards, "A2-4C", 2, strategy=Strategy.NUMA)) == {USED.id: 2}
        chosen = placed(cards, "A2-4C", 3, strategy=Strategy.NUMA)
        assert by_card(chosen) == {"0000:01:00.0": 3}
        assert chosen.why[0] == (
            "all on NUMA node 0, with least to spare of those with room for all: room for 4, 8 on NUMA node 1, "
            "2 on NUMA node 2"
        )
        assert by_card(placed(cards, "A2-4C", 6, strategy=Strategy.NUMA)) == {"0000:02:00.0": 4, "0000:03:00.0": 2}

    def test_of_one_node_there_is_nothing_to_say(self) -> None:
        chosen = placed(cards_of(Twin("01"), Twin("02")), "A2-4C", 3, strategy=Strategy.NUMA)
        assert not any("NUMA node" in why for why in chosen.why)

    def test_no_node_alone_has_the_room(self) -> None:
        cards = cards_of(Twin("01"), Twin("02", node=1), Twin("03", node=1), replace(USED, node=2))
        chosen = placed(cards, "A2-4C", 10, strategy=Strategy.NUMA)
        assert by_card(chosen) == {"0000:02:00.0": 4, "0000:03:00.0": 4, USED.id: 2}
        largest = by_card(placed(cards, "A2-4C", 12, strategy=Strategy.NUMA))
        assert largest == {"0000:01:00.0": 4, "0000:02:00.0": 4, "0000:03:00.0": 4}
        assert chosen.why[0] == "no NUMA node has room for all 10: they are on NUMA node 1 and NUMA node 2"


# -- properties ------------------------------------------------------------------------------------------


@st.composite
def twins(draw: st.DrawFn, bus: str) -> Twin:
    """A card as it may be, its vGPUs made one after the other where there was room."""
    vfs, node = draw(st.sampled_from([2, 5, 16])), draw(st.sampled_from([0, 0, 1, None]))
    twin = Twin(bus, mixed=draw(st.booleans()), vfs=vfs, node=node, memory=draw(st.booleans()))
    for name in draw(st.lists(st.sampled_from(NAMES[2:]), max_size=4)):
        if twin.has_room_for(name):
            twin = replace(twin, there=(*twin.there, name))
    return twin


HOSTS = st.tuples(twins("01"), twins("02"), twins("03"))
TYPES = st.sampled_from(NAMES)
COUNTS = st.integers(1, 8)
STRATEGIES = st.sampled_from(list(Strategy))


def room(card: VgpuCard, kind: str) -> int:
    """How many may fit, by what may be asked for at once and the places that offer it."""
    most = 0
    while most < sum(parent.offers.get(kind, 0) for parent in card.parents) and _fits(card, kind, most + 1):
        most += 1
    return most


def _fits(card: VgpuCard, kind: str, number: int) -> bool:
    try:
        after(card, {kind: number})
    except NoCapacity:
        return False
    return True


@given(HOSTS, TYPES, COUNTS, STRATEGIES, st.sets(st.sampled_from(["0000:01:00.6", "0000:02:00.6", "0000:03:00.7"])))
@unhurried
def test_all_or_none_within_what_is_offered(
    host: tuple[Twin, ...], name: str, count: int, strategy: Strategy, exclude: set[str]
) -> None:
    kind = f"nvidia-{name}"
    cards = cards_of(*host)
    spared = [replace(card, parents=tuple(p for p in card.parents if p.name not in exclude)) for card in cards]
    fits = sum(room(card, kind) for card in spared)
    if fits < count:
        with pytest.raises(NoCapacity) as error:
            placed(cards, kind, count, strategy=strategy, exclude=exclude)
        assert error.value.facts["fits"] == fits
        return
    chosen = placed(cards, kind, count, strategy=strategy, exclude=exclude)
    assert len(chosen.places) == count
    offers = {parent.name: (card.id, parent.offers) for card in spared for parent in card.parents}
    for parent, number in Counter(place.parent for place in chosen.places).items():
        card, offered = offers[parent]
        assert number <= offered[kind]
        assert {place.card for place in chosen.places if place.parent == parent} == {card}
    for each in cards:
        assert by_card(chosen).get(each.id, 0) <= room(each, kind)
    assert chosen == placed(cards[::-1], kind, count, strategy=strategy, exclude=exclude)


@given(HOSTS, TYPES, COUNTS, STRATEGIES)
@unhurried
def test_what_is_certain_can_be_made(host: tuple[Twin, ...], name: str, count: int, strategy: Strategy) -> None:
    try:
        chosen = placed(cards_of(*host), f"nvidia-{name}", count, strategy=strategy)
    except NoCapacity:
        return
    if chosen.certain:
        made = by_card(chosen)
        assert all(twin.has_room_for(*[name] * made.get(twin.id, 0)) for twin in host)


@given(HOSTS, TYPES, COUNTS)
@unhurried
def test_binpack_opens_no_empty_card_while_one_in_use_has_room(host: tuple[Twin, ...], name: str, count: int) -> None:
    kind, cards = f"nvidia-{name}", cards_of(*host)
    used = [twin.card for twin in host if twin.there]
    try:
        made = by_card(placed(cards, kind, count))
    except NoCapacity:
        return
    opened = [twin.card for twin in host if not twin.there and twin.id in made]
    if sum(room(card, kind) for card in used) >= count:
        assert not opened
    for card in used if opened else ():
        own = next(each for each in card.types if each.id == kind)
        if card.size_mode is SizeMode.SAME and any(each.existing and each.size == own.size for each in card.types):
            assert not after(card, {kind: made.get(card.id, 0)}).available[kind].at_least
    if opened:
        smallest = min(room(card, kind) for card in opened)
        others = sum(made.values()) - sum(room(card, kind) for card in (*used, *opened)) + smallest
        assert others > 0, "one less would have done"


def splits(rooms: Sequence[int], count: int) -> Iterator[tuple[int, ...]]:
    if not rooms:
        yield from ([()] if not count else [])
        return
    for number in range(min(rooms[0], count) + 1):
        yield from ((number, *rest) for rest in splits(rooms[1:], count - number))


def worth(cards: Sequence[VgpuCard], kind: str, numbers: Iterable[int]) -> tuple[int, ...]:
    """How few empty cards that share by sizes are opened; then, the largest size first, how many of it may remain, and
    how many certainly do, unless it is the size that is made."""
    remaining: Counter[tuple[int, int]] = Counter()
    opened = 0
    for told, number in zip(cards, numbers, strict=True):
        card = replace(told, memory_bytes=16 * GIB) if told.sharing is Sharing.SIZES else told
        is_empty = not any(each.existing for each in card.types)
        opened += int(number > 0 and is_empty and card.sharing is Sharing.SIZES)
        left: Mapping[str, Count] = after(card, {kind: number}).available
        for size in {each.framebuffer_bytes or 0 for each in card.types}:
            alike = [each for each in card.types if each.framebuffer_bytes == size]
            remaining[size, 1] += max(left[each.id].at_most or 0 for each in alike)
            own = any(each.id == kind for each in alike)
            remaining[size, 0] += 0 if own else max(left[each.id].at_least for each in alike)
    return -opened, *(remaining[size] for size in sorted(remaining, reverse=True))


def best(cards: Sequence[VgpuCard], kind: str, count: int) -> tuple[int, ...]:
    return max(worth(cards, kind, each) for each in splits([room(card, kind) for card in cards], count))


@given(twins("01"), TYPES, COUNTS)
@unhurried
def test_a_card_with_fewer_types_is_forecast_as_the_whole_one(twin: Twin, name: str, count: int) -> None:
    kind, card = f"nvidia-{name}", replace(twin.card, memory_bytes=16 * GIB)
    if count > room(card, kind):
        return
    own = next(each for each in card.types if each.id == kind)
    few = after(packing._measured(Candidate(card, own, ())), {kind: count}).available
    whole = after(card, {kind: count}).available
    assert {each: whole[each] for each in few} == few
    assert {each[:-1] for each in few} == {each[:-1] for each in whole}


@given(HOSTS, TYPES, COUNTS)
@unhurried
def test_binpack_is_as_good_as_the_best_of_all_splits(host: tuple[Twin, ...], name: str, count: int) -> None:
    kind, cards = f"nvidia-{name}", cards_of(*host)
    try:
        made = by_card(placed(cards, kind, count))
    except NoCapacity:
        return
    assert worth(cards, kind, [made.get(card.id, 0) for card in cards]) == best(cards, kind, count)


@given(st.lists(st.integers(0, 40), min_size=2, max_size=3), st.sampled_from(["small", "medium"]), st.integers(1, 9))
@unhurried
def test_binpack_of_stocks_is_as_good_as_the_best_of_all_splits(free: list[int], kind: str, count: int) -> None:
    cards = [pool(f"stock{index}", 4 * each, there=64 - each) for index, each in enumerate(free)]
    try:
        made = by_card(placed(cards, kind, count))
    except NoCapacity:
        return
    assert worth(cards, kind, [made.get(card.id, 0) for card in cards]) == best(cards, kind, count)


@given(HOSTS, TYPES, COUNTS)
@unhurried
def test_spread_leaves_no_card_with_room_two_behind(host: tuple[Twin, ...], name: str, count: int) -> None:
    kind, cards = f"nvidia-{name}", cards_of(*host)
    try:
        made = by_card(placed(cards, kind, count, strategy=Strategy.SPREAD))
    except NoCapacity:
        return
    then = {twin.id: len(twin.there) + made.get(twin.id, 0) for twin in host}
    behind = [then[card.id] for card in cards if made.get(card.id, 0) < room(card, kind)]
    assert all(then[card] - 1 <= least for card in made for least in behind)


@given(HOSTS, TYPES, COUNTS)
@unhurried
def test_numa_takes_no_more_nodes_than_it_must(host: tuple[Twin, ...], name: str, count: int) -> None:
    kind, cards = f"nvidia-{name}", cards_of(*host)
    rooms: Counter[int | None] = Counter()
    for card in cards:
        rooms[card.numa_node] += room(card, kind)
    try:
        made = by_card(placed(cards, kind, count, strategy=Strategy.NUMA))
    except NoCapacity:
        return
    used = {card.numa_node for card in cards if card.id in made}
    assert (None in used) is (rooms.total() - rooms.pop(None, 0) < count)  # "no node" is not one of them
    if None in used:
        return
    largest = sorted(rooms.values(), reverse=True)
    assert sum(largest[: len(used) - 1]) < count
    if len(used) == 1:
        assert rooms[used.pop()] == min(each for each in rooms.values() if each >= count)


def test_eight_cards_of_32_vfs_take_64_with_few_forecasts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forecasts are what takes the time: one for each card and number is all that is needed."""
    asked = Counter[str]()

    def counting(card: VgpuCard, request: Mapping[str, int]) -> object:
        asked[card.id] += 1
        return after(card, request)

    monkeypatch.setattr(packing, "after", counting)
    cards = cards_of(*(Twin(f"{bus:02x}", ("1C",) * bus, vfs=32) for bus in range(1, 9)))
    assert len(placed(cards, "A2-1Q", 64).places) == 64
    assert all(number <= room(card, "nvidia-1Q") + 2 for card, number in zip(cards, asked.values(), strict=True))
    asked.clear()
    assert len(placed(cards_of(*(Twin(f"{bus:02x}") for bus in range(1, 9))), "A2-1Q", 64).places) == 64
    assert asked.total() == 17 + 8, "twins are alike: one of them is forecast for all"


def test_a_parent_that_does_not_have_the_type_is_no_place() -> None:
    other, offering = VgpuParent("0000:41:00.4", {"nvidia-2": 1}), VgpuParent("0000:41:00.5", {"nvidia-1": 1})
    card = VgpuCard(
        "0000:41:00.0", Dialect.MDEV, types=(VgpuType("nvidia-1"), VgpuType("nvidia-2")), parents=(other, offering)
    )
    assert [place.parent for place in placed([card], "nvidia-1", 1).places] == [offering.name]
    with pytest.raises(NoCapacity):
        placed([card], "nvidia-1", 2)
