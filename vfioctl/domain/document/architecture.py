"""What only guests of x86 have: for building domains of other architectures, and for checking them. Pure.

Sources: libvirt's qemu_validate.c; for <smm>, <hyperv> and <kvm>, which libvirt defines, the properties in QEMU's
hw/i386 and target/i386.
"""

from __future__ import annotations

ONLY_X86 = (
    *("features/ioapic", "features/pvspinlock", "features/vmport", "features/ps2", "features/smm"),
    "cpu/cache",
)
"""Elements that are refused elsewhere."""
SETTINGS_ONLY_X86 = (
    *("features/apic[@eoi]", "features/hyperv[@mode='passthrough']", "features/hyperv/*[@state='on']"),
    *("features/kvm/hidden[@state='on']", "features/kvm/hint-dedicated[@state='on']"),
    *("features/kvm/poll-control[@state='on']", "features/kvm/pv-ipi[@state='off']"),
)
"""Settings that are refused elsewhere, of elements that libvirt accepts there without them."""
MEANT_FOR_X86 = (
    *("features/apic", "features/hyperv", "features/kvm", "features/pmu"),
    *("cpu/maxphysaddr", "cpu/feature", "clock/timer", "pm", "launchSecurity"),
    *("devices/tpm", "devices/serial", "devices/console"),
    *("devices/iommu[@model='intel']", "devices/iommu[@model='amd']"),
)
"""What a template for x86 has, and QEMU's `virt` machine does not have, or not in this form: the builder leaves it out.
Other documents may have some of it there, or are judged by rules of their own."""
