"""Reads a host into the facts that the checks judge. May not write, and reads the inventory no second time."""

from __future__ import annotations

from collections.abc import Sequence

from vfioctl.binding.model.conditions import GPU_SERVICES
from vfioctl.doctor.model.facts import Facts
from vfioctl.doctor.probe import files
from vfioctl.doctor.probe.resizable import read_resizable
from vfioctl.inventory.model.functions import Function, Inventory
from vfioctl.inventory.model.machine import Processor
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel.lenient import names_in, text_of
from vfioctl.kernel.protocol import ACPI_TABLES, Reader

FABRIC_MANAGER = "nvidia-fabricmanager.service"
_NVIDIA = "10de"


def read_facts(
    kernel: Reader, inventory: Inventory, processor: Processor, asked: Sequence[PciAddress] | None = None
) -> Facts:
    """Return the facts of a host, without those of the ledger. `asked`: judge these functions, with their companions;
    None for all GPUs."""
    devices = concerned(inventory, asked)
    parameters = "/sys/module/vfio_iommu_type1/parameters"
    nodes = [node.id for node in inventory.numa_nodes]
    control_nodes = files.read_nodes(kernel)
    return Facts(
        inventory=inventory,
        devices=devices,
        asked=asked is not None,
        processor=processor,
        release=text_of(kernel, "/proc/sys/kernel/osrelease"),
        command_line=files.read_text(kernel, "/proc/cmdline"),
        acpi_tables=tuple(names_in(kernel, ACPI_TABLES)),
        irq_chips=files.read_irq_chips(kernel),
        ecaps=files.read_ecaps(kernel),
        caps=files.read_caps(kernel) if processor.is_guest else (),
        vfio_pci=files.read_vfio_pci(kernel, inventory.drivers, devices),
        unsafe_interrupts=files.read_text(kernel, f"{parameters}/allow_unsafe_interrupts"),
        noiommu=files.read_text(kernel, "/sys/module/vfio/parameters/enable_unsafe_noiommu_mode"),
        dma_entries=files.read_text(kernel, f"{parameters}/dma_entry_limit"),
        reserved=files.read_reserved(kernel, {f.iommu_group for f in devices if f.iommu_group is not None}),
        nodes=control_nodes,
        node_groups=files.read_groups(kernel, control_nodes),
        has_dev=bool(names_in(kernel, "/dev")),
        modprobe=files.read_modprobe(kernel),
        framebuffers=files.read_framebuffers(kernel),
        unassigned=files.read_unassigned(kernel, [f for f in devices if f.is_gpu and not f.is_vf]),
        resizable=read_resizable(kernel, [f for f in devices if f.is_gpu and not f.is_vf]),
        hugepages=files.read_pages(kernel, nodes),
        buddyinfo=files.read_text(kernel, "/proc/buddyinfo"),
        isolated=files.read_text(kernel, "/sys/devices/system/cpu/isolated"),
        lockdown=files.read_text(kernel, "/sys/kernel/security/lockdown"),
        secure_boot=files.read_text(kernel, files.SECURE_BOOT),
        units=_units(kernel, inventory),
        udev_rules=tuple(files.read_text(kernel, path) for path in files.UDEV_RULES),
        has_udev=bool(names_in(kernel, "/etc/udev") or names_in(kernel, "/usr/lib/udev")),
    )


def concerned(inventory: Inventory, asked: Sequence[PciAddress] | None) -> tuple[Function, ...]:
    """Return the functions to judge, with their companions, in address order."""
    wanted = [inventory.by_address[address] for address in asked] if asked is not None else inventory.gpus
    addresses = {a for function in wanted for a in (function.address, *function.companions)}
    return tuple(function for function in inventory.functions if function.address in addresses)


def _units(kernel: Reader, inventory: Inventory) -> dict[str, str]:
    """Return the states of NVIDIA's services, where there are devices of NVIDIA's: asking systemd takes a process."""
    if not any(function.vendor_id == _NVIDIA for function in inventory.functions):
        return {}
    return dict(kernel.unit_states((*GPU_SERVICES, FABRIC_MANAGER)))
