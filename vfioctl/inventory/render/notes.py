"""Notes below a table: shared groups, split cards, the boot display, unread facts. May not read the host."""

from __future__ import annotations

from collections.abc import Iterator

from vfioctl.console import words
from vfioctl.inventory.model.functions import Inventory
from vfioctl.inventory.model.groups import Group
from vfioctl.inventory.model.values import PciAddress
from vfioctl.inventory.render import phrases


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
            yield f"Group {group.id}: {phrases.viability_unknown(group)}."
        if group.viable is False and any(inventory.by_address[a].on_vfio for a in group.members):
            yield f"Group {group.id} is kept from a guest by {phrases.blockers(group)}."


def mark_notes(inventory: Inventory) -> Iterator[str]:
    """Yield notes about wedged and dead devices, and about those that are reserved."""
    yield from (phrases.reservation_line(reservation) for reservation in inventory.reservations)
    yield from (phrases.mark_line(function.mark) for function in inventory.functions if function.mark)


def warning_notes(inventory: Inventory) -> Iterator[str]:
    """Yield notes about facts that could not be read."""
    for warning in inventory.warnings:
        yield words.plain(f"unknown: {warning.subject}: {warning.text}")


def _gpu_groups(inventory: Inventory) -> list[Group]:
    numbers = {gpu.iommu_group for gpu in inventory.gpus if gpu.iommu_group is not None}
    numbers |= {number for card in inventory.cards for number in card.groups}
    return [inventory.group_by_id[number] for number in sorted(numbers) if number in inventory.group_by_id]


def _named(inventory: Inventory, address: PciAddress) -> str:
    function = inventory.by_address[address]
    return f"{address} ({words.plain(function.driver or function.class_name or function.class_code)})"
