"""The names of a card's types in a plan, from which they are recorded in the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from vfioctl.core.change import Fact
from vfioctl.kernel.protocol import Reader
from vfioctl.vgpu.model.kinds import TYPE_NAMES


class TypeNameFacts:
    """Facts of the kind `vGPU types`: the names of the types of a card, by id."""

    kind: ClassVar[str] = TYPE_NAMES

    def read(self, kernel: Reader, facts: Sequence[Fact]) -> Mapping[str, Fact]:
        """Returns the facts unchanged: the kernel no longer lists types that cannot be created."""
        del kernel
        return {fact.subject: fact for fact in facts}

    def holds(self, fact: Fact, now: Fact | None) -> bool:
        # A plan uses type ids only; the names are for the ledger. The list of types in the kernel changes with every
        # vGPU that is created.
        del fact, now
        return True

    def relatives(self, kernel: Reader, fact: Fact) -> Iterable[str]:
        del kernel, fact
        return ()

    def describe(self, fact: Fact) -> Sequence[str]:
        """Returns nothing: only the ledger needs these facts."""
        del fact
        return ()
