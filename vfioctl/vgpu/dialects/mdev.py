"""Mediated devices: types in `mdev_supported_types` of a PF, of each VF, or of a device that is no PCI function.

Sources: Documentation/ABI/testing/sysfs-bus-vfio-mdev; drivers/vfio/mdev/mdev_core.c and mdev_sysfs.c.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from vfioctl.errors import KernelRefused
from vfioctl.kernel.lenient import names_in
from vfioctl.kernel.protocol import PCI_ADDRESS, FileReader
from vfioctl.vgpu.dialects.dialect import (
    Facts,
    Seen,
    card_facts,
    instance_facts,
    number_in,
    own_attributes,
    physical,
)
from vfioctl.vgpu.probe.describe import described

PARENTS, INSTANCES = "/sys/class/mdev_bus", "/sys/bus/mdev/devices"
TYPE_FILES = frozenset({"name", "description", "device_api"})
OWN_FILES = frozenset({"vgpu_params", "vm_name", "placement_id"})
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.ASCII)


class MdevReader:
    """See `Dialect`."""

    dialect = "mdev"

    def __init__(self, kernel: FileReader) -> None:
        self._kernel, self._seen = kernel, Seen()
        self._shown = set(names_in(kernel, INSTANCES))

    def parents(self) -> Iterable[str]:
        # the class is there only once mdev is loaded, on newer kernels only with the first parent
        return names_in(self._kernel, PARENTS)

    def read(self, parent: str) -> Facts:
        home = f"{PARENTS}/{parent}"
        card = physical(self._kernel, parent) if PCI_ADDRESS.fullmatch(parent) else parent
        facts: Facts = {"card": card, "offers": {}, "unknown": {}, "types": {}, "instances": []}
        self._types(home, card, facts)
        for name in names_in(self._kernel, home):
            if _UUID.fullmatch(name):
                facts["instances"].append(self._instance(f"{home}/{name}", name))
        if self._seen.is_first(card):
            above = home if card == parent else f"/sys/bus/pci/devices/{card}"
            facts["of_card"] = card_facts(self._kernel, above)
        return facts

    def _types(self, home: str, card: str, facts: Facts) -> None:
        found = self._kernel.texts_below(f"{home}/mdev_supported_types", "available_instances")
        for name, text in found.texts.items():
            number = number_in(text)
            if number is None:
                facts["unknown"][name] = f"available_instances says {text[:40]!r}"
            else:
                facts["offers"][name] = number
        facts["unknown"] |= {name: f"available_instances: {why}" for name, why in found.refused.items()}
        for name in self._seen.new(card, (*found.texts, *found.refused)):
            facts["types"][name] = self._type(f"{home}/mdev_supported_types/{name}", card, name)

    def _type(self, home: str, card: str, name: str) -> Facts:
        try:
            found = self._kernel.directory(home, TYPE_FILES, ("none",))
        except KernelRefused as error:
            return {"unknown": {"type": error.symbol}}
        texts = found.texts
        if not found.refused:  # else a twin is asked again
            self._seen.add(card, name)
        return {
            "name": texts.get("name", ""),
            "description": texts.get("description", ""),
            "device_api": texts.get("device_api", ""),
            "unknown": dict(found.refused),
            **described(texts.get("name", ""), texts.get("description", "")),
        }

    def _instance(self, home: str, uuid: str) -> Facts:
        # its removal hides it here, and waits for whoever has it open (mdev_device_remove, device_del)
        state = "live" if uuid in self._shown else "zombie"
        try:
            facts, found = instance_facts(self._kernel, home)
        except KernelRefused as error:
            return {"id": uuid, "state": state, "unknown": {"device": error.symbol}}
        if state == "live" and facts["driver"] is None:
            state = "orphan"
        attributes, unknown = own_attributes(self._kernel, f"{home}/nvidia", OWN_FILES)
        kind = found.links.get("mdev_type", "").rpartition("/")[2]
        return {"id": uuid, "state": state, "type": kind, "attributes": attributes, "unknown": unknown, **facts}
