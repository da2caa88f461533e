"""Writes the synthetic hosts beside this file: `python tests/hosts/generate.py`; `--check` only compares.

One function per host, in the words of `HostBuilder`. The same source gives the same bytes on any machine.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from tests.hosts import catalogue as parts  # noqa: E402 -- the line above lets this run as a script
from tests.hosts.builder import Function, HostBuilder, Root  # noqa: E402

VFIO = ("vfio_pci", "vfio_iommu_type1")
NVIDIA = ("nvidia", "nvidia_drm", "nvidia_uvm")


def _cpuinfo(vendor: str, model: str, virtualization: str) -> list[str]:
    return [
        "processor\t: 0",
        f"vendor_id\t: {vendor}",
        f"model name\t: {model}",
        f"flags\t\t: fpu vme de pse tsc msr pae cx8 apic mmx sse sse2 ht syscall nx lm pni {virtualization} aes avx",
    ]


def _acpi(host: HostBuilder, *tables: str) -> None:
    """The firmware's tables, as an ordinary user finds them."""
    host.unreadable(*(f"/sys/firmware/acpi/tables/{name}" for name in ("APIC", "FACP", *tables)))


def _dmar(host: HostBuilder, number: int) -> str:
    """An Intel VT-d unit."""
    facts = {"intel-iommu/address": f"{0xFED90000 + (number << 12):x}", "intel-iommu/version": "1:0"}
    return host.iommu(f"dmar{number}", "/sys/devices/virtual", facts)


def _ivhd(host: HostBuilder, number: int, bus: str) -> str:
    """An AMD-Vi unit, which hangs below a PCI function of its root bus."""
    facts = {"amd-iommu/cap": "40000f", "amd-iommu/features": "58f77ef22294ade"}
    return host.iommu(f"ivhd{number}", f"/sys/devices/pci{bus}/{bus}:00.2", facts)


