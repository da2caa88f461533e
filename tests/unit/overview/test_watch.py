"""The events of a host: of a simulated one that another process changes, of the ledger, and of sources that fail."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.hosts.machines import copy, machine, original
from vfioctl.host import Host
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel.feeds import Feed, Lost, Notice, notice_of, wait_for
from vfioctl.overview.model.event import INTERVAL, LOST, EventSource, HostEvent
from vfioctl.overview.watch.coalescing import MOST, WINDOW, Coalescing
from vfioctl.overview.watch.sources import FeedSource
from vfioctl.placement.model.request import ClaimRequest

HOSTS = Path(__file__).resolve().parents[2] / "hosts"
GPU = PciAddress("0000:1b:00.0")
LONG = 60.0


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "hgx8.host"
    file.write_text((HOSTS / "hgx8.host").read_text(encoding="utf-8"), encoding="utf-8")
    return file


@contextmanager
def watched(host: Host, interval: float = LONG) -> Iterator[list[HostEvent]]:
    """The events of a host while the block runs, and for a moment after it."""
    events: list[HostEvent] = []
    stop, began = threading.Event(), threading.Event()

    def beginning() -> bool:
        began.set()
        return stop.is_set()

    watcher = threading.Thread(target=lambda: events.extend(host.watch(stop=beginning, interval=interval)), daemon=True)
    watcher.start()
    assert began.wait(10)
    try:
        yield events
        time.sleep(3 * WINDOW)
    finally:
        stop.set()
        asked = time.monotonic()
        watcher.join(10)
        assert not watcher.is_alive()
        assert time.monotonic() - asked < 1.0


def of(events: list[HostEvent], source: EventSource) -> list[HostEvent]:
    return [event for event in events if event.source is source]


class TestASimulatedHost:
    def test_tells_what_another_process_changes(self, file: Path) -> None:
        with watched(Host.simulated(str(file))) as events:
            other = Host.simulated(str(file))
            other.apply(other.binding.plan_bind([GPU]))
        changed = of(events, EventSource.KERNEL)
        assert {event.subject for event in changed} == {GPU}
        assert all(event.addresses == (GPU,) for event in changed)

    def test_tells_of_claims_with_their_devices_and_owner(self, file: Path) -> None:
        with watched(Host.simulated(str(file))) as events:
            other = Host.simulated(str(file))
            claim = other.claims.create(ClaimRequest(owner="vm/a", devices=(GPU,))).claim
        told = {
            (e.action, e.subject, e.addresses, e.detail)
            for e in of(events, EventSource.LEDGER)
            if e.subject and e.detail
        }
        assert told == {(state, claim.id, (GPU,), "vm/a") for state in ("reserved", "held")}

    def test_tells_of_the_gpus_of_shares(self, file: Path) -> None:
        with watched(Host.simulated(str(file))) as events:
            other = Host.simulated(str(file))
            claim = other.claims.create(ClaimRequest(owner="pod/a/b/c", devices=(GPU,), cores=40)).claim
        told = [e.addresses for e in of(events, EventSource.LEDGER) if e.subject == claim.id]
        assert told
        assert set(told) == {(GPU,)}

    def test_follows_one_that_is_read_again(self, file: Path) -> None:
        from vfioctl.overview.api import OverviewApi

        stop = threading.Event()
        host, other = Host.simulated(str(file)), Host.simulated(str(file))
        following = OverviewApi(host.session).follow(stop=stop.is_set, interval=LONG)
        first, events = next(following)
        assert (first.inventory.by_address[GPU].driver, events) == ("nvidia", ())
        other.apply(other.binding.plan_bind([GPU]))
        until = time.monotonic() + 10
        overview = first
        while overview.inventory.by_address[GPU].driver == "nvidia" and time.monotonic() < until:
            overview, events = next(following)
        assert overview.inventory.by_address[GPU].driver == "vfio-pci"
        assert events
        stop.set()
        assert list(following) == []

    def test_a_file_that_is_damaged_is_reported_and_followed_on(self, file: Path) -> None:
        text = file.read_text(encoding="utf-8")
        with watched(Host.simulated(str(file))) as events:
            file.write_text("nonsense", encoding="utf-8")
            time.sleep(3 * WINDOW)
            file.write_text(text, encoding="utf-8")
        lost = [event for event in events if event.action == LOST]
        assert lost
        assert lost[0].subject == EventSource.KERNEL


def test_a_recorded_host_tells_nothing_but_the_interval() -> None:
    with watched(Host.recorded("hgx8"), interval=0.2) as events:
        pass
    assert {event.action for event in events} == {INTERVAL}
    assert 2 <= len(events) <= 6


class Scripted(Feed):
    """A feed whose answers are given."""

    def __init__(self, *answers: list[Notice] | Lost) -> None:
        self.answers, self.closed = list(answers), 0

    def read(self) -> list[Notice]:
        answer = self.answers.pop(0) if self.answers else []
        if isinstance(answer, Lost):
            raise answer
        return answer

    def close(self) -> None:
        self.closed += 1


def source_of(*feeds: Feed | Lost) -> FeedSource:
    left = list(feeds)

    def make() -> Feed:
        feed = left.pop(0) if left else Feed()
        if isinstance(feed, Lost):
            raise feed
        return feed

    return FeedSource(EventSource.LIBVIRT, make)


class TestSources:
    def test_one_that_misses_events_is_read_on(self) -> None:
        feed = Scripted(Lost("too many"), [Notice("started", "a")])
        source = source_of(feed)
        assert [(event.action, event.subject, event.detail) for event in source.events()] == [
            (LOST, "libvirt", "too many")
        ]
        assert [(event.source, event.action, event.subject) for event in source.events()] == [
            (EventSource.LIBVIRT, "started", "a")
        ]
        assert feed.closed == 0

    def test_one_that_ends_is_closed_and_reported_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        clock = [0.0]
        monkeypatch.setattr("vfioctl.overview.watch.sources.time.monotonic", lambda: clock[0])
        feed, why = Scripted(Lost("it is gone", ended=True)), Lost("it is gone", ended=True)
        source = source_of(feed, why, why, Scripted([Notice("started", "a")]))
        told = []
        for _ in range(40):
            clock[0] += 1.0
            told += [event.action for event in source.events()]
        assert told == [LOST, "started"]
        assert feed.closed == 1

    def test_one_that_cannot_be_opened_is_not_asked_without_pause(self, monkeypatch: pytest.MonkeyPatch) -> None:
        clock, attempts = [0.0], []
        monkeypatch.setattr("vfioctl.overview.watch.sources.time.monotonic", lambda: clock[0])

        def make() -> Feed:
            attempts.append(clock[0])
            raise Lost("no libvirt", ended=True)

        source = FeedSource(EventSource.LIBVIRT, make)
        for _ in range(100):
            clock[0] += 0.1
            list(source.events())
        assert len(attempts) == 2


def event(subject: str = "a", action: str = "change", addresses: tuple[PciAddress, ...] = ()) -> HostEvent:
    return HostEvent("t", EventSource.KERNEL, action, subject, addresses)


class TestCoalescing:
    def test_equal_events_are_one_in_the_order_of_the_first(self) -> None:
        gathered = Coalescing()
        for number, name in enumerate("abaab"):
            gathered.add(event(name, addresses=(PciAddress(f"0000:0{number}:00.0"),)), now=0.0)
        assert gathered.due(now=WINDOW - 0.01) == ()
        events = gathered.due(now=WINDOW)
        assert [(e.subject, e.count, len(e.addresses)) for e in events] == [("a", 3, 3), ("b", 2, 2)]
        assert gathered.due(now=2 * WINDOW) == ()

    def test_others_are_told_apart(self) -> None:
        gathered = Coalescing()
        for action in ("bind", "unbind", "bind"):
            gathered.add(event(action=action), now=0.0)
        assert [(e.action, e.count) for e in gathered.due(now=1.0)] == [("bind", 2), ("unbind", 1)]

    def test_a_storm_of_different_ones_is_one_loss(self) -> None:
        gathered = Coalescing()
        for number in range(MOST + 1):
            gathered.add(event(str(number)), now=0.0)
        (lost,) = gathered.due(now=1.0)
        assert (lost.source, lost.action) == (EventSource.WATCH, LOST)


@pytest.mark.parametrize(
    ("subsystem", "path", "expected"),
    [
        ("pci", "/sys/devices/pci0000:40/0000:40:01.0/0000:41:00.0", ("0000:41:00.0", ("0000:41:00.0",))),
        ("drm", "/sys/devices/pci0000:40/0000:41:00.0/drm/card1", ("0000:41:00.0", ("0000:41:00.0",))),
        (
            "mdev",
            "/sys/devices/pci0000:40/0000:41:00.0/83b8f4f2-509f-382f-3c1e-e6bfe0fa1001",
            ("83b8f4f2-509f-382f-3c1e-e6bfe0fa1001", ("0000:41:00.0",)),
        ),
        (
            "mdev",
            "/sys/devices/virtual/mtty/mtty/83b8f4f2-509f-382f-3c1e-e6bfe0fa1001",
            ("83b8f4f2-509f-382f-3c1e-e6bfe0fa1001", ()),
        ),
        ("vfio", "/sys/devices/virtual/vfio/12", None),
        ("pci", "/sys/devices/pci10000:00/10000:00:01.0", ("10000:00:01.0", ("10000:00:01.0",))),
    ],
)
def test_a_uevent_names_the_function_that_it_is_about(
    subsystem: str, path: str, expected: tuple[str, tuple[str, ...]] | None
) -> None:
    notice = notice_of("bind", subsystem, path, "vfio-pci")
    assert (notice and (notice.subject, notice.addresses)) == expected
    assert notice is None or notice.detail == f"{subsystem} vfio-pci"


@pytest.mark.parametrize(
    ("feed", "is_early"),
    [
        (lambda: Scripted([], [Notice("bind", "a")]), True),
        (lambda: Scripted(Lost("too many")), True),
        (lambda: Scripted(Lost("ended", ended=True)), False),
        (Feed, False),
    ],
)
def test_waiting_ends_with_a_notice(feed: Callable[[], Feed], *, is_early: bool) -> None:
    began = time.monotonic()
    wait_for(feed(), 0.6)
    assert (time.monotonic() - began < 0.5) is is_early


def test_a_host_in_memory_has_no_file_to_follow(fast_folder: Path) -> None:
    with watched(machine(copy(original("hgx8")), fast_folder / "x.db"), interval=0.2) as events:
        pass
    assert {event.action for event in events} == {INTERVAL}
