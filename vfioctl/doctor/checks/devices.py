"""Checks of devices: groups, reserved memory, reset, sleep, marks. May not do input or output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vfioctl.console.words import counted
from vfioctl.core.marks import MarkKind
from vfioctl.doctor.model.facts import Facts, FileText, addresses_of
from vfioctl.doctor.model.result import Finding, failed, not_applicable, note, passed, unknown
from vfioctl.errors import some_of
from vfioctl.inventory.model.functions import Function
from vfioctl.inventory.model.values import PciAddress

_NO_GPU, _LIST = "no GPU", "vfioctl inventory --all"
_MOST = 3


def readable(facts: Facts) -> Iterator[Finding]:
    """Whether every function could be read."""
    unread = facts.inventory.unread
    if unread:
        evidence = some_of((f"{address}: {why}" for address, why in unread.items()), _MOST)
        yield unknown(evidence, "What these devices are is not known.", command=_LIST, devices=tuple(unread))
    else:
        yield passed(f"all {counted(len(facts.inventory.functions), 'function')} could be read")


def marks(facts: Facts) -> Iterator[Finding]:
    """Whether a device is wedged or dead."""
    marked = [f for f in facts.inventory.functions if f.mark]
    for kind, remedy, command in (
        (MarkKind.WEDGED, "recover it when the holder has released it; else reboot", "vfioctl recover"),
        (MarkKind.DEAD, "power the host off and on", ""),
    ):
        found = [f for f in marked if f.mark and f.mark.kind is kind]
        if found:
            evidence = some_of((f"{f.address}: {f.mark.why}" for f in found if f.mark), _MOST)
            is_wedged = kind is MarkKind.WEDGED
            meaning = "A kernel write never returned." if is_wedged else "The device does not answer any more."
            yield failed(evidence, meaning, remedy, command=command, devices=addresses_of(found))
    if not marked:
        yield passed("no device is wedged or dead")


def group_sharing(facts: Facts) -> Iterator[Finding]:
    """Whether a GPU shares its IOMMU group with devices of other cards."""
    grouped = [gpu for gpu in facts.gpus if gpu.iommu_group is not None]
    if not grouped:
        yield not_applicable("no GPU in an IOMMU group")
        return
    shared: dict[int, tuple[Function, list[str]]] = {}
    for gpu in grouped:
        number = gpu.iommu_group or 0
        if number not in shared and (strangers := _strangers(facts, gpu)):
            shared[number] = gpu, strangers
    if not shared:
        yield passed(f"{counted(len(grouped), 'GPU')} without devices of other cards in their groups")
        return
    evidence = some_of(
        (f"group {n}: {gpu.address} with {some_of(others, 2)}" for n, (gpu, others) in shared.items()), _MOST
    )
    first = next(iter(shared.values()))[0]
    meaning = (
        "A guest gets all devices of a group, or none: the host and other guests lose these too. In a slot with ACS, "
        f"the group would be {some_of((first.address, *_own(facts, first)), _MOST)} alone."
    )
    yield failed(evidence, meaning, _separation(facts, first), devices=addresses_of(gpu for gpu, _ in shared.values()))


def reserved_memory(facts: Facts) -> Iterator[Finding]:
    """Whether the firmware keeps memory mapped for a device (RMRR, IVMD), so that the kernel gives it to no guest.
    Regions that it may give up are `direct-relaxable`. Source: drivers/iommu/iommu.c, drivers/iommu/intel/iommu.c."""
    if not facts.reserved:
        yield not_applicable("no reserved_regions of IOMMU groups")
        return
    for file in facts.reserved.values():
        if file.refused:
            yield file.not_told()
            return
    kept = [g for g, file in facts.reserved.items() if any(r[2:] == ["direct"] for r in _regions(file))]
    if not kept:
        yield passed(f"no region of {counted(len(facts.reserved), 'IOMMU group')} must stay mapped")
        return
    devices = addresses_of(f for f in facts.devices if f.iommu_group in kept)
    evidence = some_of((f"{facts.reserved[group].path}: direct" for group in kept), _MOST)
    meaning = "The firmware keeps memory of its own mapped for these (RMRR): the kernel gives them to no guest."
    remedy = "turn off what shares memory with them in the firmware's set-up, or update it"
    yield failed(evidence, meaning, remedy, command="dmesg | grep -i rmrr", devices=devices)


def _regions(file: FileText) -> list[list[str]]:
    """Return the regions: first and last address, and type."""
    return [line.split() for line in (file.text or "").splitlines()]


def _strangers(facts: Facts, gpu: Function) -> list[str]:
    """Return the names of devices of other cards in the group of a GPU."""
    return [f"{function.address} ({function.title})" for function in _others(facts, gpu)]


def _others(facts: Facts, gpu: Function) -> list[Function]:
    own = {*facts.inventory.card_of(gpu.address), gpu.address}
    functions = (facts.inventory.by_address[a] for a in facts.inventory.members_of(gpu.iommu_group) if a not in own)
    return [function for function in functions if not function.is_bridge]


def _own(facts: Facts, gpu: Function) -> tuple[PciAddress, ...]:
    """Return the functions of a GPU's card that are in its group, besides itself."""
    members = {*facts.inventory.members_of(gpu.iommu_group)}
    return tuple(a for a in facts.inventory.card_of(gpu.address) if a in members and a != gpu.address)


