"""Adds vGPUs to a synthetic host: types, vGPUs and profiles, as each kernel interface shows them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tests.hosts.builder import VFIO_CDEV_MAJOR, VFIO_MAJOR, Function, HostBuilder

MDEV = "/sys/bus/mdev"


class MdevType(NamedTuple):
    """A type as NVIDIA's driver describes it; sizes in GiB."""

    number: int
    name: str
    heads: int
    rate: int
    resolution: str
    size: int
    most: int

    @property
    def id(self) -> str:
        return f"nvidia-{self.number}"

    @property
    def description(self) -> str:
        return (
            f"num_heads={self.heads}, frl_config={self.rate}, framebuffer={self.size * 1024}M, "
            f"max_resolution={self.resolution}, max_instance={self.most}"
        )


def _types(card: str, memory: int, numbered: Mapping[int, str]) -> tuple[MdevType, ...]:
    """By number and profile; what a series is good for is the same on all cards."""
    made = []
    for number, profile in numbered.items():
        size, series = int(re.sub(r"[A-Z].*", "", profile)), profile.strip("0123456789")
        heads, rate, resolution = {
            "A": (1, 60, "1280x1024"),
            "B": (4, 45, "5120x2880"),
            "C": (1, 60, "4096x2160"),
            "Q": (4, 60, "7680x4320" if size > 1 else "5120x2880"),
        }[series]
        made.append(MdevType(number, f"{card}-{profile}", heads, rate, resolution, size, memory // size))
    return tuple(made)


A2_TYPES = _types(
    "NVIDIA A2",
    16,
    dict(enumerate(("1B", "2B", "1Q", "2Q", "4Q", "8Q", "16Q", "1A", "2A", "4A", "8A", "16A", "4C", "8C", "16C"), 742)),
)
T4_TYPES = _types(
    "GRID T4",
    16,
    dict(enumerate(("1B", "2B", "2B4", "1A", "2A", "4A", "8A", "16A", "1Q", "2Q", "4Q", "8Q", "16Q"), 222))
    | {252: "1B4", 319: "4C", 320: "8C", 321: "16C"},
)
L40S_TYPES = _types(
    "NVIDIA L40S",
    48,
    {1145: "1B", 1146: "2B", 2164: "3B"}
    | dict(enumerate((f"{size}Q" for size in (1, 2, 3, 4, 6, 8, 12, 16, 24, 48)), 1147))
    | dict(enumerate((f"{size}A" for size in (1, 2, 3, 4, 6, 8, 12, 16, 24, 48)), 1157)),
)


def told_by_nvml(types: Iterable[MdevType]) -> str:
    """As `Kernel.nvml` gives it."""
    return ";".join(
        f"{kind.number}|{kind.name}|{kind.size << 30}|{kind.heads}|{kind.resolution}|{kind.most}"
        for kind in sorted(types, key=lambda kind: kind.number)
    )


def mdev_parent(host: HostBuilder, parent: Function, types: Sequence[MdevType], available: Mapping[str, int]) -> None:
    """What a parent offers; a type that `available` does not name is not to be had."""
    host.link(f"/sys/class/mdev_bus/{parent.address}", parent.path)
    for kind in types:
        home = f"{parent.path}/mdev_supported_types/{kind.id}"
        host.file(f"{home}/available_instances", str(available.get(kind.id, 0)))
        host.file(f"{home}/description", kind.description)
        host.file(f"{home}/device_api", "vfio-pci")
        host.file(f"{home}/name", kind.name)


def mdev(host: HostBuilder, parent: Function, uuid: str, kind: MdevType, group: int) -> None:
    """An instance, with a group of its own."""
    home, types = f"{parent.path}/{uuid}", f"{parent.path}/mdev_supported_types/{kind.id}"
    host.link(f"{MDEV}/devices/{uuid}", home)
    host.link(f"{types}/devices/{uuid}", home)
    host.link(f"{home}/mdev_type", types)
    host.link(f"{home}/subsystem", MDEV)
    host.link(f"{home}/driver", f"{MDEV}/drivers/nvidia")
    host.link(f"{MDEV}/drivers/nvidia/{uuid}", home)
    host.file(f"{home}/nvidia/vgpu_params", "")
    host.file(f"{home}/nvidia/vm_name", "")
    host.link(f"{home}/iommu_group", f"/sys/kernel/iommu_groups/{group}")
    host.link(f"/sys/kernel/iommu_groups/{group}/devices/{uuid}", home)
    host.file(f"/sys/kernel/iommu_groups/{group}/name", "vfio-noiommu")
    host.file(f"/sys/kernel/iommu_groups/{group}/type", "unknown")
    host.unreadable(f"{home}/remove")
    host.node(f"/dev/vfio/{group}", VFIO_MAJOR, group)


def definition(host: HostBuilder, parent: str, uuid: str, kind: MdevType, *, start: str) -> None:
    """As mdevctl keeps one."""
    host.lines(
        f"/etc/mdevctl.d/{parent}/{uuid}",
        ["{", f'  "mdev_type": "{kind.id}",', f'  "start": "{start}",', '  "attrs": []', "}"],
    )


def vendor_vf(host: HostBuilder, vf: Function, number: int, creatable: Iterable[MdevType], current: int = 0) -> None:
    """A VF in NVIDIA's vendor-specific way. No guest runs: some of its files then answer ENXIO."""
    vf.driver, home = "nvidia", f"{vf.path}/nvidia"
    listed = [f"{kind.number:<6}: {kind.name}" for kind in creatable]
    host.content(f"{home}/creatable_vgpu_types", ["ID    : vGPU Name", *listed])
    host.file(f"{home}/current_vgpu_type", str(current))
    host.file(f"{home}/vgpu_params", "")
    host.refused(f"{home}/gpu_instance_id", "ENXIO")
    host.refused(f"{home}/placement_id", "ENXIO")
    host.device(
        f"{vf.path}/vfio-dev/vfio{number}",
        "vfio-dev",
        f"{VFIO_CDEV_MAJOR}:{number}",
        f"/dev/vfio/devices/vfio{number}",
    )


def xe_profiles(host: HostBuilder, physical: Function, quanta: Sequence[tuple[int, int]]) -> None:
    """`sriov_admin` of an xe card: quantum (ms) and timeout (us) of the PF, then of each VF that there can be."""
    home = f"{physical.path}/sriov_admin"
    for number, (quantum, timeout) in enumerate(quanta):
        scope = f"{home}/vf{number}" if number else f"{home}/pf"
        host.file(f"{scope}/profile/exec_quantum_ms", str(quantum))
        host.file(f"{scope}/profile/preempt_timeout_us", str(timeout))
        host.file(f"{scope}/profile/sched_priority", "low [normal] high" if number == 0 else "low [normal]")
        if 0 < number <= len(physical.vfs):
            host.link(f"{scope}/device", physical.vfs[number - 1].path)
