"""Readers that run in a worker for a capture and return plain data. Read only."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from vfioctl.errors import KernelRefused
from vfioctl.kernel.protocol import PCI_DEVICES, FileReader, Prefixes, per_subject

DEVICE_FILES = frozenset(
    {
        "boot_vga",
        "class",
        "current_link_speed",
        "current_link_width",
        "d3cold_allowed",
        "device",
        "driver_override",
        "enable",
        "local_cpulist",
        "local_cpus",
        "max_link_speed",
        "max_link_width",
        "modalias",
        "numa_node",
        "power_state",
        "reset_method",
        "resource",
        "revision",
        "sriov_drivers_autoprobe",
        "sriov_numvfs",
        "sriov_offset",
        "sriov_stride",
        "sriov_totalvfs",
        "sriov_vf_device",
        "subsystem_device",
        "subsystem_vendor",
        "vendor",
    }
)


@per_subject
def read_device(kernel: FileReader, address: str) -> tuple[str, tuple[Any, ...]] | None:
    """A function's link and directory, as plain data; None if it cannot be read.

    The link is empty where the directory itself is in that place, as in a copy that followed the links.
    """
    try:
        directory = kernel.directory(f"{PCI_DEVICES}/{address}", DEVICE_FILES)
        return kernel.link(f"{PCI_DEVICES}/{address}"), tuple(directory)
    except KernelRefused as error:
        return ("", tuple(directory)) if error.symbol == "EINVAL" else None


class PlaceReader:
    """Reads directories one by one. `wanted`: by path, the files and the prefixes of links."""

    def __init__(self, kernel: FileReader, wanted: Mapping[str, tuple[Collection[str], Prefixes]]) -> None:
        self._kernel, self._wanted = kernel, wanted

    def __call__(self, path: str) -> tuple[Any, ...] | int:
        """A `Directory` as plain data, or the errno of the refusal."""
        try:
            return tuple(self._kernel.directory(path, *self._wanted[path]))
        except KernelRefused as error:
            return error.errno
