"""The feeds of this machine: the kernel's uevents, and the program that asks libvirt. Nothing is changed."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.kernel.conftest import lost
from vfioctl.kernel import program_feed
from vfioctl.kernel.feeds import Lost, Notice
from vfioctl.kernel.live import uevents
from vfioctl.kernel.live.domain_events import DomainEvents
from vfioctl.kernel.live.uevents import Uevents

SECONDS = 30.0


@contextmanager
def following(uri: str) -> Iterator[DomainEvents]:
    feed = DomainEvents(uri)
    try:
        yield feed
    finally:
        feed.close()
        assert feed._process.poll() is not None


class TestLibvirt:
    def test_one_that_is_not_there_is_lost_with_its_reason(self) -> None:
        with following("qemu:///nonsense") as feed:
            reason = lost(feed)
        assert reason.ended
        assert str(reason).startswith("libvirt's events cannot be followed: ")

    def test_one_that_is_there_is_followed_until_it_is_closed(self) -> None:
        pytest.importorskip("libvirt")
        with following("test:///default") as feed:
            until = time.monotonic() + SECONDS
            while not (text := feed._available()) and time.monotonic() < until:
                time.sleep(0.05)
            assert text == b'["followed", "test:///default", ""]\n'
            assert feed.read() == []

    def test_a_program_that_dies_is_lost(self) -> None:
        with following("test:///default") as feed:
            feed._process.kill()
            assert lost(feed).ended

    def test_its_lines_may_come_in_pieces(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pieces: list[bytes | None] = [
            b'["followed", "x", ""]\n["star',
            None,
            b'ted", "web1", "u-1"]\n["stopped", "we\\u001bb", "u-2"]\n',
        ]
        with following("test:///default") as feed:
            monkeypatch.setattr(feed, "_available", lambda: pieces.pop(0))
            assert [feed.read() for _ in range(2)] == [[], []]
            assert feed.read() == [Notice("started", "web1", (), "u-1"), Notice("stopped", "we\x1bb", (), "u-2")]

    def test_a_line_without_end_is_lost(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with following("test:///default") as feed:
            monkeypatch.setattr(feed, "_available", lambda: b"x" * program_feed._LONGEST_LINE)
            assert feed.read() == []
            with pytest.raises(Lost):
                feed.read()


class Monitor:
    """A monitor of pyudev that has these answers."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    def poll(self, *, timeout: int) -> Any:
        assert timeout == 0
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, OSError):
            raise answer
        return answer


def device(action: str, path: str, driver: str | None = None, subsystem: str = "pci") -> SimpleNamespace:
    return SimpleNamespace(
        action=action, subsystem=subsystem, sys_path=f"/sys/devices/pci0000:40/{path}", driver=driver
    )


class TestUevents:
    def test_the_kernels_are_followed(self) -> None:
        feed = Uevents()
        assert os.fstat(feed.fileno())
        feed.read()
        feed.close()

    def test_each_is_a_notice_about_a_function(self, monkeypatch: pytest.MonkeyPatch) -> None:
        feed = Uevents()
        monitor = Monitor(
            device("bind", "0000:41:00.0", "vfio-pci"),
            device("add", "vfio/12", subsystem="vfio"),
            None,
            device("x", "y"),
        )
        monkeypatch.setattr(feed, "_monitor", monitor)
        assert feed.read() == [Notice("bind", "0000:41:00.0", ("0000:41:00.0",), "pci vfio-pci")]

    def test_what_the_kernel_had_no_room_for_is_lost_and_it_goes_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        feed = Uevents()
        full = OSError(errno.ENOBUFS, "No buffer space available")
        monkeypatch.setattr(feed, "_monitor", Monitor(full, device("unbind", "0000:41:00.0")))
        with pytest.raises(Lost, match="more happened than could be noted") as caught:
            feed.read()
        assert not caught.value.ended
        assert [notice.action for notice in feed.read()] == ["unbind"]

    def test_more_than_fit_into_one_answer_come_later(self, monkeypatch: pytest.MonkeyPatch) -> None:
        feed = Uevents()
        monkeypatch.setattr(uevents, "_MOST", 3)
        monkeypatch.setattr(feed, "_monitor", Monitor(*(device("change", "0000:41:00.0") for _ in range(5))))
        assert [len(feed.read()) for _ in range(3)] == [3, 2, 0]
