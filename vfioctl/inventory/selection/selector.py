"""Resolves selectors to functions: `0000:41:00.0`, `41:00.0`, `gpu0`, `10de:2330`. May not do input or output."""

from __future__ import annotations

import re
from collections.abc import Sequence

from vfioctl.errors import BadAddress, BadSpec, HostError, UnknownDevice, some_of
from vfioctl.inventory.model.functions import Inventory
from vfioctl.inventory.model.preconditions import refuse_unread
from vfioctl.inventory.model.values import PciAddress

_IDS = re.compile(r"([0-9a-fA-F]{4}):([0-9a-fA-F]{4})", re.ASCII)
_NUMBERED = re.compile(r"gpu[0-9]{1,5}", re.ASCII)


def select(inventory: Inventory, selectors: Sequence[str], *, every: bool | None) -> tuple[PciAddress, ...]:
    """Return the selected functions, each once, in address order. Raises BadAddress, BadSpec, UnknownDevice.

    `every`: whether an id may match several functions; None where only one can be named.
    """
    if not selectors:
        raise BadSpec("no device was named", hint="name one as 0000:41:00.0, 41:00.0, gpu0 or 10de:2330")
    addresses = {address for selector in selectors for address in _select(inventory, selector, every=every)}
    return tuple(sorted(addresses, key=lambda address: address.order))


def _select(inventory: Inventory, selector: str, *, every: bool | None) -> Sequence[PciAddress]:
    if _NUMBERED.fullmatch(selector):
        return [_numbered(inventory, selector)]
    if ids := _IDS.fullmatch(selector):
        return _by_ids(inventory, ids[1].lower(), ids[2].lower(), every=every)
    try:
        address = PciAddress(selector)
    except BadAddress as error:
        error.hint = "name a device as 0000:41:00.0, 41:00.0, gpu0 or 10de:2330"
        raise
    if address not in inventory.by_address:
        refuse_unread(address, inventory)
        raise UnknownDevice(f"there is no device {address} here", hint=_nearest(inventory, address))
    return [address]


def _numbered(inventory: Inventory, name: str) -> PciAddress:
    gpus = inventory.numbered_gpus
    if name not in gpus:
        _refuse_doubt(name, inventory)
        known = f"there are gpu0 to gpu{len(gpus) - 1}" if gpus else "this host has no GPU"
        raise UnknownDevice(f"there is no {name} here", hint=known, next_command="vfioctl inventory")
    return gpus[name]


def _by_ids(inventory: Inventory, vendor: str, device: str, *, every: bool | None) -> Sequence[PciAddress]:
    by_ids = [f.address for f in inventory.functions if (f.vendor_id, f.device_id) == (vendor, device)]
    if not by_ids:
        _refuse_doubt(f"{vendor}:{device}", inventory)
        raise UnknownDevice(f"there is no {vendor}:{device} here", next_command="vfioctl inventory --all")
    if len(by_ids) > 1 and not every:
        raise BadSpec(
            f"{vendor}:{device} matches {len(by_ids)} devices: {', '.join(by_ids)}",
            hint="name one by its address" + ("" if every is None else ", or say --every"),
        )
    return by_ids


def _refuse_doubt(name: str, inventory: Inventory) -> None:
    """Raise HostError if a function that could not be read may have the name."""
    if inventory.unread:
        raise HostError(
            f"it is unknown which device {name} is: {some_of(inventory.unread)} could not be read",
            hint="name a device by its address, or try again when the host is less busy",
            next_command="vfioctl inventory --all",
        )


def _nearest(inventory: Inventory, address: PciAddress) -> str:
    from difflib import get_close_matches

    near = get_close_matches(address, inventory.by_address, n=3, cutoff=0.75)
    return f"the nearest are {', '.join(near)}" if near else "inventory --all lists them"
