"""Room that is kept for vGPUs which are created at boot: more than there is, and in words."""

from __future__ import annotations

from tests.unit.vgpu.test_placement import pool
from vfioctl.vgpu.model.vgpu import VgpuCard
from vfioctl.vgpu.placement.reserved import Reserved, kept_for, with_room_kept, without_claimed

CARD = pool("mbochs", 4)
RESERVED = tuple(Reserved(f"vgpu-{number}", "mbochs", "small") for number in range(6))


def test_more_than_there_is_room_for_changes_nothing() -> None:
    """They will not all be created; which of them, nobody knows."""
    assert with_room_kept([CARD], RESERVED) == (CARD,)


def test_what_room_is_kept_for_is_named_up_to_four() -> None:
    assert kept_for([CARD], "small", RESERVED[:4]) == ", ".join(f"vgpu-{number} on mbochs" for number in range(4))
    words = kept_for([CARD], "small", RESERVED)
    assert words == "vgpu-0 on mbochs, vgpu-1 on mbochs, vgpu-2 on mbochs, vgpu-3 on mbochs and 2 more"
    assert kept_for([CARD], "none", RESERVED) == ""


def test_what_reserves_no_room_leaves_the_cards_as_they_are() -> None:
    assert with_room_kept([CARD], ()) == (CARD,)
    assert without_claimed([CARD], [Reserved("vgpu-0", "mbochs", "of another driver")]) == (CARD,)


def room(card: VgpuCard) -> dict[str, tuple[int, int | None]]:
    return {kind.id: (kind.available.at_least, kind.available.at_most) for kind in card.types}


def test_what_is_claimed_leaves_the_rest() -> None:
    (card,) = without_claimed([pool("mbochs", 64)], RESERVED[:1])
    assert room(card) == {"small": (15, 15), "medium": (3, 3), "large": (0, 0)}


def test_a_card_with_too_little_for_what_is_claimed_has_room_for_nothing() -> None:
    (card,) = without_claimed([pool("mbochs", 20)], RESERVED)
    assert room(card) == {"small": (0, 0), "medium": (0, 0), "large": (0, 0)}
