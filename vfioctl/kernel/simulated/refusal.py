"""Exceptions for a write that the simulated kernel refuses or never finishes, and how the kernel parses numbers."""

from __future__ import annotations

import errno as errnos
import re


class Refusal(Exception):
    """The errno with which a rule refuses a write."""

    def __init__(self, errno: int) -> None:
        self.errno = errno
        super().__init__(errnos.errorcode[errno])


class WouldBlock(Exception):
    """The kernel would wait here for ever.

    Only a survey may make a read that raises this. A write has by then done what the kernel does before it waits.
    """


def kstrtoul(value: str, *, bits: int = 64, base: int = 0) -> int:
    """Parses a number as lib/kstrtox.c does: one newline may follow. Raises Refusal (EINVAL, ERANGE).

    In base 0, 0x10 and 010 are numbers as well.
    """
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
