"""How many vGPUs fit on a simulated card: computed as the drivers do, from the descriptions of the types. NVIDIA's
drivers count frame buffer sizes over all VFs of a card; other drivers have a stock that vGPUs use up. What the tree
does not show is kept as facts of the simulation: `sim:CARD stock` (its size), `types` (names of types that are no
longer listed), `mixed_sizes` (1: vGPUs of several sizes may exist at the same time)."""

from __future__ import annotations

import errno as errnos
import json
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

from vfioctl.errors import BadDocument
from vfioctl.kernel.recorded.tree import Tree
from vfioctl.units import UUID_FORM
from vfioctl.untrusted_text import parse_json

TYPES, VENDOR = "mdev_supported_types", "nvidia"
UUID = re.compile(UUID_FORM, re.ASCII)
NO_TYPE = "0"
T = TypeVar("T")
_SHARED = "instances"
_MIB_OF_GIB = 1024


class Size(NamedTuple):
    """A frame buffer size in MiB, and how many of this size a card can have."""

    memory: int
    most: int


def card_of(tree: Tree, device: str) -> str:
    """The PF of a VF, or the device itself."""
    return tree.resolve(f"{device}/physfn") if f"{device}/physfn" in tree.links else device


def facts_of(tree: Tree, device: str) -> dict[str, str]:
    """What the simulation keeps of a device."""
    return tree.properties.setdefault(f"sim:{posixpath.basename(device)}", {})


def virtual_functions(tree: Tree, physical: str) -> list[str]:
    """The VFs that are linked, in the order of their numbers."""
    names = [name for name in tree.directories.get(physical, ()) if re.fullmatch(r"virtfn[0-9]+", name)]
    return [tree.resolve(f"{physical}/{name}") for name in sorted(names, key=lambda name: int(name[6:]))]


def parents_of(tree: Tree, card: str) -> list[str]:
    """The places of a card on which vGPUs are created."""
    functions = (card, *virtual_functions(tree, card))
    vendor = f"{VENDOR}/current_vgpu_type"
    return [f for f in functions if f"{f}/{TYPES}" in tree.directories or f"{f}/{vendor}" in tree.files]


def instances_of(tree: Tree, parent: str) -> Iterator[str]:
    """The types of the vGPUs that use a share there: includes those being removed, not those without a driver."""
    for name in sorted(tree.directories.get(parent, ())):
        home = f"{parent}/{name}"
        if not UUID.fullmatch(name) or home not in tree.directories:
            continue
        if (removed := tree.properties.get(f"sim:{name}", {}).get("removed")) is not None:
            yield from [removed] if removed else ()
        elif f"{home}/driver" in tree.links and f"{home}/mdev_type" in tree.links:
            yield posixpath.basename(tree.links[f"{home}/mdev_type"])
    if (current := tree.files.get(f"{parent}/{VENDOR}/current_vgpu_type", NO_TYPE)) != NO_TYPE:
        yield current


