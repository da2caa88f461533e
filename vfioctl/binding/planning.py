"""From an intent to a plan: looks at what the plan has to know of the host, and lets `plan` decide. Changes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from vfioctl.binding.model.circumstances import Circumstances
from vfioctl.binding.plan.bind import plan_bind, plan_unbind
from vfioctl.binding.plan.release import to_put_back
from vfioctl.binding.plan.reset import plan_reset, reset_with
from vfioctl.binding.probe.settings import idle_devices_sleep, read_again, read_settings
from vfioctl.core.change import Intent, Plan, Verb
from vfioctl.core.journal import Journal
from vfioctl.inventory.model.functions import Function, Inventory
from vfioctl.inventory.model.holders import Holders
from vfioctl.inventory.model.refusals import refuse_marked
from vfioctl.inventory.model.scope import scope_of
from vfioctl.inventory.model.values import PciAddress
from vfioctl.inventory.probe.holders import read_holders
from vfioctl.inventory.probe.processes import Processes
from vfioctl.kernel.protocol import PCI_DEVICES, Kernel


def planned(
    kernel: Kernel, inventory: Inventory, intent: Intent, journal: Journal, *, boot_id: str, processes: Processes
) -> Plan:
    """The plan for the intent. Raises what `plan_bind`, `plan_unbind` and `plan_reset` raise."""
    for address in intent.devices if intent.verb == Verb.RESET else scope_of(inventory, intent.devices).own:
        refuse_marked(inventory.by_address[address])  # before anything is asked about it that may hang as well
    if intent.verb == Verb.RESET:
        concerned = [inventory.by_address[address] for address in reset_with(inventory, intent.devices[0])]
        holders = read_holders(kernel, concerned, inventory, processes)
        return plan_reset(inventory, intent, Circumstances(holders=holders), _reset_files(kernel, concerned))
    concerned = functions_in_scope(inventory, intent.devices)
    holders = read_holders(kernel, [function for function in concerned if function.driver], inventory, processes)
    if intent.verb == Verb.BIND:
        return plan_bind(inventory, intent, _circumstances(kernel, concerned, holders, intent))
    identities = {function.address: function.identity for function in inventory.functions}
    records = journal.records(identities, boot_id=boot_id)
    recorded = journal.settings(boot_id=boot_id)
    settings = to_put_back(recorded, read_again(kernel, recorded) if recorded else {})
    return plan_unbind(inventory, intent, records, Circumstances(holders=holders), settings)


def functions_in_scope(inventory: Inventory, devices: Sequence[PciAddress]) -> list[Function]:
    """The devices' cards, and all that shares their groups, but for bridges."""
    scope = scope_of(inventory, devices)
    return [inventory.by_address[address] for address in (*scope.own, *scope.foreign)]


def _circumstances(kernel: Kernel, functions: Sequence[Function], holders: Holders, intent: Intent) -> Circumstances:
    may_stop = set(intent.stop_services)
    refusing = ((h.unit, h.address) for h in holders.refusing if isinstance(h.address, PciAddress))
    units = [(unit, address) for unit, address in refusing if unit is not None and unit in may_stop]
    return Circumstances(
        holders=holders,
        readings=read_settings(kernel, functions, units),
        can_be_reset=frozenset(f.address for f in functions if kernel.has(f"{PCI_DEVICES}/{f.address}/reset")),
        idle_devices_sleep=idle_devices_sleep(kernel),
    )


def _reset_files(kernel: Kernel, functions: Sequence[Function]) -> frozenset[str]:
    """Which of the files that reset something are there."""
    places = {function.address for function in functions} | {f.upstream for f in functions if f.upstream}
    files = {f"{PCI_DEVICES}/{place}/{name}" for place in places for name in ("reset", "reset_subordinate")}
    return frozenset(file for file in files if kernel.has(file))
