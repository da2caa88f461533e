"""Plain objects for a change of vGPUs: type names in its plan, results in its outcome. May not do input or output."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from pydantic import ConfigDict, TypeAdapter

from vfioctl.core.change import Fact, Plan
from vfioctl.kernel.protocol import Reader
from vfioctl.vgpu.model.kinds import TYPE_NAMES
from vfioctl.vgpu.model.vgpu import Definition, Dialect, Left, TypeNames, Vgpu, VgpuCard

VGPUS, LEFT, STILL_DEFINED = "vgpus", "left", "still_defined"
_LATER = ConfigDict(defer_build=True)
_VGPUS = TypeAdapter(tuple[Vgpu, ...], config=_LATER)
_LEFT = TypeAdapter(tuple[Left, ...], config=_LATER)
_DEFINITIONS = TypeAdapter(dict[str, Definition], config=_LATER)


def report_of(vgpus: Iterable[Vgpu], left: Iterable[Left]) -> Mapping[str, Any]:
    """The vGPUs that a change created, and the remaining capacity, as plain JSON objects."""
    return {VGPUS: _VGPUS.dump_python(tuple(vgpus), mode="json"), LEFT: _LEFT.dump_python(tuple(left), mode="json")}


def vgpus_in(report: Mapping[str, Any]) -> tuple[Vgpu, ...]:
    """The vGPUs that a change created, or the VFs that it enabled, as read afterwards."""
    return _VGPUS.validate_python(report.get(VGPUS, ()))


def left_in(report: Mapping[str, Any]) -> tuple[Left, ...]:
    """The remaining capacity for the types of the vGPUs that a change created."""
    return _LEFT.validate_python(report.get(LEFT, ()))


def report_of_defined(defined: Mapping[str, Definition]) -> Mapping[str, Any]:
    """The definitions of removed mediated devices that are left, by UUID, as plain JSON objects; empty for none."""
    return {STILL_DEFINED: _DEFINITIONS.dump_python(dict(defined), mode="json")} if defined else {}


def still_defined_in(report: Mapping[str, Any]) -> Mapping[str, Definition]:
    """The definitions of removed mediated devices that are left, by UUID."""
    return _DEFINITIONS.validate_python(report.get(STILL_DEFINED, {}))


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
