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
from tests.hosts import occupants, vgpu_cards  # noqa: E402
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
    """The firmware's tables, as an ordinary user finds them, and a kernel that is not locked down."""
    host.file("/sys/kernel/security/lockdown", "[none] integrity confidentiality")
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
        huge={1 << 20: (512, 480), 2 << 10: (0, 0)},
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
    host.unit("nvidia-fabricmanager.service", "active")

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
    host.file("/sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory hugetlb pids rdma misc")
    host.file("/usr/bin/nvidia-cuda-mps-control", "")
    return host


def toolkit_file(gpus: int) -> list[str]:
    """What `nvidia-ctk cdi generate` writes, with the UUIDs of `HostBuilder.nvml`; the first edits only."""
    lines = ["---", "cdiVersion: 0.5.0", "kind: nvidia.com/gpu", "devices:"]
    for number in range(gpus):
        for name in (f'"{number}"', f"GPU-00000000-0000-0000-0000-{number:012}"):
            edits = ["  - containerEdits:", "      deviceNodes:", f"        - path: /dev/nvidia{number}"]
            lines += [*edits, f"    name: {name}"]
    return lines


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
    host.processors(_cpuinfo("AuthenticAMD", "AMD Ryzen 9 5950X 16-Core Processor", "svm"), [("0-31", 64)], sharing=8)
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
    host.processors(_cpuinfo("GenuineIntel", "12th Gen Intel(R) Core(TM) i7-12700H", "vmx"), [("0-19", 32)], paired=12)
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
        sharing=8,
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
    host.processors(_cpuinfo("GenuineIntel", "12th Gen Intel(R) Core(TM) i7-12700H", "vmx"), [("0-19", 64)], paired=12)
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
    host.processors(
        [*cpuinfo, "CPU implementer\t: 0x41", "CPU part\t: 0xd4f"], [("0-71", 480), ("", 96)], far=80, threads=1
    )
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
    host.content("/etc/cdi/nvidia.yaml", toolkit_file(1))
    host.node("/dev/nvidia0", 195, 0)
    host.node("/dev/nvidiactl", 195, 255)
    return host


def busy() -> HostBuilder:
    host = HostBuilder(
        "a workstation in use: a container, a pod, a virtual machine and a desktop on its GPUs, a mounted disk and the "
        "network in the group of another, one GPU that nobody holds",
        release="6.12.48+deb13-amd64",
        cmdline="BOOT_IMAGE=/boot/vmlinuz-6.12.48+deb13-amd64 root=/dev/mapper/vg-root ro amd_iommu=on iommu=pt",
        boot=10,
    )
    host.processors(
        _cpuinfo("AuthenticAMD", "AMD Ryzen Threadripper PRO 5975WX 32-Cores", "svm"), [("0-63", 256)], sharing=8
    )
    _acpi(host, "IVRS")
    loaded = (*NVIDIA, *VFIO, "amdgpu", "snd_hda_intel", "nvme", "igc", "pcieportdrv")
    host.modules(loaded, ("nouveau",))
    root = host.root("0000:00", iommu=_ivhd(host, 0, "0000:00"))
    host.add(parts.MATISSE_IOMMU, "0000:00:00.2", root)
    (training, _), (handed, handed_sound), (shared, _), (free, _) = (_ada(host, root, n) for n in range(4))
    port = host.add(parts.GPP_BRIDGE, "0000:00:05.1", root, "pcieport")
    data = host.add(parts.SSD_980_PRO, "0000:05:00.0", port, "nvme")
    port_2 = host.add(parts.GPP_BRIDGE, "0000:00:05.2", root, "pcieport")
    network = host.add(parts.I225_V, "0000:06:00.0", port_2, "igc")
    host.share_group(shared, port, data, port_2, network)  # these slots are without ACS
    upstream = host.add(parts.RX_6600_XT_UPSTREAM, "0000:07:00.0", root, "pcieport")
    downstream = host.add(parts.RX_6600_XT_DOWNSTREAM, "0000:08:00.0", upstream, "pcieport")
    screen = host.add(parts.RX_6600_XT, "0000:09:00.0", downstream, "amdgpu")
    screen.boot_vga = True
    speaker = host.add(parts.RX_6600_XT_AUDIO, "0000:09:00.1", downstream, "snd_hda_intel")
    port = host.add(parts.GPP_BRIDGE, "0000:00:05.3", root, "pcieport")
    system = host.add(parts.SSD_980_PRO, "0000:0a:00.0", port, "nvme")

    occupants.display(host, screen, 0, framebuffer=True)
    occupants.sound(host, speaker, 0)
    for number, gpu in enumerate((training, shared, free)):
        occupants.nvidia(host, gpu, number)
        occupants.display(host, gpu, number + 1)
        host.nvml(gpu, "NVIDIA GeForce RTX 4090", 24564, persistence_mode="1" if gpu is training else "0")
    host.node("/dev/nvidiactl", 195, 255)
    host.node("/dev/nvidia-uvm", 509, 0)
    host.node("/dev/vfio/vfio", 10, 196)
    host.take_over(handed)
    host.take_over(handed_sound)
    occupants.consoles(host)
    _busy_storage(host, system, data)
    _busy_network(host, network)
    _busy_services(host)
    _busy_guests(host, handed, handed_sound)
    return host


