"""Profile values of the PF or a VF of an xe card (Documentation/ABI/testing/sysfs-driver-intel-xe-sriov)."""

from __future__ import annotations

import re
from typing import ClassVar

from vfioctl.core.change import Change, Phase
from vfioctl.core.resource import Found
from vfioctl.kernel.protocol import Reader
from vfioctl.vgpu.model.kinds import PROFILE
from vfioctl.vgpu.resources.function_file import FunctionFile

_CHOSEN = re.compile(r"\[(\w+)\]")


class ProfileValue(FunctionFile):
    """One value of one profile, such as `sriov_admin/vf1/profile/exec_quantum_ms`."""

    kind: ClassVar[str] = PROFILE
    path: ClassVar[str] = r"/sys/bus/pci/devices/{}/sriov_admin/(pf|vf[1-9][0-9]{0,3})/profile/[a-z_]+"
    phase: ClassVar[Phase] = Phase.SET

    def read(self, reader: Reader, change: Change) -> str | None:
        text = super().read(reader, change)
        return None if text is None else chosen_in(text)

    def restore(self, change: Change, found: Found) -> Change | None:
        """Restores also a value other than the one written: the driver may have adjusted it."""
        now = found.of(change)
        if now is not None and change.key in found.written:
            return change.to(change.before, found=now)
        return super().restore(change, found)


def chosen_in(text: str) -> str:
    """The value in a file's text; if it lists several words, the one in brackets: `low [normal] high`."""
    chosen = _CHOSEN.search(text)
    return chosen[1] if chosen else text.strip()
