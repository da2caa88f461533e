"""Formats single facts of functions (links, drivers, groups) for all renderers. May not read the host."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator
from itertools import islice

from rich.text import Text

from vfioctl.console import words
from vfioctl.console.words import NONE, UNKNOWN, counted, listed, plain
from vfioctl.core.marks import Mark, MarkKind
from vfioctl.core.reservations import Reservation
from vfioctl.inventory.model.functions import Function, Inventory, Link
from vfioctl.inventory.model.machine import Group
from vfioctl.inventory.model.values import PciAddress
from vfioctl.units import format_cpu_list, format_size

_MOST_CLAIMS = 16
"""The claims that notes name. A page that names more is not read, and thousands take seconds to draw."""
UNREAD = "Not read, so it is unknown whether they are GPUs"
"""The heading of the functions that could not be read."""


def link_pair(speed: float | None, width: int | None) -> str:
    """Format a link as `32 GT/s x16`."""
    parts = (f"{speed:g} GT/s" if speed is not None else "", f"x{width}" if width is not None else "")
    return " ".join(filter(None, parts)) or UNKNOWN


def link_now(link: Link | None) -> str:
    return link_pair(link.speed, link.width) if link else ""


def function_driver(function: Function) -> Text:
    """Return the driver's name; green if it is a VFIO driver."""
    name, style = function.driver, "green" if function.on_vfio else ""
    return Text(plain(name), style=style) if name else Text(NONE, style="dim")


def group_name(number: int | None) -> str:
    return NONE if number is None else str(number)


def node_heading(number: int | None, inventory: Inventory) -> str:
    """`NUMA node 0   CPUs 0-55   503 GiB`."""
    if number is None:
        return "NUMA node unknown   the firmware does not say"
    node = next((node for node in inventory.numa_nodes if node.id == number), None)
    cpus = f"CPUs {format_cpu_list(node.cpus)}" if node and node.cpus else ""
    memory = format_size(node.memory_bytes) if node and node.memory_bytes is not None else ""
    return "   ".join(filter(None, (f"NUMA node {number}", cpus, memory)))


def guest_state(function: Function, inventory: Inventory) -> Text:
    """Return its mark, `no` if it serves no guests, `unknown`, or whether its group makes it `ready` or `blocked`."""
    group = inventory.group_of(function)
    if function.mark:
        return Text(function.mark.kind, style="bold red")
    if not function.serves_guests or group is None:
        return Text("no")
    if group.viable is None or (group.viable and inventory.unread_beside(function)):
        return Text("unknown", style="yellow")
    return Text("ready", style="green") if group.viable else Text("blocked", style="red")


def reservation_line(reservation: Reservation) -> str:
    """Return a sentence about what is reserved."""
    return _sentence(f"{reservation.words}.")


def _sentence(text: str) -> str:
    said = plain(text)
    first = said.partition(" ")[0]
    return f"{said[:1].upper() if first.isalpha() else said[:1]}{said[1:]}"  # a name, as a UUID, stays as it is


def mark_line(mark: Mark) -> str:
    """`0000:41:00.0 is wedged since 16:20:01 UTC: ...`."""
    again = "stop what holds it, then run vfioctl recover; or reboot"
    then = again if mark.kind == MarkKind.WEDGED else "it is kept from guests until a reboot"
    return f"{mark.address} is {mark.kind} since {plain(mark.since[11:19])} UTC: {plain(mark.why)}; {then}."


def name_of(function: Function) -> str:
    """Return the device's name, or its class and ids if no database has a name."""
    known = function.title
    if known == f"{function.vendor_id}:{function.device_id}" and function.class_name:
        known = f"{function.class_name} {known}"
    return plain(known)


def gpu_count(inventory: Inventory, gpus: Collection[Function], noun: str = "GPU", held: Container[str] = ()) -> str:
    """`8 GPUs, 3 ready for a guest (2 claimed, 1 in use)`. `held`: what somebody has open."""
    ready = [gpu for gpu in gpus if inventory.is_ready(gpu)]
    claimed = sum(bool(gpu.owner) for gpu in ready)
    used = sum(gpu.address in held and not gpu.owner for gpu in ready)
    taken = [f"{number} {how}" for number, how in ((claimed, "claimed"), (used, "in use")) if number]
    which = f" ({', '.join(taken)})" if taken else ""
    return f"{counted(len(gpus), noun)}, {len(ready) or 'none'} ready for a guest{which}"


