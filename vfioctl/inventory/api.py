"""The use cases of the inventory: list devices, resolve selectors, find holders. May not write to the host."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from vfioctl.core.events import Cancel, check_stop
from vfioctl.errors import BadAddress, DeviceInUse
from vfioctl.inventory.probe.scan import Catalogue, Scan, drivers_of, has_aliases, neighbours
from vfioctl.inventory.selection.selector import drivers_in, nodes_in, select

if TYPE_CHECKING:
    from vfioctl.core.change import Fact
    from vfioctl.core.marks import Mark
    from vfioctl.core.published import MarkRow
    from vfioctl.core.reservations import Reservation
    from vfioctl.inventory.model.functions import Function, Inventory
    from vfioctl.inventory.model.holders import Holder, Holders
    from vfioctl.inventory.model.machine import Processor
    from vfioctl.inventory.model.usage import Usage
    from vfioctl.inventory.model.values import PciAddress
    from vfioctl.inventory.probe.owners import guest_name, is_vmm
    from vfioctl.inventory.probe.processes import Processes, hidden
    from vfioctl.session import Session
    from vfioctl.units import Uuid

__all__ = [
    "InventoryApi",
    "Processes",
    "Waiting",
    "drivers_of",
    "guest_name",
    "has_aliases",
    "hidden",
    "is_vmm",
    "until_released",
]
_PROBES = {
    "guest_name": "owners",
    "is_vmm": "owners",
    "hidden": "processes",
    "Processes": "processes",
}
"""What other subsystems find here, and the module that has it: imported when asked for, as most commands need none."""
T = TypeVar("T")
Waiting = Callable[["Sequence[Holder]", float], None]
"""Callback (holders, seconds until the timeout), called while a use case waits for holders."""
_PAUSE = 0.5
_WEDGED = "wedged"
LEDGER = "ledger"
"""The subject of the warning that the ledger cannot be read."""
NO_MARKS: Sequence[MarkRow] = ()
NO_GROUPS: Mapping[str, int | None] = {}


def __getattr__(name: str) -> object:
    if name not in _PROBES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"vfioctl.inventory.probe.{_PROBES[name]}"), name)


class InventoryApi:
    """Reads the devices of one host and finds their holders."""

    def __init__(self, session: Session) -> None:
        self._session, self._kernel = session, session.kernel

    @cached_property
    def _catalogue(self) -> Catalogue:
        return Catalogue(self._kernel)

    def inventory(self, *, nvml: bool = True, near: Sequence[str] | None = None) -> Inventory:
        """Return the host's devices as they are now, with their marks. `nvml`: whether NVML is asked.
        `near`: selectors; if all are addresses of functions that exist, only these functions are read, with what shares
        a bus, a card or a group with them. GPUs then have no names such as gpu0, which count all of a host's."""
        # read the marks first: reads of a wedged device may block
        marks, problem = self._session.from_ledger(self._session.marks, NO_MARKS)
        wedged = [mark.subject for mark in marks if mark.kind == _WEDGED]
        self._catalogue.refresh()
        # its workers read during the import of models
        only = None if near is None else self._near(near)
        scan = Scan(self._kernel, self._catalogue, suspects=wedged, only=only, nvml=nvml)
        from vfioctl.core.marks import marks_in
        from vfioctl.inventory.probe.inventory import assemble

        reservations, reservations_problem = self._session.known_reservations()
        if problem := problem or reservations_problem:
            scan.problems.append((LEDGER, problem))
        return assemble(self._kernel, scan, marks_in(marks), reservations)

    def _near(self, selectors: Sequence[str]) -> list[str] | None:
        from vfioctl.inventory.model.values import PciAddress

        try:
            return neighbours(self._kernel, [PciAddress(selector) for selector in selectors])
        except BadAddress:
            return None

    def refreshed(self, last: Inventory, addresses: Sequence[PciAddress]) -> tuple[Inventory, frozenset[PciAddress]]:
        """Return `last` with these functions read again, and which were read: these, and what shares a bus, a card or a
        group with them. The whole host is read if one is new or gone."""
        near = self._near(addresses) if set(addresses) <= last.by_address.keys() else None
        fresh = self.inventory(near=None if near is None else addresses)
        if near is None:
            return fresh, frozenset(fresh.by_address)
        from vfioctl.inventory.probe.inventory import merged

        return merged(last, fresh), frozenset(fresh.by_address)

    def reservations(self) -> tuple[Reservation, ...]:
        """Return what the ledger reserves; nothing if it is unusable, because a listing must still work."""
        return self._session.known_reservations()[0]

    def processor(self) -> Processor:
        """Return what the host's processor is."""
        from vfioctl.inventory.probe.machine import read_processor

        return read_processor(self._kernel)

    def online_cpus(self) -> tuple[int, ...]:
        """Return the CPUs that are online, or those of all NUMA nodes where the kernel does not list them."""
        from vfioctl.inventory.probe.machine import read_online

        nodes = self.inventory(nvml=False).numa_nodes if not (online_cpus := read_online(self._kernel)) else ()
        return online_cpus or tuple(cpu for node in nodes for cpu in node.cpus)

    def changes(self, last: Inventory, seconds: float) -> Iterator[Inventory]:
        """Read the inventory when the host notifies a change of it, and at least every `seconds`; yield it when it
        differs from the one before. Never ends."""
        from vfioctl.kernel.feeds import following, wait_for

        with following(self._kernel.uevents) as feed:
            while True:
                wait_for(feed, seconds)
                now = self.inventory()
                if now != last:
                    yield now
                last = now

    def some(self, addresses: Sequence[PciAddress]) -> Inventory:
        """Return an inventory of only these functions and their VFs."""
        from vfioctl.inventory.probe.inventory import read_some

        marks, _ = self._session.from_ledger(self._session.marks, NO_MARKS)
        return read_some(self._kernel, addresses, [mark.subject for mark in marks if mark.kind == _WEDGED])

    def usage(self, addresses: Collection[PciAddress]) -> Mapping[PciAddress, Usage]:
        """Return how busy these GPUs are, without those that report nothing: wedged, asleep, or with another driver.

        Wakes no GPU. Waits at most a few seconds for NVML and for drivers, which may hang."""
        from vfioctl.inventory.probe.usage import read_usages

        marks, _ = self._session.from_ledger(self._session.marks, NO_MARKS)
        return read_usages(self._kernel, addresses, [mark.subject for mark in marks if mark.kind == _WEDGED])

    def marks(self) -> Mapping[str, Mark]:
        """Return the ledger's marks; none if the ledger is unusable, because a listing must still work."""
        from vfioctl.core.marks import marks_in

        return marks_in(self._session.from_ledger(self._session.marks, NO_MARKS)[0])

    def find(self, selectors: Sequence[str], *, every: bool = False) -> tuple[PciAddress, ...]:
        """Return the functions named by `0000:41:00.0`, `41:00.0`, `gpu0` or `10de:2330`. Raises BadAddress,
        UnknownDevice, and BadSpec if an id matches several functions and `every` is false."""
        return self.chosen(self.inventory(nvml=False, near=selectors), selectors, every=every)

    @staticmethod
    def chosen(inventory: Inventory, selectors: Sequence[str], *, every: bool | None = None) -> tuple[PciAddress, ...]:
        """Return what `find` returns, from an inventory that was read already. `every`: None for one device only."""
        return select(inventory, selectors, every=every)

    def facts(self, addresses: Iterable[str]) -> Mapping[str, Fact]:
        """Return the facts of functions by address, without functions that are gone. Raises Stuck."""
        from vfioctl.inventory.probe.facts import read_facts

        return read_facts(self._kernel, addresses)

    def processes(self) -> Processes:
        """Start scanning all processes in workers, and return at once."""
        from vfioctl.inventory.probe.processes import Processes

        return Processes(self._kernel)

    def holders(self, selectors: Sequence[str], *, every: bool = False, processes: Processes | None = None) -> Holders:
        """Return the holders of functions (named as for `find`), their cards and their groups."""
        processes = processes or self.processes()  # its workers scan while the inventory is read
        inventory = self.inventory(near=selectors)
        from vfioctl.inventory.model.scope import scope_of

        scope = scope_of(inventory, self.chosen(inventory, selectors, every=every))
        concerned = [inventory.by_address[address] for address in (*scope.own, *scope.foreign)]
        holders = self.holders_of(concerned, inventory, processes)
        unread = {a: inventory.unread[a] for function in concerned for a in inventory.unread_beside(function)}
        marks = tuple(function.mark for function in concerned if function.mark)
        return replace(holders, marks=marks, unread_functions=unread)

    def holders_of(self, functions: Sequence[Function], inventory: Inventory, processes: Processes) -> Holders:
        """Return the holders of the functions and of their VFs."""
        from vfioctl.inventory.probe.holders import read_holders

        return read_holders(self._kernel, functions, inventory, processes)

    def device_numbers(self, functions: Sequence[Function]) -> Mapping[PciAddress, frozenset[str]]:
        """Return the numbers of each function's device files, as `c 195:0`, without files that several GPUs share."""
        from vfioctl.inventory.probe.holders import read_device_numbers

        return read_device_numbers(self._kernel, functions)

    def holders_of_mdevs(
        self, mdevs: Sequence[Uuid], processes: Processes, groups: Mapping[str, int | None] = NO_GROUPS
    ) -> Holders:
        """Return the holders of mediated devices. `groups`: IOMMU groups of devices already removed from their bus."""
        from vfioctl.inventory.probe.holders import read_mdev_holders

        return read_mdev_holders(self._kernel, mdevs, processes, groups)

    def is_free(self, group: int | None) -> bool:
        """Return whether nobody has the VFIO group open, which is faster to ask than scanning processes."""
        from vfioctl.inventory.probe.holders import is_free

        return is_free(self._kernel, group)

    def perhaps_open(self, mdevs: Sequence[Uuid]) -> tuple[Uuid, ...]:
        """Return the mediated devices that a process may have open."""
        from vfioctl.inventory.probe.holders import perhaps_open

        return perhaps_open(self._kernel, mdevs)


