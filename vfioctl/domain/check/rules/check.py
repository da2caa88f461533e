"""The table of rules, and how they run on a document. May not do input or output. A rule is named after its function,
`pin-vcpu` after `pin_vcpu`, in later releases too. It has a function, rows in the table of words, or both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import islice

from vfioctl.domain.check.rules import (
    addresses,
    controllers,
    cpus,
    devices,
    document,
    host,
    host_devices,
    hostdev,
    memory,
    names,
    numa,
    pinning,
    protection,
    words,
)
from vfioctl.domain.check.rules.document import is_domain, too_much
from vfioctl.domain.check.rules.rule import Fault, HostFacts, HostRule, Rule
from vfioctl.domain.document.reader import Domain
from vfioctl.domain.document.xml import Document
from vfioctl.domain.model.finding import Finding

MOST = 20
"""Findings of one rule: a document that has more is repaired before it is read to the end."""
_FUNCTIONS: tuple[Rule, ...] = (
    *(document.domain_name, document.domain_uuid, document.domain_type, document.domain_machine),
    document.domain_part_twice,
    *(names.name_unknown, names.name_too_new),
    *(words.word_unknown, words.part_missing, words.mac_address),
    *(memory.memory_missing, memory.memory_size, memory.memory_zero, memory.memory_too_large, memory.memory_sum),
    memory.memory_current,
    *(document.memory_maximum, document.memory_device, document.memory_device_address),
    *(memory.memory_locked, memory.memory_hard_limit, memory.hugepage_size, memory.hugepage_cell),
    *(memory.hugepage_clash, memory.hugepage_fit, memory.hugepage_backing),
    *(cpus.vcpu_count, cpus.vcpu_each, cpus.vcpu_cpuset, cpus.vcpu_many, cpus.cpu_model, cpus.cpu_topology),
    *(cpus.cpu_cache, cpus.cpu_address_bits, cpus.cpu_emulated, cpus.cpu_architecture, cpus.hyperv_vendor_id),
    cpus.hyperv_needs,
    *(pinning.pin_cpuset, pinning.pin_vcpu, pinning.pin_partial, pinning.pin_emulator, pinning.pin_iothread),
    *(pinning.pin_shared, pinning.iothread_id, pinning.scheduler, pinning.cpu_quota, pinning.cpu_shares),
    pinning.resource_group,
    *(numa.cell_id, numa.cell_cpus, numa.cell_distance, numa.cell_interconnect, numa.cell_memory, numa.numa_nodeset),
    *(numa.numa_placement, numa.memnode, numa.memnode_restrictive, numa.memnode_missing),
    *(controllers.controller_index, controllers.controller_model, controllers.controller_root),
    *(controllers.controller_target, controllers.controller_chassis, controllers.controller_place),
    *(controllers.controller_room, controllers.expander_bus, controllers.pci_hole),
    *(addresses.bus_number, addresses.bus_space),
    *(addresses.address_range, addresses.address_domain, addresses.address_twice, addresses.address_slot),
    *(addresses.address_place, addresses.address_built_in, addresses.address_multifunction, addresses.address_zpci),
    document.boot_order,
    *(devices.disk_target, devices.disk_iothread, devices.disk_cache, devices.disk_image, devices.usb_none),
    *(devices.tpm, devices.watchdog, devices.panic, devices.video_none, devices.vsock, devices.queue_count),
    *(devices.serial_port, devices.shared_memory, devices.filesystem_readonly),
    *(hostdev.hostdev_type, hostdev.hostdev_source, hostdev.hostdev_address, hostdev.hostdev_twice),
    *(hostdev.hostdev_driver, hostdev.hostdev_display, hostdev.hostdev_attribute, hostdev.hostdev_drive),
    *(hostdev.hostdev_interface, hostdev.hostdev_teaming, hostdev.hostdev_rom, hostdev.alias, hostdev.mdev_model),
    *(hostdev.mdev_uuid, hostdev.mdev_address, hostdev.mdev_managed),
    *(protection.iommu_model, protection.iommu_address, protection.iommu_acpi, protection.iommu_option),
    *(protection.iommu_interrupts, protection.iommu_caching, protection.iommu_locked, protection.iommu_hidden),
    *(protection.confidential_type, protection.confidential_policy, protection.confidential_guest),
    *(protection.firmware_acpi, protection.firmware_tseg, protection.firmware_secure_boot),
)
_HOST_FUNCTIONS: tuple[HostRule, ...] = (
    *(host.host_architecture, host.host_address_bits, host.host_cpu, host.host_cpu_claimed, host.host_cpu_shared),
    *(host.host_cpu_count, host.host_cpu_node, host.host_cpu_threads, host.host_cpu_topoext),
    *(host.host_node, host.host_memory, host.host_hugepages),
    *(host_devices.host_iommu, host_devices.host_device, host_devices.host_driver, host_devices.host_group),
    *(host_devices.host_card, host_devices.host_device_claimed, host_devices.host_device_busy, host_devices.host_mdev),
    *(host_devices.host_device_node, host_devices.host_disk_image, host_devices.host_pci_hole),
)


def _name(rule: Rule | HostRule) -> str:
    return rule.__name__.replace("_", "-")


def _judged(name: str, domain: Domain) -> Iterator[Fault]:
    yield from words.unknown_words(domain, name)
    if name in _WRITTEN:
        yield from _WRITTEN[name](domain)


_WRITTEN: Mapping[str, Rule] = {_name(rule): rule for rule in _FUNCTIONS}
RULES: Mapping[str, Rule] = {name: partial(_judged, name) for name in dict.fromkeys((*_WRITTEN, *words.ATTRIBUTES))}
HOST_RULES: Mapping[str, HostRule] = {_name(rule): rule for rule in _HOST_FUNCTIONS}


def check(
    document: Document, *, version: tuple[int, ...] | None = None, host: HostFacts | None = None
) -> tuple[Finding, ...]:
    """Return what is wrong with a document, in its order. `version`: of libvirt, such as (9, 0), if it is known."""
    domain = Domain(document, version)
    for name, rule in (("domain", is_domain), ("domain-size", too_much)):
        if wrong := _findings(document, name, rule(domain)):
            return tuple(wrong)
    findings = [finding for name, rule in RULES.items() for finding in _findings(document, name, rule(domain))]
    if host is not None:
        findings += [
            finding for name, rule in HOST_RULES.items() for finding in _findings(document, name, rule(domain, host))
        ]
    return tuple(sorted(findings, key=lambda finding: finding.line or 0))


def _findings(document: Document, name: str, faults: Iterable[Fault]) -> list[Finding]:
    return [
        Finding(
            rule=name,
            severity=fault.severity,
            path=document.path(fault.element),
            line=document.line(fault.element),
            reason=fault.reason,
            remedy=fault.remedy,
        )
        for fault in islice(faults, MOST)
    ]
