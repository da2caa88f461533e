"""The use cases of `vfioctl reconcile`. May not write: a fix is a release, an end or a journaled plan for a claim."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from vfioctl.claims.lifecycle.lifecycle import followers
from vfioctl.claims.lifecycle.liveness import moment_of
from vfioctl.claims.model.claim import LABEL, Claim, ClaimedDevice, ClaimState, Undo
from vfioctl.claims.model.difference import (
    Difference,
    DifferenceKind,
    Fix,
    LostVgpu,
    Reconciled,
    Seen,
    Use,
    share_difference,
)
from vfioctl.console.words import counted
from vfioctl.errors import Cancelled, VfioctlError
from vfioctl.units import format_cpu_list, format_size

if TYPE_CHECKING:
    from vfioctl.claims.lifecycle.lifecycle import Lifecycle
    from vfioctl.core.change import Plan
    from vfioctl.core.events import Cancel, Progress
    from vfioctl.inventory.model.functions import Inventory
    from vfioctl.session import Session


class Fixed(NamedTuple):
    """A difference that was fixed, or why it could not be."""

    difference: Difference
    error: VfioctlError | None = None


class Reconciling:
    """Compares the claims of one host with the host."""

    def __init__(self, session: Session, lifecycle: Lifecycle) -> None:
        self._session, self._ledger, self._lifecycle = session, lifecycle.ledger, lifecycle

    def compare(self, inventory: Inventory | None = None) -> Reconciled:
        """Return the differences between the ledger and the machine. `inventory`: if it has just been read.

        Raises StoreDamaged."""
        from vfioctl.claims.reconcile.look import Look

        claims = self._ledger.claims()
        seen = Look(self._session, self._ledger, claims, inventory).seen()
        return Reconciled(compare(claims, seen), seen.unknown)

    def fix(
        self, differences: Sequence[Difference], *, progress: Progress | None = None, cancel: Cancel | None = None
    ) -> tuple[Fixed, ...]:
        """Fix what is safe to fix, each once, and say what could not be. CDI files are written after claims changed."""
        fixed = self._fixed(
            [difference for difference in differences if difference.fix is not Fix.RENEW], progress, cancel
        )
        changed = any(repair.error is None for repair in fixed)
        files = self.compare().differences if changed else differences
        return (*fixed, *self._fixed([file for file in files if file.fix is Fix.RENEW], progress, cancel))

    def _fixed(
        self, differences: Iterable[Difference], progress: Progress | None, cancel: Cancel | None
    ) -> tuple[Fixed, ...]:
        done: dict[tuple[str, Fix], VfioctlError | None] = {}  # fixing one fixes the others of the same claim
        wanted = [difference for difference in differences if difference.fix is not Fix.NOTHING]
        for difference in wanted:
            if (difference.claim, difference.fix) not in done:
                done[difference.claim, difference.fix] = self._error_of(difference, progress, cancel)
        return tuple(Fixed(difference, done[difference.claim, difference.fix]) for difference in wanted)

    def restore(
        self, name: str, *, bind: bool = False, progress: Progress | None = None, cancel: Cancel | None = None
    ) -> Claim:
        """Bind again what a claim had bound, create the vGPUs that it has lost, and record this boot. `bind`: also bind
        what was on VFIO before the claim. Its devices, and the parents of its vGPUs, must be the same. Raises
        ClaimConflict, and what `BindingApi.plan_bind`, `VgpuApi.plan_create` and `Session.apply` raise; what is still
        wrong is reported again then."""
        claim = self._ledger.claim(name)
        session = self._lifecycle.acting_for(claim)
        plans = self._lifecycle.plans_again(claim, bind=bind)
        for plan in plans:
            session.apply(plan, progress=progress, cancel=cancel)
        if not plans and claim.boot_id != session.boot_id:
            return self._ledger.restored(claim.id, moment_of(session))
        return self._ledger.claim(claim.id)

    def plans(self, claim: Claim) -> tuple[Plan, ...]:
        """Return what `restore` would change. Raises what it raises before it changes anything."""
        return self._lifecycle.plans_again(claim)

    def _error_of(
        self, difference: Difference, progress: Progress | None, cancel: Cancel | None
    ) -> VfioctlError | None:
        """Fix a difference; return why it could not be."""
        try:
            if difference.fix is Fix.RESTORE:
                self.restore(difference.claim, progress=progress, cancel=cancel)
            elif difference.fix is Fix.RENEW:
                for follower in followers(self._session):
                    follower.renew(progress=progress, cancel=cancel)
            else:  # the release of a claim whose process died before any change ends it
                self._lifecycle.release(difference.claim, progress=progress, cancel=cancel)
        except Cancelled:
            raise
        except VfioctlError as error:
            return error
        return None


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
    for share in claim.shares:
        if found := share_difference(share, seen.functions.get(share.address)):
            kind, words = found
            wrong.append(_differs(claim, kind, words, share.address))
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
    if claim.shares and kind is DifferenceKind.OWNER_GONE:  # nothing shows whether it starts again
        return _differs(claim, kind, words, remedy=_release(claim))
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
        words = "it was made in an earlier boot, and cannot be restored: not all of its devices are as they were"
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
