"""Everything about a host in one look, and the events that say when to look again. May not write to the host."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vfioctl.inventory.model.values import PciAddress
    from vfioctl.overview.model.event import HostEvent, Stop
    from vfioctl.overview.model.overview import Overview, Part
    from vfioctl.session import Session


class OverviewApi:
    """Reads one host as a whole, and follows its events. Safe to use from several threads."""

    def __init__(self, session: Session) -> None:
        self._session, self._kernel = session, session.kernel

    def overview(self, *, without: Collection[Part] = ()) -> Overview:
        """Return the host as it is now, but for the parts in `without`, which take longer (holders, domains, usage)."""
        raise NotImplementedError

    def refresh(self, last: Overview, addresses: Collection[PciAddress]) -> Overview:
        """Return `last` with these functions read again, and what hangs on them: VFs, groups, holders, vGPUs, claims."""
        raise NotImplementedError

    def watch(self, *, stop: Stop, interval: float = 2.0) -> Iterator[HostEvent]:
        """Yield the host's events until `stop` returns true. `interval`: seconds between looks where nothing notifies.

        Stops within a tenth of a second. A source that cannot be followed is one event of `EventSource.WATCH`."""
        raise NotImplementedError
