"""Reads the vGPUs of a host as values: cards with their types, and vGPUs with mdevctl's definitions of them. Reads
only. A damaged definition costs only itself, while mdevctl then fails for all."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from typing import NamedTuple

from vfioctl.errors import KernelRefused
from vfioctl.kernel.host_paths import DEFINITIONS
from vfioctl.kernel.lenient import failure_of, names_in, text_of
from vfioctl.kernel.protocol import PCI_ADDRESS, PCI_DEVICES, FileReader, Reader
from vfioctl.units import UUID
from vfioctl.untrusted_text import parse_json
from vfioctl.vgpu.dialects.dialect import Facts
from vfioctl.vgpu.dialects.vendor import bytes_in, named, reported_types
from vfioctl.vgpu.model.vgpu import (
    UNKNOWN,
    Count,
    Definition,
    Dialect,
    Profile,
    Sharing,
    SizeMode,
    TypeNames,
    Vgpu,
    VgpuCard,
    VgpuParent,
    Vgpus,
    VgpuState,
    VgpuType,
    VgpuWarning,
)
from vfioctl.vgpu.placement.capacity import counted
from vfioctl.vgpu.probe.scan import VgpuScan

NO_NAMES: TypeNames = {}
_LONGEST = 65_536
_TYPE_FIELDS = {field.name for field in fields(VgpuType)} - {"id", "existing", "available", "unknown"}
_SIZE_MODES = {"0": SizeMode.SAME, "1": SizeMode.MIXED}
_VGPU_FIELDS = ("driver", "iommu_group", "vfio_group", "vfio_cdev", "numa_node", "attributes", "unknown")


def read_vgpus(
    kernel: Reader,
    cards: Collection[str] | None = None,
    *,
    suspects: Collection[str] = (),
    names: TypeNames = NO_NAMES,
    defined: Collection[str] | None = None,
    types: bool = True,
) -> Vgpus:
    """All cards that offer vGPUs, with their vGPUs; only `cards` if given. Facts that could not be read are in
    `warnings` and in each `unknown`. `suspects`: devices that are not read because they may block. `types`: see
    `VgpuScan`. `names` and `defined`: see `assemble`."""
    return assemble(kernel, VgpuScan(kernel, cards=cards, suspects=suspects, types=types), names, defined)


def assemble(
    kernel: Reader, scan: VgpuScan, names: TypeNames = NO_NAMES, defined: Collection[str] | None = None
) -> Vgpus:
    """The vGPUs of a scan that has been started. `names`: type names when they were last listed, by card and id:
    NVIDIA's vendor-specific VFIO lists only types that can still be created, and NVML, which knows all, may not answer.
    `defined`: UUIDs whose definitions are read; None for all."""
    gathered: dict[str, _Gathered] = {}
    for dialect, parent, facts in scan.results():
        card = facts["card"]
        known = names.get(card, {}) if dialect == Dialect.VENDOR else {}
        gathered.setdefault(card, _Gathered(card, Dialect(dialect), known)).add(parent, facts)
    by_nvml = scan.nvml()
    definitions, problems = read_definitions(kernel, defined)
    assembled: list[VgpuCard] = []
    live: list[Vgpu] = []
    for facts_of_card in gathered.values():
        try:
            card = facts_of_card.card(by_nvml.get(facts_of_card.id, {}))
            live += facts_of_card.instances(card)
            assembled.append(card)
        except Exception as error:  # noqa: BLE001 - no card may hide the others
            problems.append((facts_of_card.id, f"it could not be read: {failure_of(error)}"))
    cards = tuple(sorted(assembled, key=lambda card: (len(card.id), card.id)))
    instances = _with_definitions(live, definitions, cards)
    instances.sort(key=lambda vgpu: (len(vgpu.card), vgpu.card, len(vgpu.parent), vgpu.parent, vgpu.id))
    warnings = (VgpuWarning(subject, text) for subject, text in (*scan.problems, *problems))
    return Vgpus(cards, tuple(instances), tuple(warnings))


def titles(kernel: Reader, cards: Iterable[VgpuCard]) -> Mapping[str, str]:
    """Product names of the cards, from the hardware database. Separate, as opening it takes a fifth of a listing."""
    names = {}
    for card in cards:
        modalias = text_of(kernel, f"{PCI_DEVICES}/{card.id}/modalias") if PCI_ADDRESS.fullmatch(card.id) else ""
        if modalias:
            names[card.id] = kernel.properties(modalias).get("ID_MODEL_FROM_DATABASE", "")
    return names


class _Gathered:
    """Collects the facts of one card from its parents."""

    def __init__(self, card: str, dialect: Dialect, names: Mapping[str, str]) -> None:
        self.id, self._dialect = card, dialect
        self._remembered: dict[str, Facts] = {kind: named(name) for kind, name in names.items()}
        self._types: dict[str, Facts] = {}
        self._parents: list[VgpuParent] = []
        self._of_card: Facts = {}
        self._profiles: dict[str, Mapping[str, str]] = {}
        self._vgpus: list[tuple[str, Facts]] = []

    def add(self, parent: str, facts: Facts) -> None:
        for name, said in facts["types"].items():
            if name not in self._types or self._types[name].get("unknown"):
                self._types[name] = said
        self._of_card |= facts.get("of_card", {})
        self._profiles |= facts.get("profiles", {})
        self._vgpus += ((parent, vgpu) for vgpu in facts["instances"])
        instances = len(facts["instances"])
        self._parents.append(VgpuParent(parent, facts["offers"], instances, facts.get("unknown", {})))

    def card(self, by_nvml: Mapping[str, str]) -> VgpuCard:
        """The card as a value. `by_nvml`: NVML's facts of it."""
        # an mdev that lost its driver uses no capacity (mdev_remove)
        existing_types = [v.get("type", "") for _, v in self._vgpus if v.get("state") != VgpuState.ORPHAN]
        known = self._remembered | self._types
        if self._dialect is Dialect.VENDOR:
            reported = reported_types(by_nvml.get("vgpu_types", ""))
            known |= {name: known.get(name, {}) | said for name, said in reported.items()}
        named_types = {name: known.get(name, {}) for name in {*filter(None, existing_types), *known}}
        types = sorted(named_types.items(), key=lambda item: (len(item[0]), item[0]))  # type 742 before 1145
        return counted(
            VgpuCard(
                id=self.id,
                dialect=self._dialect,
                sharing=Sharing(self._of_card.get("sharing", Sharing.UNKNOWN)),
                size_mode=_SIZE_MODES.get(by_nvml.get("vgpu_heterogeneous_mode", ""), SizeMode.UNKNOWN),
                numa_node=self._of_card.get("numa_node"),
                driver=self._of_card.get("driver"),
                memory_bytes=bytes_in(by_nvml.get("memory_bytes", "")),
                total_vfs=self._of_card.get("total_vfs"),
                types=tuple(_type(name, said, existing_types.count(name)) for name, said in types),
                parents=tuple(self._parents),
                profiles=tuple(Profile(scope, values) for scope, values in self._profiles.items()),
            )
        )

    def instances(self, card: VgpuCard) -> list[Vgpu]:
        return [_vgpu(card, parent, facts) for parent, facts in self._vgpus]


