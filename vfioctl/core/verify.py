"""Whether a host is as it should be, by a fresh look: bindings, settings, groups, and devices that still answer.

Reads only. It never trusts a write that returned.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from vfioctl.binding.plan.settings import late
from vfioctl.binding.plan.steps import Bindings, handed_over
from vfioctl.binding.probe.settings import read_again
from vfioctl.core.change import Fact, Left, Plan
from vfioctl.core.messages import verify_error
from vfioctl.core.setting import VF_COUNTS, Setting, SettingKind
from vfioctl.core.snapshot import Names
from vfioctl.errors import KernelRefused, VerifyError
from vfioctl.inventory.model.values import PciAddress
from vfioctl.inventory.probe.facts import read_facts
from vfioctl.kernel.protocol import Kernel
from vfioctl.vgpu.model.vgpu import OURS, Dialect, Vgpu, Vgpus
from vfioctl.vgpu.probe.inventory import read_vgpus

_LEFT_TO_OTHERS = (SettingKind.LOCK, SettingKind.PERSISTENCE)


def verify_bindings(
    kernel: Kernel, goals: Bindings, *, settle: float, also: Iterable[PciAddress] = ()
) -> Mapping[PciAddress, Fact]:
    """The facts found, of the goals as they have them, and `also` of others. Raises VerifyError after `settle` s."""
    until = time.monotonic() + settle
    wanted = tuple(dict.fromkeys((*also, *goals)))
    while True:
        found = read_facts(kernel, wanted)
        wrong = {a: goal for a, goal in goals.items() if a not in found or not found[a].binding.meets(goal)}
        if not wrong:
            return found
        if time.monotonic() >= until:
            raise verify_error(wrong, found)
        time.sleep(0.05)


def verify_settings(kernel: Kernel, settings: Iterable[Setting], goals: Bindings) -> list[str]:
    """What of the things that may fail is not as it was to be. Raises VerifyError for the others.

    A file that has gone is no failure: a vtconsole goes with the last framebuffer, `unbindLock` with the binding.
    """
    going = {setting.address for setting in settings if setting.removes}
    wanted = [s for s in settings if s.kind not in _LEFT_TO_OTHERS and (s.is_vgpu or s.address not in going)]
    if not wanted:
        return []
    found = read_again(kernel, wanted)
    wrong = [s for s in wanted if not _is_as_meant(s, found[s.key])]
    to_vfio = handed_over(goals)
    firm = [s for s in wrong if not any(step.may_fail for step in late([s], to_vfio))]
    if firm:
        told = "; ".join(f"{s.name} should be {s.after or 'off'} and is {found[s.key] or 'off'}" for s in firm)
        raise VerifyError(told, hint="something else sets it too: a power daemon, a udev rule?")
    return [f"{s.name} should be {s.after or 'off'} again and is {found[s.key] or 'off'}" for s in wrong]


def _is_as_meant(setting: Setting, found: str | None) -> bool:
    if found is None:
        is_asked_for = setting.makes or (setting.kind == SettingKind.PARAMETER and setting.after != "")
        return not is_asked_for and setting.kind not in VF_COUNTS
    if setting.kind == SettingKind.PARAMETER:  # a list of `name=value`, which the driver may space as it likes
        return _items(found) == _items(setting.after)
    return found == setting.after


def _items(text: str) -> frozenset[str]:
    return frozenset(filter(None, (item.strip() for item in text.split(","))))


def verify_vgpus(
    kernel: Kernel, plan: Plan, *, settle: float, names: Names, suspects: Collection[str] = ()
) -> tuple[tuple[Vgpu, ...], tuple[Left, ...]]:
    """The vGPUs that were made, each with a node for a guest to open, and what there is room for now.

    `names`: what types are called that the kernel may list no more. Of `suspects` nothing is asked.
    Raises VerifyError when a node does not come in `settle` seconds.
    """
    until = time.monotonic() + settle
    made = {str(setting.address) for setting in plan.settings if setting.makes}
    defined = {str(setting.address) for setting in plan.settings if setting.kind == SettingKind.KEPT}
    while True:
        found = read_vgpus(kernel, plan.cards, suspects=suspects, names=names, defined=defined)
        there = {vgpu.id: vgpu for vgpu in found.instances if vgpu.id in made}
        bare = [each for each in made if each not in there or not (there[each].vfio_group or there[each].vfio_cdev)]
        if not bare:
            return _of_interest(plan, found, there), _left(plan, found)
        if time.monotonic() >= until:
            raise VerifyError(
                f"{', '.join(sorted(bare))} has no node below /dev/vfio that a guest could open",
                hint="udev makes it, and the module vfio must be loaded: dmesg | tail",
            )
        time.sleep(0.05)


def _of_interest(plan: Plan, found: Vgpus, made: Mapping[str, Vgpu]) -> tuple[Vgpu, ...]:
    """What was made, and so is vfioctl's; the VFs themselves where their count was changed."""
    counted = any(setting.kind in VF_COUNTS and setting.before != setting.after for setting in plan.settings)
    vfs = plan.cards if counted else ()
    return tuple(
        replace(vgpu, owner=OURS)
        for vgpu in found.instances
        if vgpu.id in made or (vgpu.dialect in (Dialect.SRIOV, Dialect.XE) and vgpu.card in vfs)
    )


def _left(plan: Plan, found: Vgpus) -> tuple[Left, ...]:
    kinds = {s.after if s.makes else s.before for s in plan.settings if s.is_vgpu}
    types = {kind.rpartition("/")[2] for kind in kinds}
    return tuple(
        Left(card=card.id, type=kind.id, profile=kind.profile, available=kind.available)
        for card in found.cards
        for kind in card.types
        if kind.id in types
    )


def verify_viable(kernel: Kernel, groups: Iterable[int]) -> None:
    """Asks the kernel whether a guest could own them. Raises VerifyError, KernelRefused."""
    for group in groups:
        try:
            viable = kernel.viable(group)
        except KernelRefused as error:
            if error.symbol == "ENOENT" and kernel.has("/dev/vfio/devices"):
                continue  # a kernel with device nodes in place of group nodes has no such question
            raise
        if not viable:
            raise VerifyError(
                f"the kernel says that IOMMU group {group} is not viable: a member still does its own DMA",
                hint="vfioctl show names the members and their drivers",
            )


def dead(kernel: Kernel, addresses: Iterable[PciAddress]) -> tuple[PciAddress, ...]:
    """Those whose configuration space reads as all ones: nothing answers on the bus any more."""
    return tuple(address for address in addresses if _is_dead(kernel, address))


def _is_dead(kernel: Kernel, address: PciAddress) -> bool:
    """Raises Stuck when it does not answer at all."""
    try:
        return set(kernel.config(address)) == {0xFF}  # all of it: a live VF's ids alone read as ones
    except KernelRefused:
        return False  # what cannot be read is not known to be dead
