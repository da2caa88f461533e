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
        self._session = session

    def overview(self, *, without: Collection[Part] = ()) -> Overview:
        """Return the host as it is now, but for the parts in `without`: holders, domains and usage take longest.

        A part that cannot be read is empty, and `missing` says why."""
        from vfioctl.overview.reading.look import look

        return look(self._session, without)

    def refresh(
        self, last: Overview, addresses: Collection[PciAddress] = (), *, whole: Collection[Part] = ()
    ) -> Overview:
        """Return `last` with these functions read again, and with their cards, groups, VFs, vGPUs, holders and usage.

        Claims and changes are always read again. `whole`: read these parts again for the whole host. The inventory is
        read as a whole if a function is new or gone."""
        from vfioctl.overview.reading.refresh import refresh

        return refresh(self._session, last, addresses, whole)

    def watch(self, *, stop: Stop, interval: float = 2.0) -> Iterator[HostEvent]:
        """Yield the host's events until `stop` returns true, within a tenth of a second. Equal events are one.

        Sources: the kernel's uevents, or the file of a simulated host; the ledger; libvirt. Each `interval` seconds
        comes an event of `EventSource.WATCH` with the action `interval`, for what notifies nobody: holders, usage,
        driver_override. Its action `lost` means that events were missed, or a source cannot be followed: see
        `detail`."""
        from vfioctl.overview.watch.watch import watching

        with watching(self._session, stop=stop, interval=interval) as portions:
            for events in portions:
                yield from events

    def follow(
        self, *, stop: Stop, interval: float = 2.0, without: Collection[Part] = ()
    ) -> Iterator[tuple[Overview, tuple[HostEvent, ...]]]:
        """Yield the host as it is now, and again whenever its events change it, with these events; see `watch`.

        What an event names is read again; at each interval the holders and how busy GPUs are; the whole host if events
        were missed."""
        from vfioctl.overview.reading.follow import follow

        return follow(self._session, stop=stop, interval=interval, without=without)
