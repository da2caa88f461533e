"""Compares the ledger's claims with what the machine shows. Pure: may not do input or output."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

from vfioctl.claims.model.claim import LABEL, Claim, ClaimedDevice, ClaimState, Undo
from vfioctl.claims.model.difference import Difference, DifferenceKind, Fix, LostVgpu, Seen, Use
from vfioctl.console.words import counted
from vfioctl.units import format_cpu_list, format_size

if TYPE_CHECKING:
    pass

_FIX = "vfioctl reconcile --fix"


def compare(claims: Sequence[Claim], seen: Seen) -> tuple[Difference, ...]:
    """Return the differences: those of each live claim, then devices in use without a claim, then CDI files."""
    owned: dict[str, Claim] = {device.subject: claim for claim in claims for device in claim.devices}
    uses = _by_device(seen.uses)
    differences = [difference for claim in claims for difference in _of_claim(claim, seen, uses)]
    differences += _short_pages(claims, seen)
    return (*differences, *_foreign(owned, seen, uses), *seen.cdi)


def _by_device(uses: Iterable[Use]) -> Mapping[str, tuple[Use, ...]]:
    ordered = sorted(dict.fromkeys(uses))
    return {device: tuple(group) for device, group in groupby(ordered, key=lambda use: use.device)}


# -- one claim -------------------------------------------------------------------------------------------


def _of_claim(claim: Claim, seen: Seen, uses: Mapping[str, Sequence[Use]]) -> Iterator[Difference]:
    if claim.id in seen.changing:
        words = "a change for it was interrupted, or is under way"
        yield _differs(claim, DifferenceKind.CUT_SHORT, words, remedy="vfioctl recover")
        return
    if claim.state is ClaimState.WEDGED:
        yield _differs(claim, DifferenceKind.CUT_SHORT, "a change of its devices could not be finished")
        return
    stale = _stale(claim, seen, uses)
    if stale:
        yield stale
    if claim.state is not ClaimState.HELD or (stale and stale.fix):
        return
    wrong = [difference for device in claim.devices for difference in _device(claim, device, seen)]
    # one that cannot be fixed keeps the others from it; a group is viable once they are
    if any(not difference.fix and difference.kind is not DifferenceKind.NOT_VIABLE for difference in wrong):
        wrong = [replace(difference, fix=Fix.NOTHING, remedy=_release(claim)) for difference in wrong]
    yield from wrong
    if not seen.is_of_this_boot(claim.boot_id):
        yield _of_an_earlier_boot(claim, wrong, uses)
    yield from _used_by_others(claim, uses)
    yield from _used_on_host(claim, seen)
    if offline := [cpu for cpu in claim.cpus if seen.online is not None and cpu not in seen.online]:
        words = f"CPUs {format_cpu_list(offline)} are offline: bring them online, or release the claim"
        yield _differs(claim, DifferenceKind.CPUS, words)


def _stale(claim: Claim, seen: Seen, uses: Mapping[str, Sequence[Use]]) -> Difference | None:
    if claim.id not in seen.stale:
        return None
    kind, words = seen.stale[claim.id]
    if kind is DifferenceKind.PROCESS_GONE:
        return _differs(claim, kind, words, fix=Fix.END if claim.state is ClaimState.RESERVED else Fix.RELEASE)
    held = [use for device in claim.devices for use in uses.get(device.subject, ())]
    if not held:
        return _differs(claim, kind, words, fix=Fix.RELEASE)
    if kind is DifferenceKind.OWNER_GONE:
        return None  # who has its devices is told as another user of them
    words = f"{words}, but {held[0].who} has its devices"
    return _differs(claim, kind, words, remedy=f"vfioctl claim renew {claim.id} --ttl 1h")


def _device(claim: Claim, device: ClaimedDevice, seen: Seen) -> Iterator[Difference]:
    name = str(device.subject)
    if device.mdev:
        parent = seen.mdevs.get(name)
        if parent is None:
            defined = ", although it is defined" if name in seen.definitions else ""
            yield _lost(claim, name, f"it does not exist{defined}", seen.lost.get(name, LostVgpu()))
        elif parent != device.address:
            words = f"it is on {parent} now, and was on {device.address}"
            yield _differs(claim, DifferenceKind.DEVICE_REPLACED, words, name)
    elif (function := seen.functions.get(name)) is None:
        kind = DifferenceKind.VGPU_GONE if device.undo is Undo.REMOVE else DifferenceKind.DEVICE_GONE
        yield _differs(claim, kind, "it no longer exists", name)
    elif device.identity and function.identity != device.identity:
        words = f"another device is at its address: {function.identity}, which was {device.identity}"
        yield _differs(claim, DifferenceKind.DEVICE_REPLACED, words, name)
    elif name in seen.lost:
        yield _lost(claim, name, "it is no vGPU any more", seen.lost[name])
    elif device.undo is Undo.UNBIND and seen.is_of_this_boot(claim.boot_id):  # a reboot undoes what was bound
        if not function.on_vfio:
            words = f"the claim bound it to VFIO, and its driver is {function.driver or 'none'}"
            yield _differs(claim, DifferenceKind.DRIVER, words, name, fix=Fix.RESTORE)
        elif name in seen.not_viable:
            words = "its IOMMU group is not viable: a driver of the host has another device of it"
            yield _differs(claim, DifferenceKind.NOT_VIABLE, words, name)


def _lost(claim: Claim, name: str, words: str, lost: LostVgpu) -> Difference:
    if not lost.words:
        words = ", and ".join(filter(None, [words, lost.why_not]))
    elif lost.why_not:
        words = f"{words}; it was {lost.words}, and cannot be created again: {lost.why_not}"
    else:
        return _differs(claim, DifferenceKind.VGPU_GONE, f"{words}; it was {lost.words}", name, fix=Fix.RESTORE)
    return _differs(claim, DifferenceKind.VGPU_GONE, words, name)


def _of_an_earlier_boot(claim: Claim, wrong: Sequence[Difference], uses: Mapping[str, Sequence[Use]]) -> Difference:
    is_used = any(device.subject in uses for device in claim.devices)
    if LABEL in claim.labels and not (wrong or is_used):
        words = f"it was made for a run of {claim.owner.name} in an earlier boot"
        return _differs(claim, DifferenceKind.REBOOTED, words, remedy=_FIX, fix=Fix.RELEASE)
    if any(difference.fix is not Fix.RESTORE for difference in wrong):
        words = "it was made in an earlier boot, and cannot be restored: not all of its devices are here"
        return _differs(claim, DifferenceKind.REBOOTED, words)
    lost = ", but for vGPUs that can be created again" if wrong else ""
    words = f"it was made in an earlier boot; its devices are the same ones{lost}"
    return _differs(claim, DifferenceKind.REBOOTED, words, fix=Fix.RESTORE)


def _used_by_others(claim: Claim, uses: Mapping[str, Sequence[Use]]) -> Iterator[Difference]:
    """Yield where another guest has a device. A container, or a user, may run a guest of any name without libvirt."""
    is_vm = claim.owner.kind == "vm"
    for device in claim.devices:
        guests = [use for use in uses.get(device.subject, ()) if use.guest and (is_vm or use.is_domain)]
        others = [] if any(use.owner == claim.owner for use in guests) else guests
        for use in others[:1]:
            command = f"vfioctl claim transfer {claim.id} --to {shlex.quote(use.owner)}"
            yield _differs(claim, DifferenceKind.OTHER_USER, f"{use.who} has it", device.subject, remedy=command)


def _used_on_host(claim: Claim, seen: Seen) -> Iterator[Difference]:
    """Yield where a process of somebody else uses a GPU with its host driver. Root may work for a user."""
    ours = {device.subject for device in claim.devices}
    own = (claim.owner, "user/root") if claim.owner.kind == "user" else (claim.owner,)
    for device, uses in _by_device(seen.host_uses).items():
        for use in [use for use in uses if device in ours and use.owner not in own][:1]:
            words = f"{use.who} uses it with its driver {seen.functions[device].driver or ''}"
            yield _differs(claim, DifferenceKind.HOST_USE, words, device, remedy=f"vfioctl holders {device}")


def _short_pages(claims: Sequence[Claim], seen: Seen) -> Iterator[Difference]:
    """Yield the claims whose nodes have fewer hugepages than claims hold."""
    held = [(claim, pages) for claim in claims if claim.state is ClaimState.HELD for pages in claim.hugepages]
    claimed: Counter[tuple[int, int]] = Counter()
    for _, (node, size, count) in held:
        claimed[node, size] += count
    for claim, (node, size, _) in held:
        if (total := seen.pages.get((node, size), claimed[node, size])) < claimed[node, size]:
            words = f"node {node} has {counted(total, 'hugepage')} of {format_size(size)}, of {claimed[node, size]}"
            words = f"{words} that claims hold: allocate them again, or release the claim"
            yield _differs(claim, DifferenceKind.HUGEPAGES, words)


def _differs(
    claim: Claim, kind: DifferenceKind, words: str, device: str = "", *, remedy: str = "", fix: Fix = Fix.NOTHING
) -> Difference:
    remedy = remedy or (_FIX if fix is Fix.RESTORE else _release(claim))
    return Difference(kind, words, remedy, claim=claim.id, owner=claim.owner, device=device, fix=fix)


def _release(claim: Claim) -> str:
    return f"vfioctl claim release {claim.id}"


# -- no claim --------------------------------------------------------------------------------------------


def _foreign(owned: Mapping[str, Claim], seen: Seen, uses: Mapping[str, Sequence[Use]]) -> Iterator[Difference]:
    for device, users in uses.items():
        function = seen.functions.get(device)
        above = seen.mdevs.get(device) or (function.physfn if function else None)
        if device in owned or above in owned:
            continue
        names = tuple(dict.fromkeys(use.who for use in users))
        words = f"{' and '.join(names)} {'has' if len(names) == 1 else 'have'} it, and no claim has it"
        owner = next((use.owner for use in users if use.guest), users[0].owner)  # a process may have no name
        command = f"vfioctl claim adopt --owner {shlex.quote(owner)} --device {device}"
        yield Difference(DifferenceKind.FOREIGN_USE, words, command, device=device)
