"""Reads what a host has to enforce shares of GPUs. May not write. Looks for the thing itself, and for a version only
where nothing but a call of a library would show it."""

from __future__ import annotations

import re

from vfioctl.errors import KernelRefused
from vfioctl.kernel.host_paths import MPS_CONTROL
from vfioctl.kernel.protocol import FileReader
from vfioctl.sharing.model.enforcement import HostFacts

_CGROUPS = "/sys/fs/cgroup"


def read_facts(kernel: FileReader) -> HostFacts:
    """Return what the host has. Source of the files: Documentation/admin-guide/cgroup-v2.rst."""
    program = MPS_CONTROL if kernel.has(MPS_CONTROL) else ""
    unified = kernel.has(f"{_CGROUPS}/cgroup.controllers")
    return HostFacts(mps=program, dmem=_regions(kernel), nvidia=_nvidia(kernel), unified=unified)


def _nvidia(kernel: FileReader) -> int | None:
    """NVML has its call for limits in a library of the driver's version, which need not be loaded to know it."""
    try:
        first = kernel.read("/sys/module/nvidia/version").partition(".")[0]
    except KernelRefused:
        return None
    return int(first) if re.fullmatch("[0-9]{1,5}", first, re.ASCII) else None


def _regions(kernel: FileReader) -> frozenset[str] | None:
    """The first word of each line of dmem.capacity, such as `drm/0000:03:00.0/vram0`."""
    try:
        text = kernel.read(f"{_CGROUPS}/dmem.capacity")
    except KernelRefused:
        return None
    return frozenset(words[0] for words in map(str.split, text.splitlines()) if words)
