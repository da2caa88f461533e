"""The vGPUs of a host as values: cards with their types, and instances with what mdevctl knows of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from vfioctl.kernel.lenient import text_of
from vfioctl.kernel.protocol import PCI_ADDRESS, PCI_DEVICES, Reader
from vfioctl.vgpu.capacity import counted
from vfioctl.vgpu.dialects.dialect import Facts
from vfioctl.vgpu.dialects.vendor import bytes_in, named, told_types
from vfioctl.vgpu.model.vgpu import (
    UNKNOWN,
    Count,
    Definition,
    Dialect,
    Profile,
    Sharing,
    SizeMode,
    Vgpu,
    VgpuCard,
    VgpuParent,
    Vgpus,
    VgpuState,
    VgpuType,
    VgpuWarning,
)
from vfioctl.vgpu.probe.definitions import read_definitions
from vfioctl.vgpu.probe.scan import VgpuScan

Names = Mapping[str, Mapping[str, str]]
NO_NAMES: Names = {}
_TYPE_FIELDS = (
    "name",
    "profile",
    "description",
    "device_api",
    "framebuffer_bytes",
    "heads",
    "max_resolution",
    "max_instances",
    "mig_slices",
    "takes",
)
_SIZE_MODES = {"0": SizeMode.SAME, "1": SizeMode.MIXED}
_INSTANCE_FIELDS = ("driver", "iommu_group", "vfio_group", "vfio_cdev", "numa_node", "attributes", "unknown")


def read_vgpus(
    kernel: Reader,
    cards: Collection[str] | None = None,
    *,
    suspects: Collection[str] = (),
    names: Names = NO_NAMES,
    defined: Collection[str] | None = None,
) -> Vgpus:
    """All cards that can be sliced, and all vGPUs; or only those cards, with their vGPUs.

    What could not be read is in `warnings`, and in each `unknown`. Of `suspects` nothing is asked. `names` and
    `defined`: as for `assemble`.
    """
    return assemble(kernel, VgpuScan(kernel, cards=cards, suspects=suspects), names, defined)


def assemble(kernel: Reader, scan: VgpuScan, names: Names = NO_NAMES, defined: Collection[str] | None = None) -> Vgpus:
    """The vGPUs of a scan that was begun already.

    `names`: by card and id, what types were called when they were last seen. NVIDIA's vendor-specific VFIO lists only
    those that can still be made, and NVML, which knows all, may be silent. `defined`: the only vGPUs
    whose definitions are looked for, by UUID.
    """
    gathered: dict[str, _Gathered] = {}
    for dialect, parent, facts in scan.results():
        card = facts["card"]
        known = names.get(card, {}) if dialect == Dialect.VENDOR else {}
        gathered.setdefault(card, _Gathered(card, Dialect(dialect), known)).add(parent, facts)
    told = scan.told()
    definitions, problems = read_definitions(kernel, defined)
    found = [each.card(told.get(each.id, {})) for each in gathered.values()]
    cards = tuple(sorted(found, key=_order))
    instances = _with_definitions([v for each in gathered.values() for v in each.instances(cards)], definitions, cards)
    warnings = (VgpuWarning(subject, text) for subject, text in (*scan.problems, *problems))
    return Vgpus(cards, tuple(sorted(instances, key=_instance_order)), tuple(warnings))


def titles(kernel: Reader, cards: Iterable[VgpuCard]) -> Mapping[str, str]:
    """What the cards are, by the hardware database. Apart from the rest: to open that takes a fifth of a listing."""
    found = {}
    for card in cards:
        modalias = text_of(kernel, f"{PCI_DEVICES}/{card.id}/modalias") if PCI_ADDRESS.fullmatch(card.id) else ""
        if modalias:
            found[card.id] = kernel.properties(modalias).get("ID_MODEL_FROM_DATABASE", "")
    return found


class _Gathered:
    """One card, as its parents told of it one after the other."""

    def __init__(self, card: str, dialect: Dialect, names: Mapping[str, str]) -> None:
        self.id, self._dialect = card, dialect
        self._remembered: dict[str, Facts] = {kind: named(name) for kind, name in names.items()}
        self._types: dict[str, Facts] = {}
        self._parents: list[VgpuParent] = []
        self._of_card: Facts = {}
        self._profiles: dict[str, Mapping[str, str]] = {}
        self._instances: list[tuple[str, Facts]] = []

    def add(self, parent: str, facts: Facts) -> None:
        for name, said in facts["types"].items():
            if name not in self._types or self._types[name].get("unknown"):
                self._types[name] = said
        self._of_card |= facts.get("of_card", {})
        self._profiles |= facts.get("profiles", {})
        self._instances += ((parent, instance) for instance in facts["instances"])
        here = VgpuParent(parent, facts["offers"], len(facts["instances"]), facts.get("unknown", {}))
        self._parents.append(here)

    def card(self, told: Mapping[str, str]) -> VgpuCard:
        """`told`: what NVML says of it."""
        there = [instance.get("type", "") for _, instance in self._instances if _counts(instance)]
        known = self._remembered | self._types
        if self._dialect is Dialect.VENDOR:
            known |= {name: known.get(name, {}) | said for name, said in told_types(told.get("vgpu_types", "")).items()}
        types = {name: known.get(name, {}) for name in {*filter(None, there), *known}}
        return counted(
            VgpuCard(
                id=self.id,
                dialect=self._dialect,
                sharing=Sharing(self._of_card.get("sharing", Sharing.UNKNOWN)),
                size_mode=_SIZE_MODES.get(told.get("vgpu_heterogeneous_mode", ""), SizeMode.UNKNOWN),
                numa_node=self._of_card.get("numa_node"),
                driver=self._of_card.get("driver"),
                memory_bytes=bytes_in(told.get("memory_bytes", "")),
                total_vfs=self._of_card.get("total_vfs"),
                types=tuple(
                    _type(name, said, there.count(name)) for name, said in sorted(types.items(), key=_type_order)
                ),
                parents=tuple(self._parents),
                profiles=tuple(Profile(scope, values) for scope, values in self._profiles.items()),
            )
        )

    def instances(self, cards: Iterable[VgpuCard]) -> list[Vgpu]:
        (card,) = (card for card in cards if card.id == self.id)
        return [_instance(card, parent, facts) for parent, facts in self._instances]


def _type(name: str, said: Facts, existing: int) -> VgpuType:
    available = Count(*said["available"]) if "available" in said else UNKNOWN
    known = {field: said[field] for field in _TYPE_FIELDS if field in said}
    unknown = said.get("unknown", {})
    return VgpuType(id=name, existing=existing, available=available, unknown=unknown, **known)


def _instance(card: VgpuCard, parent: str, facts: Facts) -> Vgpu:
    kind = next((kind for kind in card.types if kind.id == facts.get("type")), VgpuType(id=""))
    known = {field: facts[field] for field in _INSTANCE_FIELDS if field in facts}
    return Vgpu(
        id=facts["id"],
        dialect=card.dialect,
        card=card.id,
        parent=parent,
        state=VgpuState(facts.get("state", "live")),
        type=facts.get("type", ""),
        type_name=kind.name,
        profile=kind.profile,
        **{"numa_node": card.numa_node, **known},  # an mdev has no node of its own
    )


def _counts(instance: Facts) -> bool:
    """An mdev that lost its driver went back to the pool (mdev_remove)."""
    return instance.get("state") != VgpuState.ORPHAN


def _with_definitions(live: list[Vgpu], definitions: Iterable[Facts], cards: Iterable[VgpuCard]) -> list[Vgpu]:
    """The instances with their definitions, and those that are only defined."""
    found = {(vgpu.parent, vgpu.id): vgpu for vgpu in live}
    cards_of = {parent.name: card for card in cards for parent in card.parents}
    for facts in definitions:
        key = facts["parent"], facts["uuid"]
        kept = Definition(facts["path"], facts["type"], facts["start"], tuple(facts["attributes"]))
        if key not in found:
            card = cards_of.get(facts["parent"], VgpuCard(facts["parent"], Dialect.MDEV))
            only = {"id": facts["uuid"], "type": facts["type"], "state": VgpuState.DEFINED}
            found[key] = _instance(card, facts["parent"], only)
        found[key] = replace(found[key], definition=kept)
    return list(found.values())


def _order(card: VgpuCard) -> tuple[int, str]:
    return len(card.id), card.id


def _instance_order(vgpu: Vgpu) -> tuple[int, str, int, str, str]:
    return len(vgpu.card), vgpu.card, len(vgpu.parent), vgpu.parent, vgpu.id


def _type_order(item: tuple[str, Facts]) -> tuple[int, str]:
    """By number, where plain text would put type 1145 before 742."""
    return len(item[0]), item[0]