def _busy_storage(host: HostBuilder, system: Function, data: Function) -> None:
    volumes = occupants.disk(host, system, number=0, minor=0, partitions=2)[1]
    occupants.disk(host, data, number=1, minor=3, partitions=2)
    occupants.volume(host, 0, "vg-root", volumes)
    occupants.volume(host, 1, "vg-swap", volumes)
    mounts = (
        "254:0 / / rw,relatime shared:1 - ext4 /dev/mapper/vg-root rw",
        "259:1 / /boot/efi rw,relatime shared:31 - vfat /dev/nvme0n1p1 rw",
        "259:4 / /data rw,relatime shared:33 - ext4 /dev/nvme1n1p1 rw",
        "0:24 / /run rw,nosuid,nodev shared:5 - tmpfs tmpfs rw",
    )
    host.lines("/proc/1/mountinfo", [f"{26 + number} 1 {mount}" for number, mount in enumerate(mounts)])
    host.lines(
        "/proc/swaps",
        [
            "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority",
            "/dev/dm-1                               partition\t8388604\t\t0\t\t-2",
        ],
    )
    host.claimed("259:5", "zfs")


def _busy_network(host: HostBuilder, card: Function) -> None:
    """The card is a part of a bridge, through which the default route and the reader's SSH session go."""
    port = occupants.interface(host, f"{card.path}/net/enp6s0")
    bridge = occupants.interface(host, "/sys/devices/virtual/net/br0")
    host.link(f"{port}/upper_br0", bridge)
    host.lines(
        "/proc/net/route",
        [
            "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT",
            "br0\t00000000\t010200C0\t0003\t0\t0\t425\t00000000\t0\t0\t0",
            "br0\t000200C0\t00000000\t0001\t0\t0\t425\t00FFFFFF\t0\t0\t0",
        ],
    )
    host.file("/proc/self/stat", "4242 (vfioctl) R 4240 4242 4240 34816 4242")
    host.file("/proc/self/environ", "HOME=/root\0")
    occupants.process(host, 4240, ["-bash"], uid=0, cgroup="/user.slice/user-0.slice/session-9.scope", name="bash")
    host.file("/proc/4240/environ", "SSH_CONNECTION=198.51.100.7 50022 192.0.2.10 22\0")


def _busy_services(host: HostBuilder) -> None:
    for uid, name in occupants.USERS.items():
        host.user(uid, name)
    for name in ("nvidia-persistenced.service", "lightdm.service", "libvirtd.service"):
        host.unit(name, "active")
    services = "/system.slice"
    session = "/user.slice/user-1000.slice/user@1000.service/session.slice/pipewire.service"
    occupants.process(host, 1, ["/sbin/init"], uid=0, cgroup="/init.scope", name="systemd")
    occupants.process(
        host,
        812,
        ["/usr/bin/nvidia-persistenced", "--user", "nvidia-persistenced"],
        uid=110,
        cgroup=f"{services}/nvidia-persistenced.service",
        files=["/dev/nvidiactl", "/dev/nvidia0"],
    )
    occupants.process(
        host,
        1440,
        ["/usr/lib/xorg/Xorg", ":0", "-seat", "seat0"],
        uid=0,
        cgroup=f"{services}/lightdm.service",
        files=["/dev/tty7", "/dev/dri/card0"],
    )
    occupants.process(
        host, 1893, ["/usr/bin/pipewire"], uid=1000, cgroup=session, files=["/dev/snd/controlC0", "/dev/snd/pcmC0D3p"]
    )
    host.file("/proc/2210/comm", "keyring")
    host.unreadable("/proc/2210/fd")


