"""Reads again what an event names, and what hangs on it. May not write to the host."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from vfioctl.core.rollback import now
from vfioctl.overview.model.overview import Overview, Part
from vfioctl.overview.reading.parts import Parts, scope_of_gpus

if TYPE_CHECKING:
    from vfioctl.inventory.api import Processes
    from vfioctl.inventory.model.functions import Inventory
    from vfioctl.inventory.model.holders import Holders
    from vfioctl.inventory.model.values import PciAddress, Subject
    from vfioctl.session import Session
    from vfioctl.vgpu.model.vgpu import Vgpus

NOTHING: frozenset[PciAddress] = frozenset()


def refresh(
    session: Session, last: Overview, addresses: Collection[PciAddress] = (), whole: Collection[Part] = ()
) -> Overview:
    """Return `last` with these functions read again, and with their cards, groups, VFs, vGPUs, holders and usage.

    `whole`: read these parts again for all functions. Claims and changes always are: they are in the ledger."""
    at, whole = now(), frozenset((*whole, Part.CLAIMS, Part.CHANGES))
    kept = {part for part in (Part.HOLDERS, Part.VGPUS, Part.USAGE) if not addresses and part not in whole}
    parts = Parts(session, last.without | kept)
    processes = None if Part.HOLDERS in last.without | kept else parts.devices.processes()
    inventory, read = last.inventory, NOTHING
    if addresses:
        inventory, read = parts.devices.refreshed(last.inventory, [*addresses])
    vgpus = _vgpus(parts, last.vgpus, inventory, None if Part.VGPUS in whole else read)
    concerned = NOTHING.union(inventory.by_address) if Part.HOLDERS in whole else read
    holders = _holders(parts, last.holders, inventory, vgpus, concerned, processes)
    gpus = [gpu.address for gpu in inventory.gpus if Part.USAGE in whole or gpu.address in read]
    others = {address: value for address, value in last.usage.items() if address not in gpus}
    usage = {**others, **parts.usage(gpus)}
    domains = parts.domains() if Part.DOMAINS in whole else last.domains
    claims, unfinished = parts.claims(), parts.unfinished()
    missing = {part: why for part, why in last.missing.items() if part not in whole} | parts.missing
    return replace(
        last,
        at=at,
        inventory=inventory,
        claims=claims,
        vgpus=vgpus,
        holders=holders,
        unfinished=unfinished,
        usage=usage,
        domains=domains,
        missing=missing,
        read_only=session.why_read_only(),
    )


def _vgpus(parts: Parts, last: Vgpus, inventory: Inventory, read: Collection[PciAddress] | None) -> Vgpus:
    """Return the vGPUs of `last` with those of the cards in `read` as they are now; all as they are now for None."""
    if read is None:
        return parts.vgpus()
    cards = {str(address) for address in read if not inventory.by_address[address].is_vf}
    if not cards:
        return last
    fresh = parts.vgpus(cards)
    known = {card.id for card in last.cards} | {card.id for card in fresh.cards}
    cards &= known
    kept = [card for card in last.cards if card.id not in cards]
    instances = [vgpu for vgpu in last.instances if vgpu.card not in cards]
    warnings = (warning for warning in last.warnings if warning.subject not in cards)
    return replace(
        last,
        cards=tuple(sorted((*kept, *fresh.cards), key=lambda card: (len(card.id), card.id))),
        instances=tuple(
            sorted(
                (*instances, *(vgpu for vgpu in fresh.instances if vgpu.card in cards)),
                key=lambda vgpu: (len(vgpu.card), vgpu.card, len(vgpu.parent), vgpu.parent, vgpu.id),
            )
        ),
        warnings=tuple(dict.fromkeys((*warnings, *fresh.warnings))),
    )


def _holders(
    parts: Parts,
    last: Holders,
    inventory: Inventory,
    vgpus: Vgpus,
    read: Collection[PciAddress],
    processes: Processes | None,
) -> Holders:
    """Return the holders of `last` with those of the functions in `read`, and of all mediated devices, as they are."""
    if processes is None:
        return last
    scope = scope_of_gpus(inventory)
    fresh = parts.holders([function for function in scope if function.address in read], inventory, vgpus, processes)
    others = {function.address for function in scope if function.address not in read}
    places: dict[Subject, int] = {function.address: place for place, function in enumerate(scope)}
    devices = (*(device for device in last.devices if device in others), *fresh.devices)
    holders = (*(holder for holder in last.holders if holder.address in others), *fresh.holders)
    return replace(
        fresh,
        devices=tuple(sorted(devices, key=lambda device: places.get(device, len(places)))),
        holders=tuple(sorted(holders, key=lambda holder: places.get(holder.address, len(places)))),
    )
