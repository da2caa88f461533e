"""Events of a host: when to look again, and at what. May not do input or output."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from vfioctl.core.frozen import value_class
from vfioctl.inventory.model.values import PciAddress

Stop = Callable[[], bool]
"""Whether to stop: the `is_set` of a `threading.Event`."""

INTERVAL = "interval"
"""The action of an event of the watch: its interval is over, so look at what notifies nobody."""
LOST = "lost"
"""The action of an event of the watch: events were missed, or a source cannot be followed; `detail` says why."""


class EventSource(StrEnum):
    """Where an event comes from."""

    KERNEL = "kernel"
    """a uevent of the kernel, or of a simulated host: its file was changed by another process"""
    LEDGER = "ledger"
    """the ledger: a claim, or a change, began or ended"""
    LIBVIRT = "libvirt"
    """the life of a domain"""
    WATCH = "watch"
    """the watch itself: `INTERVAL` or `LOST`"""


@value_class
class HostEvent:
    """Something changed on the host. Equal events in a short time are one, with their number in `count`."""

    at: str
    """when it was received first: ISO 8601 in UTC, with milliseconds"""
    source: EventSource
    action: str
    """as the source calls it: add, remove, change, bind, unbind; held, released; begin, end; started, stopped"""
    subject: str
    """the function's address, the mediated device's UUID, the claim's id, the domain's name; empty for the whole"""
    addresses: tuple[PciAddress, ...] = ()
    """the functions whose facts may have changed; see `OverviewApi.refresh`"""
    detail: str = ""
    """the driver, the owner, or why the source is lost"""
    count: int = 1
