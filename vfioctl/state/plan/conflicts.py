"""Refuses a plan that would change another device of the document to what the document does not want: a card goes to
VFIO whole, whichever of its functions was named; and one about a device that was exchanged meanwhile. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from vfioctl.binding.model.binding import KERNEL_CHOICE, Binding, same_driver
from vfioctl.binding.model.definition import DEFINITION
from vfioctl.core.change import Change, Plan
from vfioctl.errors import BadSpec
from vfioctl.inventory.model.functions import Inventory, is_vfio_driver
from vfioctl.inventory.model.scope import FUNCTION
from vfioctl.inventory.model.values import PciAddress
from vfioctl.state.model.document import NONE, DeviceState, HostState
from vfioctl.state.plan.places import Places
from vfioctl.vgpu.model.kinds import BINDING


def conflict_in(plan: Plan, state: HostState, places: Places, expected: Collection[str]) -> BadSpec | None:
    """The error about the first device that the plan changes otherwise than the document says; None if there is none.
    `expected`: devices, by their names, that another change concerns as well."""
    devices = {places[device.address].address: device for device in state.devices if device.address not in expected}
    for change in plan.changes:
        device = devices.get(PciAddress(change.subject)) if ":" in change.subject else None
        for wanted, becomes in _contradictions(change, device) if device else ():
            return BadSpec(
                f"{change.subject} is to be {wanted}, but {plan.intent.title()} makes it {becomes}",
                hint="functions of one card go to VFIO, and back, together: give them drivers that agree",
                facts={"device": change.subject, "wanted": wanted, "planned": becomes},
            )
    return None


def _contradictions(change: Change, device: DeviceState) -> Iterator[tuple[str, str]]:
    if change.kind == BINDING and device.driver is not None:
        binding = Binding.parse(change.after)
        driver = binding.driver or NONE
        kept = driver == KERNEL_CHOICE and not is_vfio_driver(device.driver)
        chosen = kept or any(same_driver(name, device.driver) for name in binding.spellings)
        if not chosen and not same_driver(driver, device.driver):
            yield f"on {device.driver}", f"on {driver}"
    if change.kind == DEFINITION and device.driver_at_boot is not None:
        lasts = device.driver_at_boot != NONE
        if lasts is not bool(change.after):
            words = {True: "bound to VFIO at boot", False: "bound to nothing at boot"}
            yield words[lasts], words[not lasts]


def exchanged(plan: Plan, found_in: Inventory) -> str:
    """The first address at which the plan has found another device than `found_in`; empty if there is none."""
    for fact in plan.facts_of(FUNCTION):
        function = found_in.by_address.get(PciAddress(fact.subject))
        if function and function.identity != fact.values["identity"]:
            return fact.subject
    return ""
