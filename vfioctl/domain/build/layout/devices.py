"""Turns functions and mediated devices into devices of a guest, and sizes the address space of their BARs. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from vfioctl.domain.document.architecture import end_of_hole, most_memory
from vfioctl.domain.model.address_space import DEFAULT_HOLE, bar_window
from vfioctl.domain.model.layout import Choice, Device
from vfioctl.domain.model.spec import Policy
from vfioctl.errors import BadSpec, HostError, NoCapacity, some_of
from vfioctl.inventory.model.functions import Function, Inventory
from vfioctl.inventory.model.machine import Processor
from vfioctl.inventory.model.numa_affinity import home_of, root_complex
from vfioctl.inventory.model.values import PciAddress, Subject
from vfioctl.units import Uuid

_LABELS = (
    ("03", "gpu"),
    ("1200", "gpu"),
    ("0403", "audio"),
    ("0c03", "usb"),
    ("02", "nic"),
    ("0680", "switch"),
    ("0108", "nvme"),
)
_VGA, _COHERENT = "0300", "nvgrace_gpu_vfio_pci"
NO_ROMS: Mapping[PciAddress, str] = {}


def devices_of(
    subjects: Sequence[Subject],
    inventory: Inventory,
    parents: Mapping[Uuid, str],
    user_nodes: Mapping[PciAddress, int],
    *,
    mdev_display: bool = False,
    managed: Sequence[Subject] = (),
    roms: Mapping[PciAddress, str] = NO_ROMS,
) -> tuple[Device, ...]:
    """Return the devices in the order of their host addresses, mediated devices last. `parents`: of mediated devices.
    `user_nodes`: those that the user names. `mdev_display`: whether the first mediated device shows the guest's
    display. `managed`: those that libvirt binds. `roms`: files of ROMs. Raises BadSpec for the ROM of another device.
    """
    if unknown := [f"--rom {address}={file}" for address, file in roms.items() if address not in subjects]:
        raise BadSpec(f"{unknown[0]}: the domain does not get this device", hint=f"it gets {some_of(subjects)}")
    slots = {address.slot for address in user_nodes}
    numbers: Counter[str] = Counter()
    devices = []
    for subject in sorted(dict.fromkeys(subjects), key=lambda device: device.order):
        if isinstance(subject, Uuid):
            device = _mediated(subject, inventory, parents)
        else:
            device = _function(subject, inventory)._replace(rom=roms.get(subject, ""))
            if subject.slot in slots:
                device = device._replace(reported_by="you")
        number, is_managed = numbers[device.label], subject in managed
        shows = mdev_display and device.label == "vgpu" and not number
        numbers[device.label] += 1
        devices.append(device._replace(label=f"{device.label}{number}", mdev_display=shows, managed=is_managed))
    return tuple(devices)


def _function(address: PciAddress, inventory: Inventory) -> Device:
    function = inventory.by_address[address]
    node, reported_by = home_of(function, inventory)
    return Device(
        subject=address,
        label=next((label for code, label in _LABELS if function.class_code.startswith(code)), "device"),
        complex=root_complex(function, inventory),
        # each VF has a slot of its own: it is no part of a card
        slot=str(address) if function.is_vf else address.slot,
        node=node,
        reported_by=reported_by,
        prefetchable=function.prefetchable_64,
        has_display=function.class_code.startswith(_VGA),
        vendor_vfio=function.vgpu_type is not None,
        is_coherent=_COHERENT in function.available_drivers,
        is_boot_display=function.boot_vga,
        on_vfio=function.on_vfio,
    )


def _mediated(uuid: Uuid, inventory: Inventory, parents: Mapping[Uuid, str]) -> Device:
    device = Device(subject=uuid, label="vgpu", complex="", slot=uuid, node=None)
    parent = parent_of(uuid, inventory, parents)
    if parent is None:
        return device
    node, reported_by = home_of(parent, inventory)
    source = f"its parent {parent.address}: {reported_by}"
    return device._replace(complex=root_complex(parent, inventory), node=node, reported_by=source)


def parent_of(uuid: Uuid, inventory: Inventory, parents: Mapping[Uuid, str]) -> Function | None:
    """Return the function of a mediated device; `parents`: those of mediated devices that may not be there yet."""
    owners = [function for function in inventory.functions if uuid in function.mdevs]
    named = (function for function in inventory.functions if function.address == parents.get(uuid))
    return owners[0] if owners else next(named, None)


def node_choices(devices: Sequence[Device], inventory: Inventory, policy: Policy) -> Iterator[Choice]:
    """Yield which devices are on which node. Raises HostError for an unknown node, unless the policy is preferred."""
    known, unknown = defaultdict[tuple[int, str], list[str]](list), []
    for device in devices:
        if device.node is not None:
            known[device.node, device.reported_by].append(device.label)
        elif len(inventory.numa_nodes) > 1 and isinstance(device.subject, PciAddress):
            if policy is Policy.STRICT:
                what = f"the NUMA node of {device.subject} is not known: neither it nor a bridge above it reports one"
                raise HostError(what, hint=f"name it with --node {device.subject}=N, or build with --policy preferred")
            unknown.append(device.label)
    for (node, reported_by), labels in known.items():
        yield Choice(f"devices of NUMA node {node}", ", ".join(labels), f"reported by {reported_by}")
    if unknown:
        why = "the firmware does not report it"
        weaker = "the guest sees no node for them, and its CPUs and memory may be far away"
        yield Choice("devices of no known NUMA node", ", ".join(unknown), why, weaker=weaker)


GIB = 1 << 30
_MARGIN = GIB


class AddressSpace(NamedTuple):
    """The size of the 64-bit hole (bytes; 0: the default), and whether the guest has the host's address width."""

    hole: int
    wide: bool
    choices: tuple[Choice, ...]


