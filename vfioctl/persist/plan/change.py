"""Plans removing definitions, and taking over devices of other programs. May not do input or output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vfioctl.binding.model.definition import defined, persistent_changes
from vfioctl.core.change import Change, Draft
from vfioctl.errors import HostError
from vfioctl.inventory.model.functions import Inventory
from vfioctl.inventory.model.scope import function_fact
from vfioctl.inventory.model.values import PciAddress
from vfioctl.persist.model.intents import DRIVERCTL_OVERRIDE, ForgetIntent, ImportIntent


def plan_forget(intent: ForgetIntent, changes: Sequence[Change]) -> Draft:
    """Plan removing definitions."""
    stays = "what is bound or created now stays as it is until the next boot"
    return Draft(intent=intent, changes=tuple(changes), notes=(stays,))


def plan_import(
    inventory: Inventory,
    intent: ImportIntent,
    names: Sequence[PciAddress],
    texts: Mapping[PciAddress, tuple[str, str]],
    overrides: Mapping[str, tuple[str, str]],
) -> Draft:
    """Plan definitions for the devices in `names`, which are on VFIO now. `texts`: of their files. `overrides`: file
    and driver of those that driverctl binds.

    Raises HostError if a device is not on VFIO: only what works now is made persistent."""
    changes: list[Change] = []
    functions = [inventory.by_address[name] for name in names]
    for function in functions:
        if not function.on_vfio:
            raise HostError(
                f"{function.address} is on {function.driver or 'no driver'} now, not on VFIO",
                hint="bind it first, which shows that it works",
                next_command=f"vfioctl bind {function.address} --persistent",
            )
        before = texts[function.address]
        wanted = defined(inventory, function, str(function.driver), before[0])
        changes += persistent_changes(function.address, before, wanted)
        if override := overrides.get(function.address):
            file, driver = override
            changes.append(
                Change(kind=DRIVERCTL_OVERRIDE, name=file, subject=function.address, before=driver, after="")
            )
    return Draft(intent=intent, facts=tuple(map(function_fact, functions)), changes=tuple(changes))
