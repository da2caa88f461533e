"""The parts that hosts are built from: PCI functions, kernel modules, and what the hardware database calls them.

Names are those of the hardware database (pci.ids), sizes and ids those of the real parts.
"""

from __future__ import annotations

from typing import NamedTuple

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


class Bar(NamedTuple):
    """A base address region; number 6 is the expansion ROM. Flags as in linux/ioport.h."""

    number: int
    size: int
    flags: int

    @property
    def window(self) -> str:
        """Which of a bridge's windows it lies in."""
        if self.flags & 0x100:
            return "io"
        return "pref" if self.flags & 0x100000 else "mem"


def io(number: int, size: int) -> Bar:
    return Bar(number, size, 0x40101)


def mem32(number: int, size: int) -> Bar:
    return Bar(number, size, 0x40200)


def mem64(number: int, size: int) -> Bar:
    return Bar(number, size, 0x140204)


def pref64(number: int, size: int) -> Bar:
    return Bar(number, size, 0x14220C)


def rom(size: int) -> Bar:
    return Bar(6, size, 0x46200)


class Model(NamedTuple):
    """A kind of PCI function. `link` is the fastest speed in GT/s and the widest width in lanes."""

    ids: str
    class_code: str
    name: str
    subsystem: str = ""
    revision: str = "00"
    bars: tuple[Bar, ...] = ()
    link: tuple[float, int] | None = None
    reset: str = ""
    total_vfs: int = 0
    vf_bars: tuple[Bar, ...] = ()


class Module(NamedTuple):
    """A kernel module: its PCI drivers, its aliases, the modules that it needs."""

    path: str
    drivers: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()

    @property
    def built_in(self) -> bool:
        return not self.path


VENDORS = {
    "1000": "Broadcom / LSI",
    "1002": "Advanced Micro Devices, Inc. [AMD/ATI]",
    "1022": "Advanced Micro Devices, Inc. [AMD]",
    "10de": "NVIDIA Corporation",
    "144d": "Samsung Electronics Co Ltd",
    "15b3": "Mellanox Technologies",
    "1a03": "ASPEED Technology, Inc.",
    "8086": "Intel Corporation",
}

CLASSES = {
    "0104": ("Mass storage controller", "RAID bus controller"),
    "0106": ("Mass storage controller", "SATA controller"),
    "0108": ("Mass storage controller", "Non-Volatile memory controller"),
    "0200": ("Network controller", "Ethernet controller"),
    "0207": ("Network controller", "Infiniband controller"),
    "0280": ("Network controller", "Network controller"),
    "0300": ("Display controller", "VGA compatible controller"),
    "0302": ("Display controller", "3D controller"),
    "0401": ("Multimedia controller", "Multimedia audio controller"),
    "0403": ("Multimedia controller", "Audio device"),
    "0500": ("Memory controller", "RAM memory"),
    "0600": ("Bridge", "Host bridge"),
    "0601": ("Bridge", "ISA bridge"),
    "0604": ("Bridge", "PCI bridge"),
    "0680": ("Bridge", "Bridge"),
    "0806": ("Generic system peripheral", "IOMMU"),
    "0c03": ("Serial bus controller", "USB controller"),
    "0c05": ("Serial bus controller", "SMBus"),
    "0c80": ("Serial bus controller", "Serial bus controller"),
    "1200": ("Processing accelerators", "Processing accelerators"),
}

INTERFACES = {
    "010601": "AHCI 1.0",
    "010802": "NVM Express",
    "030000": "VGA controller",
    "060400": "Normal decode",
    "0c0330": "XHCI",
}

# -- GPUs and what comes with them -----------------------------------------------------------------

HOPPER_BARS = (pref64(0, 16 * MIB), pref64(2, 128 * GIB), pref64(4, 32 * MIB))
GEFORCE_BARS = (mem32(0, 16 * MIB), pref64(1, 256 * MIB), pref64(3, 32 * MIB), io(5, 128), rom(512 * KIB))
RESIZED_BARS = (mem32(0, 16 * MIB), pref64(1, 32 * GIB), pref64(3, 32 * MIB), io(5, 128), rom(512 * KIB))
AUDIO_BARS = (mem32(0, 16 * KIB),)
MI300_VF_BARS = (pref64(0, 32 * GIB), pref64(2, 2 * MIB), mem32(5, 512 * KIB))