def hgx8() -> HostBuilder:
    host = HostBuilder(
        "an HGX server with eight H100 SXM5, four NVSwitches and eight ConnectX-7",
        release="6.8.0-1015-nvidia",
        cmdline="BOOT_IMAGE=/boot/vmlinuz-6.8.0-1015-nvidia root=/dev/nvme0n1p2 ro intel_iommu=on iommu=pt",
        boot=1,
    )
    host.processors(
        _cpuinfo("GenuineIntel", "Intel(R) Xeon(R) Platinum 8468", "vmx"),
        [("0-47,96-143", 1024), ("48-95,144-191", 1024)],
    )
    _acpi(host, "DMAR")
    loaded = (*NVIDIA, "ast", "nvme", "mlx5_core", "xhci_pci", "snd_hda_intel", "pcieportdrv")
    host.modules(loaded, (*VFIO, "mlx5_vfio_pci", "nouveau"))
    host.group_type = "identity"
    units = (_dmar(host, number) for number in range(11))

    legacy = host.root("0000:00", node=0, iommu=next(units))
    port = host.add(parts.PCH_PORT, "0000:00:1c.0", legacy, "pcieport")
    bridge = host.add(parts.AST1150, "0000:01:00.0", port)
    bmc = host.add(parts.AST2600, "0000:02:00.0", bridge, "ast")
    bmc.boot_vga = True
    host.share_group(bridge, bmc)

    fabric = host.root("0000:03", node=0, iommu=next(units))
    downstream = _switch(host, fabric, 0x03, ports=4)
    for number, below in enumerate(downstream):
        host.add(parts.NVSWITCH, f"0000:{0x07 + number:02x}:00.0", below, "nvidia-nvswitch")
        host.node(f"/dev/nvidia-nvswitch{number}", 234, number)

    storage = host.root("0000:37", node=0, iommu=next(units))
    for number in range(2):
        port = host.add(parts.XEON_PORT, f"0000:37:{1 + 2 * number:02x}.0", storage, "pcieport")
        host.add(parts.PM173X, f"0000:{0x38 + number:02x}:00.0", port, "nvme")

    for number, bus in enumerate((0x15, 0x3D, 0x4C, 0x5B, 0x97, 0xBD, 0xCB, 0xD9)):
        root = host.root(f"0000:{bus:02x}", node=number // 4, iommu=next(units))
        to_nic, to_gpu = _switch(host, root, bus, ports=2)
        host.add(parts.CONNECTX_7, f"0000:{bus + 3:02x}:00.0", to_nic, "mlx5_core")
        gpu = host.add(parts.H100, f"0000:{bus + 6:02x}:00.0", to_gpu, "nvidia")
        host.nvml(gpu, "NVIDIA H100 80GB HBM3", 81559, persistence_mode="1", mig_mode="0")
        host.node(f"/dev/nvidia{number}", 195, number)
    host.node("/dev/nvidiactl", 195, 255)
    host.node("/dev/dri/card0", 226, 0)
    return host


def _switch(host: HostBuilder, root: Root, bus: int, *, ports: int) -> list[Function]:
    """A root port and a PCIe switch below it; its downstream ports."""
    port = host.add(parts.XEON_PORT, f"0000:{bus:02x}:01.0", root, "pcieport")
    upstream = host.add(parts.PEX_UPSTREAM, f"0000:{bus + 1:02x}:00.0", port, "pcieport")
    return [
        host.add(parts.PEX_DOWNSTREAM, f"0000:{bus + 2:02x}:{number:02x}.0", upstream, "pcieport")
        for number in range(ports)
    ]


def workstation() -> HostBuilder:
    host = HostBuilder(
        "a desktop with three cards: RTX 4090 (boot VGA), RTX 2080 Ti of four functions, RX 6600 XT in two groups",
        release="6.8.0-45-generic",
        cmdline="BOOT_IMAGE=/vmlinuz-6.8.0-45-generic root=/dev/mapper/vg-root ro quiet splash",
        boot=2,
    )
    host.processors(_cpuinfo("AuthenticAMD", "AMD Ryzen 9 5950X 16-Core Processor", "svm"), [("0-31", 64)])
    _acpi(host, "IVRS")
    loaded = (*NVIDIA, "amdgpu", "snd_hda_intel", "xhci_pci", "i2c_nvidia_gpu", "nvme", "igc", "pcieportdrv")
    host.modules(loaded, (*VFIO, "nouveau"))
    root = host.root("0000:00", iommu=_ivhd(host, 0, "0000:00"))
    host.add(parts.MATISSE_IOMMU, "0000:00:00.2", root)

    port = host.add(parts.GPP_BRIDGE, "0000:00:01.1", root, "pcieport")
    host.add(parts.SSD_980_PRO, "0000:01:00.0", port, "nvme")
    port = host.add(parts.GPP_BRIDGE, "0000:00:01.2", root, "pcieport")
    host.add(parts.I225_V, "0000:02:00.0", port, "igc")

    port = host.add(parts.GPP_BRIDGE, "0000:00:01.3", root, "pcieport")
    upstream = host.add(parts.RX_6600_XT_UPSTREAM, "0000:03:00.0", port, "pcieport")
    downstream = host.add(parts.RX_6600_XT_DOWNSTREAM, "0000:04:00.0", upstream, "pcieport")
    host.add(parts.RX_6600_XT, "0000:05:00.0", downstream, "amdgpu")
    host.add(parts.RX_6600_XT_AUDIO, "0000:05:00.1", downstream, "snd_hda_intel")

    port = host.add(parts.GPP_BRIDGE, "0000:00:03.1", root, "pcieport")
    ada = host.add(parts.RTX_4090, "0000:0a:00.0", port, "nvidia")
    ada.boot_vga, ada.speed = True, 2.5
    host.share_group(ada, host.add(parts.RTX_4090_AUDIO, "0000:0a:00.1", port, "snd_hda_intel"))
    host.nvml(ada, "NVIDIA GeForce RTX 4090", 24564)

    port = host.add(parts.GPP_BRIDGE, "0000:00:03.2", root, "pcieport")
    turing = host.add(parts.RTX_2080_TI, "0000:0b:00.0", port, "nvidia")
    host.share_group(
        turing,
        host.add(parts.RTX_2080_TI_AUDIO, "0000:0b:00.1", port, "snd_hda_intel"),
        host.add(parts.RTX_2080_TI_USB, "0000:0b:00.2", port, "xhci_hcd"),
        host.add(parts.RTX_2080_TI_UCSI, "0000:0b:00.3", port, "nvidia-gpu"),
    )
    host.nvml(turing, "NVIDIA GeForce RTX 2080 Ti", 11264)
    host.rom(turing)

    port = host.add(parts.INTERNAL_BRIDGE, "0000:00:08.1", root, "pcieport")
    host.add(parts.MATISSE_USB, "0000:0c:00.3", port, "xhci_hcd")
    host.add(parts.MATISSE_AUDIO, "0000:0c:00.4", port, "snd_hda_intel")
    _render_nodes(host, 3)
    for number in range(2):
        host.node(f"/dev/nvidia{number}", 195, number)
    host.node("/dev/nvidiactl", 195, 255)
    return host


def laptop() -> HostBuilder:
    host = HostBuilder(
        "a laptop with an Intel GPU for the screen and an NVIDIA GPU that sleeps in D3cold on nouveau",
        release="6.11.4-301.fc41.x86_64",
        cmdline="BOOT_IMAGE=(hd0,gpt2)/vmlinuz-6.11.4-301.fc41.x86_64 root=UUID=0 ro intel_iommu=on rhgb quiet",
        boot=3,
    )
    host.processors(_cpuinfo("GenuineIntel", "12th Gen Intel(R) Core(TM) i7-12700H", "vmx"), [("0-19", 32)])
    _acpi(host, "DMAR")
    board = ("snd_sof_pci_intel_tgl", "i2c_i801", "spi_intel_pci", "iwlwifi", "xhci_pci", "nvme", "pcieportdrv")
    host.modules(("i915", "nouveau", "snd_hda_intel", *board), VFIO)
    screen = host.root("0000:00", iommu=_dmar(host, 0))
    root = host.root("0000:00", iommu=_dmar(host, 1))

    port = host.add(parts.ALDER_LAKE_X16, "0000:00:01.0", root, "pcieport")
    gpu = host.add(parts.RTX_3050_TI_MOBILE, "0000:01:00.0", port, "nouveau")
    audio = host.add(parts.RTX_3050_TI_MOBILE_AUDIO, "0000:01:00.1", port, "snd_hda_intel")
    port.power_state, gpu.power_state, audio.power_state = "D3hot", "D3cold", "D3cold"
    host.share_group(gpu, audio)

    host.add(parts.IRIS_XE, "0000:00:02.0", screen, "i915").boot_vga = True
    port = host.add(parts.ALDER_LAKE_X4, "0000:00:06.0", root, "pcieport")
    host.add(parts.SSD_980_PRO, "0000:02:00.0", port, "nvme")
    usb = host.add(parts.ALDER_LAKE_USB, "0000:00:14.0", root, "xhci_hcd")
    host.share_group(usb, host.add(parts.ALDER_LAKE_SRAM, "0000:00:14.2", root))
    host.add(parts.ALDER_LAKE_WIFI, "0000:00:14.3", root, "iwlwifi")
    host.share_group(
        host.add(parts.ALDER_LAKE_ESPI, "0000:00:1f.0", root),
        host.add(parts.ALDER_LAKE_AUDIO, "0000:00:1f.3", root, "sof-audio-pci-intel-tgl"),
        host.add(parts.ALDER_LAKE_SMBUS, "0000:00:1f.4", root, "i801_smbus"),
        host.add(parts.ALDER_LAKE_SPI, "0000:00:1f.5", root, "intel-spi"),
    )
    _render_nodes(host, 2)
    return host


def mi300x() -> HostBuilder:
    host = HostBuilder(
        "a server with eight MI300X, the last on gim with two live VFs; vfio-pci is loaded",
        release="6.8.0-58-generic",
        cmdline="BOOT_IMAGE=/vmlinuz-6.8.0-58-generic root=/dev/mapper/vg-root ro amd_iommu=on iommu=pt",
        boot=4,
    )
    host.processors(
        _cpuinfo("AuthenticAMD", "AMD EPYC 9554 64-Core Processor", "svm"),
        [("0-63,128-191", 1152), ("64-127,192-255", 1152)],
        far=32,
    )
    _acpi(host, "IVRS")
    host.modules(("amdgpu", "gim", *VFIO, "nvme", "pcieportdrv"), ())
    for parameter in ("disable_idle_d3", "disable_vga", "enable_sriov", "nointxmask"):
        host.file(f"/sys/module/vfio_pci/parameters/{parameter}", "N")
    host.node("/dev/vfio/vfio", 10, 196)
    host.group_type = "identity"
    for number, address in enumerate((0x05, 0x26, 0x46, 0x65, 0x85, 0xA6, 0xC6, 0xE5)):
        bus = number * 0x20
        root = host.root(f"0000:{bus:02x}", node=number // 4, iommu=_ivhd(host, number, f"0000:{bus:02x}"))
        host.add(parts.GENOA_IOMMU, f"0000:{bus:02x}:00.2", root)
        port = host.add(parts.GENOA_BRIDGE, f"0000:{bus:02x}:01.1", root, "pcieport")
        upstream = host.add(parts.PEX_UPSTREAM, f"0000:{bus + 1:02x}:00.0", port, "pcieport")
        downstream = host.add(parts.PEX_DOWNSTREAM, f"0000:{bus + 2:02x}:00.0", upstream, "pcieport")
        gpu = host.add(parts.MI300X, f"0000:{address:02x}:00.0", downstream, "amdgpu")
        if number % 4 == 3:
            port = host.add(parts.GENOA_BRIDGE, f"0000:{bus:02x}:03.1", root, "pcieport")
            host.add(parts.PM173X, f"0000:{bus + 0x10:02x}:00.0", port, "nvme")
    gpu.driver = "gim"
    for number in range(2):
        host.add_vf(parts.MI300X_VF, f"0000:e5:02.{number}", gpu)
    _render_nodes(host, 7)
    return host


def iommu_off() -> HostBuilder:
    host = HostBuilder(
        "a workstation whose firmware has an IOMMU that the kernel was told to leave off",
        release="6.1.0-28-amd64",
        cmdline="BOOT_IMAGE=/boot/vmlinuz-6.1.0-28-amd64 root=/dev/sda1 ro intel_iommu=off quiet",
        boot=5,
    )
    _coffee_lake(host)
    _acpi(host, "DMAR")
    host.modules((*NVIDIA, "snd_hda_intel", "ahci", "pcieportdrv"), (*VFIO, "nouveau"))
    gpu = _geforce(host, parts.GTX_1060, parts.GTX_1060_AUDIO)
    host.nvml(gpu, "NVIDIA GeForce GTX 1060 6GB", 6144)
    host.add(parts.SATA, "0000:00:17.0", gpu.root, "ahci")
    _without_iommu(host)
    return host


def iommu_firmware() -> HostBuilder:
    host = HostBuilder(
        "a desktop that could do VT-d, switched off in the firmware: no DMAR table",
        release="6.1.0-28-amd64",
        cmdline="BOOT_IMAGE=/boot/vmlinuz-6.1.0-28-amd64 root=/dev/sda1 ro intel_iommu=on quiet",
        boot=6,
    )
    _coffee_lake(host)
    _acpi(host)
    host.modules(("nouveau", "snd_hda_intel", "pcieportdrv"), VFIO)
    _geforce(host, parts.GTX_1080, parts.GTX_1080_AUDIO).driver = "nouveau"
    _without_iommu(host)
    return host


def _coffee_lake(host: HostBuilder) -> None:
    host.processors(_cpuinfo("GenuineIntel", "Intel(R) Core(TM) i7-8700K CPU @ 3.70GHz", "vmx"), [("0-11", 32)])


def _geforce(host: HostBuilder, video: parts.Model, audio: parts.Model) -> Function:
    """A card in the only slot of a desktop without IOMMU."""
    port = host.add(parts.SKYLAKE_X16, "0000:00:01.0", host.root("0000:00"), "pcieport")
    gpu = host.add(video, "0000:01:00.0", port, "nvidia")
    gpu.boot_vga = True
    host.add(audio, "0000:01:00.1", port, "snd_hda_intel")
    return gpu


def _without_iommu(host: HostBuilder) -> None:
    host.directory("/sys/class/iommu")
    host.directory("/sys/kernel/iommu_groups")


def shared_group() -> HostBuilder:
    host = HostBuilder(
        "a desktop without ACS on its slots: GTX 1080, NVMe disk and both ports in one group",
        release="6.8.0-45-generic",
        cmdline="BOOT_IMAGE=/vmlinuz-6.8.0-45-generic root=/dev/nvme0n1p2 ro intel_iommu=on",
        boot=7,
    )
    _coffee_lake(host)
    _acpi(host, "DMAR")
    host.modules(("i915", *NVIDIA, "snd_hda_intel", "nvme", "ahci", "pcieportdrv"), (*VFIO, "nouveau"))
    screen = host.root("0000:00", iommu=_dmar(host, 0))
    root = host.root("0000:00", iommu=_dmar(host, 1))
    host.add(parts.HOST_BRIDGE, "0000:00:00.0", root)
    port = host.add(parts.SKYLAKE_X16, "0000:00:01.0", root, "pcieport")
    gpu = host.add(parts.GTX_1080, "0000:01:00.0", port, "nvidia")
    audio = host.add(parts.GTX_1080_AUDIO, "0000:01:00.1", port, "snd_hda_intel")
    second = host.add(parts.SKYLAKE_X8, "0000:00:01.1", root, "pcieport")
    disk = host.add(parts.SSD_980_PRO, "0000:02:00.0", second, "nvme")
    host.share_group(port, second, gpu, audio, disk)
    host.nvml(gpu, "NVIDIA GeForce GTX 1080", 8192)
    host.add(parts.UHD_630, "0000:00:02.0", screen, "i915").boot_vga = True
    host.add(parts.SATA, "0000:00:17.0", root, "ahci")
    _render_nodes(host, 2)
    return host


def vmd_domain() -> HostBuilder:
    host = HostBuilder(
        "a GPU and a disk in the 32-bit PCI domain behind an Intel VMD, and in its group (pci_real_dma_dev)",
        release="6.11.4-301.fc41.x86_64",
        cmdline="BOOT_IMAGE=(hd0,gpt2)/vmlinuz-6.11.4-301.fc41.x86_64 root=UUID=0 ro intel_iommu=on",
        boot=8,
    )
    host.processors(_cpuinfo("GenuineIntel", "12th Gen Intel(R) Core(TM) i7-12700H", "vmx"), [("0-19", 64)])
    _acpi(host, "DMAR")
    host.modules(("i915", *NVIDIA, "snd_hda_intel", "nvme", "vmd", "pcieportdrv"), (*VFIO, "nouveau"))
    screen = host.root("0000:00", iommu=_dmar(host, 0))
    unit = _dmar(host, 1)
    host.add(parts.IRIS_XE, "0000:00:02.0", screen, "i915").boot_vga = True
    vmd = host.add(parts.VMD, "0000:00:0e.0", host.root("0000:00", iommu=unit), "vmd")
    hidden = host.root("10000:00", iommu=unit, below=vmd)
    port = host.add(parts.ALDER_LAKE_X16, "10000:00:01.0", hidden, "pcieport")
    gpu = host.add(parts.RTX_4090, "10000:01:00.0", port, "nvidia")
    audio = host.add(parts.RTX_4090_AUDIO, "10000:01:00.1", port, "snd_hda_intel")
    second = host.add(parts.ALDER_LAKE_X4, "10000:00:06.0", hidden, "pcieport")
    disk = host.add(parts.SSD_980_PRO, "10000:02:00.0", second, "nvme")
    host.share_group(vmd, port, gpu, audio, second, disk)
    host.nvml(gpu, "NVIDIA GeForce RTX 4090", 24564)
    return host


def gh200() -> HostBuilder:
    host = HostBuilder(
        "a Grace Hopper superchip: aarch64, SMMUv3, GPU memory as a NUMA node without CPUs, a VFIO variant driver",
        release="6.8.0-1015-nvidia-64k",
        cmdline="BOOT_IMAGE=/boot/vmlinuz-6.8.0-1015-nvidia-64k root=/dev/nvme0n1p2 ro init_on_alloc=0",
        boot=9,
    )
    cpuinfo = ["processor\t: 0", "BogoMIPS\t: 2000.00", "Features\t: fp asimd evtstrm aes sha1 crc32 atomics sve"]
    host.processors([*cpuinfo, "CPU implementer\t: 0x41", "CPU part\t: 0xd4f"], [("0-71", 480), ("", 96)], far=80)
    _acpi(host, "IORT")
    host.modules((*NVIDIA, "nvme", "pcieportdrv"), (*VFIO, "nvgrace_gpu_vfio_pci", "nouveau"))
    host.group_type = "DMA"
    homes = {"0004": (0, "smmu3.0x000000000a000000"), "0009": (1, "smmu3.0x000000000d000000")}
    roots = (
        host.root(f"{domain}:00", node=0, iommu=host.iommu(name, f"/sys/devices/platform/arm-smmu-v3.{n}.auto", {}))
        for domain, (n, name) in homes.items()
    )
    port = host.add(parts.GRACE_PORT, "0004:00:00.0", next(roots), "pcieport")
    host.add(parts.PM173X, "0004:01:00.0", port, "nvme")
    port = host.add(parts.GRACE_PORT, "0009:00:00.0", next(roots), "pcieport")
    gpu = host.add(parts.GH200, "0009:01:00.0", port, "nvidia")
    host.nvml(gpu, "NVIDIA GH200 480GB", 97871, persistence_mode="1", mig_mode="0")
    host.node("/dev/nvidia0", 195, 0)
    host.node("/dev/nvidiactl", 195, 255)
    return host


def _render_nodes(host: HostBuilder, cards: int) -> None:
    for number in range(cards):
        host.node(f"/dev/dri/card{number}", 226, number)
        host.node(f"/dev/dri/renderD{128 + number}", 226, 128 + number)


HOSTS: dict[str, Callable[[], HostBuilder]] = {
    "hgx8": hgx8,
    "workstation": workstation,
    "laptop": laptop,
    "mi300x": mi300x,
    "iommu-off": iommu_off,
    "iommu-firmware": iommu_firmware,
    "shared-group": shared_group,
    "vmd-domain": vmd_domain,
    "gh200": gh200,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a file differs")
    check = parser.parse_args().check
    texts = {HERE / f"{name}.host": build().text() for name, build in HOSTS.items()}
    differing = [path for path, text in texts.items() if not path.exists() or path.read_text("utf-8") != text]
    for path in differing:
        if not check:
            path.write_text(texts[path], "utf-8")
        sys.stdout.write(f"{'differs' if check else 'wrote'}: {path.name}\n")
    return 1 if check and differing else 0


if __name__ == "__main__":
    sys.exit(main())