class Account:
    """The capacity of a card, and how much of it is used."""

    def __init__(self, tree: Tree, card: str) -> None:
        self._card, self._facts = card, facts_of(tree, card)
        self.parents = parents_of(tree, card)
        self.there = {parent: tuple(instances_of(tree, parent)) for parent in self.parents}
        self._all = [kind for kinds in self.there.values() for kind in kinds]
        described = _descriptions(tree, self.parents)
        self._sizes = {kind: size for kind, text in described.items() if (size := _stated_size(text))}
        self._sizes |= _sizes_by_name(tree, card, self.parents)
        self._sizes_in_use = [self._sizes[kind].memory for kind in self._all if kind in self._sizes]
        self._whole = max((size.memory * size.most for size in self._sizes.values()), default=0)
        self._stated = {kind: _stated_amounts(text) for kind, text in described.items() if kind not in self._sizes}
        self._stock = self._kept_stock(tree) if self._stated else {}

    def available(self, parent: str, kind: str) -> int:
        """How many more vGPUs of only this type fit there. NVIDIA's VFs have at most one vGPU each."""
        if kind in self._sizes:
            left = self._room(self._sizes[kind])
            return min(left, 0 if self.there.get(parent) else 1) if parent != self._card else left
        if kind not in self._stated:
            return 0
        used = self._used()
        takes = self._takes(kind)
        return max(0, min((self._stock.get(what, 0) - used.get(what, 0)) // n for what, n in takes.items()))

    def refusal(self, kind: str) -> int:
        """The errno of a creation that does not fit: NVIDIA's EINVAL, the core's EUSERS, a driver's own ENOSPC."""
        if kind in self._sizes:
            return errnos.EINVAL
        return errnos.EUSERS if _SHARED in self._takes(kind) else errnos.ENOSPC

    def _room(self, size: Size) -> int:
        sizes = self._sizes_in_use
        if self._facts.get("mixed_sizes") != "1" and any(memory != size.memory for memory in sizes):
            return 0
        return max(0, min(size.most - sizes.count(size.memory), (self._whole - sum(sizes)) // size.memory))

    def _takes(self, kind: str) -> Mapping[str, int]:
        """How much of the stock a vGPU of this type uses; one unit if its description does not say."""
        return self._stated.get(kind) or ({_SHARED: 1} if _SHARED in self._stock else {f"of {kind}": 1})

    def _used(self) -> dict[str, int]:
        used: dict[str, int] = {}
        for kind in self._all:
            for what, number in self._takes(kind).items():
                used[what] = used.get(what, 0) + number
        return used

    def _kept_stock(self, tree: Tree) -> dict[str, int]:
        """The whole stock, free or used; computed once from the recorded numbers, before anything changes them."""
        if "stock" not in self._facts:
            home = f"{self._card}/{TYPES}"
            left = {kind: number_at(tree, f"{home}/{kind}/available_instances") for kind in self._stated}
            self._facts["stock"] = json.dumps(self._computed_stock(left), sort_keys=True)
        return _noted(self._facts["stock"], int)

    def _computed_stock(self, left: Mapping[str, int]) -> dict[str, int]:
        vgpus = self._all
        if not any(self._stated.values()):
            if len(left) > 1 and len(set(left.values())) == 1:  # mdev_device_create counts all types
                return {_SHARED: max(left.values()) + len(vgpus)}
            return {f"of {kind}": number + vgpus.count(kind) for kind, number in left.items()}
        stock: dict[str, int] = {}
        for kind, number in left.items():
            for what, amount in self._stated[kind].items():
                stock[what] = max(stock.get(what, 0), number * amount)
        for kind in vgpus:
            for what, amount in self._stated.get(kind, {}).items():
                stock[what] += amount
        return stock


def number_at(tree: Tree, path: str) -> int:
    """The number in a file; 0 where there is none."""
    text = tree.files.get(path, "0")
    return int(text) if text.isdecimal() else 0


def _descriptions(tree: Tree, parents: Iterable[str]) -> dict[str, str]:
    """The description of each type; all places of a card have the same types."""
    descriptions: dict[str, str] = {}
    for parent in parents:
        for kind in tree.directories.get(f"{parent}/{TYPES}", set()) - descriptions.keys():
            descriptions[kind] = tree.files.get(f"{parent}/{TYPES}/{kind}/description", "")
    return descriptions


def _stated_size(text: str) -> Size | None:
    """The size in a description of NVIDIA's: `framebuffer=4096M, ..., max_instance=4`."""
    memory, most = re.search(r"framebuffer=([1-9][0-9]*)M", text), re.search(r"max_instance=([0-9]+)", text)
    return Size(int(memory[1]), int(most[1])) if memory and most else None


def _stated_amounts(text: str) -> dict[str, int]:
    """The amounts in a description: `16 MB video memory` (samples/vfio-mdev/mbochs.c), or the lines of GVT-g."""
    if video := re.search(r"\b([1-9][0-9]*) MB video memory\b", text):
        return {"video memory": int(video[1])}
    return {name: int(n) for name, n in re.findall(r"^(low_gm_size|high_gm_size|fence): ([1-9][0-9]*)", text, re.M)}


def _noted(text: str, kind: type[T]) -> dict[str, T]:
    """An object that the simulation has noted as JSON, with values of this type. Raises BadDocument."""
    try:
        document = parse_json(text)
    except ValueError:
        document = None
    if isinstance(document, dict) and all(type(value) is kind for value in document.values()):
        return document
    raise BadDocument(f"the host file has a damaged note of the simulation: {text[:80]!r}")


def known_types(tree: Tree, card: str, parents: Iterable[str]) -> dict[str, str]:
    """The names of all types that the card has ever listed, by number."""
    known = _noted(facts_of(tree, card).get("types", "{}"), str)
    texts = {tree.files.get(f"{parent}/{VENDOR}/creatable_vgpu_types", "") for parent in parents}
    pairs = (pair for text in texts for pair in re.findall(r"^([0-9]+) *: *(\S.*)$", text, re.M))
    if new := {number: name for number, name in pairs if number not in known}:
        known = dict(sorted((known | new).items(), key=lambda pair: int(pair[0])))
        facts_of(tree, card)["types"] = json.dumps(known)
    return known


def _sizes_by_name(tree: Tree, card: str, parents: Iterable[str]) -> dict[str, Size]:
    memory = {kind: _megabytes(name) for kind, name in known_types(tree, card, parents).items()}
    total = max(_nominal_memory(tree, card), *memory.values(), 1)
    return {kind: Size(size, total // size) for kind, size in memory.items()}


def _megabytes(name: str) -> int:
    """The frame buffer in a name like `NVIDIA L40S-12Q`, in MiB; 0Q has half a GiB."""
    match = re.search(r"-([0-9]+)[ABCQ][0-9]?\w*$", name)
    return (int(match[1]) * _MIB_OF_GIB if match else 0) or _MIB_OF_GIB // 2


def _nominal_memory(tree: Tree, card: str) -> int:
    """The card's memory in MiB. NVML reports less: without what error correction and the driver use."""
    text = tree.properties.get(f"nvml:{posixpath.basename(card)}", {}).get("memory_bytes", "")
    return (int(text) >> 20) * 16 // 15 + _MIB_OF_GIB if text.isdecimal() else 0


def recount(tree: Tree, card: str) -> None:
    """Updates the numbers that every place of the card shows."""
    account = Account(tree, card)
    types = known_types(tree, card, account.parents)
    for parent in account.parents:
        for kind in tree.directories.get(f"{parent}/{TYPES}", ()):
            tree.put(f"{parent}/{TYPES}/{kind}/available_instances", str(account.available(parent, kind)))
        if (path := f"{parent}/{VENDOR}/creatable_vgpu_types") in tree.files:
            listed = [f"{number:<6}: {types[number]}" for number in types if account.available(parent, number)]
            header = [line for line in tree.files[path].split("\n")[:1] if line.startswith("ID")]
            tree.put(path, "\n".join([*header, *listed]))
