"""Compares what is persistent with the host as it is now. May not do input or output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from vfioctl.binding.model.binding import same_driver
from vfioctl.binding.model.definition import DeviceDefinition, Found, locate_all, rule_file
from vfioctl.inventory.model.functions import Inventory
from vfioctl.persist.model.persistent import Owner, Persistent, State


def devices(
    definitions: Mapping[str, DeviceDefinition],
    damaged: Mapping[str, str],
    rules: Mapping[str, str],
    inventory: Inventory,
) -> Iterator[Persistent]:
    """Yield the devices that vfioctl binds at boot. `rules`: texts of the udev rules, by the address of the device."""
    places = locate_all(definitions, inventory)
    for file, definition in definitions.items():
        state, why = _state(definition, places[file], rules.get(definition.address), inventory)
        now = places[file].address
        yield Persistent(
            name=definition.address,
            goal=definition.driver,
            owner=Owner.VFIOCTL,
            state=state,
            file=file,
            now=now if now and now != definition.address else "",
            why=why,
        )
    for file, why in damaged.items():
        name = file.rpartition("/")[2].removesuffix(".toml")
        yield Persistent(name=name, goal="unknown", owner=Owner.VFIOCTL, state=State.FAILED, file=file, why=why)
    defined = {file.rpartition("/")[2].removesuffix(".toml") for file in (*definitions, *damaged)}
    for address in sorted(rules.keys() - defined):
        why = "udev binds it because of this rule, which has no definition: vfioctl persist remove"
        file = rule_file(address)
        yield Persistent(name=address, goal="unknown", owner=Owner.VFIOCTL, state=State.FAILED, file=file, why=why)


def _state(definition: DeviceDefinition, place: Found, rule: str | None, inventory: Inventory) -> tuple[State, str]:
    if place.address is None:
        return State.FAILED, place.why
    if rule is None or rule.rstrip("\n") != definition.rule:
        how = "missing" if rule is None else "another"
        return State.FAILED, f"its udev rule is {how}: vfioctl bind {place.address} --persistent writes it"
    function = inventory.by_address[place.address]
    if not same_driver(definition.driver, function.driver):
        now = function.driver or "no driver"
        return State.ABSENT, "; ".join(filter(None, (place.why, f"it is on {now}")))
    return (State.MOVED if place.address != definition.address else State.READY), place.why


def beside(file: str, places: Mapping[str, Found], inventory: Inventory) -> list[str]:
    """Return the definitions of devices in the same IOMMU group as that of `file`, itself included: a guest gets a
    group whole, so they are bound together."""

    def group(name: str) -> int | None:
        address = places[name].address
        return inventory.by_address[address].iommu_group if address else None

    own = group(file)
    return [name for name in places if name == file or (own is not None and group(name) == own)]