def _busy_guests(host: HostBuilder, gpu: Function, sound: Function) -> None:
    """A container, a pod, a virtual machine."""
    container, pod = occupants.container_id("train"), "kubepods-burstable-pod6c0e4f3a_2f0b_4d5c_9a51_0c1d2e3f4a5b.slice"
    occupants.process(
        host,
        3107,
        ["python3", "train.py", "--epochs", "90"],
        uid=1001,
        cgroup=f"/system.slice/docker-{container}.scope",
        files=["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidia0"],
    )
    occupants.process(
        host,
        3395,
        ["/opt/tritonserver/bin/tritonserver", "--model-repository=/models"],
        uid=1000,
        cgroup=f"/kubepods.slice/kubepods-burstable.slice/{pod}/cri-containerd-{occupants.container_id('serve')}.scope",
        files=["/dev/nvidiactl", "/dev/nvidia0"],
    )
    devices = [
        word
        for number, function in enumerate((gpu, sound))
        for word in ("-device", f'{{"driver":"vfio-pci","host":"{function.address}","id":"hostdev{number}"}}')
    ]
    occupants.process(
        host,
        2684,
        ["/usr/bin/qemu-system-x86_64", "-name", "guest=win11,debug-threads=on", *devices],
        uid=64055,
        cgroup="/machine.slice/machine-qemu\\x2d1\\x2dwin11.scope/libvirt/emulator",
        files=["/dev/kvm", "/dev/vfio/vfio", f"/dev/vfio/{host.group_of(gpu)}", *["anon_inode:[vfio-device]"] * 2],
    )
    host.node("/dev/kvm", 10, 232)


def _ada(host: HostBuilder, root: Root, number: int) -> tuple[Function, Function]:
    """An RTX 4090 with its sound function, in a slot of its own."""
    port = host.add(parts.GPP_BRIDGE, f"0000:00:01.{number + 1}", root, "pcieport")
    gpu = host.add(parts.RTX_4090, f"0000:0{number + 1}:00.0", port, "nvidia")
    sound = host.add(parts.RTX_4090_AUDIO, f"0000:0{number + 1}:00.1", port, "snd_hda_intel")
    host.share_group(gpu, sound)
    return gpu, sound


def a2() -> HostBuilder:
    host = _server(
        "a server with an A2: mdev types on each of its 16 VFs, two vGPUs of one size, one more only defined",
        release="5.14.0-427.el9.x86_64",
        boot=11,
    )
    host.modules((*NVIDIA, "ast", "pcieportdrv"), VFIO)
    port = _bmc(host)
    gpu = host.add(parts.A2, "0000:08:00.0", port, "nvidia")
    places = [f"00.{n}" for n in range(4, 8)] + [f"01.{n}" for n in range(8)] + [f"02.{n}" for n in range(4)]
    vfs = [host.add_vf(parts.A2_VF, f"0000:08:{place}", gpu) for place in places]
    kind = next(each for each in vgpu_cards.A2_TYPES if each.name.endswith("-4C"))
    free = {each.id: 1 for each in vgpu_cards.A2_TYPES if each.size == kind.size}
    for number, vf in enumerate(vfs):
        vf.driver = "nvidia"
        vgpu_cards.mdev_parent(host, vf, vgpu_cards.A2_TYPES, {} if number < 2 else free)
    uuids = [f"{number}d3f2c1a-0b4e-4f6d-8a7c-5e9b1f2a3c4d" for number in (6, 8, 9)]
    for number, uuid in enumerate(uuids[:2]):
        vgpu_cards.mdev(host, vfs[number], uuid, kind, 240 + number)
    host.node("/dev/vfio/vfio", 10, 196)
    vgpu_cards.definition(host, vfs[0].address, uuids[0], kind, start="auto")
    vgpu_cards.definition(host, vfs[2].address, uuids[2], kind, start="manual")
    host.nvml(gpu, "NVIDIA A2", 15356, persistence_mode="1")
    return host


def l40s() -> HostBuilder:
    host = _server(
        "a server with an L40S: NVIDIA's vendor-specific VFIO on each of its 32 VFs, two of them with a vGPU",
        release="6.8.0-58-generic",
        boot=12,
    )
    host.modules((*NVIDIA, "ast", "pcieportdrv"), VFIO)
    port = _bmc(host)
    gpu = host.add(parts.L40S, "0000:41:00.0", port, "nvidia")
    for number, place in enumerate(range(4, 36)):
        vf = host.add_vf(parts.L40S_VF, f"0000:41:{place // 8:02x}.{place % 8}", gpu)
        current = {0: 1153, 1: 1163}.get(number, 0)
        same = [kind for kind in vgpu_cards.L40S_TYPES if kind.size == 12]
        vgpu_cards.vendor_vf(host, vf, number, [] if current else same, current)
    host.vendor_types(gpu, {kind.number: kind.name for kind in vgpu_cards.L40S_TYPES})
    told = vgpu_cards.told_by_nvml(vgpu_cards.L40S_TYPES)
    host.nvml(gpu, "NVIDIA L40S", 46068, persistence_mode="1", vgpu_types=told, vgpu_heterogeneous_mode="0")
    return host