def _type(name: str, said: Facts, existing: int) -> VgpuType:
    available = Count(*said["available"]) if "available" in said else UNKNOWN
    known = {field: said[field] for field in _TYPE_FIELDS if field in said}
    unknown = said.get("unknown", {})
    return VgpuType(id=name, existing=existing, available=available, unknown=unknown, **known)


def _vgpu(card: VgpuCard, parent: str, facts: Facts) -> Vgpu:
    kind = next((kind for kind in card.types if kind.id == facts.get("type")), VgpuType(id=""))
    known = {field: facts[field] for field in _VGPU_FIELDS if field in facts}
    return Vgpu(
        id=facts["id"],
        dialect=card.dialect,
        card=card.id,
        parent=parent,
        state=VgpuState(facts.get("state", "live")),
        type=facts.get("type", ""),
        type_name=kind.name,
        profile=kind.profile,
        **{"numa_node": card.numa_node, **known},  # an mdev has no NUMA node of its own
    )


class Defined(NamedTuple):
    """The definition of a mediated device, its parent, and its UUID in lower case."""

    parent: str
    uuid: str
    definition: Definition


def read_definitions(
    kernel: FileReader, only: Collection[str] | None = None
) -> tuple[list[Defined], list[tuple[str, str]]]:
    """Definitions (of UUIDs in `only`, lower case; None: all), and the path of each unreadable file with the reason."""
    definitions, problems = [], []
    for path, parent, uuid in _definition_files(kernel, only):
        try:
            definitions.append(Defined(parent, uuid.lower(), definition_in(path, kernel.read(path))))
        except KernelRefused as error:
            problems.append((path, error.symbol))
        except ValueError as error:
            problems.append((path, f"not a definition of mdevctl: {str(error)[:80]}"))
        except Exception as error:  # noqa: BLE001 - such as a RecursionError; the others are read
            problems.append((path, f"not a definition of mdevctl: {failure_of(error)}"))
    return definitions, problems


def _definition_files(kernel: FileReader, only: Collection[str] | None) -> Iterator[tuple[str, str, str]]:
    for parent in names_in(kernel, DEFINITIONS) if only is None or only else ():
        for name in names_in(kernel, f"{DEFINITIONS}/{parent}"):
            if UUID.fullmatch(name) if only is None else name.lower() in only:
                yield f"{DEFINITIONS}/{parent}/{name}", parent, name


def definition_in(path: str, text: str) -> Definition:
    """The definition with this path and text. Raises ValueError when it is malformed."""
    document = parse_json(text, most=_LONGEST)
    if not isinstance(document, dict) or not isinstance(document.get("mdev_type"), str):
        raise ValueError("no mdev_type")  # noqa: TRY004 - the text is at fault, not the argument's type
    attributes = document.get("attrs") or []
    if not isinstance(attributes, list) or not all(isinstance(attribute, dict) for attribute in attributes):
        raise ValueError("attrs is no list of objects")
    pairs = tuple((_text(name), _text(value)) for attribute in attributes for name, value in attribute.items())
    return Definition(path, _text(document["mdev_type"]), _text(document.get("start", "manual")), pairs)


def _text(value: object) -> str:
    """As text that can be written: JSON may hold half of a surrogate pair. Raises ValueError."""
    text = str(value)
    text.encode()
    return text


def _with_definitions(live: list[Vgpu], definitions: Iterable[Defined], cards: Iterable[VgpuCard]) -> list[Vgpu]:
    by_place = {(vgpu.parent, vgpu.id): vgpu for vgpu in live}
    cards_of = {parent.name: card for card in cards for parent in card.parents}
    for parent, uuid, definition in definitions:
        if (parent, uuid) not in by_place:
            card = cards_of.get(parent, VgpuCard(parent, Dialect.MDEV))
            only = {"id": uuid, "type": definition.type, "state": VgpuState.DEFINED}
            by_place[parent, uuid] = _vgpu(card, parent, only)
        by_place[parent, uuid] = replace(by_place[parent, uuid], definition=definition)
    return list(by_place.values())
