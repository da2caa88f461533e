"""Feeds: what a host notifies of itself, read without waiting. May not write to the host."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

PCI = re.compile(r"(?<![0-9a-f])[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7](?![0-9a-f])", re.ASCII)
"""The addresses of functions in a path."""
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)

_TICK = 0.1


class Notice(NamedTuple):
    """One thing that a host notified of itself."""

    action: str
    """as the source calls it: add, remove, change, bind, unbind, move; started, stopped, defined, undefined; xid"""
    subject: str
    """the function's address, the mediated device's UUID, or the domain's name"""
    addresses: tuple[str, ...] = ()
    """the functions whose facts may have changed"""
    detail: str = ""
    """the subsystem and the driver, the UUID of a domain, or the number of an XID"""


XID, UNWATCHED = "xid", "unwatched"
"""Actions of `Feeds.gpu_errors`."""


class Lost(Exception):
    """A feed has missed notices, or ended; `ended`: it gives no more. The text says why."""

    def __init__(self, why: str, *, ended: bool = False) -> None:
        super().__init__(why)
        self.ended = ended


class Feed:
    """Notices of one source. This one has none: nothing changes on a recorded host."""

    def fileno(self) -> int:
        """Return a descriptor that is readable when there are notices; -1: `read` has to be called now and then."""
        return -1

    def read(self) -> list[Notice]:
        """Return the notices since the last call, and never wait. Raises Lost."""
        return []

    def close(self) -> None:
        """Close what the feed has open. May be called again."""


class Feeds(Protocol):
    """The feeds of a host. One that has none of its own notifies of nothing."""

    def uevents(self) -> Feed:
        """The changes of its functions and of what is below them, from now on. Close it. Raises Lost."""
        return Feed()

    def domain_events(self, uri: str) -> Feed:
        """The life of the domains that the libvirt with this URI has, from now on. Close it. Raises Lost."""
        return Feed()

    def gpu_errors(self, gpus: Sequence[str]) -> Feed:
        """The critical errors (XIDs) of these GPUs that NVML reports, from now on. Close it. Raises Lost.

        `Notice("xid", ADDRESS, (ADDRESS,), "79")` for each error; `Notice("unwatched", ADDRESS, (ADDRESS,), REASON)`
        once for each GPU whose errors NVML does not report. ADDRESS is empty if NVML does not say which GPU it was.
        Pass GPUs that are on the nvidia driver and stay on it, such as the parents of vGPUs: until the feed is closed,
        its program has them open, so that `bind` finds a holder and refuses. Without the permission to hide the others
        from the program (CAP_SYS_ADMIN, mount namespaces), NVML opens those, too. GPUs are registered when the feed is
        opened: for one that came back to the driver since, close the feed and open it again. Without GPUs, or without
        the driver, it notifies of nothing."""
        return Feed()


def notice_of(action: str, subsystem: str, path: str, driver: str = "") -> Notice | None:
    """Return the notice of a uevent about the device at `path` below /sys; None if it is neither a mediated device nor
    below a PCI function."""
    functions, name = PCI.findall(path)[-1:], path.rpartition("/")[2]
    subject = name if subsystem == "mdev" and _UUID.fullmatch(name) else "".join(functions)
    detail = " ".join(filter(None, (subsystem, driver)))
    return Notice(action, subject, tuple(functions), detail) if subject else None


@contextmanager
def following(make: Callable[[], Feed]) -> Iterator[Feed]:
    """Open a feed and close it at the end; one without notices if it cannot be followed."""
    try:
        feed = make()
    except Lost:
        feed = Feed()
    try:
        yield feed
    finally:
        feed.close()


def wait_for(feed: Feed, seconds: float) -> None:
    """Wait until the feed has notices, or may have lost some, but at most `seconds`."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(_TICK, left))
        try:
            if feed.read():
                return
        except Lost as lost:
            if not lost.ended:
                return
            feed.close()
            time.sleep(max(0.0, until - time.monotonic()))


def stamp(*files: Path) -> tuple[tuple[int, ...] | None, ...]:
    """Return what differs when one of the files was written or replaced; None for a file that is not there."""
    return tuple(map(_stamp, files))


def _stamp(file: Path) -> tuple[int, ...] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
