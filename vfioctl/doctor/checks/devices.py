"""Checks of devices: groups, BARs, reset, sleep, framebuffers, marks. May not do input or output."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from vfioctl.console.words import counted
from vfioctl.core.marks import MarkKind
from vfioctl.doctor.model.facts import Facts, FileText
from vfioctl.doctor.model.result import Finding, failed, not_applicable, note, passed, unknown
from vfioctl.errors import some_of
from vfioctl.inventory.model.functions import Function
from vfioctl.inventory.model.values import PciAddress
from vfioctl.units import format_size

_NO_GPU, _LIST = "no GPU", "vfioctl inventory --all"
_LARGE = 32 << 30
"""Bytes of 64-bit BARs that OVMF of before 2023 has room for."""
_WITH_APERTURE = frozenset({"10de", "1002", "8086"})
"""Vendors of which every GPU has a prefetchable BAR."""
_ROM = 6
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
            yield failed(evidence, meaning, remedy, command=command, devices=_addresses(found))
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
    meaning = "A guest gets all devices of a group, or none: the host and other guests lose these too."
    remedy = "move a card to a slot below another root port, or enable ACS in the firmware's set-up"
    yield failed(evidence, meaning, remedy, devices=_addresses(gpu for gpu, _ in shared.values()))


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
    devices = _addresses(f for f in facts.devices if f.iommu_group in kept)
    evidence = some_of((f"{facts.reserved[group].path}: direct" for group in kept), _MOST)
    meaning = "The firmware keeps memory of its own mapped for these (RMRR): the kernel gives them to no guest."
    remedy = "turn off what shares memory with them in the firmware's set-up, or update it"
    yield failed(evidence, meaning, remedy, command="dmesg | grep -i rmrr", devices=devices)


def _regions(file: FileText) -> list[list[str]]:
    """Return the regions: first and last address, and type."""
    return [line.split() for line in (file.text or "").splitlines()]


def _strangers(facts: Facts, gpu: Function) -> list[str]:
    """Return the names of devices of other cards in the group of a GPU."""
    own = {*facts.inventory.card_of(gpu.address), gpu.address}
    functions = (facts.inventory.by_address[a] for a in facts.inventory.members_of(gpu.iommu_group) if a not in own)
    return [f"{function.address} ({function.title})" for function in functions if not function.is_bridge]


def framebuffer(facts: Facts) -> Iterator[Finding]:
    """Whether a framebuffer of the firmware holds BARs of the boot display."""
    boot = [gpu for gpu in facts.cards if gpu.boot_vga]
    if not boot:
        yield not_applicable("no boot display among the GPUs")
    elif not facts.framebuffers:
        yield passed("no firmware framebuffer in /sys/bus/platform/drivers")
    else:
        evidence = f"/sys/bus/platform/drivers: {some_of(f'{f.driver} has {f.device}' for f in facts.framebuffers)}"
        held = [gpu for gpu in boot if gpu.on_vfio]
        if held:
            meaning = "It may hold BARs of the boot display: a guest cannot map them (BAR n: can't reserve)."
            device = facts.framebuffers[0]
            command = f"echo {device.device} > /sys/bus/platform/drivers/{device.driver}/unbind"
            yield failed(evidence, meaning, command=command, devices=_addresses(held))
        else:
            meaning = "It shows the console on the boot display, and may hold its BARs."
            yield note(evidence, meaning, "nothing to do: vfioctl bind releases it", devices=_addresses(boot))


def bars(facts: Facts) -> Iterator[Finding]:
    """Whether the firmware has given the memory BARs of GPUs their addresses."""
    wrong = {gpu.address: "no prefetchable BAR" for gpu in facts.cards if _has_no_aperture(gpu)}
    for address, numbers in facts.unassigned.items():
        wrong[address] = f"BAR {' and '.join(map(str, numbers))} without an address"
    if wrong:
        evidence = some_of((f"{address}: {what}" for address, what in wrong.items()), _MOST)
        meaning = "The firmware found no address space for them: no driver and no guest can use the GPU."
        remedy = "enable Above 4G Decoding in the firmware's set-up; else boot with pci=realloc"
        yield failed(f"resource: {evidence}", meaning, remedy, devices=tuple(wrong))
    elif facts.cards:
        yield passed(f"the memory BARs of {counted(len(facts.cards), 'GPU')} have addresses")
    else:
        yield not_applicable(_NO_GPU)


def _has_no_aperture(gpu: Function) -> bool:
    """Return whether a GPU lacks the BAR of its memory: of a BAR that got no space, the kernel shows nothing."""
    is_read = bool(gpu.bars) or "resource" not in gpu.unknown
    memory = (bar for bar in gpu.bars if bar.kind != "io" and bar.index < _ROM and bar.size and bar.prefetchable)
    return gpu.vendor_id in _WITH_APERTURE and is_read and not any(memory)


def large_bars(facts: Facts) -> Iterator[Finding]:
    """Whether the BARs of a GPU need a larger window in the guest."""
    large = [gpu for gpu in facts.cards if gpu.prefetchable_64 > _LARGE]
    if large:
        evidence = some_of((f"{gpu.address} {gpu.prefetchable_64 / (1 << 30):.4g} GiB" for gpu in large), _MOST)
        meaning = "The guest's firmware needs a 64-bit window as large, or the GPU has no BAR in the guest."
        remedy = "vfioctl domain build sizes it; else set q35's pcihole64, or OVMF's opt/ovmf/X-PciMmio64Mb"
        yield note(f"64-bit BARs: {evidence}", meaning, remedy, devices=_addresses(large))
    elif facts.cards:
        yield passed(f"no GPU has more than {format_size(_LARGE)} of 64-bit BARs")
    else:
        yield not_applicable(_NO_GPU)


def reset(facts: Facts) -> Iterator[Finding]:
    """Whether GPUs can be reset between two guests."""
    judged = [gpu for gpu in facts.gpus if not gpu.reset_unnamed and not _stays(facts, gpu)]
    if not judged:
        unnamed = any(gpu.reset_unnamed for gpu in facts.gpus)
        no_other = "this kernel names no reset methods" if unnamed else "no GPU but the boot display of the host"
        yield not_applicable(no_other if facts.gpus else _NO_GPU)
        return
    if unread := [gpu for gpu in judged if "reset_method" in gpu.unknown]:
        evidence = some_of((f"{gpu.address}: {gpu.unknown['reset_method']}" for gpu in unread), _MOST)
        yield unknown(evidence, "How these GPUs are reset could not be read.", devices=_addresses(unread))
    known = [gpu for gpu in judged if "reset_method" not in gpu.unknown]
    without = [gpu for gpu in known if not gpu.reset_methods]
    if without:
        meaning = "The kernel cannot reset these: a guest gets the state that the last one left, and may hang."
        remedy = "reboot between guests; for some AMD GPUs, the module vendor-reset adds a method"
        addresses = _addresses(without)
        yield failed(f"no reset_method: {some_of(addresses)}", meaning, remedy, devices=addresses)
    crowded = [gpu for gpu in known if gpu.reset_methods == ("bus",) and _beside(facts, gpu)]
    if crowded:
        evidence = some_of((f"{g.address} (reset_method: bus) with {some_of(_beside(facts, g))}" for g in crowded), 2)
        meaning = "A reset of the bus reaches these devices too: it is refused unless one guest has them all."
        remedy = "give them to one guest, or move the GPU to another slot"
        yield note(evidence, meaning, remedy, devices=_addresses(crowded))
    if known and not (without or crowded):
        methods = dict.fromkeys(" ".join(gpu.reset_methods) for gpu in known)
        yield passed(f"reset_method: {some_of(methods)}")


def _stays(facts: Facts, gpu: Function) -> bool:
    """Return whether a GPU is the boot display, as of a BMC, and nobody has asked for it."""
    return gpu.boot_vga and not gpu.on_vfio and not facts.asked


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
        evidence = f"power_state: D3cold, d3cold_allowed: 1: {some_of(_addresses(asleep))}"
        meaning = "Some GPUs do not wake from D3cold for a guest: device inaccessible."
        command = f"echo 0 > /sys/bus/pci/devices/{first}/d3cold_allowed"
        yield note(evidence, meaning, "if a guest fails so:", command=command, devices=_addresses(asleep))
    elif on_vfio:
        yield passed(f"power_state: {some_of(dict.fromkeys(gpu.power_state or 'unknown' for gpu in on_vfio))}")
    else:
        yield not_applicable("no GPU is on VFIO")


def _addresses(functions: Iterable[Function]) -> tuple[PciAddress, ...]:
    return tuple(function.address for function in functions)