def t4() -> HostBuilder:
    host = _server(
        "a server with a T4, which has no VFs: mdev types on the card itself", release="6.1.0-28-amd64", boot=13
    )
    host.modules((*NVIDIA, "ast", "pcieportdrv"), VFIO)
    gpu = host.add(parts.T4, "0000:3b:00.0", _bmc(host), "nvidia")
    vgpu_cards.mdev_parent(host, gpu, vgpu_cards.T4_TYPES, {kind.id: kind.most for kind in vgpu_cards.T4_TYPES})
    host.directory(f"{vgpu_cards.MDEV}/devices")
    host.nvml(gpu, "Tesla T4", 15360, persistence_mode="1")
    return host


def mi300x_vf() -> HostBuilder:
    host = _server(
        "a server with one MI300X on gim in CPX mode: its eight VFs are fixed, and all on vfio-pci",
        release="6.8.0-58-generic",
        boot=14,
    )
    host.modules(("gim", *VFIO, "ast", "pcieportdrv"), ("amdgpu",))
    host.node("/dev/vfio/vfio", 10, 196)
    gpu = host.add(parts.MI300X, "0000:05:00.0", _bmc(host), "gim")
    for vf in [host.add_vf(parts.MI300X_VF, f"0000:05:02.{number}", gpu) for number in range(8)]:
        host.take_over(vf)
    return host


def xe() -> HostBuilder:
    host = _server(
        "a server with an Arc Pro B50 on xe: profiles for the PF and each VF, two VFs, one of them on vfio-pci",
        release="7.0.4-1-generic",
        boot=15,
    )
    host.modules(("xe", *VFIO, "ast", "pcieportdrv"), ())
    host.node("/dev/vfio/vfio", 10, 196)
    gpu = host.add(parts.ARC_B50, "0000:03:00.0", _bmc(host), "xe")
    vfs = [host.add_vf(parts.ARC_B50_VF, f"0000:03:00.{number}", gpu) for number in (1, 2)]
    host.take_over(vfs[0])
    vgpu_cards.xe_profiles(host, gpu, [(0, 0), (20, 40000), (20, 40000), (0, 0), (0, 0)])
    return host


def _server(depicts: str, *, release: str, boot: int) -> HostBuilder:
    """A small server of one socket."""
    cmdline = f"BOOT_IMAGE=/boot/vmlinuz-{release} root=/dev/sda2 ro intel_iommu=on iommu=pt"
    host = HostBuilder(depicts, release=release, cmdline=cmdline, boot=boot)
    host.processors(_cpuinfo("GenuineIntel", "Intel(R) Xeon(R) Silver 4310", "vmx"), [("0-23", 128)])
    _acpi(host, "DMAR")
    return host


def _bmc(host: HostBuilder) -> Function:
    """The display of its management controller; gives the port that the GPU goes below."""
    root = host.root("0000:00", node=0, iommu=_dmar(host, 0))
    port = host.add(parts.PCH_PORT, "0000:00:1c.0", root, "pcieport")
    bridge = host.add(parts.AST1150, "0000:01:00.0", port)
    screen = host.add(parts.AST2600, "0000:02:00.0", bridge, "ast")
    screen.boot_vga = True
    host.share_group(bridge, screen)
    return host.add(parts.XEON_PORT, "0000:00:02.0", host.root("0000:00", node=0, iommu=_dmar(host, 1)), "pcieport")


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
    "busy": busy,
    "a2": a2,
    "l40s": l40s,
    "t4": t4,
    "mi300x-vf": mi300x_vf,
    "xe": xe,
}


def texts() -> dict[Path, str]:
    """The text of each bundled host, by the file that it belongs in."""
    return {HERE / f"{name}.host": build().text() for name, build in HOSTS.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a file differs")
    check = parser.parse_args().check
    wanted = texts()
    differing = [path for path, text in wanted.items() if not path.exists() or path.read_text("utf-8") != text]
    for path in differing:
        if not check:
            path.write_text(wanted[path], "utf-8")
        sys.stdout.write(f"{'differs' if check else 'wrote'}: {path.name}\n")
    return 1 if check and differing else 0


if __name__ == "__main__":
    sys.exit(main())
