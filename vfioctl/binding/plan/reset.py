"""Resetting one device, by the methods that the kernel has for it. Pure; says no where others would be hit.

A function-level reset (flr, af_flr, pm, acpi, device_specific) touches that function alone. A bus reset takes down all
that is below the same bridge: the kernel itself refuses it (ENOTTY) for a function with siblings, unless it offers
`reset_subordinate` on the bridge (Linux 6.11), which asks nobody.
"""

from __future__ import annotations

from vfioctl.binding.model.circumstances import Circumstances
from vfioctl.binding.plan.steps import DEVICES, steps
from vfioctl.core.change import KERNEL_CHOICE, Change, Intent, Plan
from vfioctl.core.setting import Setting, SettingKind
from vfioctl.errors import BadSpec, DeviceInUse, HostError
from vfioctl.inventory.model.functions import Function, Inventory
from vfioctl.inventory.model.holders import HolderKind
from vfioctl.inventory.model.refusals import refuse, refuse_held, refuse_marked
from vfioctl.inventory.model.scope import binding_of, fact_of, named
from vfioctl.inventory.model.values import PciAddress

_CHILDREN = (HolderKind.MDEV, HolderKind.VGPU, HolderKind.VF)
"""What hangs on a device, and would not survive."""
WIDE = ("bus", "cxl_bus")
"""Methods that reset more than the function."""


def reset_with(inventory: Inventory, address: PciAddress) -> tuple[PciAddress, ...]:
    """The function and those that a bus reset of it would take down: all below the same bridge."""
    function = inventory.by_address[address]
    if function.upstream is None or function.is_vf:
        return (address,)
    bus = address.rpartition(":")[0]
    below = (f for f in inventory.functions if f.upstream == function.upstream and f.address.rpartition(":")[0] == bus)
    return tuple(f.address for f in below)


def plan_reset(inventory: Inventory, intent: Intent, circumstances: Circumstances, files: frozenset[str]) -> Plan:
    """The reset of one function; `files` are those of the kernel that reset something here.

    Raises BadSpec, HostError, DeviceInUse, DeviceDead.
    """
    function = inventory.by_address[intent.devices[0]]
    if function.is_bridge:
        raise BadSpec(f"{named(function)} is a bridge", hint="name the device below it")
    refuse_marked(function)
    vgpus = [h for h in circumstances.holders.holders if h.address == function.address and h.kind in _CHILDREN]
    refuse(vgpus, [function])
    method = _method(function, intent.method, files)
    _refuse_under_its_driver(function, intent)
    others = [inventory.by_address[a] for a in reset_with(inventory, function.address) if a != function.address]
    hit = others if method in WIDE else []
    for other in hit:
        refuse_marked(other)
    _refuse_hitting(function, hit)
    file = _file(function, hit, files)
    concerned = [function, *hit]
    changes = tuple(Change(address=f.address, before=binding_of(f), after=binding_of(f)) for f in concerned)
    now = {change.address: change.before for change in changes}
    settings = _settings(function, method)
    plan = Plan.make(
        intent=intent,
        facts=tuple(map(fact_of, concerned)),
        changes=changes,
        settings=settings,
        reset=file,
        steps=steps(now, now, settings=settings, reset=file),
        notes=(f"{function.address} is reset by {method}: what is in it is lost", *_untold(concerned), *_along(hit)),
    )
    return refuse_held(inventory, plan, circumstances)


def _refuse_under_its_driver(function: Function, intent: Intent) -> None:
    """A display that shows something, or a GPU that NVIDIA's driver keeps open, does not survive a reset."""
    if intent.force_holders or function.on_vfio or function.driver is None:
        return
    kept_open = function.driver == "nvidia" and not (function.nvml and function.nvml.persistence_mode is False)
    if function.boot_vga or kept_open:
        what = "is the boot display" if function.boot_vga else "is kept open by nvidia: its persistence mode is not off"
        raise DeviceInUse(
            f"{named(function)} {what}",
            hint=f"reset it on vfio-pci: vfioctl bind {function.address}",
        )


def _method(function: Function, wanted: str | None, files: frozenset[str]) -> str:
    if not function.reset_methods and wanted is None and f"{DEVICES}/{function.address}/reset" in files:
        return KERNEL_CHOICE  # a kernel before 5.15 names no methods
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
    own, above = f"{DEVICES}/{function.address}/reset", f"{DEVICES}/{function.upstream}/reset_subordinate"
    if others and above not in files:
        raise HostError(
            f"the kernel resets no function by its bus that has siblings: {', '.join(o.address for o in others)}",
            hint="a guest that has the whole card resets it through VFIO; Linux 6.11 can do it (reset_subordinate)",
        )
    if not others and own not in files:
        raise HostError(f"{named(function)} has no reset file", hint="only the power can reset it")
    return above if others else own


def _settings(function: Function, method: str) -> tuple[Setting, ...]:
    if method == KERNEL_CHOICE or method == function.reset_methods[0]:
        return ()
    name, as_now = f"{DEVICES}/{function.address}/reset_method", " ".join(function.reset_methods)
    made = Setting(
        kind=SettingKind.RESET_METHOD, name=name, address=function.address, before=as_now, after=as_now, during=method
    )
    return (made,)


def _untold(functions: list[Function]) -> tuple[str, ...]:
    native = [f for f in functions if f.driver and not f.on_vfio]
    return tuple(f"{f.driver} is not told of it, and may lose {f.address} until it is bound again" for f in native)


def _along(others: list[Function]) -> tuple[str, ...]:
    return tuple(f"{named(other)} is reset with it" for other in others)
