"""The names of the vGPU types of a card, as facts of a plan. May not do input or output."""

from __future__ import annotations

from collections.abc import Iterable

from vfioctl.core.change import Fact, Plan
from vfioctl.vgpu.model.kinds import TYPE_NAMES
from vfioctl.vgpu.model.recorded import TypeNames
from vfioctl.vgpu.model.vgpu import Dialect, VgpuCard


def type_name_facts(cards: Iterable[VgpuCard]) -> tuple[Fact, ...]:
    """One fact for each card whose types the kernel lists only while they can be created."""
    return tuple(
        Fact(kind=TYPE_NAMES, subject=card.id, values={kind.id: kind.name for kind in card.types if kind.name})
        for card in cards
        if card.dialect is Dialect.VENDOR
    )


def type_names_in(plan: Plan) -> TypeNames:
    """The names of vGPU types, by card and type id."""
    return {fact.subject: {i: str(name) for i, name in fact.values.items()} for fact in plan.facts_of(TYPE_NAMES)}
