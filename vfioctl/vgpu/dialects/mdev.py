"""Reads mediated devices: types are in `mdev_supported_types` of a PF, of each VF, or of a non-PCI device.
Sources: Documentation/ABI/testing/sysfs-bus-vfio-mdev; drivers/vfio/mdev/mdev_core.c and mdev_sysfs.c."""

from __future__ import annotations

from collections.abc import Iterable

from vfioctl.errors import KernelRefused
from vfioctl.kernel.host_paths import MDEV_DEVICES, MDEV_PARENTS
from vfioctl.kernel.lenient import names_in, number_in
from vfioctl.kernel.protocol import FileReader
from vfioctl.units import UUID
from vfioctl.vgpu.dialects.dialect import Facts, card_facts, card_of, described, instance_facts, own_attributes

TYPE_FILES = frozenset({"name", "description", "device_api"})
OWN_FILES = frozenset({"vgpu_params", "vm_name", "placement_id"})


class MdevReader:
    """See `Dialect`."""

    dialect = "mdev"

    def __init__(self, kernel: FileReader) -> None:
        self._kernel = kernel
        self._cards: set[str] = set()
        self._types: set[tuple[str, str]] = set()
        self._shown = set(names_in(kernel, MDEV_DEVICES))

    def parents(self) -> Iterable[str]:
        # the class exists once mdev is loaded; on newer kernels, once there is a parent
        return names_in(self._kernel, MDEV_PARENTS)

    def read(self, parent: str) -> Facts:
        home = f"{MDEV_PARENTS}/{parent}"
        card = card_of(self._kernel, parent)
        facts: Facts = {"card": card, "offers": {}, "unknown": {}, "types": {}, "instances": []}
        self._read_types(home, card, facts)
        for name in names_in(self._kernel, home):
            if UUID.fullmatch(name):
                facts["instances"].append(self._vgpu(f"{home}/{name}", name))
        if card not in self._cards:
            self._cards.add(card)
            above = home if card == parent else f"/sys/bus/pci/devices/{card}"
            facts["of_card"] = card_facts(self._kernel, above)
        return facts

    def _read_types(self, home: str, card: str, facts: Facts) -> None:
        texts = self._kernel.texts_below(f"{home}/mdev_supported_types", "available_instances")
        for name, text in texts.texts.items():
            number = number_in(text)
            if number is None:
                facts["unknown"][name] = f"available_instances says {text[:40]!r}"
            else:
                facts["offers"][name] = number
        facts["unknown"] |= {name: f"available_instances: {why}" for name, why in texts.refused.items()}
        for name in (*texts.texts, *texts.refused):
            if (card, name) not in self._types:
                facts["types"][name] = self._type(f"{home}/mdev_supported_types/{name}", card, name)

    def _type(self, home: str, card: str, name: str) -> Facts:
        try:
            directory = self._kernel.directory(home, TYPE_FILES, ("none",))
        except KernelRefused as error:
            return {"unknown": {"type": error.symbol}}
        if not directory.refused:  # otherwise the next parent of the card is read
            self._types.add((card, name))
        texts = {file: directory.texts.get(file, "") for file in TYPE_FILES}
        return {**texts, "unknown": dict(directory.refused), **described(texts["name"], texts["description"])}

    def _vgpu(self, home: str, uuid: str) -> Facts:
        # a removal hides the mdev on the bus first, then waits until it is closed (mdev_device_remove, device_del)
        state = "live" if uuid in self._shown else "zombie"
        try:
            facts = instance_facts(self._kernel, home)
        except KernelRefused as error:
            return {"id": uuid, "state": state, "unknown": {"device": error.symbol}}
        if state == "live" and facts["driver"] is None:
            state = "orphan"
        attributes, unknown = own_attributes(self._kernel, f"{home}/nvidia", OWN_FILES)
        return {"id": uuid, "state": state, "attributes": attributes, "unknown": unknown, **facts}
