"""NVIDIA's vendor-specific VFIO: a VF has `nvidia/creatable_vgpu_types`, and carries one instance of one of them.

The list shrinks as instances are made on any VF, and is empty on a VF that has one: names come from those that still
list them. Seen on Linux 6.8 and later with vGPU 17 and later; looked for by its files, not by these.
"""

from __future__ import annotations

from collections.abc import Iterable

from vfioctl.errors import KernelRefused
from vfioctl.kernel.seam import PCI_ADDRESS, PCI_DEVICES, PCI_DRIVERS, Kernel
from vfioctl.probe.lenient import names_in
from vfioctl.probe.vgpu.describe import creatable, described
from vfioctl.probe.vgpu.dialect import (
    Facts,
    Seen,
    card_facts,
    instance_facts,
    number_in,
    own_attributes,
    physical,
)

OWN_FILES = frozenset({"vgpu_params", "gpu_instance_id", "placement_id", "warm_update"})


def named(name: str) -> Facts:
    """What a type's name tells."""
    return {"name": name, "device_api": "vfio-pci", **described(name, "")}


class VendorReader:
    """See `Reader`."""

    dialect = "vendor-vfio"

    def __init__(self, kernel: Kernel) -> None:
        self._kernel, self._seen = kernel, Seen()

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
        found = self._kernel.directory(folder, {"creatable_vgpu_types", "current_vgpu_type"}, ("none",))
        names = creatable(found.texts.get("creatable_vgpu_types", ""))
        facts: Facts = {
            "card": card, "offers": dict.fromkeys(names, 1), "unknown": dict(found.refused), "instances": [],
            "types": {number: self._type(card, number, names[number]) for number in self._seen.new(card, names)},
        }  # fmt: skip
        current = found.texts.get("current_vgpu_type", "").strip()
        if number_in(current):
            facts["instances"].append(self._instance(parent, current))
        elif current not in ("0", "") or "current_vgpu_type" not in found.texts:
            facts["unknown"].setdefault("current_vgpu_type", f"says {current[:40]!r}" if current else "missing")
        if self._seen.is_first(card):
            facts["of_card"] = card_facts(self._kernel, f"{PCI_DEVICES}/{card}") | {"sharing": "sizes"}
        return facts

    def _type(self, card: str, number: str, name: str) -> Facts:
        self._seen.add(card, number)
        return named(name)

    def _instance(self, parent: str, kind: str) -> Facts:
        try:
            facts, _ = instance_facts(self._kernel, f"{PCI_DEVICES}/{parent}")
        except KernelRefused as error:
            return {"id": parent, "type": kind, "unknown": {"device": error.symbol}}
        attributes, unknown = own_attributes(self._kernel, f"{PCI_DEVICES}/{parent}/nvidia", OWN_FILES)
        return {"id": parent, "type": kind, "attributes": attributes, "unknown": unknown, **facts}
