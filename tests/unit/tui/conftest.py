"""The screens as tests drive them: without a terminal, on a copy of a simulated host."""

from __future__ import annotations

import asyncio
import re
import shutil
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from textual.pilot import Pilot

from vfioctl.host import Host
from vfioctl.kernel.simulated.faults import Fault
from vfioctl.tui.app import Tui
from vfioctl.tui.data.feed import Feed
from vfioctl.tui.widgets.page import Page

HOSTS = Path(__file__).resolve().parents[2] / "hosts"
TERMINAL = {"LC_ALL": "C.UTF-8", "TERM": "xterm-256color"}
SMALL, MIDDLE, LARGE = (80, 24), (120, 30), (200, 50)
_SECONDS = 15.0


class Driver:
    """Presses keys, and waits for what they do."""

    def __init__(self, app: Tui, pilot: Pilot[int]) -> None:
        self.app, self.pilot = app, pilot

    async def press(self, *keys: str) -> None:
        """Press keys; `=text` types a text."""
        for key in keys:
            await self.pilot.press(*(key[1:] if key.startswith("=") and len(key) > 1 else (key,)))
            await self.pilot.pause()

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until a condition holds. Raises AssertionError, with the screen, if it never does."""
        until = time.monotonic() + _SECONDS
        while not condition():
            assert time.monotonic() < until, self.text
            await self.pilot.pause(0.01)
        await self.pilot.pause()

    async def shows(self, *words: str) -> None:
        """Wait until the screen shows all these words."""
        await self.until(lambda: all(word in self.text for word in words))

    async def lacks(self, word: str) -> None:
        """Wait until the screen does not show a word."""
        await self.until(lambda: word not in self.text)

    @property
    def text(self) -> str:
        """What the screen shows."""
        strips = self.app.screen._compositor.render_strips()
        lines = ["".join(segment.text for segment in strip).rstrip() for strip in strips]
        return "\n".join(lines) + "\n"

    @property
    def page(self) -> str:
        """The whole text of the page that is open, also what has to be scrolled to."""
        return self.app.screen.query_one(Page).text

    async def close(self) -> None:
        """Close the page that is open: its first button has the focus."""
        await self.shows("[>Close<]")
        await self.press("enter")
        await self.until(lambda: len(self.app.screen_stack) == 1)

    def cursor(self) -> str:
        """The key of the row at the cursor."""
        row = self.app.table.row
        return row.key if row else ""

    async def go(self, key: str) -> None:
        """Move the cursor to a row."""
        await self.until(lambda: key in self.app.table.sheet.index)
        self.app.table.action_move(self.app.table.sheet.index[key] - self.app.table.cursor)
        await self.pilot.pause()


Work = Callable[[Driver], Awaitable[None]]
Drive = Callable[..., Host]


@pytest.fixture
def copied(fast_folder: Path) -> Callable[[str], Path]:
    """Copies a host's file, so that the test can change it."""

    def copy(name: str) -> Path:
        return Path(shutil.copy(HOSTS / f"{name}.host", fast_folder / f"{name}.host"))

    return copy


@pytest.fixture
def drive(copied: Callable[[str], Path]) -> Drive:
    """Runs the screens of a host while `work` drives them; returns the host."""

    def run(
        work: Work,
        name: str = "hgx8",
        *,
        size: tuple[int, int] = SMALL,
        environment: dict[str, str] = TERMINAL,
        faults: Sequence[Fault] = (),
        host: Host | None = None,
        read_only: str = "",
    ) -> Host:
        file = copied(name) if host is None else Path()
        host = host or Host.simulated(str(file), file.with_suffix(".db"), faults=faults)
        feed = Feed(host, interval=0.1, read_only=read_only)

        async def main() -> None:
            app = Tui(host, feed, environment=environment)
            feed.start()
            async with app.run_test(size=size) as pilot:
                driver = Driver(app, pilot)
                await driver.until(lambda: app.table.sheet.rows)
                await driver.until(lambda: app.known and app.known.overview.holders.devices)
                await work(driver)

        asyncio.run(main())
        until = time.monotonic() + _SECONDS
        while any(thread.name.startswith("vfioctl-") for thread in threading.enumerate()):
            assert time.monotonic() < until, "a thread has not ended"
            time.sleep(0.01)
        return host

    return run


def timeless(text: str) -> str:
    """With times and durations made equal."""
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "2026-01-01 00:00:00", text)
    text = re.sub(r"\d\d:\d\d:\d\d UTC", "00:00:00 UTC", text)
    return re.sub(r"\b\d+\.\d\d? s\b", lambda match: re.sub(r"\d", "0", match[0]), text)
