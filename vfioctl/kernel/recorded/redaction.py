"""Pseudonyms for UUIDs and MAC addresses, so that what is recorded names no machine and stays comparable."""

from __future__ import annotations

import re

from vfioctl.units import UUID_FORM

_UUID = re.compile(rf"\b{UUID_FORM}\b", re.I)
_MAC = re.compile(r"\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b", re.I)
_UUID_PSEUDONYM, _MAC_PSEUDONYM = "00000000-0000-0000-0000-", "00:00:00:00:00:"


class Pseudonyms:
    """Replaces each UUID and each MAC address always by the same pseudonym."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def redacted(self, text: str) -> str:
        """Return the text with pseudonyms."""
        text = _UUID.sub(lambda m: self._pseudonym(m[0], _UUID_PSEUDONYM, "{:012x}"), text)
        return _MAC.sub(lambda m: self._pseudonym(m[0], _MAC_PSEUDONYM, "{:02x}"), text)

    def _pseudonym(self, private: str, begins: str, ends: str) -> str:
        if private.startswith(begins):
            return private
        return self._known.setdefault(private, begins + ends.format(len(self._known) + 1))
