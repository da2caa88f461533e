"""Chooses the functions that a listing shows. May not do input or output.

Imports no model, so that a listing can be asked for before the models are imported.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from vfioctl.errors import BadSpec

if TYPE_CHECKING:
    from vfioctl.inventory.model.functions import Function, Inventory

NO_DRIVER = "none"
UNKNOWN_NODE = "unknown"


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
    """Return the GPUs that match, in the order of their names; of all functions if `everything` or devices are named.

    Raises BadSpec for a driver or a node that this host does not have, and what `select` raises.
    """
    driver, node = _driver(inventory, filters.driver), _node(inventory, filters.numa)
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
        from vfioctl.inventory.selection.selector import select

        return (inventory.by_address[address] for address in select(inventory, devices, every=True))
    return inventory.functions if everything else inventory.ordered_gpus


def _driver(inventory: Inventory, name: str | None) -> str | None:
    """Return the driver's name as the kernel spells it: modules and drivers differ in `-` and `_`."""
    known = drivers_in(inventory)
    return name if name in known else _known("driver", name, {driver.replace("-", "_"): driver for driver in known})


def _node(inventory: Inventory, number: str | None) -> str | None:
    return _known("NUMA node", number, {name: name for name in nodes_in(inventory)})


def _known(what: str, name: str | None, known: dict[str, str]) -> str | None:
    if name is None or name.replace("-", "_") in known:
        return name and known[name.replace("-", "_")]
    raise BadSpec(f"there is no {what} {name[:40]!r} here", hint=f"there are {', '.join(known.values())}")
