"""How a write on a simulated host fails: as the kernel's rules refuse it, or by a fault that a test injects."""

from __future__ import annotations

import errno as errnos
import re
from dataclasses import dataclass

from vfioctl.errors import BadSpec

HANG, HANG_THEN_RETURN, DIE, SLOW = "hang", "hang-then-return", "die", "slow"
_KINDS = (HANG, HANG_THEN_RETURN, DIE)
_MOST_SECONDS = 600.0


@dataclass(frozen=True)
class Fault:
    """At the `at`-th write (from 1): it fails with an errno, it never returns, it returns only after
    vfioctl has given it up, the process dies just after it, or it takes some seconds: if that is more than the
    step's timeout, vfioctl gives it up before it returns."""

    at: int
    kind: str
    errno: int = 0
    seconds: float = 0.0


class SimulatedDeath(BaseException):
    """The process died, as after SIGKILL. Only the test that injected the fault may catch it."""


def parse_fault(text: str) -> Fault:
    """`3:EBUSY`, `3:hang`, `3:hang-then-return`, `3:die` or `3:slow=1.5`. Raises BadSpec."""
    slow = re.fullmatch(r"([0-9]{1,6}):slow=([0-9]{1,3}(?:\.[0-9]{1,3})?)", text, re.ASCII)
    if slow and float(slow[2]) <= _MOST_SECONDS:
        return Fault(int(slow[1]), SLOW, seconds=float(slow[2]))
    match = re.fullmatch(r"([0-9]{1,6}):(hang|hang-then-return|die|E[A-Z0-9]+)", text, re.ASCII)
    errno = getattr(errnos, match[2], 0) if match and match[2] not in _KINDS else 0
    if match is None or (match[2] not in _KINDS and not errno):
        hint = f"write it as 3:EBUSY, 3:hang, 3:hang-then-return, 3:die or 3:slow=1.5, for at most {_MOST_SECONDS:g} s"
        raise BadSpec(f"not a fault: {text[:40]!r}", hint=hint)
    return Fault(int(match[1]), match[2] if not errno else "errno", errno)


class Refusal(Exception):
    """The errno with which a rule refuses a write."""

    def __init__(self, errno: int) -> None:
        self.errno = errno
        super().__init__(errnos.errorcode[errno])


class WouldBlock(Exception):
    """The kernel would wait here for ever. Only a survey may make a read that raises this. A write has by then done
    what the kernel does before it waits."""


def kstrtoul(value: str, *, bits: int = 64, base: int = 0) -> int:
    """Parses a number as lib/kstrtox.c does: one newline may follow. Raises Refusal (EINVAL, ERANGE). In base 0, 0x10
    and 010 are numbers as well."""
    text = value.removesuffix("\n")
    decimal, any_base = r"\+?([0-9]+)", r"\+?(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)"
    match = re.fullmatch(any_base if base == 0 else decimal, text, re.ASCII)
    if match is None:
        raise Refusal(errnos.EINVAL)
    digits = match[1]
    octal = base == 0 and digits.startswith("0") and digits.isdecimal()
    number = int(digits, 8 if octal else base or 0)
    if number >> bits:
        raise Refusal(errnos.ERANGE)
    return number
