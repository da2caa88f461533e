"""The files of one PCI function's folder in sysfs: names, contents, modes, as Linux 6.x writes them.

May not do input or output. Sources: drivers/pci/pci-sysfs.c, drivers/pci/iov.c.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from zlib import crc32

from bench.parts import Part
from bench.topology import Planned

File = tuple[str, str | bytes, int]
RO, RW, WO = 0o444, 0o644, 0o200
_NODE_CPUS = ("0-31", "32-63")
_NODE_MASKS = ("00000000,ffffffff", "ffffffff,00000000")


def attributes(function: Planned, live_vfs: int) -> Iterator[File]:
    """All files directly in the function's folder."""
    part = function.part
    identity = {
        "vendor": f"0x{part.vendor:04x}",
        "device": f"0x{part.device:04x}",
        "class": f"0x{part.class_code:06x}",
        "subsystem_vendor": f"0x{part.card_id[0]:04x}",
        "subsystem_device": f"0x{part.card_id[1]:04x}",
        "revision": "0xa1",
        "modalias": part.modalias,
        "resource": _resource(function),
        "local_cpulist": _NODE_CPUS[function.numa_node],
        "local_cpus": _NODE_MASKS[function.numa_node],
        "irq": "0" if function.driver is None else "16",
        "power_state": "D0",
        "ari_enabled": "1",
        "dma_mask_bits": "64",
        "consistent_dma_mask_bits": "64",
    }
    settings = {
        "numa_node": str(function.numa_node),
        "driver_override": function.driver_override,
        "enable": "0" if function.driver is None else "1",
        "d3cold_allowed": "1",
        "msi_bus": "1",
        "broken_parity_status": "0",
        "uevent": _uevent(function),
        "config": _config(part),
    }
    yield from ((name, text, RO) for name, text in identity.items())
    yield from ((name, text, RW) for name, text in settings.items())
    yield from ((name, b"", WO) for name in ("remove", "rescan"))
    yield from _optional(function, live_vfs)


def _optional(function: Planned, live_vfs: int) -> Iterator[File]:
    part = function.part
    if part.reset_method:
        yield "reset_method", part.reset_method, RW
        yield "reset", b"", WO
    if part.class_code >> 8 != 0x0600:
        link = {"current_link_speed": part.speed, "max_link_speed": part.speed}
        link |= {"current_link_width": str(part.width), "max_link_width": str(part.width)}
        yield from ((name, text, RO) for name, text in link.items())
    if part.is_vga:
        yield "boot_vga", str(int(function.boot_vga)), RO
    if part.is_bridge:
        yield "secondary_bus_number", str(int(function.address[5:7], 16) + 1), RO
        yield "subordinate_bus_number", str(int(function.address[5:7], 16) + 1), RO
    for index, bar in enumerate(part.bars):
        if bar.size:
            yield f"resource{index}", b"", 0o600
    if part.total_vfs:
        yield "sriov_totalvfs", str(part.total_vfs), RO
        yield "sriov_numvfs", str(live_vfs), RW
        yield from ((f"sriov_{name}", "1", RO) for name in ("offset", "stride"))
        yield "sriov_vf_device", f"{part.device + 1:x}", RO
        yield "sriov_drivers_autoprobe", "1", RW


def subfolders(function: Planned) -> Iterator[tuple[str, list[File]]]:
    """The folders inside the function's own, and their files."""
    power = {"control": "auto", "runtime_status": "active", "runtime_suspended_time": "0", "wakeup": "disabled"}
    yield "power", [(name, text, RW) for name, text in power.items()]
    if function.driver and not function.part.is_bridge:
        yield "msi_irqs", [(str(irq), "msix", RO) for irq in range(64, 68)]
    if function.driver == "mlx5_core":
        name = function.address.replace(":", "").replace(".", "f")
        yield f"net/p{name}", [("operstate", "up", RO), ("mtu", "1500", RW)]
    if function.part.is_bridge:
        yield f"pci_bus/{function.address[:4]}:{int(function.address[5:7], 16) + 1:02x}", [("rescan", b"", WO)]


def _resource(function: Planned) -> str:
    """Start, end and flags of six regions, the ROM and six of SR-IOV or of the bridge; no two functions alike."""
    start = crc32(function.address.encode()) << 24
    rows = []
    for bar in function.part.bars:
        low = start & -bar.size if bar.size else 0
        rows.append((low, low + bar.size - 1, bar.flags) if bar.size else (0, 0, 0))
        start += 2 * bar.size
    rows += [(0, 0, 0)] * (13 - len(rows))
    return "\n".join(" ".join(f"0x{number:016x}" for number in row) for row in rows)


def _uevent(function: Planned) -> str:
    part = function.part
    lines = [f"DRIVER={function.driver}"] if function.driver else []
    lines += [
        f"PCI_CLASS={part.class_code:X}",
        f"PCI_ID={part.vendor:04X}:{part.device:04X}",
        f"PCI_SUBSYS_ID={part.card_id[0]:04X}:{part.card_id[1]:04X}",
        f"PCI_SLOT_NAME={function.address}",
        f"MODALIAS={part.modalias}",
    ]
    return "\n".join(lines)


def _config(part: Part) -> bytes:
    """The first 256 bytes of configuration space: a header that says the same as the other files."""
    header = struct.pack("<HHHHI", part.vendor, part.device, 0x0406, 0x0010, part.class_code << 8 | 0xA1)
    header += bytes((0, 0, 1 if part.is_bridge else 0, 0))
    subsystem = bytes(28) + struct.pack("<HH", *part.card_id) if not part.is_bridge else bytes(32)
    return (header + subsystem).ljust(256, b"\0")
