"""The action that verifies, before the first unbinding or removal, that devices have no holders. May not write."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import ClassVar

from vfioctl.console.words import listed
from vfioctl.core.action import Action, Context, Write
from vfioctl.core.change import Phase, Step
from vfioctl.errors import Stuck, VfioctlError
from vfioctl.inventory.model.functions import Function, Inventory
from vfioctl.inventory.model.holders import Holder, HolderKind
from vfioctl.inventory.model.preconditions import holding, ignored_by, refuse
from vfioctl.inventory.model.values import PciAddress, Subject, subject
from vfioctl.inventory.probe.holders import perhaps_open, read_holders, read_mdev_holders
from vfioctl.inventory.probe.inventory import read_some
from vfioctl.inventory.probe.processes import Processes
from vfioctl.units import Uuid

_PAUSE = 0.2
_SHORT = 0.3
_SEEN = "holders"


class NoHolders(Action):
    """Verifies that the named functions and mediated devices have no holders."""

    name: ClassVar[str] = "unheld"
    merges: ClassVar[bool] = True
    _among: ClassVar[str] = ""

    def run(self, context: Context, step: Step) -> None:
        """Wait until a stopped service has closed the device. Raises DeviceInUse if it is still held at the timeout."""
        subjects = [subject(word) for word in step.target.split()]
        inventory = _inventory(context, subjects, names=False)
        subjects = self._affected(inventory, subjects)
        # a write releases a device before it returns; a stopped unit or a driver mode may take a moment
        released = any(other.phase == Phase.RELEASE and other.action != Write.name for other in context.steps)
        until = time.monotonic() + (context.settle if released else 0.0)
        while against := holding(_held(context, subjects, inventory), subjects, context.intent):
            if time.monotonic() >= until:
                refuse(against, _functions(_inventory(context, subjects, names=True), subjects))
            time.sleep(_PAUSE)

    def _affected(self, inventory: Inventory, subjects: list[Subject]) -> list[Subject]:
        return subjects

    def describe(self, step: Step) -> str:
        return f"check again for holders of {self._among}{listed(step.target.split())}"

    def progress(self, step: Step) -> str:
        return f"nobody holds {self._among}{step.target}?"


class NoHoldersOfVfs(NoHolders):
    """Verifies that the VFs of the named functions have no holders."""

    name: ClassVar[str] = "unheld VFs"
    _among: ClassVar[str] = "the VFs of "

    def _affected(self, inventory: Inventory, subjects: list[Subject]) -> list[Subject]:
        return [vf for function in _functions(inventory, subjects) for vf in function.virtfns]


def explain_stuck(context: Context, error: Stuck, address: str) -> None:
    """Add the current holders of the device, which must release it."""
    holders = _seen(context, address)
    if not holders:
        # Holders were read just before. Now the device files may be gone, and reading a hanging holder would
        # block; so read them again only if none were seen.
        with suppress(VfioctlError):
            concerned = [subject(address)]
            inventory = _inventory(context, concerned, names=False, suspects=(address,))
            _held(context, concerned, inventory, timeout=_SHORT)
        holders = _seen(context, address)
    error.facts["holders"] = [asdict(holder) for holder in holders]
    if holders:
        error.hint = f"{error.hint}; it is held by {'; '.join(holder.words for holder in holders)}"


def _held(
    context: Context, subjects: Sequence[Subject], inventory: Inventory, timeout: float | None = None
) -> tuple[Holder, ...]:
    mdevs = [uuid for uuid in subjects if isinstance(uuid, Uuid)]
    suspects = perhaps_open(context.kernel, mdevs)
    held: tuple[Holder, ...] = ()
    if len(mdevs) < len(subjects) or suspects:
        processes = Processes(context.kernel, timeout=timeout)
        held += read_mdev_holders(context.kernel, suspects, processes, {}).holders if suspects else ()
        if functions := _functions(inventory, subjects):
            held += read_holders(context.kernel, functions, inventory, processes).holders
    context.seen[_SEEN] = held
    return held


def _seen(context: Context, address: str) -> list[Holder]:
    seen = context.seen.get(_SEEN, ())
    assert isinstance(seen, tuple)
    ignored = ignored_by(context.intent)
    return [h for h in seen if h.refuses and h.address == address and h.kind not in {*ignored, HolderKind.UNREAD}]


def _inventory(
    context: Context, subjects: Sequence[Subject], *, names: bool, suspects: Collection[str] = ()
) -> Inventory:
    addresses = [address for address in subjects if isinstance(address, PciAddress)]
    return read_some(context.kernel, addresses, (*context.wedged, *suspects), names=names)


def _functions(inventory: Inventory, subjects: Sequence[Subject]) -> list[Function]:
    known = inventory.by_address
    return [known[address] for address in subjects if isinstance(address, PciAddress) and address in known]
