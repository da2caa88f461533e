"""Preconditions of the driver that --driver or --to names. May not do input or output."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from vfioctl.binding.model.binding import Binding, same_driver
from vfioctl.binding.model.conditions import Circumstances
from vfioctl.binding.model.intents import UnbindIntent
from vfioctl.errors import BadSpec
from vfioctl.inventory.model.functions import Inventory, is_vfio_driver
from vfioctl.inventory.model.scope import named
from vfioctl.inventory.model.values import PciAddress

Bindings = Mapping[PciAddress, Binding]


def check_driver_name(name: str | None) -> None:
    """Raise BadSpec if it can be no driver's name."""
    if name is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", name, re.ASCII):
        raise BadSpec(f"not a driver's name: {name[:40]!r}", hint="ls /sys/bus/pci/drivers lists those that are there")


def refuse_unable(inventory: Inventory, intent: UnbindIntent, records: Bindings, known: Circumstances) -> None:
    """Refuse a driver that cannot take a device asked for, before modules are loaded: they would stay loaded."""
    driver = intent.driver
    if not driver:
        return
    registered = _is_among(driver, inventory.drivers)
    if registered and not known.selective:
        return
    for function in (inventory.by_address[address] for address in intent.devices):
        natives = [name for name in function.available_drivers if not is_vfio_driver(name)]
        before = records.get(function.address)
        if not _is_among(driver, (*natives, function.driver, before and before.driver)):
            raise BadSpec(
                f"{driver} cannot take {named(function)}: "
                + ("its aliases do not match the device" if registered else "no driver or module of that name matches"),
                hint=f"drivers that can: {', '.join(natives) or 'none in modules.alias'}. To use a driver that takes "
                "any device, such as pci-stub, load its module first",
                facts={"drivers": natives},
            )


def _is_among(driver: str, names: Iterable[str | None]) -> bool:
    return any(same_driver(driver, name) for name in names)