def vgpus_on(functions: Iterable[Function], before: str = ", ") -> str:
    """`, 2 vGPUs`; empty if there are none."""
    number = sum(function.vgpus for function in functions)
    return f"{before}{counted(number, 'vGPU')}" if number else ""


def not_read(inventory: Inventory, address: PciAddress) -> str:
    """`not read: no answer in 2 s`."""
    return plain(f"not read: {inventory.unread[address]}")


def viability_unknown(group: Group) -> str:
    """`viability unknown: 0000:03:00.0 could not be read`."""
    return f"viability unknown: {listed(group.unread)} could not be read"


def blockers(group: Group) -> str:
    """`0000:03:00.0 (ahci) and 0000:03:00.1 (xhci_hcd)`."""
    return listed(f"{blocker.address} ({plain(blocker.driver)})" for blocker in group.blockers)


def iommu_line(inventory: Inventory) -> str:
    """Return `IOMMU: amd-vi, on`, or why the IOMMU is off."""
    iommu = inventory.iommu
    state = "on" if iommu.translating else "off, so no device can go to a guest"
    kind = f"{plain(iommu.kind)}, " if iommu.kind else ""
    reason = f": {plain(iommu.reason)}" if iommu.reason else ""
    return f"IOMMU: {kind}{state}{reason}"


def gpu_notes(inventory: Inventory) -> Iterator[str]:
    """Yield notes about the GPUs' groups and cards."""
    for card in inventory.cards:
        if len(card.groups) > 1:
            yield f"The card {card.slot} lies in groups {words.listed(card.groups)}; they are bound together."
    yield from mark_notes(inventory)
    for gpu in inventory.gpus:
        if gpu.boot_vga:
            yield f"{gpu.address} shows the boot messages and the console: to bind it takes --allow-boot-vga."
    own = {address for card in inventory.cards for address in card.functions}
    own |= {gpu.address for gpu in inventory.gpus}
    for group in _gpu_groups(inventory):
        foreign = [a for a in group.members if a not in own and not inventory.by_address[a].is_bridge]
        if foreign:
            named = words.listed(_named(inventory, address) for address in foreign)
            yield f"Group {group.id} is shared with {named}: to bind it takes --with-group."
        if group.unread:
            yield f"Group {group.id}: {viability_unknown(group)}."
        if group.viable is False and any(inventory.by_address[a].on_vfio for a in group.members):
            yield f"Group {group.id} is kept from a guest by {blockers(group)}."


def reservation_notes(reservations: Iterable[Reservation], *, shown: Container[str] = ()) -> Iterator[str]:
    """Yield a note about each claim and its devices. `shown`: claims that the page names already."""
    parts: dict[tuple[str, str], list[str]] = {}
    for reservation in reservations:
        if reservation.claim not in shown:
            parts.setdefault((reservation.by, reservation.owner), []).append(reservation.part)
    for (by, owner), subjects in islice(parts.items(), _MOST_CLAIMS):
        yield _sentence(f"{listed(subjects)} belong{'' if len(subjects) > 1 else 's'} to {by} of {owner}.")
    if (more := len(parts) - _MOST_CLAIMS) > 0:
        yield f"{counted(more, 'more claim')}: vfioctl claim list."


def mark_notes(inventory: Inventory) -> Iterator[str]:
    """Yield notes about wedged and dead devices."""
    yield from (mark_line(function.mark) for function in inventory.functions if function.mark)


def warning_notes(inventory: Inventory) -> Iterator[str]:
    """Yield notes about facts that could not be read. A function that could not be read has a row instead."""
    for warning in (warning for warning in inventory.warnings if warning.subject not in inventory.unread):
        yield words.plain(f"unknown: {warning.subject}: {warning.text}")


def _gpu_groups(inventory: Inventory) -> list[Group]:
    numbers = {gpu.iommu_group for gpu in inventory.gpus if gpu.iommu_group is not None}
    numbers |= {number for card in inventory.cards for number in card.groups}
    return [inventory.group_by_id[number] for number in sorted(numbers) if number in inventory.group_by_id]


def _named(inventory: Inventory, address: PciAddress) -> str:
    function = inventory.by_address[address]
    return f"{address} ({words.plain(function.driver or function.class_name or function.class_code)})"