H100 = Model("10de:2330", "030200", "GH100 [H100 SXM5 80GB]", "10de:16c1", "a1", HOPPER_BARS, (32, 16), "flr bus")
GH200 = Model("10de:2342", "030200", "GH100 [GH200 120GB / 480GB]", "10de:16eb", "a1", HOPPER_BARS, (32, 16), "flr bus")
NVSWITCH = Model(
    "10de:22a3", "068000", "GH100 [H100 NVSwitch]", "10de:1796", "a1", (mem64(0, 32 * MIB),), (16, 2), "bus"
)
RTX_4090 = Model("10de:2684", "030000", "AD102 [GeForce RTX 4090]", "10de:16f4", "a1", RESIZED_BARS, (16, 16), "flr")
RTX_4090_AUDIO = Model(
    "10de:22ba", "040300", "AD102 High Definition Audio Controller", "10de:16f4", "a1", AUDIO_BARS, (16, 16)
)
RTX_2080_TI = Model("10de:1e04", "030000", "TU102 [GeForce RTX 2080 Ti]", "10de:12a4", "a1", GEFORCE_BARS, (8, 16))
RTX_2080_TI_AUDIO = Model(
    "10de:10f7", "040300", "TU102 High Definition Audio Controller", "10de:12a4", "a1", AUDIO_BARS, (8, 16)
)
RTX_2080_TI_USB = Model(
    "10de:1ad6",
    "0c0330",
    "TU102 USB 3.1 Host Controller",
    "10de:12a4",
    "a1",
    (pref64(0, 256 * KIB), pref64(3, 64 * KIB)),
    (8, 16),
)
RTX_2080_TI_UCSI = Model(
    "10de:1ad7", "0c8000", "TU102 USB Type-C UCSI Controller", "10de:12a4", "a1", (mem32(0, 4 * KIB),), (8, 16)
)
RTX_3050_TI_MOBILE = Model(
    "10de:25a0", "030200", "GA107M [GeForce RTX 3050 Ti Mobile]", "17aa:22e4", "a1", RESIZED_BARS[:4], (16, 8), "flr"
)
RTX_3050_TI_MOBILE_AUDIO = Model(
    "10de:2291", "040300", "GA107 High Definition Audio Controller", "17aa:22e4", "a1", AUDIO_BARS, (16, 8)
)
GTX_1080 = Model("10de:1b80", "030000", "GP104 [GeForce GTX 1080]", "10de:119e", "a1", GEFORCE_BARS, (8, 16))
GTX_1080_AUDIO = Model(
    "10de:10f0", "040300", "GP104 High Definition Audio Controller", "10de:119e", "a1", AUDIO_BARS, (8, 16)
)
GTX_1060 = Model("10de:1c03", "030000", "GP106 [GeForce GTX 1060 6GB]", "10de:11d7", "a1", GEFORCE_BARS, (8, 16))
GTX_1060_AUDIO = Model(
    "10de:10f1", "040300", "GP106 High Definition Audio Controller", "10de:11d7", "a1", AUDIO_BARS, (8, 16)
)
RX_6600_XT = Model(
    "1002:73ff",
    "030000",
    "Navi 23 [Radeon RX 6600/6600 XT/6600M] (Radeon RX 6600 XT Pulse)",
    "1da2:448e",
    "c1",
    (pref64(0, 8 * GIB), pref64(2, 2 * MIB), io(4, 256), mem32(5, MIB), rom(128 * KIB)),
    (16, 16),
)
RX_6600_XT_AUDIO = Model(
    "1002:ab28", "040300", "Navi 21/23 HDMI/DP Audio Controller", "1002:ab28", "00", AUDIO_BARS, (16, 16)
)
RX_6600_XT_UPSTREAM = Model(
    "1002:1478",
    "060400",
    "Navi 10 XL Upstream Port of PCI Express Switch",
    "0000:0000",
    "c1",
    (mem32(0, 16 * KIB),),
    (16, 8),
)
RX_6600_XT_DOWNSTREAM = Model("1002:1479", "060400", "Navi 10 XL Downstream Port of PCI Express Switch", link=(16, 16))
MI300X = Model(
    "1002:74a1",
    "120000",
    "Aqua Vanjaram [Instinct MI300X]",
    bars=(pref64(0, 256 * GIB), pref64(2, 2 * MIB), mem32(5, 512 * KIB)),
    link=(32, 16),
    reset="flr bus",
    total_vfs=8,
    vf_bars=MI300_VF_BARS,
)
A2 = Model(
    "10de:25b6", "030200", "GA107GL [A2 / A16]", "10de:157e", "a1",
    (mem32(0, 16 * MIB), pref64(1, 16 * GIB), pref64(3, 32 * MIB)), (16, 8), "flr bus", 16,
    (mem32(0, 256 * KIB), pref64(1, 2 * GIB), pref64(3, 32 * MIB)),
)  # fmt: skip
A2_VF = Model("10de:25b6", "030200", "GA107GL [A2 / A16]", "10de:157e", "a1", link=(16, 8), reset="flr")
L40S = Model(
    "10de:26b9", "030200", "AD102GL [L40S]", "10de:1851", "a1",
    (mem32(0, 16 * MIB), pref64(1, 64 * GIB), pref64(3, 32 * MIB)), (16, 16), "flr bus", 32,
    (mem32(0, 256 * KIB), pref64(1, 2 * GIB), pref64(3, 32 * MIB)),
)  # fmt: skip
L40S_VF = Model("10de:26b9", "030200", "AD102GL [L40S]", "10de:0000", "a1", link=(16, 16), reset="flr")
T4 = Model(
    "10de:1eb8", "030200", "TU104GL [Tesla T4]", "10de:12a2", "a1",
    (mem32(0, 16 * MIB), pref64(1, 256 * MIB), pref64(3, 32 * MIB)), (8, 16), "flr bus",
)  # fmt: skip
ARC_B50 = Model(
    "8086:e212", "030000", "Battlemage G21 [Arc Pro B50]", "8086:1114", "00",
    (mem64(0, 16 * MIB), pref64(2, 16 * GIB)), (2.5, 1), "flr", 4, (mem64(0, 16 * MIB), pref64(2, 2 * GIB)),
)  # fmt: skip
ARC_B50_VF = Model("8086:e212", "030000", "Battlemage G21 [Arc Pro B50]", "8086:1114", "00", reset="flr")
MI300X_VF = Model("1002:74b5", "120000", "Aqua Vanjaram [Instinct MI300X VF]", "1002:74a1", link=(32, 16), reset="flr")
IRIS_XE = Model(
    "8086:46a6",
    "030000",
    "Alder Lake-P GT2 [Iris Xe Graphics]",
    "17aa:22e4",
    "0c",
    (mem64(0, 16 * MIB), pref64(2, 256 * MIB), io(4, 64)),
    reset="flr",
    total_vfs=7,
    vf_bars=(mem64(0, 16 * MIB), pref64(2, 512 * MIB)),
)
UHD_630 = Model(
    "8086:3e92",
    "030000",
    "CoffeeLake-S GT2 [UHD Graphics 630]",
    "1043:8694",
    bars=(mem64(0, 16 * MIB), pref64(2, 256 * MIB), io(4, 64)),
    reset="flr",
)
AST2600 = Model(
    "1a03:2000",
    "030000",
    "ASPEED Graphics Family",
    revision="52",
    bars=(mem32(0, 64 * MIB), mem32(1, 256 * KIB), io(2, 128)),
)

