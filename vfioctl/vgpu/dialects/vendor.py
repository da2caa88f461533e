"""Reads NVIDIA's vendor-specific VFIO: a VF has `nvidia/creatable_vgpu_types`, and can be one vGPU of one of them. The
file lists the types that can be created now: it shrinks as vGPUs are created on any VF of the card. On a VF that is a
vGPU it is empty, or lists the types that could replace the current one. NVML knows all types of the card. Seen on Linux
6.8 and later with vGPU 17 and later; detected by its files, not by these versions."""

from __future__ import annotations

import re
from collections.abc import Iterable

from vfioctl.errors import KernelRefused
from vfioctl.kernel.lenient import names_in, number_in, physical
from vfioctl.kernel.protocol import PCI_ADDRESS, PCI_DEVICES, PCI_DRIVERS, FileReader
from vfioctl.vgpu.dialects.dialect import Facts, card_facts, described, instance_facts, own_attributes

_LONGEST = 65_536
_ID, _BYTES = re.compile(r"[1-9][0-9]{0,8}", re.ASCII), re.compile(r"[1-9][0-9]{0,16}", re.ASCII)
_PIXELS = re.compile(r"[1-9][0-9]{0,5}x[1-9][0-9]{0,5}", re.ASCII)
OWN_FILES = frozenset({"vgpu_params", "gpu_instance_id", "placement_id", "warm_update"})


def named(name: str) -> Facts:
    """The facts of a type that follow from its name."""
    return {"name": name, "device_api": "vfio-pci", **described(name, "")}


def reported_types(text: str) -> dict[str, Facts]:
    """The types of a card from NVML's text (`Kernel.nvml`), by id. Malformed parts are left out."""
    types: dict[str, Facts] = {}
    for part in text[:_LONGEST].split(";"):
        number, *said = part.split("|")
        if _ID.fullmatch(number):
            types[number] = _reported_type(*said[:5], *[""] * (5 - len(said)))
    return types


def _reported_type(name: str, memory: str, heads: str, resolution: str, most: str) -> Facts:
    numbers = {"framebuffer_bytes": bytes_in(memory), "heads": number_in(heads), "max_instances": number_in(most)}
    facts = named(name.strip()) if name.strip() else {}
    facts |= {field: number for field, number in numbers.items() if number is not None}
    return facts | ({"max_resolution": resolution} if _PIXELS.fullmatch(resolution) else {})


def bytes_in(text: str) -> int | None:
    """An amount of memory in bytes from NVML's text; None for 0 and for malformed text."""
    return int(text) if _BYTES.fullmatch(text) else None


def creatable(text: str) -> dict[str, str]:
    """The type names in `creatable_vgpu_types`, by id. Lines are `1145  : NVIDIA L40S-1B`, with or without a header."""
    parts = (line.partition(":") for line in text.split("\n"))
    return {number.strip(): name.strip() for number, _, name in parts if name.strip() and _ID.fullmatch(number.strip())}


class VendorReader:
    """See `Dialect`."""

    dialect = "vendor-vfio"

    def __init__(self, kernel: FileReader) -> None:
        self._kernel = kernel
        self._cards: set[str] = set()
        self._types: set[tuple[str, str]] = set()

    def parents(self) -> Iterable[str]:
        for name in names_in(self._kernel, f"{PCI_DRIVERS}/nvidia"):
            home = f"{PCI_DEVICES}/{name}"
            if (
                PCI_ADDRESS.fullmatch(name)
                and self._kernel.has(f"{home}/nvidia")
                and not self._kernel.has(f"{home}/mdev_supported_types")
            ):
                yield name

    def read(self, parent: str) -> Facts:
        folder, card = f"{PCI_DEVICES}/{parent}/nvidia", physical(self._kernel, parent)
        directory = self._kernel.directory(folder, {"creatable_vgpu_types", "current_vgpu_type"}, ("none",))
        names = creatable(directory.texts.get("creatable_vgpu_types", ""))
        current = directory.texts.get("current_vgpu_type", "").strip()
        offers = {} if number_in(current) else dict.fromkeys(names, 1)
        facts: Facts = {
            "card": card,
            "offers": offers,
            "unknown": dict(directory.refused),
            "instances": [],
            "types": {number: named(names[number]) for number in names if (card, number) not in self._types},
        }
        self._types |= {(card, number) for number in facts["types"]}
        if number_in(current):
            facts["instances"].append(self._vgpu(parent, current))
        elif current not in ("0", "") or "current_vgpu_type" not in directory.texts:
            facts["unknown"].setdefault("current_vgpu_type", f"says {current[:40]!r}" if current else "missing")
        if card not in self._cards:
            self._cards.add(card)
            facts["of_card"] = card_facts(self._kernel, f"{PCI_DEVICES}/{card}") | {"sharing": "sizes"}
        return facts

    def _vgpu(self, parent: str, kind: str) -> Facts:
        try:
            facts = instance_facts(self._kernel, f"{PCI_DEVICES}/{parent}")
        except KernelRefused as error:
            return {"id": parent, "type": kind, "unknown": {"device": error.symbol}}
        attributes, unknown = own_attributes(self._kernel, f"{PCI_DEVICES}/{parent}/nvidia", OWN_FILES)
        return {"id": parent, "type": kind, "attributes": attributes, "unknown": unknown, **facts}