def _separation(facts: Facts, gpu: Function) -> str:
    """Return what gives a GPU a group of its own: that depends on where it meets the others. Without ACS a bridge, or
    the root ports of one device, may let devices reach each other (drivers/iommu/iommu.c, pci_device_group)."""
    own = _bridges(facts, gpu)
    above = (bridge for other in _others(facts, gpu) for bridge in _bridges(facts, other))
    meeting = next((bridge for bridge in above if bridge in own), None)
    if meeting is None:
        return "enable ACS for the root ports in the firmware's set-up, or use a slot whose root port has it"
    return f"move a card to a slot that is not below {meeting}, where they meet; or enable ACS in the firmware's set-up"


def _bridges(facts: Facts, function: Function) -> list[PciAddress]:
    """Return the bridges above a function, the nearest first."""
    above: list[PciAddress] = []
    bridge = function.upstream
    while bridge is not None and bridge in facts.inventory.by_address and bridge not in above:
        above.append(bridge)
        bridge = facts.inventory.by_address[bridge].upstream
    return above


def reset(facts: Facts) -> Iterator[Finding]:
    """Whether GPUs can be reset between two guests."""
    judged = [gpu for gpu in facts.gpus if not gpu.reset_unnamed and not facts.stays(gpu)]
    if not judged:
        unnamed = any(gpu.reset_unnamed for gpu in facts.gpus)
        no_other = "this kernel names no reset methods" if unnamed else "no GPU but the boot display of the host"
        yield not_applicable(no_other if facts.gpus else _NO_GPU)
        return
    if unread := [gpu for gpu in judged if "reset_method" in gpu.unknown]:
        evidence = some_of((f"{gpu.address}: {gpu.unknown['reset_method']}" for gpu in unread), _MOST)
        yield unknown(evidence, "How these GPUs are reset could not be read.", devices=addresses_of(unread))
    known = [gpu for gpu in judged if "reset_method" not in gpu.unknown]
    without = [gpu for gpu in known if not gpu.reset_methods]
    if without:
        meaning = "The kernel cannot reset these: a guest gets the state that the last one left, and may hang."
        remedy = "reboot between guests; for some AMD GPUs, the module vendor-reset adds a method"
        addresses = addresses_of(without)
        yield failed(f"no reset_method: {some_of(addresses)}", meaning, remedy, devices=addresses)
    crowded = [gpu for gpu in known if gpu.reset_methods == ("bus",) and _beside(facts, gpu)]
    if crowded:
        evidence = some_of((f"{g.address} (reset_method: bus) with {some_of(_beside(facts, g))}" for g in crowded), 2)
        meaning = "A reset of the bus reaches these devices too: it is refused unless one guest has them all."
        remedy = "give them to one guest, or move the GPU to another slot"
        yield note(evidence, meaning, remedy, devices=addresses_of(crowded))
    if known and not (without or crowded):
        methods = dict.fromkeys(" ".join(gpu.reset_methods) for gpu in known)
        yield passed(f"reset_method: {some_of(methods)}")


def _beside(facts: Facts, gpu: Function) -> Sequence[PciAddress]:
    """Return functions of other cards on the bus of a GPU."""
    own = facts.inventory.card_of(gpu.address)
    on_bus = facts.by_bus.get(gpu.address.rpartition(":")[0], ())
    return [function.address for function in on_bus if function.address not in (*own, gpu.address)]


def sleep(facts: Facts) -> Iterator[Finding]:
    """Whether GPUs on VFIO are in D3cold, from which some do not wake."""
    on_vfio = [gpu for gpu in facts.cards if gpu.on_vfio]
    asleep = [gpu for gpu in on_vfio if gpu.power_state == "D3cold" and gpu.d3cold_allowed is not False]
    if asleep:
        first = asleep[0].address
        evidence = f"power_state: D3cold, d3cold_allowed: 1: {some_of(addresses_of(asleep))}"
        meaning = "Some GPUs do not wake from D3cold for a guest: device inaccessible."
        command = f"echo 0 > /sys/bus/pci/devices/{first}/d3cold_allowed"
        yield note(evidence, meaning, "if a guest fails so:", command=command, devices=addresses_of(asleep))
    elif on_vfio:
        yield passed(f"power_state: {some_of(dict.fromkeys(gpu.power_state or 'unknown' for gpu in on_vfio))}")
    else:
        yield not_applicable("no GPU is on VFIO")