# -- ports, bridges, IOMMUs ------------------------------------------------------------------------

PEX890XX = "PEX890xx PCIe Gen 5 Switch (PEX89000 PCIe Gen 5 Virtual Upstream/Downstream Port)"
PEX_UPSTREAM = Model("1000:c030", "060400", PEX890XX, "1000:100b", "b0", (mem32(0, 256 * KIB),), (32, 16))
PEX_DOWNSTREAM = Model("1000:c030", "060400", PEX890XX, "1000:100b", "b0", link=(32, 16))
AST1150 = Model("1a03:1150", "060400", "AST1150 PCI-to-PCI Bridge", revision="06", link=(5, 1))
XEON_PORT = Model("8086:352a", "060400", "", "8086:0000", "30", (mem64(0, 128 * KIB),), (32, 16))
PCH_PORT = Model("8086:1bbe", "060400", "", "8086:7270", "11", link=(8, 1))
ALDER_LAKE_X16 = Model("8086:460d", "060400", "12th Gen Core Processor PCI Express x16 Controller", link=(32, 8))
ALDER_LAKE_X4 = Model("8086:464d", "060400", "12th Gen Core Processor PCI Express x4 Controller", link=(16, 4))
SKYLAKE_X16 = Model("8086:1901", "060400", "6th-10th Gen Core Processor PCIe Controller (x16)", link=(8, 16))
SKYLAKE_X8 = Model(
    "8086:1905", "060400", "Xeon E3-1200 v5/E3-1500 v5/6th Gen Core Processor PCIe Controller (x8)", link=(8, 8)
)
GPP_BRIDGE = Model("1022:1483", "060400", "Starship/Matisse GPP Bridge", "1022:1453", link=(16, 16))
GENOA_BRIDGE = Model("1022:14ab", "060400", "Genoa/Bergamo GPP Bridge", "1022:1453", "01", link=(32, 16))
INTERNAL_BRIDGE = Model("1022:1484", "060400", "Starship/Matisse Internal PCIe GPP Bridge 0 to bus[E:B]", link=(16, 16))
GRACE_PORT = Model("10de:22b1", "060400", "", "0000:0000", link=(32, 16))
MATISSE_IOMMU = Model("1022:1481", "080600", "Starship/Matisse IOMMU")
GENOA_IOMMU = Model("1022:149e", "080600", "Genoa/Bergamo IOMMU")
VMD = Model(
    "8086:467f",
    "010400",
    "Volume Management Device NVMe RAID Controller",
    "8086:0000",
    bars=(pref64(0, 32 * MIB), mem32(2, 32 * MIB), pref64(4, MIB)),
)

