"""Says which devices and CPUs in the settings of claims a host does not have. May not do input or output."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from vfioctl.inventory.model.functions import Inventory
from vfioctl.placement.model.settings import ClaimSettings
from vfioctl.units import format_cpu_list

Missing = tuple[tuple[str | int, ...], str]
"""The keys of a setting, and what the host lacks."""


def missing_in(settings: ClaimSettings, inventory: Inventory, online: Collection[int]) -> Iterator[Missing]:
    """Yield each device, and each list of CPUs, that the host does not have. `online`: its CPUs; none if unknown."""
    known = {*inventory.by_address, *inventory.unread, *(f"{f.vendor_id}:{f.device_id}" for f in inventory.functions)}
    devices: list[tuple[tuple[str | int, ...], str]] = [(("reserved", n), d) for n, d in enumerate(settings.reserved)]
    devices += [(("modes", device), device) for device in settings.modes]
    for number, partition in enumerate(settings.partitions):
        devices += [(("partitions", number, index), device) for index, device in enumerate(partition)]
    yield from (
        (keys, f"is {device}, which this host does not have") for keys, device in devices if device not in known
    )
    lists = {"reserved_cpus": settings.reserved_cpus, "housekeeping_cpus": settings.housekeeping_cpus or ()}
    for key, cpus in lists.items():
        if online and (absent := [cpu for cpu in cpus if cpu not in online]):
            yield (key,), f"has CPUs {format_cpu_list(absent)}, which this host does not have online"
