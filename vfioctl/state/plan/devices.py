"""The changes of drivers and VFs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from vfioctl.binding.model.binding import same_driver
from vfioctl.binding.model.intents import BindIntent, UnbindIntent
from vfioctl.errors import BadDocument, BadSpec, DeviceInUse, HostError, VfioctlError
from vfioctl.inventory.model.functions import Function, Inventory, is_vfio_driver
from vfioctl.inventory.model.scope import named
from vfioctl.inventory.model.values import PciAddress
from vfioctl.state.model.difference import Refusal, Step
from vfioctl.state.model.document import NONE, DeviceState, HostState
from vfioctl.state.plan import compare
from vfioctl.state.plan.phases import BIND, COUNT, UNBIND, VFS_OF, Found
from vfioctl.vgpu.model.intents import SetVfsIntent

Part = Step | Refusal
_LASTING = "only what is there now is made persistent"


def changes_of(state: HostState, found: Found) -> Iterator[Part]:
    """Yield the changes of all devices, and what cannot be changed."""
    able: list[tuple[DeviceState, Function]] = []
    for device in state.devices:
        function = found.function(device)
        if function is None:
            continue
        yield from _vfs(device, function, found)
        if error := _refused(device, function, found) or _refused_at_boot(device, function, found):
            yield Refusal(name=device.address, error=error)
        else:
            able.append((device, function))
    yield from _unbound(able, found)
    yield from _bound([entry for entry in able if _binds(entry[0], found)], found)


def _refused(device: DeviceState, function: Function, found: Found) -> VfioctlError | None:
    """Why the driver cannot be as it is to be now."""
    address, driver = function.address, device.driver
    if unknown := function.unknown.get("driver"):
        return HostError(f"it is unknown which driver {address} is on: {unknown}", hint="try again, or run it as root")
    if found.of(device.address, compare.DRIVER) and driver == NONE and not function.on_vfio:
        return HostError(
            f"{address} is on {function.driver}: vfioctl takes no device from its own driver to leave it without one",
            hint="leave out its driver, or name another one",
        )
    if function.boot_vga and not function.on_vfio and _binds(device, found) and not device.boot_display:
        return DeviceInUse(
            f"{named(function)} is the boot display: the console goes dark without it",
            hint="log in over the network first, then say boot_display = true in its entry",
        )
    return None


def _refused_at_boot(device: DeviceState, function: Function, found: Found) -> VfioctlError | None:
    """Why the driver cannot be as it is to be at boot."""
    address, at_boot = function.address, device.driver_at_boot
    if not found.of(device.address, compare.DRIVER_AT_BOOT):
        return None
    if address in found.facts.damaged:
        return _damaged(device.address, found.facts.damaged[address])
    if at_boot == NONE or same_driver(at_boot, device.driver or function.driver):
        return None
    now = device.driver or function.driver or "no driver"
    return BadSpec(
        f"{address} is to be on {now} now, and on {at_boot} at boot: {_LASTING}", hint=f'driver = "{at_boot}"'
    )


def _damaged(name: str, why: str) -> VfioctlError:
    return BadDocument(
        f"the definition of {name} cannot be used: {why}",
        hint="repair it, or remove it",
        next_command=f"vfioctl persist remove {name}",
    )


def _binds(device: DeviceState, found: Found) -> bool:
    """Whether the device is to be bound to VFIO, now or also at boot."""
    now = found.of(device.address, compare.DRIVER) and is_vfio_driver(device.driver or "")
    at_boot = found.of(device.address, compare.DRIVER_AT_BOOT) and device.driver_at_boot != NONE
    return now or at_boot


def _unbound(able: Iterable[tuple[DeviceState, Function]], found: Found) -> Iterator[Step]:
    """The devices that return to drivers of the host, those of one card and one driver together."""
    clusters: dict[tuple[PciAddress, str], list[tuple[DeviceState, Function]]] = {}
    inventory = found.facts.inventory
    for device, function in able:
        driver = device.driver or ""
        if found.of(device.address, compare.DRIVER) and not is_vfio_driver(driver):
            clusters.setdefault((inventory.card_of(function.address)[0], driver), []).append((device, function))
    for (_, driver), members in clusters.items():
        functions = [function for _, function in members]
        forgets = any(device.driver_at_boot == NONE for device, _ in members)
        intent = UnbindIntent(
            devices=tuple(f.address for f in functions),
            driver=None if driver == NONE else driver,
            persistent=forgets and any(f.address in found.facts.devices_at_boot for f in functions),
        )
        cards = _cards(inventory, functions)
        vfs_of = frozenset(f"{VFS_OF}{f.physfn}" for f in functions if f.physfn)
        yield Step(
            phase=UNBIND,
            intent=intent,
            names=tuple(device.address for device, _ in members),
            own=cards,
            changes=cards | vfs_of,
            needs=cards | _physical(functions),
        )


def _bound(bound: Sequence[tuple[DeviceState, Function]], found: Found) -> Iterator[Step]:
    """The devices that go to VFIO, those of one card or IOMMU group together: a guest gets a group whole."""
    inventory = found.facts.inventory
    for members in _together(inventory, bound):
        drivers = {device.driver_at_boot if _only_at_boot(device, found) else device.driver for device, _ in members}
        functions = [function for _, function in members]
        intent = BindIntent(
            devices=tuple(f.address for f in functions),
            driver=drivers.pop() if len(drivers) == 1 else None,
            allow_boot_vga=any(device.boot_display for device, _ in members),
            persistent=any(device.driver_at_boot not in (None, NONE) for device, _ in members),
        )
        groups = {a for f in functions for a in inventory.members_of(f.iommu_group)}
        own = _cards(inventory, functions) | {str(a) for a in groups if not inventory.by_address[a].is_bridge}
        yield Step(
            phase=BIND,
            intent=intent,
            names=tuple(device.address for device, _ in members),
            own=own,
            changes=own,
            needs=own | _physical(functions),
        )


def _only_at_boot(device: DeviceState, found: Found) -> bool:
    return not found.of(device.address, compare.DRIVER)


def _together(
    inventory: Inventory, bound: Iterable[tuple[DeviceState, Function]]
) -> Iterator[list[tuple[DeviceState, Function]]]:
    """Yield the devices by what they share: a card, or an IOMMU group."""
    clusters: list[tuple[set[object], list[tuple[DeviceState, Function]]]] = []
    for device, function in bound:
        marks: set[object] = {*inventory.card_of(function.address), function.address}
        marks |= {function.iommu_group} - {None}
        members = [(device, function)]
        for cluster in [cluster for cluster in clusters if cluster[0] & marks]:
            clusters.remove(cluster)
            marks |= cluster[0]
            members = [*cluster[1], *members]
        clusters.append((marks, members))
    return (members for _, members in clusters)


def _cards(inventory: Inventory, functions: Iterable[Function]) -> frozenset[str]:
    return frozenset(str(member) for f in functions for member in inventory.card_of(f.address))


def _physical(functions: Iterable[Function]) -> frozenset[str]:
    return frozenset(str(f.physfn) for f in functions if f.physfn)


def _vfs(device: DeviceState, function: Function, found: Found) -> Iterator[Part]:
    """The change of the number of VFs, now and at boot."""
    address = function.address
    wanted = len(function.virtfns) if device.vfs is None else device.vfs
    at_boot = device.vfs_at_boot
    lasts = found.of(device.address, compare.VFS_AT_BOOT) and at_boot != 0
    if found.of(device.address, compare.VFS_AT_BOOT) and (damage := found.facts.damaged_vgpus.get(address)):
        yield Refusal(name=device.address, error=_damaged(device.address, damage))
        return
    counts = found.of(device.address, compare.VFS)
    if at_boot and at_boot != wanted and (lasts or counts):
        text = f"{address} is to have {wanted} VFs now, and {at_boot} at boot: {_LASTING}"
        yield Refusal(name=device.address, error=BadSpec(text, hint=f"vfs = {at_boot}"))
    elif counts or lasts:
        own = frozenset({str(address)})
        yield Step(
            phase=COUNT,
            intent=SetVfsIntent(devices=(address,), vfs=wanted, persistent=bool(at_boot)),
            names=(device.address,),
            own=own,
            changes=own | {str(vf) for vf in function.virtfns},
            needs=own | {f"{VFS_OF}{address}"},
        )