# -- storage, network, sound, the rest -------------------------------------------------------------

PM173X = Model(
    "144d:a824",
    "010802",
    "NVMe SSD Controller PM173X",
    "144d:a801",
    bars=(mem64(0, 32 * KIB),),
    link=(16, 4),
    reset="flr bus",
)
SSD_980_PRO = Model(
    "144d:a80a",
    "010802",
    "NVMe SSD Controller PM9A1/PM9A3/980PRO (SSD 980 PRO)",
    "144d:a801",
    bars=(mem64(0, 16 * KIB),),
    link=(16, 4),
    reset="flr bus",
)
CONNECTX_7 = Model(
    "15b3:1021",
    "020700",
    "MT2910 Family [ConnectX-7]",
    "15b3:0041",
    bars=(pref64(0, 32 * MIB), rom(MIB)),
    link=(32, 16),
    reset="flr bus",
    total_vfs=16,
    vf_bars=(pref64(0, 2 * MIB),),
)
I225_V = Model(
    "8086:15f3",
    "020000",
    "Ethernet Controller I225-V",
    "1043:87d2",
    "03",
    (mem32(0, MIB), mem32(3, 16 * KIB)),
    (5, 1),
    "flr bus",
)
MATISSE_USB = Model(
    "1022:149c", "0c0330", "Matisse USB 3.0 Host Controller", "1043:87c0", bars=(mem64(0, MIB),), link=(16, 16)
)
MATISSE_AUDIO = Model(
    "1022:1487",
    "040300",
    "Starship/Matisse HD Audio Controller",
    "1043:8797",
    bars=(mem32(0, 32 * KIB),),
    link=(16, 16),
)
SATA = Model(
    "8086:a352",
    "010601",
    "Cannon Lake PCH SATA AHCI Controller",
    "1043:8694",
    "10",
    (mem32(0, 8 * KIB), mem32(1, 256), io(2, 8), io(3, 4), io(4, 32), mem32(5, 2 * KIB)),
)
ALDER_LAKE_USB = Model(
    "8086:51ed", "0c0330", "Alder Lake PCH USB 3.2 xHCI Host Controller", "17aa:22e4", "01", (mem64(0, 64 * KIB),)
)
ALDER_LAKE_SRAM = Model(
    "8086:51ef", "050000", "Alder Lake PCH Shared SRAM", "17aa:22e4", "01", (mem64(0, 16 * KIB), mem64(2, 4 * KIB))
)
ALDER_LAKE_WIFI = Model(
    "8086:51f0", "028000", "Alder Lake-P PCH CNVi WiFi", "8086:0090", "01", (mem64(0, 16 * KIB),), reset="flr"
)
ALDER_LAKE_ESPI = Model("8086:5182", "060100", "Alder Lake PCH eSPI Controller", "17aa:22e4", "01")
ALDER_LAKE_AUDIO = Model(
    "8086:51c8",
    "040100",
    "Alder Lake PCH-P High Definition Audio Controller",
    "17aa:22e4",
    "01",
    (mem64(0, 16 * KIB), mem64(4, MIB)),
)
ALDER_LAKE_SMBUS = Model(
    "8086:51a3", "0c0500", "Alder Lake PCH-P SMBus Host Controller", "17aa:22e4", "01", (mem64(0, 256), io(4, 32))
)
ALDER_LAKE_SPI = Model(
    "8086:51a4", "0c8000", "Alder Lake-P PCH SPI Controller", "17aa:22e4", "01", (mem32(0, 4 * KIB),)
)
HOST_BRIDGE = Model(
    "8086:3ec2", "060000", "8th Gen Core Processor Host Bridge/DRAM Registers (PRIME H310M-D)", "1043:8694", "07"
)

