"""Reads what the processor is. Source: /proc/cpuinfo, arch/x86/kernel/cpu/proc.c and arch/arm64/kernel/cpuinfo.c."""

from __future__ import annotations

import re

from vfioctl.errors import BadSpec
from vfioctl.inventory.model.processor import Processor
from vfioctl.kernel.lenient import text_of
from vfioctl.kernel.protocol import FileReader
from vfioctl.units import parse_cpu_list

_FACT = re.compile(r"^(vendor_id|cpu family|model)\t*: (\S{1,64})$", re.MULTILINE)
_ARCHITECTURES = {
    "aarch64": re.compile(r"^CPU implementer\s*:", re.MULTILINE),
    "ppc64le": re.compile(r"^cpu\s*: POWER", re.MULTILINE),
    "s390x": re.compile(r"^vendor_id *: IBM/S390", re.MULTILINE),
    "loongarch64": re.compile(r"^(?:system type|Model Name)\s*: .*loongson", re.MULTILINE | re.IGNORECASE),
    "riscv64": re.compile(r"^isa\s*: rv64", re.MULTILINE),
}
"""The line by which each is known; all others are x86_64. Sources: show_cpuinfo in arch/powerpc/kernel/setup-common.c,
arch/s390/kernel/processor.c, arch/loongarch/kernel/proc.c and arch/riscv/kernel/cpu.c."""
_BITS = re.compile(r"^address sizes\s*:\s*([0-9]{1,3}) bits physical", re.MULTILINE)


def read_online(kernel: FileReader) -> tuple[int, ...]:
    """Return the online CPUs, none if unknown. Source: Documentation/ABI/testing/sysfs-devices-system-cpu."""
    try:
        return parse_cpu_list(text_of(kernel, "/sys/devices/system/cpu/online"))
    except BadSpec:
        return ()


def read_processor(kernel: FileReader) -> Processor:
    """Return what /proc/cpuinfo reports; an x86_64 processor if it reports nothing."""
    text = text_of(kernel, "/proc/cpuinfo")
    bits, facts = _BITS.search(text), dict(_FACT.findall(text.partition("\n\n")[0]))
    vendor = facts.get("vendor_id", "")
    return Processor(
        arch=next((arch for arch, line in _ARCHITECTURES.items() if line.search(text)), "x86_64"),
        is_amd=vendor in ("AuthenticAMD", "HygonGenuine"),
        vendor=vendor,
        family=facts.get("cpu family", ""),
        model=facts.get("model", ""),
        address_bits=int(bits[1]) if bits else None,
    )