def address_space(devices: Sequence[Device], processor: Processor, memory: int) -> AddressSpace:
    """Return what the BARs of the devices need: their sum and 1 GiB, rounded up to a power of two. OVMF gives 64-bit
    BARs an eighth of the guest's physical addresses (OvmfPkg, PlatformDynamicMmioWindow), and q35 has a hole for them
    whose size is a property. Large GPUs need both to be larger than their defaults. `memory`: the guest's, in bytes.
    Raises NoCapacity if the CPU cannot address both."""
    bars = sum(device.prefetchable for device in devices)
    if not processor.is_x86 or not bars:
        return AddressSpace(0, wide=False, choices=())
    hole = 1 << (bars + _MARGIN - 1).bit_length()
    if hole <= DEFAULT_HOLE:
        why = f"the BARs take {_gib(bars)}, which fits into the default of {_gib(DEFAULT_HOLE)}"
        return AddressSpace(0, wide=False, choices=(Choice("64-bit PCI hole", "the default", why),))
    bits, width, weaker = processor.address_bits, "as wide as the host's", ""
    if bits is not None:
        _refuse_too_far(memory, hole, bits)
        width += f" ({bits} bits)"
        window = bar_window(bits)
        if window < hole:
            weaker = f"older OVMF offers {_gib(window)} for BARs with {bits} address bits: use one of 2026"
    room = Choice("64-bit PCI hole", _gib(hole), f"the BARs take {_gib(bars)}; with 1 GiB more, to a power of two")
    why = "OVMF gives BARs a part of the guest's address space, and QEMU's default of 40 bits is too small"
    return AddressSpace(hole, wide=True, choices=(room, Choice("physical addresses", width, why, weaker=weaker)))


def _refuse_too_far(memory: int, hole: int, bits: int) -> None:
    if end_of_hole(memory, hole) > 1 << bits:
        hint = "ask for fewer devices, or make their BARs smaller in the host's firmware setup (Resizable BAR)"
        if most := most_memory(hole, bits):
            hint = f"ask for at most {most // GIB}GiB with --memory, or for fewer devices"
        what = f"the BARs need a 64-bit PCI hole of {_gib(hole)}, which ends above what this CPU addresses"
        raise NoCapacity(f"{what} ({bits} bits, {_gib(1 << bits)})", hint=hint)


def _gib(size: int) -> str:
    return f"{size / GIB:g} GiB" if size >= GIB else f"{size / (1 << 20):.3g} MiB"
