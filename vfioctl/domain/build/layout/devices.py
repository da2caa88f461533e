"""Turns functions and mediated devices into devices of a guest, with labels and NUMA nodes. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from vfioctl.domain.model.layout import Choice, Device
from vfioctl.domain.model.spec import Policy
from vfioctl.errors import BadSpec, HostError, some_of
from vfioctl.inventory.model.functions import Function, Inventory
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
    """Return the devices in the order of their host addresses, mediated devices last.

    `parents`: the parents of mediated devices. `given`: nodes that the user names. `mdev_display`: whether the first
    mediated device shows the guest's display. `managed`: those that libvirt binds. `roms`: files of ROMs.

    Raises BadSpec for the ROM of another device.
    """
    if unknown := [f"--rom {address}={file}" for address, file in roms.items() if address not in subjects]:
        raise BadSpec(f"{unknown[0]}: the domain does not get this device", hint=f"it gets {some_of(subjects)}")
    slots = {address.slot for address in user_nodes}
    numbers: Counter[str] = Counter()
    devices = []
    for subject in sorted(dict.fromkeys(subjects), key=lambda device: device.order):
        guest_device = (
            _mediated(subject, inventory, parents) if isinstance(subject, Uuid) else _function(subject, inventory)
        )
        if subject in managed:
            guest_device = guest_device._replace(managed=True)
        if isinstance(subject, PciAddress) and subject in roms:
            guest_device = guest_device._replace(rom=roms[subject])
        if isinstance(subject, PciAddress) and subject.slot in slots:
            guest_device = guest_device._replace(reported_by="you")
        label = guest_device.label
        shows = mdev_display and label == "vgpu" and not numbers[label]
        devices.append(guest_device._replace(label=f"{label}{numbers[label]}", mdev_display=shows))
        numbers[label] += 1
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
    functions: Mapping[str, Function] = {function.address: function for function in inventory.functions}
    parent = next(
        (function for function in inventory.functions if uuid in function.mdevs), functions.get(parents.get(uuid, ""))
    )
    if parent is None:
        return Device(subject=uuid, label="vgpu", complex="", slot=uuid, node=None)
    node, reported_by = home_of(parent, inventory)
    return Device(
        subject=uuid,
        label="vgpu",
        complex=root_complex(parent, inventory),
        slot=uuid,
        node=node,
        reported_by=f"its parent {parent.address}: {reported_by}",
    )


def node_choices(devices: Sequence[Device], inventory: Inventory, policy: Policy) -> Iterator[Choice]:
    """Yield which devices are on which node. Raises HostError for an unknown node, unless the policy is preferred."""
    known: dict[tuple[int, str], list[str]] = {}
    unknown = []
    for device in devices:
        if device.node is not None:
            known.setdefault((device.node, device.reported_by), []).append(device.label)
        elif len(inventory.numa_nodes) > 1 and isinstance(device.subject, PciAddress):
            if policy is Policy.STRICT:
                raise HostError(
                    f"the NUMA node of {device.subject} is not known: neither it nor a bridge above it reports one",
                    hint=f"name it with --node {device.subject}=N, or build with --policy preferred",
                )
            unknown.append(device.label)
    for (node, reported_by), labels in known.items():
        yield Choice(f"devices of NUMA node {node}", ", ".join(labels), f"reported by {reported_by}")
    if unknown:
        weaker = "the guest sees no node for them, and its CPUs and memory may be far away"
        yield Choice(
            "devices of no known NUMA node", ", ".join(unknown), "the firmware does not report it", weaker=weaker
        )
