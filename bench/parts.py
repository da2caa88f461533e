"""The kinds of PCI functions that a synthetic host is made of, with the ids and sizes of real products.

May not do input or output.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
MEM32, MEM64, MEM64_PREFETCH = 0x40200, 0x140204, 0x14220C
"""Flags of the `resource` attribute (linux/ioport.h): memory, then 64-bit, then prefetchable."""


class Bar(NamedTuple):
    size: int
    flags: int


@dataclass(frozen=True)
class Part:
    """One product, as one function shows it. `card_id` is the subsystem's vendor and device."""

    name: str
    vendor: int
    device: int
    card_id: tuple[int, int]
    class_code: int
    driver: str | None
    bars: tuple[Bar, ...] = ()
    speed: str = "16.0 GT/s PCIe"
    width: int = 16
    reset_method: str = "flr bus"
    total_vfs: int = 0

    @property
    def is_bridge(self) -> bool:
        return self.class_code >> 8 == 0x0604

    @property
    def is_vga(self) -> bool:
        return self.class_code >> 8 == 0x0300

    @property
    def modalias(self) -> str:
        kind = f"bc{self.class_code >> 16:02x}sc{self.class_code >> 8 & 255:02x}i{self.class_code & 255:02x}"
        subsystem = f"sv{self.card_id[0]:08X}sd{self.card_id[1]:08X}"
        return f"pci:v{self.vendor:08X}d{self.device:08X}{subsystem}{kind}"


def _gpu_bars(memory: int) -> tuple[Bar, ...]:
    return (
        Bar(16 * MIB, MEM32),
        Bar(memory, MEM64_PREFETCH),
        Bar(0, 0),
        Bar(32 * MIB, MEM64_PREFETCH),
    )


HOST_BRIDGE = Part("host bridge", 0x8086, 0x09A2, (0x8086, 0x0000), 0x060000, None, reset_method="")
ROOT_PORT = Part(
    "root port", 0x8086, 0x352A, (0x8086, 0x0000), 0x060400, "pcieport", (Bar(128 * KIB, MEM64),),
    speed="32.0 GT/s PCIe", reset_method="pm",
)  # fmt: skip
H100 = Part("H100", 0x10DE, 0x2330, (0x10DE, 0x16C1), 0x030200, "nvidia", _gpu_bars(128 * GIB), speed="32.0 GT/s PCIe")
L40S = Part("L40S", 0x10DE, 0x26B9, (0x10DE, 0x1851), 0x030200, "nvidia", _gpu_bars(64 * GIB), total_vfs=32)
L40S_VF = Part("L40S VF", 0x10DE, 0x26B9, (0x10DE, 0x0000), 0x030200, "nvidia", reset_method="flr")
RTX3090 = Part("RTX 3090", 0x10DE, 0x2204, (0x10DE, 0x1454), 0x030000, "nouveau", _gpu_bars(256 * MIB))
RTX3090_AUDIO = Part(
    "RTX 3090 audio", 0x10DE, 0x1AEF, (0x10DE, 0x1454), 0x040300, "snd_hda_intel", (Bar(16 * KIB, MEM32),),
    reset_method="",
)  # fmt: skip
CONNECTX = Part(
    "ConnectX-6 Dx", 0x15B3, 0x101D, (0x15B3, 0x0016), 0x020000, "mlx5_core", (Bar(32 * MIB, MEM64_PREFETCH),),
    total_vfs=127,
)  # fmt: skip
CONNECTX_VF = Part("ConnectX VF", 0x15B3, 0x101E, (0x15B3, 0x0016), 0x020000, "mlx5_core", reset_method="flr")
NVME = Part("NVMe disk", 0x144D, 0xA80A, (0x144D, 0xA801), 0x010802, "nvme", (Bar(16 * KIB, MEM64),), width=4)
