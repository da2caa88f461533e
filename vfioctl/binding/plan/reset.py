"""Plans the reset of one device, and verifies that no other device in use is affected. May not do input or output.

A function-level reset (flr, af_flr, pm, acpi, device_specific) affects only that function. A bus reset affects all
devices below the same bridge: the kernel refuses it (ENOTTY) for a function with siblings, unless the bridge has
`reset_subordinate` (Linux 6.11), which does not check for users."""

from __future__ import annotations

from collections.abc import Iterator

from vfioctl.binding.checks import ANSWERS
from vfioctl.binding.model.binding import binding_of
from vfioctl.binding.model.conditions import Circumstances
from vfioctl.binding.model.intents import ResetIntent
from vfioctl.binding.plan.preconditions import refuse_held
from vfioctl.binding.resources.driver import binding_change
from vfioctl.core.change import Change, CheckRequest, Draft
from vfioctl.errors import BadSpec, DeviceInUse, HostError
from vfioctl.inventory.model.functions import Function, Inventory
from vfioctl.inventory.model.holders import HolderKind
from vfioctl.inventory.model.preconditions import refuse, refuse_marked
from vfioctl.inventory.model.scope import function_fact, named
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel.protocol import PCI_DEVICES

_CHILDREN = (HolderKind.MDEV, HolderKind.VGPU, HolderKind.VF)
"""Kinds of holders that would not survive the reset."""
WIDE = ("bus", "cxl_bus")
"""Reset methods that affect more than the function."""


def reset_with(inventory: Inventory, address: PciAddress) -> tuple[PciAddress, ...]:
    """Return the function and all others below the same bridge, which a bus reset also resets."""
    function = inventory.by_address[address]
    if function.upstream is None or function.is_vf:
        return (address,)
    bus = address.rpartition(":")[0]
    below = (f for f in inventory.functions if f.upstream == function.upstream and f.address.rpartition(":")[0] == bus)
    return tuple(f.address for f in below)


def plan_reset(inventory: Inventory, intent: ResetIntent, circumstances: Circumstances, files: frozenset[str]) -> Draft:
    """Plan a reset. `files`: the reset files that exist. Raises BadSpec, HostError, DeviceInUse, DeviceDead."""
    function = inventory.by_address[intent.devices[0]]
    if function.is_bridge:
        raise BadSpec(f"{named(function)} is a bridge", hint="name the device below it")
    refuse_marked(function)
    vgpus = [h for h in circumstances.holders.holders if h.address == function.address and h.kind in _CHILDREN]
    refuse(vgpus, [function])
    method = _method(function, intent.method)
    _refuse_under_its_driver(function, intent)
    others = [inventory.by_address[a] for a in reset_with(inventory, function.address) if a != function.address]
    hit = others if method in WIDE else []
    for other in hit:
        refuse_marked(other)
    _refuse_hitting(function, hit)
    file = _file(function, hit, files)
    concerned = [function, *hit]
    addresses = tuple(function.address for function in concerned)
    draft = Draft(
        intent=intent,
        facts=tuple(map(function_fact, concerned)),
        changes=(
            *(binding_change(function.address, binding_of(function), binding_of(function)) for function in concerned),
            *_method_change(function, method),
            Change(kind="reset", name=file, subject=function.address, before="", after=" ".join(addresses)),
        ),
        checks=(CheckRequest(kind=ANSWERS, subjects=addresses),),
        notes=tuple(_notes(function, method, hit)),
    )
    return refuse_held(inventory, draft, circumstances)


def _refuse_under_its_driver(function: Function, intent: ResetIntent) -> None:
    """Raise DeviceInUse for the boot display, or for a GPU that NVIDIA's driver keeps open."""
    if intent.force_holders or function.on_vfio or function.driver is None:
        return
    what = "is the boot display" if function.boot_vga else _kept_open(function) if function.driver == "nvidia" else ""
    if what:
        raise DeviceInUse(
            f"{named(function)} {what}",
            hint="reset it on vfio-pci",
            next_command=f"vfioctl bind {function.address}{' --allow-boot-vga' if function.boot_vga else ''}",
        )


def _kept_open(function: Function) -> str:
    mode = function.nvml.persistence_mode if function.nvml else None
    if mode is None:
        why = function.unknown.get("nvml", "NVML does not report it")
        return f"may be kept open by nvidia: its persistence mode is unknown ({why})"
    return "is kept open by nvidia: its persistence mode is on" if mode else ""


def _method(function: Function, wanted: str | None) -> str | None:
    if function.reset_unnamed and wanted is not None:
        raise BadSpec(f"{named(function)} has a reset method that this kernel does not name", hint="leave out --method")
    if function.reset_unnamed:
        return None
    if not function.reset_methods:
        raise HostError(
            f"{named(function)} has no reset method",
            hint="only the power can reset it: suspend to RAM and resume, or power off",
        )
    if wanted is not None and wanted not in function.reset_methods:
        raise BadSpec(
            f"{named(function)} cannot be reset by {wanted[:40]}", hint=f"it has {', '.join(function.reset_methods)}"
        )
    return wanted or function.reset_methods[0]


def _refuse_hitting(function: Function, others: list[Function]) -> None:
    in_use = [other for other in others if other.driver and not other.on_vfio]
    if in_use:
        others_named = "; ".join(named(other) for other in in_use)
        raise DeviceInUse(
            f"a bus reset of {function.address} would also hit {others_named}",
            hint="bind the whole card to vfio-pci first, or choose another --method",
            facts={"hit": [other.address for other in in_use]},
        )


def _file(function: Function, others: list[Function], files: frozenset[str]) -> str:
    own, above = f"{PCI_DEVICES}/{function.address}/reset", f"{PCI_DEVICES}/{function.upstream}/reset_subordinate"
    if others and above not in files:
        raise HostError(
            f"the kernel resets no function by its bus that has siblings: {', '.join(o.address for o in others)}",
            hint="a guest that has the whole card resets it through VFIO; Linux 6.11 can do it (reset_subordinate)",
        )
    if not others and own not in files:
        raise HostError(f"{named(function)} has no reset file", hint="only the power can reset it")
    return above if others else own


def _method_change(function: Function, method: str | None) -> tuple[Change, ...]:
    """Return the change that enables only `method` during the reset; none if the kernel tries it first anyway."""
    if method is None or method == function.reset_methods[0]:
        return ()
    file, now = f"{PCI_DEVICES}/{function.address}/reset_method", " ".join(function.reset_methods)
    change = Change(
        kind="reset method", name=file, subject=function.address, before=now, after=now, during=method, may_fail=True
    )
    return (change,)


def _notes(function: Function, method: str | None, others: list[Function]) -> Iterator[str]:
    by = f"by {method}" if method else "by a method that this kernel does not name"
    yield f"{function.address} is reset {by}: what is in it is lost"
    for f in (function, *others):
        if f.driver and not f.on_vfio:
            yield f"{f.driver} is not notified of the reset, and may lose {f.address} until it is bound again"
    yield from (f"{named(other)} is reset with it" for other in others)
