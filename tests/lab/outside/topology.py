"""The machine the lab pretends to be, as QEMU and kernel arguments; values only, nothing is run here.

A display and its audio function in one IOMMU group; a display with a disk and a NIC, as busy as a host's own, in
another; a display and an SR-IOV nvme each alone behind a root port of NUMA node 1; and an Intel IOMMU over all.
"""

import os
from pathlib import Path

MEMORY = ("--memory", "4G", "--cpus", "4", "--numa", "2G,cpus=0-1", "--numa", "2G,cpus=2-3")

INTEL = ("intel-iommu,intremap=on,caching-mode=on",)

DEVICES = (
    "pcie-root-port,id=rp1,chassis=1,slot=1,bus=pcie.0",
    "bochs-display,bus=rp1,addr=0.0,multifunction=on",
    "intel-hda,bus=rp1,addr=0.1",
    "pxb-pcie,id=pxb1,bus_nr=64,numa_node=1,bus=pcie.0",
    "pcie-root-port,id=rp2,bus=pxb1,chassis=2,slot=2",
    "secondary-vga,bus=rp2",
    "pcie-root-port,id=rp3,bus=pxb1,chassis=3,slot=3",
    "nvme-subsys,id=ss0",
    "nvme,serial=abc,subsys=ss0,sriov_max_vfs=4,sriov_vq_flexible=8,sriov_vi_flexible=4,bus=rp3",
    # last, so that the others keep their places
    "pcie-root-port,id=rp4,chassis=4,slot=4,bus=pcie.0",
    "bochs-display,bus=rp4,addr=0.0,multifunction=on",
    "nvme,serial=busy,drive=busy,bus=rp4,addr=0.1",
    # no boot ROM: its file comes with another package
    "e1000e,netdev=nowhere,romfile=,bus=rp4,addr=0.2",
)

# all behind one bridge to conventional PCI, so in one IOMMU group with it
CONVENTIONAL = (
    "pcie-root-port,id=rp5,chassis=5,slot=5,bus=pcie.0",
    "pcie-pci-bridge,id=pci1,bus=rp5",
    "bochs-display,bus=pci1,addr=1.0",
    "secondary-vga,bus=pci1,addr=2.0",
    "intel-hda,bus=pci1,addr=3.0",
)

TOPOLOGIES = {
    "lab": (*INTEL, *DEVICES),
    "amd": ("amd-iommu", *DEVICES),
    "virtio-iommu": ("virtio-iommu-pci,bus=pcie.0", *DEVICES),
    "no-iommu": DEVICES,
    "conventional": (*INTEL, *DEVICES, *CONVENTIONAL),
}
"""By name. The tests run on `lab`; of the others `capture.py` makes recordings."""

# loaded by udev at boot these cost seconds each under emulation; `modprobe` still loads them when asked
NOT_AT_BOOT = ("kvm_amd", "kvm_intel", "psmouse", "pcspkr", "sr_mod", "aesni_intel", "ghash_clmulni_intel")

KERNEL_ARGUMENTS = (
    "intel_iommu=on",
    # it is one clock for all processors here, and needs no exit to be read
    "tsc=reliable",
    "clocksource=tsc",
    # the kernel tests its timer for some milliseconds; an emulator on a busy host may deliver interrupts later, and the
    # kernel panics
    "no_timer_check",
    # the first cgroup would patch an instruction of kmem_cache_alloc while all processors run it, which QEMU 7.2 may
    # not survive: they trap at it for ever
    "cgroup.memory=nokmem",
    # under emulation these cost a fifth of the time of commands: copying pages into huge ones, filling pages with zeros
    # that are written to anyway, and two checks on the way into and through the kernel
    "transparent_hugepage=never",
    "init_on_alloc=0",
    "hardened_usercopy=off",
    "randomize_kstack_offset=off",
    # an emulated processor speculates nothing; no security module has a profile here, and doctor asks for one of them
    "mitigations=off",
    "lsm=lockdown",
    "loglevel=5",
    "modprobe.blacklist=" + ",".join(NOT_AT_BOOT),
)

# all that the emulator has, but for what costs it most: copies byte by byte, and checks that nothing here asks for
CPU = "max,-erms,-la57,-smap,-smep,-umip,-pku"


def qemu_arguments(machine: str, disks: dict[str, Path], busy: Path) -> list[str]:
    """QEMU's own arguments for one of TOPOLOGIES.

    `disks` maps a name, seen as /dev/disk/by-id/virtio-NAME, to a read-only image. `busy` is the image
    that the busy card's disk writes to.
    """
    arguments = ["-machine", "q35,kernel-irqchip=split", "-cpu", CPU]
    # virtme-ng's six serial devices have 384 queues; with an eventfd for each, the main loop polls all of them at each
    # timer of the machine
    arguments += ["-global", "virtio-pci.ioeventfd=off"]
    # a hub with nothing else on it: the link is up and no packet leaves
    arguments += ["-netdev", "hubport,id=nowhere,hubid=0"]
    arguments += ["-drive", f"if=none,id=busy,format=raw,cache=unsafe,{_file(busy)}"]
    for device in TOPOLOGIES[machine]:
        arguments += ["-device", device]
    for name, image in disks.items():
        arguments += ["-drive", f"if=none,id={name},format=raw,readonly=on,{_file(image)}"]
        arguments += ["-device", f"virtio-blk-pci,bus=pcie.0,drive={name},serial={name}"]
    return arguments


def emulator_arguments() -> list[str]:
    """QEMU's arguments where it emulates the processors: keep more translated code than its 1 GiB.

    When that is full, QEMU forgets all of it and translates again. Containers and guests of the guest fill 12 MiB a
    second, so that happened every two minutes. 2047 MiB is the most that QEMU takes.
    """
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20
    return ["-accel", f"tcg,tb-size={min(memory // 4, 2047)}"]


def _file(image: Path) -> str:
    # QEMU reads a doubled comma as a comma
    return f"file={str(image).replace(',', ',,')}"