def suggest_devices(session: Session, begun: str) -> list[tuple[str, str]]:
    """Return completions for the host's GPUs: gpuN, as bash splits words at colons; addresses if one was begun."""
    host = InventoryApi(session).inventory(nvml=False)  # which may take seconds
    if begun[:1].isdigit():
        return [(gpu.address, gpu.title) for gpu in host.gpus]
    numbered = host.numbered_gpus.items()
    return [(name, f"{address} {host.by_address[address].title}") for name, address in numbered]


def suggest_drivers(session: Session, _begun: str) -> list[tuple[str, str]]:
    """Return the host's drivers."""
    return [(name, "") for name in drivers_in(InventoryApi(session).inventory(nvml=False))]


def suggest_nodes(session: Session, _begun: str) -> list[tuple[str, str]]:
    """Return the host's NUMA nodes."""
    return [(number, "") for number in nodes_in(InventoryApi(session).inventory(nvml=False))]


def until_released(
    make: Callable[[], T], *, wait: float, waiting: Waiting | None = None, cancel: Cancel | None = None
) -> T:
    """Return `make()`, retried while it raises DeviceInUse, for at most `wait` seconds. Raises what `make` raises;
    Cancelled."""
    from vfioctl.inventory.model.holders import Holder, HolderKind

    until = time.monotonic() + wait
    while True:
        try:
            return make()
        except DeviceInUse as error:
            left = until - time.monotonic()
            holders = error.facts.get("holders")
            if left <= 0 or not isinstance(holders, list) or not holders:
                raise
            check_stop(cancel)
            if waiting:
                waiting([Holder(**{**holder, "kind": HolderKind(holder["kind"])}) for holder in holders], left)
            time.sleep(min(_PAUSE, left))
