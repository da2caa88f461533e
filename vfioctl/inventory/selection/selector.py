"""Chooses functions, by selectors (`0000:41:00.0`, `41:00.0`, `gpu0`, `10de:2330`) or by the filters of a listing.
May not do I/O. Imports no model, so that a listing can be asked for before the models are imported."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from vfioctl.errors import BadAddress, BadSpec, HostError, UnknownDevice, some_of

if TYPE_CHECKING:
    from vfioctl.inventory.model.functions import Function, Inventory
    from vfioctl.inventory.model.values import PciAddress

NO_DRIVER = "none"
UNKNOWN_NODE = "unknown"


def select(inventory: Inventory, selectors: Sequence[str], *, every: bool | None) -> tuple[PciAddress, ...]:
    """Return the selected functions, each once, in address order. Raises BadAddress, BadSpec, UnknownDevice.
    `every`: whether an id may match several functions; None where only one can be named."""
    if not selectors:
        raise BadSpec("no device was named", hint="name one as 0000:41:00.0, 41:00.0, gpu0 or 10de:2330")
    addresses = {address for selector in selectors for address in _select(inventory, selector, every=every)}
    return tuple(sorted(addresses, key=lambda address: address.order))


def _select(inventory: Inventory, selector: str, *, every: bool | None) -> Sequence[PciAddress]:
    from vfioctl.inventory.model.preconditions import refuse_unread
    from vfioctl.inventory.model.values import PciAddress

    if re.fullmatch(r"gpu[0-9]{1,5}", selector, re.ASCII):
        return [_numbered(inventory, selector)]
    if ids := re.fullmatch(r"([0-9a-fA-F]{4}):([0-9a-fA-F]{4})", selector, re.ASCII):
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


class Filters(NamedTuple):
    """Conditions that a listed function meets, all of them; by default none."""

    devices: Sequence[str] = ()
    """Selectors as other commands take them; an id may match several functions."""
    driver: str | None = None
    """A driver's name, or NO_DRIVER."""
    numa: str | None = None
    """A NUMA node's number, or UNKNOWN_NODE."""
    ready: bool = False

    @property
    def words(self) -> str:
        """The conditions as they are written on the command line."""
        named = (("--driver", self.driver), ("--numa", self.numa))
        options = (f"{option} {value}" for option, value in named if value is not None)
        return " ".join([*self.devices, *options, *(["--ready"] if self.ready else [])])


def matching(inventory: Inventory, filters: Filters, *, everything: bool) -> tuple[Function, ...]:
    """Return the GPUs that match, by name; functions if `everything` or devices are named. Raises as `select` does."""
    driver = _driver(inventory, filters.driver)
    node = _known("NUMA node", filters.numa, {name: name for name in nodes_in(inventory)})
    return tuple(
        function
        for function in _candidates(inventory, filters.devices, everything=everything)
        if (driver is None or (function.driver or NO_DRIVER) == driver)
        and (node is None or node_name(function) == node)
        and (not filters.ready or inventory.is_ready(function))
    )


def drivers_in(inventory: Inventory) -> list[str]:
    """Return the drivers that `--driver` knows: registered or bound ones, those that fit a function, and NO_DRIVER."""
    bound = (function.driver for function in inventory.functions if function.driver)
    fitting = (name for function in inventory.functions for name in function.available_drivers)
    return [*sorted({*inventory.drivers, *bound, *fitting}), NO_DRIVER]


def nodes_in(inventory: Inventory) -> list[str]:
    """Return the NUMA nodes that `--numa` knows; UNKNOWN_NODE if the firmware does not say it of a function."""
    numbers = {node.id for node in inventory.numa_nodes}
    numbers |= {function.numa_node for function in inventory.functions if function.numa_node is not None}
    unsaid = any(function.numa_node is None for function in inventory.functions)
    return [*map(str, sorted(numbers)), *([UNKNOWN_NODE] if unsaid else [])]


def node_name(function: Function) -> str:
    return UNKNOWN_NODE if function.numa_node is None else str(function.numa_node)


def _candidates(inventory: Inventory, devices: Sequence[str], *, everything: bool) -> Iterable[Function]:
    if devices:
        return (inventory.by_address[address] for address in select(inventory, devices, every=True))
    return inventory.functions if everything else inventory.ordered_gpus


def _driver(inventory: Inventory, name: str | None) -> str | None:
    """Return the driver's name as the kernel spells it: modules and drivers differ in `-` and `_`."""
    known = drivers_in(inventory)
    return name if name in known else _known("driver", name, {driver.replace("-", "_"): driver for driver in known})


def _known(what: str, name: str | None, known: dict[str, str]) -> str | None:
    if name is None or name.replace("-", "_") in known:
        return name and known[name.replace("-", "_")]
    raise BadSpec(f"there is no {what} {name[:40]!r} here", hint=f"there are {', '.join(known.values())}")
