"""Why no pod gets a device. May not do input or output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

CORDON, XID = "cordon", "xid"
"""By a person, until uncordoned; by an error that NVML reported, in this boot."""


class Cordon(NamedTuple):
    """Why no pod gets a device. Times are ISO 8601 in UTC."""

    device: str
    kind: str
    why: str
    since: str
    user: str

    @property
    def words(self) -> str:
        """It in words, for the health of the device."""
        if self.kind == XID:
            return self.why
        return f"cordoned by {self.user or 'root'} since {self.since[:16]}Z" + (f": {self.why}" if self.why else "")


Cordons = Mapping[str, Cordon]
"""By device: an address or a UUID."""
