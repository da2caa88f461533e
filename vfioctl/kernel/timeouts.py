"""How long the caller waits for a write to the kernel. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

STEPS = {"unit": 120.0, "libvirt": 60.0, "libvirt-start": 900.0, "sriov-manage": 120.0}
"""The timeouts in seconds, unless set, of steps that take longer than a write.

`unit`: systemd kills what has not stopped after 90 s (DefaultTimeoutStopSec). `libvirt`: libvirtd may start QEMU once
to see what it offers. `libvirt-start`: QEMU may first take, and clear, a terabyte of memory. `sriov-manage`: it unbinds
and binds the GPU and then each VF, one after the other."""


class Timeouts(NamedTuple):
    """Timeouts in seconds. `steps`: by the name of the file or step: unbind, drivers_probe, unit, libvirt, ..."""

    default: float = 30.0
    load: float = 60.0
    steps: Mapping[str, float] = {}

    def of(self, path: str) -> float:
        """The timeout for a write to `path`, or of a step."""
        name = path.rpartition("/")[2]
        return self.steps.get(name, STEPS.get(name, self.default))
