"""Faults that tests inject into a simulated host. Values only."""

from __future__ import annotations

import errno as errnos
import re
from dataclasses import dataclass

from vfioctl.errors import BadSpec

HANG, HANG_THEN_RETURN, DIE = "hang", "hang-then-return", "die"
_KINDS = (HANG, HANG_THEN_RETURN, DIE)


@dataclass(frozen=True)
class Fault:
    """At the `at`-th write (from 1): it fails with an errno, it never returns, it returns only after
    vfioctl has given it up, or the process dies just after it."""

    at: int
    kind: str
    errno: int = 0


class SimulatedDeath(BaseException):
    """The process died, as after SIGKILL. Only the test that injected the fault may catch it."""


def parse_fault(text: str) -> Fault:
    """`3:EBUSY`, `3:hang`, `3:hang-then-return` or `3:die`. Raises BadSpec."""
    match = re.fullmatch(r"([0-9]{1,6}):(hang|hang-then-return|die|E[A-Z0-9]+)", text, re.ASCII)
    errno = getattr(errnos, match[2], 0) if match and match[2] not in _KINDS else 0
    if match is None or (match[2] not in _KINDS and not errno):
        raise BadSpec(f"not a fault: {text[:40]!r}", hint="write it as 3:EBUSY, 3:hang, 3:hang-then-return or 3:die")
    return Fault(int(match[1]), match[2] if not errno else "errno", errno)
