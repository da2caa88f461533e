"""Checks of the IOMMU: whether it translates, its mode, interrupts and groups. May not do input or output. Sources:
Documentation/admin-guide/kernel-parameters.txt; drivers/vfio/vfio_iommu_type1.c for interrupts."""

from __future__ import annotations

from collections.abc import Iterator

from vfioctl.console.words import counted
from vfioctl.doctor.model.facts import Facts, FileText
from vfioctl.doctor.model.result import Finding, failed, not_applicable, note, passed, unknown
from vfioctl.errors import some_of

_OFF = frozenset({"intel_iommu=off", "amd_iommu=off", "iommu=off", "iommu=soft"})
_TABLES = {"DMAR": "VT-d", "IVRS": "AMD-Vi", "IORT": "an SMMU", "VIOT": "a virtio IOMMU"}
_NO_DEVICE = "No device can be given to a guest: the IOMMU does not translate."
_PASSTHROUGH = frozenset({"iommu=pt", "iommu.passthrough=1"})
_IR = 1 << 3
"""Interrupt remapping in the extended capabilities. Source: the VT-d specification, 11.4.3."""
_CM = 1 << 7
"""Caching mode in the capabilities: the unit is told of new mappings too. Source: the VT-d specification, 11.4.2."""
_IR_CHIPS = ("IR-", "AMD-IR", "INTEL-IR")
_APIC_CHIPS = ("IO-APIC", "PCI-MSI")
"""Beginnings of the names of interrupt controllers, with remapping (drivers/iommu/*/*irq_remapping.c) and without."""


def iommu(facts: Facts) -> Iterator[Finding]:
    """Whether the IOMMU translates: the kernel has created groups."""
    found, words = facts.inventory.iommu, facts.command_line.words
    if found.translating:
        yield passed(f"{found.kind or 'an IOMMU'}, {counted(len(facts.inventory.groups), 'group')}")
        return
    off = sorted(_OFF.intersection(words))
    table = next((name for name in _TABLES if name in facts.acpi_tables), None)
    firmware = f"the firmware has the table {table}" if table else "no table of an IOMMU in /sys/firmware/acpi/tables"
    if off:
        remedy = f"remove {' '.join(off)} from the kernel command line, and reboot"
        yield failed(f"/proc/cmdline: {' '.join(off)}; {firmware}", _NO_DEVICE, remedy)
    elif table == "DMAR":
        remedy = "add intel_iommu=on iommu=pt to the kernel command line, and reboot"
        yield failed(f"no groups in /sys/kernel/iommu_groups; {firmware}", _NO_DEVICE, remedy)
    elif table:
        remedy = f"see why the kernel does not use {_TABLES[table]}"
        evidence = f"no groups in /sys/kernel/iommu_groups; {firmware}"
        yield failed(evidence, _NO_DEVICE, remedy, command="dmesg | grep -i iommu")
    else:
        remedy = "enable VT-d, AMD-Vi or IOMMU in the firmware's set-up; in a VM, give it a virtual IOMMU"
        yield failed(f"no groups in /sys/kernel/iommu_groups; {firmware}", _NO_DEVICE, remedy)


def iommu_mode(facts: Facts) -> Iterator[Finding]:
    """Whether devices that stay with the host use the IOMMU without translation."""
    kinds = {group.type for group in facts.inventory.groups if group.type}
    if not facts.inventory.iommu.translating or not kinds:
        yield not_applicable("no type of an IOMMU group is known")
    elif asked := sorted(_PASSTHROUGH.intersection(facts.command_line.words)):
        yield passed(f"/proc/cmdline: {' '.join(asked)}")
    elif kinds <= {"identity"}:
        yield passed("the default domains of all IOMMU groups are of type identity")
    else:
        evidence = f"IOMMU groups are of type {some_of(sorted(kinds))}; no iommu=pt in /proc/cmdline"
        meaning = "DMA of the devices that stay with the host is translated too, which costs some throughput."
        yield note(evidence, meaning, "add iommu=pt (Arm: iommu.passthrough=1) to the kernel command line")


