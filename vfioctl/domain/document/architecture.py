"""What only guests of x86 have, and the physical addresses that one on QEMU's q35 uses. Pure. Sources: libvirt's
qemu_validate.c; for <smm>, <hyperv> and <kvm>, which libvirt defines, the properties in QEMU's hw/i386 and target/i386.
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


_GIB = 1 << 30
_BELOW_4G, _SPLIT_FROM = 2 * _GIB, 0xB0000000
"""q35 has so much memory below 4 GiB, if there is at least so much in all (hw/i386/pc_q35.c)."""


def end_of_hole(memory: int, hole: int) -> int:
    """Return the first address above the 64-bit hole, which is above the memory; all in bytes. QEMU does not start if
    the guest's CPU cannot address all of it (hw/i386/pc.c, pc_max_used_gpa; from 7.1 on)."""
    above = memory - _BELOW_4G if memory >= _SPLIT_FROM else 0
    return 4 * _GIB + -(-above // _GIB) * _GIB + hole


def most_memory(hole: int, bits: int) -> int:
    """Return the most memory for which a hole ends within that many address bits; 0 if none."""
    left = (1 << bits) - hole - 4 * _GIB
    return left + _BELOW_4G if left >= 0 else 0
