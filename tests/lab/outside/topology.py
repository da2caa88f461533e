"""The machine the lab pretends to be, as QEMU and kernel arguments; values only, nothing is run here.

A display and its audio function in one IOMMU group, a display and an SR-IOV nvme each alone behind a root port of
NUMA node 1, and an Intel IOMMU over all.
"""

MEMORY = ("--memory", "4G", "--cpus", "4", "--numa", "2G,cpus=0-1", "--numa", "2G,cpus=2-3")

DEVICES = (
    "intel-iommu,intremap=on,caching-mode=on",
    "pcie-root-port,id=rp1,chassis=1,slot=1,bus=pcie.0",
    "bochs-display,bus=rp1,addr=0.0,multifunction=on",
    "intel-hda,bus=rp1,addr=0.1",
    "pxb-pcie,id=pxb1,bus_nr=64,numa_node=1,bus=pcie.0",
    "pcie-root-port,id=rp2,bus=pxb1,chassis=2,slot=2",
    "secondary-vga,bus=rp2",
    "pcie-root-port,id=rp3,bus=pxb1,chassis=3,slot=3",
    "nvme-subsys,id=ss0",
    "nvme,serial=abc,subsys=ss0,sriov_max_vfs=4,sriov_vq_flexible=8,sriov_vi_flexible=4,bus=rp3",
)

# loaded by udev at boot these cost seconds each under emulation; `modprobe` still loads them when asked
NOT_AT_BOOT = ("kvm_amd", "kvm_intel", "psmouse", "pcspkr", "sr_mod", "aesni_intel", "ghash_clmulni_intel")

KERNEL_ARGUMENTS = ("intel_iommu=on", "loglevel=5", "modprobe.blacklist=" + ",".join(NOT_AT_BOOT))


def qemu_arguments(disks: dict[str, str]) -> list[str]:
    """QEMU's own arguments; `disks` maps a name, seen as /dev/disk/by-id/virtio-NAME, to a read-only image."""
    arguments = ["-machine", "kernel-irqchip=split"]
    for device in DEVICES:
        arguments += ["-device", device]
    for name, image in disks.items():
        # QEMU reads a doubled comma as a comma
        file = image.replace(",", ",,")
        arguments += ["-drive", f"if=none,id={name},format=raw,readonly=on,file={file}"]
        arguments += ["-device", f"virtio-blk-pci,bus=pcie.0,drive={name},serial={name}"]
    return arguments
