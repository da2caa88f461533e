"""What the screens show when a reading fails, or does not end; and how often the host is read."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.tui.conftest import HOSTS, Drive, Driver
from vfioctl.errors import HostError
from vfioctl.host import Host
from vfioctl.overview.model.event import EventSource, HostEvent
from vfioctl.tui.data.feed import PAUSE, Feed
from vfioctl.tui.data.threads import Latest
from vfioctl.tui.model.sheet import View
from vfioctl.tui.showing import DetailsMade


def event(source: EventSource = EventSource.KERNEL, **values: Any) -> HostEvent:
    return HostEvent(at="2026-01-01T00:00:00.000+00:00", source=source, action="change", subject="", **values)


def test_a_reading_that_fails_leaves_the_last_one_with_its_date(drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(driver: Driver) -> None:
        at = driver.app.known.overview.at[11:19]  # type: ignore[union-attr]

        def fail(*_: object, **__: object) -> None:
            raise HostError("/sys is not mounted")

        with monkeypatch.context() as patch:
            patch.setattr(Host, "overview", fail)
            await driver.press("r")
            await driver.shows(f"STALE, as of {at} UTC: /sys is not mounted", "0000:1b:00.0")
        await driver.press("r")
        await driver.lacks("STALE")

    drive(work)


def test_what_a_thread_has_drawn_comes_too_late_for_a_screen_that_is_taken_down(drive: Drive) -> None:
    async def work(driver: Driver) -> None:
        await driver.app.main.query_one("#details").remove()
        assert driver.app.is_over
        driver.app.post_message(DetailsMade((View.DEVICES, "0000:1b:00.0", 40), ()))
        await driver.pilot.pause()
        assert driver.app._exception is None

    drive(work)


def test_a_reading_that_does_not_end_freezes_nothing(drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()
    read = Host.overview

    async def work(driver: Driver) -> None:
        def hang(*arguments: Any, **options: Any) -> Any:
            go.wait(20)
            return read(*arguments, **options)

        monkeypatch.setattr(Host, "overview", hang)
        monkeypatch.setattr("vfioctl.tui.screens.bars._SLOW", 0.2)
        await driver.press("r", "down")
        await driver.until(lambda: driver.app.feed.reading_since)
        assert driver.cursor() == "0000:43:00.0"
        driver.app.draw_bars()
        await driver.shows("STALE, as of ", "no answer for ")
        await driver.press("2", "1", "down")
        go.set()
        await driver.lacks("STALE")

    drive(work)


def test_a_part_that_is_missing_is_told_in_its_place(drive: Drive) -> None:
    """There is no libvirt here, or it is not asked: its screen says why."""

    async def work(driver: Driver) -> None:
        await driver.press("4")
        await driver.shows("Domains could not be read: ")
        await driver.press("d")
        await driver.shows("The domains could not be read", "this host has no libvirt at")
        await driver.press("d")
        await driver.press("1")
        await driver.shows("0000:1b:00.0")

    drive(work)


class Counted:
    """Counts the readings of a host."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, host: Host, events: Callable[[], Iterator[HostEvent]]) -> None:
        self.whole, self.parts = 0, list[frozenset[str]]()
        read = host.overview()

        def overview(*_: object, **__: object) -> Any:
            self.whole += 1
            return read

        def refresh(_host: Host, _last: object, addresses: Any, **_: object) -> Any:
            self.parts.append(frozenset(addresses))
            return read

        monkeypatch.setattr(Host, "overview", overview)
        monkeypatch.setattr(Host, "refresh", refresh)
        monkeypatch.setattr(Host, "watch", lambda *_, **__: events())


@pytest.fixture
def host() -> Host:
    return Host.recorded(str(HOSTS / "hgx8.host"))


def test_a_storm_costs_few_readings_of_what_it_names(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [gpu.address for gpu in host.inventory().gpus[:2]]
    sent = threading.Event()

    def storm() -> Iterator[HostEvent]:
        time.sleep(0.2)  # the first readings are over
        for number in range(100):
            yield event(addresses=(gpus[number % 2],))
            time.sleep(0.01)
        sent.set()

    counted = Counted(monkeypatch, host, storm)
    feed = Feed(host)
    feed.start()
    assert sent.wait(20)
    time.sleep(2 * PAUSE)
    feed.stop()
    assert counted.whole == 2, "the first, and the whole one after it"
    assert 1 <= len(counted.parts) <= 1 + 1.6 / PAUSE
    assert set().union(*counted.parts) == set(gpus)
    assert len(feed.take().events) == 100


def test_an_event_without_addresses_is_about_everything(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def one() -> Iterator[HostEvent]:
        time.sleep(0.2)
        yield event()

    counted = Counted(monkeypatch, host, one)
    feed = Feed(host)
    feed.start()
    until = time.monotonic() + 10
    while counted.whole < 3 and time.monotonic() < until:
        time.sleep(0.01)
    feed.stop()
    assert counted.whole == 3
    assert not counted.parts


def test_a_watch_that_fails_is_an_event(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost() -> Iterator[HostEvent]:
        for message in ("netlink is not permitted",):
            raise HostError(message)
        yield event()

    Counted(monkeypatch, host, lost)
    feed = Feed(host)
    feed.start()
    until = time.monotonic() + 10
    events: tuple[HostEvent, ...] = ()
    while not events and time.monotonic() < until:
        events = feed.take().events
    feed.stop()
    assert [(found.source, found.action, found.detail) for found in events] == [
        ("watch", "lost", "netlink is not permitted")
    ]


def test_of_the_jobs_that_wait_only_the_newest_is_done() -> None:
    go, begun, done = threading.Event(), threading.Event(), list[int]()
    latest = Latest("test")

    def first() -> None:
        begun.set()
        go.wait(10)

    latest.submit("first", first)
    begun.wait(10)
    end = threading.Event()
    for number in range(5):
        latest.submit("job", lambda number=number: done.append(number))  # type: ignore[misc]
    latest.submit("end", end.set)
    go.set()
    assert end.wait(10)
    assert done == [4]
    latest.stop()


def test_the_threads_end(host: Host, tmp_path: Path) -> None:
    del tmp_path
    feed = Feed(host, interval=0.1)
    feed.start()
    feed.stop()
    until = time.monotonic() + 10
    while any(t.name in ("vfioctl-reader", "vfioctl-watcher") for t in threading.enumerate()):
        assert time.monotonic() < until
        time.sleep(0.02)
