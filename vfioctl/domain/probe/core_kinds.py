"""Reads of which kind cores are, on hosts that have several: hybrid processors, and Arm's big.LITTLE. May not write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vfioctl.errors import BadSpec
from vfioctl.kernel.lenient import text_of
from vfioctl.units import parse_cpu_list

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from vfioctl.kernel.protocol import FileReader

_INTEL = {"cpu_core": "performance cores", "cpu_atom": "efficient cores", "cpu_lowpower": "low-power cores"}
"""The kernel has one PMU for each kind (Documentation/admin-guide/perf, arch/x86/events/intel/core.c)."""


def read_core_kinds(reader: FileReader, cpus: Iterable[int]) -> Mapping[str, Sequence[int]]:
    """Return these CPUs by the kind of their core; all under one empty name where the kernel reports no kinds."""
    intel = {cpu: kind for pmu, kind in _INTEL.items() for cpu in _cpus(reader, f"/sys/devices/{pmu}/cpus")}
    by_kind: dict[str, list[int]] = {}
    for cpu in sorted(cpus):
        capacity = text_of(reader, f"/sys/devices/system/cpu/cpu{cpu}/cpu_capacity").strip()
        kind = intel.get(cpu) or (f"capacity {capacity}" if capacity.isdecimal() else "")
        by_kind.setdefault(kind, []).append(cpu)
    return by_kind


def _cpus(reader: FileReader, path: str) -> Sequence[int]:
    try:
        return parse_cpu_list(text_of(reader, path).strip())
    except BadSpec:
        return ()
