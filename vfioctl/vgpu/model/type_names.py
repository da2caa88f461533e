"""The names of the vGPU types of a card, as facts of a plan, for the ledger. May not do input or output."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from vfioctl.core.change import Fact, Plan
from vfioctl.kernel.protocol import Reader
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


class TypeNameFacts:
    """Facts of the kind `vGPU types`: the names of the types of a card, by id."""

    kind: ClassVar[str] = TYPE_NAMES

    def read(self, kernel: Reader, facts: Sequence[Fact]) -> Mapping[str, Fact]:
        """Returns the facts unchanged: the kernel no longer lists types that cannot be created."""
        return {fact.subject: fact for fact in facts}

    def holds(self, fact: Fact, now: Fact | None) -> bool:
        # A plan uses type ids only; the names are for the ledger. The list of types in the kernel changes with every
        # vGPU that is created.
        return True

    def relatives(self, kernel: Reader, fact: Fact) -> Iterable[str]:
        return ()

    def describe(self, fact: Fact) -> Sequence[str]:
        """Returns nothing: only the ledger needs these facts."""
        return ()
