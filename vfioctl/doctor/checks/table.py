"""The table of the checks. May not do input or output. To add a check, add a function and a row."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from vfioctl.doctor.checks import bars, boot, containers, devices, early, guests, host, iommu, vfio
from vfioctl.doctor.model.facts import Facts
from vfioctl.doctor.model.result import Finding, Result


class Check(NamedTuple):
    """One check. `judge` yields at least one finding for any facts."""

    name: str
    """Lower case with hyphens; it stays the same in later releases."""
    judge: Callable[[Facts], Iterable[Finding]]


CHECKS: tuple[Check, ...] = (
    Check("iommu", iommu.iommu),
    Check("iommu-mode", iommu.iommu_mode),
    Check("interrupt-remapping", iommu.interrupt_remapping),
    Check("unsafe-interrupts", iommu.unsafe_interrupts),
    Check("noiommu", iommu.noiommu),
    Check("nested", iommu.nested),
    Check("iommu-group", iommu.iommu_group),
    Check("group-sharing", devices.group_sharing),
    Check("reserved-memory", devices.reserved_memory),
    Check("vfio-pci", vfio.vfio_pci),
    Check("vfio-node", vfio.vfio_node),
    Check("vfio-node-mode", vfio.vfio_node_mode),
    Check("vfio-ids", vfio.vfio_ids),
    Check("variant-driver", vfio.variant_driver),
    Check("readable", devices.readable),
    Check("marks", devices.marks),
    Check("bars", bars.bars),
    Check("large-bars", bars.large_bars),
    Check("resizable-bars", bars.resizable_bars),
    Check("framebuffer", bars.framebuffer),
    Check("reset", devices.reset),
    Check("sleep", devices.sleep),
    Check("dma-entries", guests.dma_entries),
    Check("memlock", guests.memlock),
    Check("libvirt", guests.libvirt),
    Check("hugepages", host.hugepages),
    Check("fragmentation", host.fragmentation),
    Check("isolated-cpus", host.isolated_cpus),
    Check("unsigned-modules", host.unsigned_modules),
    Check("gpu-services", host.gpu_services),
    Check("fabric-manager", host.nvswitch_fabric),
    Check("udev-rules", host.udev_rules),
    Check("unfinished", host.unfinished),
    Check("claims", host.claims),
    Check("cdi", containers.cdi),
    Check("kata", containers.kata),
    Check("persistent", boot.persistent),
    Check("boot-files", boot.boot_files),
    Check("first-driver", early.first_driver),
)


def examine(facts: Facts) -> tuple[Result, ...]:
    """Return what every check finds, in the order of the table."""
    return tuple(_result(check.name, finding) for check in CHECKS for finding in check.judge(facts))


def _result(name: str, finding: Finding) -> Result:
    return Result(
        check=name,
        status=finding.status,
        evidence=finding.evidence,
        meaning=finding.meaning,
        remedy=finding.remedy,
        command=finding.command,
        devices=finding.devices,
    )
