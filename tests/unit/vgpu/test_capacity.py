"""What a card has room for, and what remains: ranges that the truth lies in, of made-up cards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.hosts.machines import unhurried
from vfioctl.errors import NoCapacity
from vfioctl.vgpu.model.vgpu import Count, Dialect, Sharing, SizeMode, VgpuCard, VgpuParent, VgpuType
from vfioctl.vgpu.placement.capacity import GIB, after, counted

SIZES = (1, 2, 4, 8, 16)
MEMORY = 16


def card_of(
    types: Iterable[VgpuType],
    *offers: Mapping[str, int],
    unread: Mapping[str, str] | None = None,
    memory: int | None = None,
    told: SizeMode = SizeMode.UNKNOWN,
    dialect: Dialect = Dialect.MDEV,
) -> VgpuCard:
    parents = tuple(VgpuParent(f"parent{n}", each, unknown=unread or {}) for n, each in enumerate(offers))
    return counted(
        VgpuCard(
            "card",
            dialect,
            sharing=Sharing.SIZES if dialect is Dialect.VENDOR else Sharing.UNKNOWN,
            size_mode=told,
            memory_bytes=memory,
            types=tuple(types),
            parents=parents,
        )
    )


def nvidia(size: int, series: str = "Q", existing: int = 0) -> VgpuType:
    return VgpuType(
        f"{size}{series}",
        profile=f"A2-{size}{series}",
        framebuffer_bytes=size * GIB,
        max_instances=MEMORY // size,
        existing=existing,
    )


def mbochs(name: str, mebibytes: int) -> VgpuType:
    return VgpuType(name, takes={"video memory": mebibytes})


def counts(card: VgpuCard) -> dict[str, Count]:
    return {kind.id: kind.available for kind in card.types}


def exactly(**numbers: int) -> dict[str, Count]:
    return {name: Count(number, number) for name, number in numbers.items()}


MBOCHS = (mbochs("small", 4), mbochs("medium", 16), mbochs("large", 64))


class TestPool:
    def test_sizes_and_numbers_that_fit_tell_all(self) -> None:
        card = card_of(MBOCHS, {"small": 25, "medium": 6, "large": 1})
        assert card.sharing is Sharing.POOL
        assert after(card, {"medium": 1}).available == exactly(small=21, medium=5, large=1)
        assert after(card, {"medium": 2, "small": 1}).available == exactly(small=16, medium=4, large=1)

    def test_what_may_not_fit_any_more_fits_no_times_for_certain(self) -> None:
        card = card_of((mbochs("a", 3), mbochs("b", 4), mbochs("c", 2)), {"a": 2, "b": 1, "c": 3})
        assert card.sharing is Sharing.POOL
        assert after(card, {"a": 1, "b": 1}).available["c"] == Count(0, 0)

    def test_what_exceeds_the_stock_leaves_none(self) -> None:
        card = card_of(MBOCHS, {"small": 25, "medium": 6, "large": 1})
        with pytest.raises(NoCapacity, match=r"no room for 1 of small beside .*: none$"):
            after(card, {"small": 1, "medium": 6, "large": 1})

    def test_a_type_that_takes_nothing_is_of_no_pool(self) -> None:
        card = card_of((mbochs("none", 0), mbochs("small", 4)), {"none": 1, "small": 25})
        assert card.sharing is Sharing.UNKNOWN

    def test_a_type_that_takes_nothing_of_one_amount_is_of_no_pool(self) -> None:
        types = (VgpuType("a", takes={"low": 0, "high": 2}), VgpuType("b", takes={"low": 4, "high": 2}))
        assert card_of(types, {"a": 3, "b": 3}).sharing is Sharing.UNKNOWN

    def test_of_a_type_that_is_wanted_no_times_nothing_is_made(self) -> None:
        card = card_of(MBOCHS, {"small": 25, "medium": 6, "large": 1})
        assert after(card, {"medium": 1, "small": 0}).made == {"medium": 1}

    def test_numbers_that_do_not_fit_one_stock_tell_nothing(self) -> None:
        card = card_of(MBOCHS, {"small": 25, "medium": 2, "large": 1})
        assert card.sharing is Sharing.UNKNOWN
        assert after(card, {"medium": 1}).available["small"] == Count(0, 25)

    def test_a_type_that_does_not_say_what_it_takes_spoils_it(self) -> None:
        card = card_of((*MBOCHS, VgpuType("odd")), {"small": 25, "medium": 6, "large": 1, "odd": 3})
        assert card.sharing is Sharing.UNKNOWN

    def test_where_several_amounts_are_taken_the_lower_bound_holds(self) -> None:
        small = VgpuType("small", takes={"low": 64, "high": 384, "fence": 4})
        large = VgpuType("large", takes={"low": 128, "high": 512, "fence": 4})
        card = card_of((small, large), {"small": 4, "large": 3})
        assert after(card, {"large": 1}).available == {"small": Count(2, 4), "large": Count(2, 2)}

    @given(st.data())
    @unhurried
    def test_holds_the_truth(self, data: st.DataObject) -> None:
        sizes = data.draw(st.lists(st.integers(1, 70), min_size=1, max_size=5, unique=True))
        free = data.draw(st.integers(0, 400))
        names = {f"type{size}": size for size in sizes}
        card = card_of([mbochs(*each) for each in names.items()], {name: free // size for name, size in names.items()})
        request = data.draw(st.dictionaries(st.sampled_from(sorted(names)), st.integers(1, 20)))
        left = free - sum(names[name] * number for name, number in request.items())
        assume(left >= 0)
        assert card.sharing is Sharing.POOL
        hold(after(card, request).available, {name: left // size for name, size in names.items()})


def hold(ranges: Mapping[str, Count], truth: Mapping[str, int]) -> None:
    wrong = {
        name: (ranges[name], number)
        for name, number in truth.items()
        if number < ranges[name].at_least or number > (ranges[name].at_most or 0)
    }
    assert not wrong


class Nvidia:
    """A card of NVIDIA as it is: 16 GiB, so many VFs, one size at a time or several."""

    def __init__(self, there: Sequence[str], *, mixed: bool, vfs: int = 16) -> None:
        self.there, self.mixed, self.vfs = list(there), mixed, vfs

    @staticmethod
    def size(name: str) -> int:
        return int(name[:-1])

    @property
    def is_possible(self) -> bool:
        sizes = [self.size(name) for name in self.there]
        return sum(sizes) <= MEMORY and len(sizes) <= self.vfs and (self.mixed or len(set(sizes)) < 2)

    def room(self, name: str) -> int:
        """How many more of only this type there is room for."""
        number = 0
        while Nvidia([*self.there, *[name] * (number + 1)], mixed=self.mixed, vfs=self.vfs).is_possible:
            number += 1
        return number

    @property
    def mode(self) -> SizeMode:
        return SizeMode.MIXED if self.mixed else SizeMode.SAME

    def card(self, names: Iterable[str], memory: int | None = None, told: SizeMode = SizeMode.UNKNOWN) -> VgpuCard:
        free = {name: min(1, self.room(name)) for name in names}
        types = [nvidia(self.size(name), name[-1], self.there.count(name)) for name in names]
        places: list[Mapping[str, int]] = [{}] * len(self.there) + [free] * (self.vfs - len(self.there))
        return card_of(types, *places, memory=memory, told=told)


NAMES = tuple(f"{size}{series}" for size in SIZES for series in "QA")
THERE = st.lists(st.sampled_from(NAMES), max_size=6)


class TestSizes:
    def test_an_idle_card_says_at_most(self) -> None:
        card = Nvidia([], mixed=False).card(NAMES)
        assert card.size_mode is SizeMode.UNKNOWN
        assert counts(card)["4Q"] == Count(1, 4)
        forecast = after(card, {"4Q": 1})
        assert forecast.certain
        assert forecast.available["4Q"] == Count(0, 3)
        assert forecast.available["4A"] == Count(0, 3)
        assert forecast.available["8Q"] == Count(0, 2)
        assert not after(card, {"4Q": 2}).certain

    def test_on_one_parent_is_known_from_above_only(self) -> None:
        types = (nvidia(4, existing=1), nvidia(4, "C"))
        one = card_of(types, {"4Q": 3, "4C": 3}, told=SizeMode.SAME)
        assert after(one, {"4Q": 1}).available["4C"] == Count(0, 2)
        four = card_of(types, *[{"4Q": 1, "4C": 1}] * 3, {}, told=SizeMode.SAME)
        assert after(four, {"4Q": 1}).available["4C"] == Count(2, 2)
        two = card_of((nvidia(4), nvidia(4, "C")), *[{"4Q": 1, "4C": 1}] * 2, told=SizeMode.SAME)
        assert after(two, {"4Q": 1}).available["4C"] == Count(1, 1)

    def test_one_parent_that_offers_one_may_take_more(self) -> None:
        one = card_of((nvidia(4), nvidia(4, "C")), {"4Q": 1, "4C": 1})
        assert after(one, {"4Q": 1}).available["4C"] == Count(0, 1)

    def test_one_size_there_and_only_it_on_offer_is_exact(self) -> None:
        card = Nvidia(["4Q", "4A"], mixed=False).card(NAMES)
        assert card.size_mode is SizeMode.SAME
        assert counts(card)["4Q"] == Count(2, 2)
        forecast = after(card, {"4Q": 1})
        assert forecast.available["4A"] == Count(1, 1)
        assert forecast.available["8Q"] == Count(0, 0)

    def test_only_the_smallest_size_on_offer_shows_no_mode(self) -> None:
        """In both modes only that fits, where the rest of the memory is less than another size."""
        card = card_of((nvidia(4, existing=1), nvidia(8)), {}, {"4Q": 1})
        assert card.size_mode is SizeMode.UNKNOWN

    def test_another_size_on_offer_proves_the_other_mode(self) -> None:
        assert Nvidia(["4Q"], mixed=True).card(NAMES).size_mode is SizeMode.MIXED
        assert Nvidia(["4Q", "8Q"], mixed=True).card(NAMES).size_mode is SizeMode.MIXED

    def test_two_sizes_on_a_full_card_prove_it_too(self) -> None:
        full = Nvidia(["8Q", "4Q", "4Q"], mixed=True).card(NAMES)
        assert set(counts(full).values()) == {Count(0, 0)}
        assert full.size_mode is SizeMode.MIXED

    def test_a_card_that_counts_itself_is_believed(self) -> None:
        types = [nvidia(size) for size in SIZES]
        card = card_of(types, {kind.id: kind.max_instances or 0 for kind in types})
        assert counts(card) == {kind.id: Count(kind.max_instances or 0, kind.max_instances) for kind in types}
        forecast = after(card, {"4Q": 3})
        assert (forecast.certain, forecast.available["4Q"]) == (True, Count(1, 1))
        assert forecast.available["8Q"] == Count(0, 2)

    def test_what_does_not_fit_is_refused(self) -> None:
        card = Nvidia(["4Q", "4A"], mixed=False).card(NAMES)
        with pytest.raises(NoCapacity, match="no room for 3 of A2-4Q: at most 2"):
            after(card, {"4Q": 3})
        with pytest.raises(NoCapacity, match="no room for 1 of A2-8Q: none"):
            after(card, {"8Q": 1})
        with pytest.raises(NoCapacity, match="no room for 2 of A2-4Q beside 1 of A2-4A: at most 1"):
            after(card, {"4Q": 2, "4A": 1})

    def test_more_than_all_places_leave_none_for_others(self) -> None:
        card = Nvidia([], mixed=False).card(NAMES)
        with pytest.raises(NoCapacity, match="no room for 1 of A2-4Q beside 20 of A2-4A: none"):
            after(card, {"4Q": 1, "4A": 20})

    def test_memory_bounds_a_card_that_gives_no_numbers(self) -> None:
        types = [VgpuType(f"{size}Q", framebuffer_bytes=size * GIB) for size in (1, 12, 48)]
        parents = tuple(VgpuParent(f"vf{number}", {kind.id: 1 for kind in types}) for number in range(64))
        bare = VgpuCard("card", Dialect.VENDOR, sharing=Sharing.SIZES, types=tuple(types), parents=parents)
        assert {count.at_most for count in counts(counted(bare)).values()} == {64}
        l40s = VgpuCard(
            "card",
            Dialect.VENDOR,
            sharing=Sharing.SIZES,
            types=tuple(types),
            parents=parents,
            memory_bytes=46068 << 20,
        )
        assert [count.at_most for count in counts(counted(l40s)).values()] == [48, 4, 1], (
            "of 48 GiB, without what error correction takes"
        )

    @pytest.mark.parametrize(("memory", "most"), [(15 * GIB, 17), (15 * GIB - 1, 16)])
    def test_memory_that_is_not_told_to_be_taken_bounds_nothing(self, memory: int, most: int) -> None:
        types = [VgpuType("1Q", framebuffer_bytes=GIB), VgpuType("odd", existing=2)]
        card = card_of(types, *[{"1Q": 1}] * 20, memory=memory, dialect=Dialect.VENDOR)
        assert counts(card)["1Q"].at_most == most, "what error correction takes, and 1 GiB for the driver, are added"

    @given(
        THERE,
        st.booleans(),
        st.dictionaries(st.sampled_from(NAMES), st.integers(1, 5), max_size=3),
        st.sampled_from([None, 15 * GIB, 16 * GIB]),
        st.booleans(),
    )
    @unhurried
    def test_holds_the_truth(
        self,
        there: list[str],
        mixed: bool,
        request: dict[str, int],
        memory: int | None,
        is_told: bool,
    ) -> None:
        now = Nvidia(there, mixed=mixed)
        then = Nvidia([*there, *(name for name, number in request.items() for _ in range(number))], mixed=mixed)
        assume(now.is_possible)
        card = now.card(NAMES, memory, now.mode if is_told else SizeMode.UNKNOWN)
        assert card.size_mode is now.mode or not is_told
        hold(counts(card), {name: now.room(name) for name in NAMES})
        assert card.size_mode is not (SizeMode.SAME if mixed else SizeMode.MIXED)
        if then.is_possible:
            hold(after(card, request).available, {name: then.room(name) for name in NAMES})


class TestModes:
    """What the driver says of them."""

    @given(THERE, st.dictionaries(st.sampled_from(NAMES), st.integers(1, 5), max_size=3), st.sampled_from([3, 16]))
    @unhurried
    def test_one_size_at_a_time_leaves_nothing_open(self, there: list[str], request: dict[str, int], vfs: int) -> None:
        now = Nvidia(there, mixed=False, vfs=vfs)
        assume(now.is_possible)
        card = now.card(NAMES, told=SizeMode.SAME)
        assert counts(card) == exactly(**{name: now.room(name) for name in NAMES})
        then = Nvidia([*there, *(n for n, number in request.items() for _ in range(number))], mixed=False, vfs=vfs)
        if then.is_possible:
            forecast = after(card, request)
            assert forecast.certain
            assert forecast.available == exactly(**{name: then.room(name) for name in NAMES})

    def test_of_an_idle_card_are_needed_to_refuse_two_sizes(self) -> None:
        idle = Nvidia([], mixed=False)
        after(idle.card(NAMES), {"4Q": 1, "8Q": 1})
        with pytest.raises(NoCapacity, match="no room for 1 of A2-4Q beside 1 of A2-8Q: none"):
            after(idle.card(NAMES, told=SizeMode.SAME), {"4Q": 1, "8Q": 1})

    def test_are_as_is_seen_where_that_is_something_else(self) -> None:
        mixed = Nvidia(["4Q", "8Q"], mixed=True)
        assert mixed.card(NAMES, told=SizeMode.SAME).size_mode is SizeMode.MIXED
        assert Nvidia(["4Q"], mixed=False).card(NAMES, told=SizeMode.MIXED).size_mode is SizeMode.MIXED

    def test_of_gpu_instances_are_others(self) -> None:
        kind = VgpuType("1-5C", framebuffer_bytes=5 * GIB, max_instances=7, mig_slices=1)
        card = card_of([kind], {"1-5C": 1}, {"1-5C": 1}, told=SizeMode.SAME, dialect=Dialect.VENDOR)
        assert (card.size_mode, counts(card)) == (SizeMode.UNKNOWN, {"1-5C": Count(1, 2)})

    def test_tell_no_number_that_a_place_kept_to_itself(self) -> None:
        """One file of a VF says it of all types."""
        types = [*(nvidia(size) for size in SIZES), nvidia(4, "A")]
        unread = {"creatable_vgpu_types": "EIO"}
        card = card_of(types, {"4Q": 1, "8Q": 1}, {}, unread=unread, told=SizeMode.SAME, dialect=Dialect.VENDOR)
        assert counts(card)["4Q"] == Count(1, 4)
        assert counts(card)["16Q"] == Count(0, 1)
        left = after(card, {"4Q": 1}).available
        assert (left["4Q"], left["4A"]) == (Count(0, 3), Count(0, 3))

    def test_tell_no_number_beside_one_whose_type_is_not_told(self) -> None:
        """It was removed while it was open: it is gone from the list, and takes its share."""
        types = [nvidia(size) for size in SIZES]
        parents = (VgpuParent("vf0", instances=1), *(VgpuParent(f"vf{n}", {"4Q": 1}) for n in range(1, 16)))
        told = VgpuCard("card", Dialect.MDEV, size_mode=SizeMode.SAME, types=tuple(types), parents=parents)
        card = counted(told)
        assert counts(card)["4Q"] == Count(1, 4)
        assert after(card, {"4Q": 2}).available["4Q"] == Count(0, 2)


class TestWhatIsNotTold:
    def test_a_device_alone_says_only_what_is_asked_of_it(self) -> None:
        mtty = card_of([VgpuType("mtty-1"), VgpuType("mtty-2")], {"mtty-1": 24, "mtty-2": 12})
        assert mtty.sharing is Sharing.UNKNOWN
        assert counts(mtty) == {"mtty-1": Count(24, 24), "mtty-2": Count(12, 12)}
        assert after(mtty, {"mtty-2": 1}).available == {"mtty-1": Count(0, 24), "mtty-2": Count(11, 11)}

    def test_what_fits_elsewhere_leaves_a_place_free(self) -> None:
        card = card_of([VgpuType("a"), VgpuType("b")], {"a": 1}, {"b": 1})
        assert after(card, {"b": 1}).available == {"a": Count(0, 1), "b": Count(0, 0)}

    def test_a_card_without_a_place_for_vgpus_has_room_for_none(self) -> None:
        assert counts(card_of([VgpuType("a"), nvidia(4)])) == {"a": Count(0, 0), "4Q": Count(0, 0)}

    def test_a_number_that_could_not_be_read_is_unknown(self) -> None:
        card = card_of([VgpuType("a"), nvidia(4)], {}, unread={"a": "EIO", "4Q": "EIO"})
        assert counts(card) == {"a": Count(0, None), "4Q": Count(0, None)}
        assert after(card, {"a": 3}).available["a"] == Count(0, None)

    def test_vfs_are_made_once(self) -> None:
        kind = VgpuType("vf", available=Count(0, 8), max_instances=8)
        parents = (VgpuParent("card"),)
        card = counted(VgpuCard("card", Dialect.SRIOV, sharing=Sharing.VFS, types=(kind,), parents=parents))
        assert counts(card) == {"vf": Count(0, 8)}
        assert after(card, {"vf": 4}).available == {"vf": Count(0, 0)}
        with pytest.raises(NoCapacity):
            after(card, {"vf": 9})


def drawn_card(data: st.DataObject) -> VgpuCard:
    """Any card at all, of whatever rule, its numbers as odd as they may be."""
    number = st.none() | st.integers(0, 40)
    types = [
        VgpuType(
            f"t{index}",
            framebuffer_bytes=data.draw(st.none() | st.sampled_from([GIB, 2 * GIB, 4 * GIB])),
            max_instances=data.draw(number),
            mig_slices=data.draw(st.sampled_from([None, None, 1])),
            takes=data.draw(st.sampled_from([{}, {"m": 4}, {"m": 0}, {"m": 16, "n": 2}])),
            existing=data.draw(st.integers(0, 3)),
        )
        for index in range(data.draw(st.integers(1, 4)))
    ]
    names = st.sampled_from([kind.id for kind in types])
    offers = data.draw(st.lists(st.dictionaries(names, st.integers(0, 9)), max_size=5))
    unread = data.draw(st.dictionaries(names, st.just("EIO"), max_size=1))
    told, dialect = data.draw(st.sampled_from(SizeMode)), data.draw(st.sampled_from([Dialect.MDEV, Dialect.VENDOR]))
    memory = data.draw(st.none() | st.integers(0, 64 * GIB))
    return card_of(types, *offers, unread=unread, memory=memory, told=told, dialect=dialect)


@given(st.data())
@unhurried
def test_of_any_card_nothing_ever_grows_or_falls_below_none(data: st.DataObject) -> None:
    card = drawn_card(data)
    names = st.sampled_from([kind.id for kind in card.types])
    request = data.draw(st.dictionaries(names, st.integers(1, 4)))
    larger = {**request, (name := data.draw(names)): request.get(name, 0) + data.draw(st.integers(1, 3))}
    try:
        some, more = after(card, request).available, after(card, larger).available
    except NoCapacity:
        return
    for before, later in ((counts(card), some), (some, more)):
        for name, count in later.items():
            assert 0 <= count.at_least <= before[name].at_least
            assert count.at_most is None or count.at_least <= count.at_most
            most = before[name].at_most
            assert most is None or (count.at_most is not None and count.at_most <= most)


@given(st.data())
@unhurried
def test_what_is_refused_is_refused_with_more_as_well(data: st.DataObject) -> None:
    card = drawn_card(data)
    names = st.sampled_from([kind.id for kind in card.types])
    request = data.draw(st.dictionaries(names, st.integers(1, 6), min_size=1))
    larger = {**request, (name := data.draw(names)): request.get(name, 0) + 1}
    if refused(after, card, request):
        assert refused(after, card, larger)


def refused(ask: Callable[[VgpuCard, Mapping[str, int]], object], card: VgpuCard, request: Mapping[str, int]) -> bool:
    try:
        ask(card, request)
    except NoCapacity:
        return True
    return False