def interrupt_remapping(facts: Facts) -> Iterator[Finding]:
    """Whether interrupts are remapped, without which VFIO refuses a device."""
    if not facts.inventory.iommu.translating or not facts.processor.is_x86:
        yield not_applicable("it is of interest on x86 with an IOMMU only")
        return
    chips = facts.irq_chips
    remapped = [chip for chip in chips if chip.startswith(_IR_CHIPS)]
    without = [ecap for ecap in facts.ecaps if not _remaps(ecap)]
    meaning = "VFIO refuses to attach devices, unless unsafe interrupts are allowed: a guest could forge them."
    firmware = "enable interrupt remapping or x2APIC in the firmware's set-up"
    if remapped:
        yield passed(f"/sys/kernel/irq/*/chip_name: {remapped[0]}")
    elif off := sorted({"intremap=off", "nointremap"}.intersection(facts.command_line.words)):
        remedy = f"remove {' '.join(off)} from the kernel command line, and reboot"
        yield failed(f"/proc/cmdline: {' '.join(off)}", meaning, remedy)
    elif without:
        yield failed(f"{without[0].shown} has no bit 3 (interrupt remapping)", meaning, firmware)
    elif plain := [chip for chip in chips if chip.startswith(_APIC_CHIPS)]:
        evidence = f"/sys/kernel/irq/*/chip_name: {some_of(plain, 2)}, none with IR-"
        yield failed(evidence, meaning, firmware, command="dmesg | grep -i remap")
    else:
        evidence = "no IR- in /sys/kernel/irq/*/chip_name"
        yield unknown(
            evidence, "It could not be told whether interrupts are remapped.", command="dmesg | grep -i remap"
        )


def _remaps(ecap: FileText) -> bool:
    """Return whether a unit can remap interrupts; what is no number is not judged."""
    try:
        return bool(int((ecap.text or "")[:16], 16) & _IR)
    except ValueError:
        return True


def unsafe_interrupts(facts: Facts) -> Iterator[Finding]:
    """Whether VFIO accepts devices without interrupt remapping."""
    meaning = "A guest with a device can send any interrupt to the host, and take it over."
    remedy = "remove allow_unsafe_interrupts from /etc/modprobe.d and the kernel command line, and reboot"
    yield from _switch(facts.unsafe_interrupts, meaning, remedy)


def noiommu(facts: Facts) -> Iterator[Finding]:
    """Whether VFIO gives away devices without an IOMMU."""
    meaning = "VFIO gives devices without an IOMMU away: they can read and write all memory of the host."
    remedy = "remove enable_unsafe_noiommu_mode from /etc/modprobe.d and the kernel command line, and reboot"
    yield from _switch(facts.noiommu, meaning, remedy)


def _switch(file: FileText, meaning: str, remedy: str) -> Iterator[Finding]:
    if file.refused:
        yield file.not_told()
    elif file.text is None:
        yield not_applicable(f"no {file.path}")
    elif file.text.strip().upper() in ("Y", "1"):
        yield failed(file.shown, meaning, remedy)
    else:
        yield passed(file.shown)


def iommu_group(facts: Facts) -> Iterator[Finding]:
    """Whether every device is in an IOMMU group."""
    if not facts.inventory.iommu.translating:
        yield not_applicable("the IOMMU does not translate")
        return
    lost = tuple(function.address for function in facts.devices if function.iommu_group is None)
    if lost:
        evidence = f"no iommu_group: {some_of(lost)}"
        meaning = "These devices cannot be given to a guest, although the IOMMU is on: it does not cover them."
        command = "dmesg | grep -iE 'dmar|ivrs|smmu'"
        yield failed(evidence, meaning, "update the firmware, which describes them", command=command, devices=lost)
    elif facts.devices:
        yield passed(f"all {counted(len(facts.devices), 'device')} are in IOMMU groups")
    else:
        yield not_applicable("no GPU")


def nested(facts: Facts) -> Iterator[Finding]:
    """Whether a host that is itself a virtual machine can run guests, and give them devices of the outer host."""
    processor = facts.processor
    if not processor.is_guest:
        why = "whether this host is a virtual machine is not known"
        yield not_applicable(why if processor.is_guest is None else "this host is no virtual machine")
        return
    findings = []
    if not processor.has_kvm:
        evidence = "/proc/cpuinfo: the flag hypervisor, and neither vmx nor svm"
        meaning = "This host is a virtual machine in which KVM runs no guest."
        remedy = "on the outer host: kvm_intel or kvm_amd with nested=1, and <cpu mode='host-passthrough'/>"
        findings.append(failed(evidence, meaning, remedy))
    findings += [finding for cap in facts.caps[:1] for finding in _caching_mode(cap)]
    yield from findings
    if not findings:
        yield passed(
            f"a virtual machine with KVM{'; ' if facts.caps else ''}{some_of(cap.shown for cap in facts.caps)}"
        )


def _caching_mode(cap: FileText) -> Iterator[Finding]:
    """Source: the VT-d specification, 11.4.2, and QEMU's hw/i386/intel_iommu.c, vtd_iommu_notify_flag_changed."""
    if cap.refused:
        yield cap.not_told()
        return
    try:
        has_mode = bool(int((cap.text or "")[:16], 16) & _CM)
    except ValueError:
        yield unknown(cap.shown, "It could not be told whether the vIOMMU has caching mode: it is no number.")
        return
    if not has_mode:
        meaning = "The outer host does not see what this vIOMMU maps: it can give no device of its own to this machine."
        remedy = "on the outer host: <driver intremap='on' caching_mode='on'/> in the <iommu> of this machine"
        yield note(f"{cap.shown} has no bit 7 (caching mode)", meaning, remedy)
