"""Reads Intel's xe: SR-IOV VFs with profiles in `sriov_admin`, for the PF and each VF.

Source: Documentation/ABI/testing/sysfs-driver-intel-xe-sriov. EUCLEAN: the tiles of a card have different values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from vfioctl.errors import KernelRefused
from vfioctl.kernel.lenient import names_in
from vfioctl.kernel.protocol import PCI_DEVICES
from vfioctl.vgpu.dialects.dialect import Facts
from vfioctl.vgpu.dialects.sriov import SriovReader

PROFILE_FILES = frozenset({"exec_quantum_ms", "preempt_timeout_us", "sched_priority", "vram_quota"})
_SCOPE = re.compile(r"pf|vf([1-9][0-9]{0,3})", re.ASCII)


class XeReader(SriovReader):
    """See `Dialect`."""

    dialect = "xe"

    def parents(self) -> Iterable[str]:
        return (address for address in self._gpus() if self._kernel.has(f"{PCI_DEVICES}/{address}/sriov_admin"))

    def read(self, parent: str) -> Facts:
        facts, admin = super().read(parent), f"{PCI_DEVICES}/{parent}/sriov_admin"
        scopes = [name for name in names_in(self._kernel, admin) if _SCOPE.fullmatch(name)]
        values, facts["unknown"] = {}, {}
        for scope in sorted(scopes, key=lambda name: (len(name), name)):
            try:
                profile = self._kernel.directory(f"{admin}/{scope}/profile", PROFILE_FILES, ("none",))
            except KernelRefused as error:
                facts["unknown"][scope] = error.symbol
                continue
            values[scope] = dict(profile.texts)
            facts["unknown"] |= {f"{scope}/{name}": why for name, why in profile.refused.items()}
        facts["profiles"] = values
        for number, vf in enumerate(facts["instances"], start=1):
            vf["attributes"] = values.get(f"vf{number}", {})
        return facts
