"""Faults that tests inject into a simulated host. Values only."""

from __future__ import annotations

import errno as errnos
import re
from dataclasses import dataclass

from vfioctl.errors import BadSpec

HANG, DIE = "hang", "die"


@dataclass(frozen=True)
class Fault:
    """At the `at`-th write (from 1): it fails with an errno, it never returns, or the process dies just after it."""

    at: int
    kind: str
    errno: int = 0


class SimulatedDeath(BaseException):
    """The process died, as after SIGKILL. Only the test that injected the fault may catch it."""


def parse_fault(text: str) -> Fault:
    """`3:EBUSY`, `3:hang` or `3:die`. Raises BadSpec."""
    match = re.fullmatch(r"([0-9]{1,6}):(hang|die|E[A-Z0-9]+)", text, re.ASCII)
    errno = getattr(errnos, match[2], 0) if match and match[2] not in (HANG, DIE) else 0
    if match is None or (match[2] not in (HANG, DIE) and not errno):
        raise BadSpec(f"not a fault: {text[:40]!r}", hint="write it as 3:EBUSY, 3:hang or 3:die")
    return Fault(int(match[1]), match[2] if not errno else "errno", errno)