# -- kernel modules --------------------------------------------------------------------------------

NVIDIA_ALIASES = tuple(f"pci:v000010DEd*sv*sd*bc{code}i00*" for code in ("03sc00", "03sc02", "06sc80"))

MODULES = {
    "ahci": Module("kernel/drivers/ata/ahci.ko", ("ahci",), ("pci:v*d*sv*sd*bc01sc06i01*",)),
    "amdgpu": Module(
        "kernel/drivers/gpu/drm/amd/amdgpu/amdgpu.ko",
        ("amdgpu",),
        (
            "pci:v00001002d000073FFsv*sd*bc*sc*i*",
            "pci:v00001002d*sv*sd*bc03sc00i00*",
            "pci:v00001002d*sv*sd*bc03sc80i00*",
            "pci:v00001002d*sv*sd*bc12sc00i00*",
        ),
    ),
    "ast": Module("kernel/drivers/gpu/drm/ast/ast.ko", ("ast",), ("pci:v00001A03d00002000sv*sd*bc03sc*i*",)),
    "gim": Module(
        "updates/dkms/gim.ko",
        ("gim",),
        ("pci:v00001002d000074A1sv*sd*bc*sc*i*",),
    ),
    "i2c_i801": Module(
        "kernel/drivers/i2c/busses/i2c-i801.ko", ("i801_smbus",), ("pci:v00008086d000051A3sv*sd*bc*sc*i*",)
    ),
    "i2c_nvidia_gpu": Module(
        "kernel/drivers/i2c/busses/i2c-nvidia-gpu.ko", ("nvidia-gpu",), ("pci:v000010DEd*sv*sd*bc0Csc80i00*",)
    ),
    "i915": Module(
        "kernel/drivers/gpu/drm/i915/i915.ko",
        ("i915",),
        ("pci:v00008086d00003E92sv*sd*bc03sc*i*", "pci:v00008086d000046A6sv*sd*bc03sc*i*"),
    ),
    "igc": Module("kernel/drivers/net/ethernet/intel/igc/igc.ko", ("igc",), ("pci:v00008086d000015F3sv*sd*bc*sc*i*",)),
    "iommufd": Module("kernel/drivers/iommu/iommufd/iommufd.ko"),
    "irqbypass": Module("kernel/virt/lib/irqbypass.ko"),
    "iwlwifi": Module(
        "kernel/drivers/net/wireless/intel/iwlwifi/iwlwifi.ko",
        ("iwlwifi",),
        ("pci:v00008086d000051F0sv*sd00000090bc*sc*i*",),
    ),
    "mlx5_core": Module(
        "kernel/drivers/net/ethernet/mellanox/mlx5/core/mlx5_core.ko",
        ("mlx5_core",),
        ("pci:v000015B3d00001021sv*sd*bc*sc*i*", "pci:v000015B3d0000101Esv*sd*bc*sc*i*"),
    ),
    "mlx5_vfio_pci": Module(
        "kernel/drivers/vfio/pci/mlx5/mlx5-vfio-pci.ko",
        ("mlx5_vfio_pci",),
        ("vfio_pci:v000015B3d0000101Esv*sd*bc*sc*i*",),
        ("mlx5_core", "vfio_pci_core"),
    ),
    "nouveau": Module("kernel/drivers/gpu/drm/nouveau/nouveau.ko", ("nouveau",), ("pci:v000010DEd*sv*sd*bc03sc*i*",)),
    "nvgrace_gpu_vfio_pci": Module(
        "kernel/drivers/vfio/pci/nvgrace-gpu/nvgrace-gpu-vfio-pci.ko",
        ("nvgrace_gpu_vfio_pci",),
        ("vfio_pci:v000010DEd00002342sv*sd*bc*sc*i*", "vfio_pci:v000010DEd00002345sv*sd*bc*sc*i*"),
        ("vfio_pci_core",),
    ),
    "nvidia": Module("updates/dkms/nvidia.ko", ("nvidia", "nvidia-nvswitch"), NVIDIA_ALIASES),
    "nvidia_drm": Module("updates/dkms/nvidia-drm.ko", (), NVIDIA_ALIASES, ("nvidia_modeset",)),
    "nvidia_modeset": Module("updates/dkms/nvidia-modeset.ko", needs=("nvidia",)),
    "nvidia_uvm": Module("updates/dkms/nvidia-uvm.ko", needs=("nvidia",)),
    "nvme": Module("kernel/drivers/nvme/host/nvme.ko", ("nvme",), ("pci:v*d*sv*sd*bc01sc08i02*",), ("nvme_core",)),
    "nvme_core": Module("kernel/drivers/nvme/host/nvme-core.ko"),
    "pcieportdrv": Module("", ("pcieport",)),
    "snd_hda_intel": Module(
        "kernel/sound/pci/hda/snd-hda-intel.ko",
        ("snd_hda_intel",),
        (
            "pci:v00001022d00001487sv*sd*bc*sc*i*",
            "pci:v00001002d*sv*sd*bc04sc03i00*",
            "pci:v000010DEd*sv*sd*bc04sc03i00*",
        ),
    ),
    "snd_sof_pci_intel_tgl": Module(
        "kernel/sound/soc/sof/intel/snd-sof-pci-intel-tgl.ko",
        ("sof-audio-pci-intel-tgl",),
        ("pci:v00008086d000051C8sv*sd*bc*sc*i*",),
    ),
    "spi_intel_pci": Module(
        "kernel/drivers/spi/spi-intel-pci.ko", ("intel-spi",), ("pci:v00008086d000051A4sv*sd*bc*sc*i*",)
    ),
    "vfio": Module("kernel/drivers/vfio/vfio.ko", needs=("iommufd",)),
    "vfio_iommu_type1": Module("kernel/drivers/vfio/vfio_iommu_type1.ko", needs=("vfio",)),
    "vfio_pci": Module(
        "kernel/drivers/vfio/pci/vfio-pci.ko", ("vfio-pci",), ("vfio_pci:v*d*sv*sd*bc*sc*i*",), ("vfio_pci_core",)
    ),
    "vfio_pci_core": Module("kernel/drivers/vfio/pci/vfio-pci-core.ko", needs=("vfio", "irqbypass")),
    "vmd": Module("kernel/drivers/pci/controller/vmd.ko", ("vmd",), ("pci:v00008086d0000467Fsv*sd*bc*sc*i*",)),
    "xe": Module("kernel/drivers/gpu/drm/xe/xe.ko", ("xe",), ("pci:v00008086d0000E212sv*sd*bc03sc*i*",)),
    "xhci_pci": Module("kernel/drivers/usb/host/xhci-pci.ko", ("xhci_hcd",), ("pci:v*d*sv*sd*bc0Csc03i30*",)),
}
