"""The screens on the real kernel: what `y` applies is really done."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.lab.inside import pci
from tests.lab.inside.topology import Topology
from tests.unit.tui import conftest as screens
from tests.unit.tui.conftest import Driver
from vfioctl.host import Host
from vfioctl.tui.app import Tui
from vfioctl.tui.data.feed import Feed

SECONDS = 120.0
_TREE = 80


def drive(ledger: Path, work: Callable[[Driver], Awaitable[None]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the screens of this machine while `work` presses keys."""
    monkeypatch.setattr(screens, "_SECONDS", SECONDS)
    host = Host.live(ledger)
    feed = Feed(host)

    async def main() -> None:
        app = Tui(host, feed, environment=screens.TERMINAL)
        feed.start()
        async with app.run_test(size=screens.MIDDLE) as pilot:
            driver = Driver(app, pilot)
            await driver.until(lambda: app.table.sheet.rows)
            await work(driver)

    asyncio.run(main())


def test_a_bind_is_done(tmp_path: Path, lab: Topology, drivers_put_back: None, monkeypatch: pytest.MonkeyPatch) -> None:
    before = pci.driver_of(lab.far_display)

    async def work(driver: Driver) -> None:
        await driver.go(lab.far_display)
        await driver.press("b")
        await driver.shows("y: apply this plan")
        assert pci.driver_of(lab.far_display) == before
        await driver.press("y")
        await driver.close()
        assert pci.driver_of(lab.far_display) == "vfio-pci"
        await driver.until(lambda: "vfio-pci" in row(driver, lab.far_display))

    drive(tmp_path / "ledger.db", work, monkeypatch)
    assert [entry.state for entry in Host.live(tmp_path / "ledger.db").history()] == ["done"]


def row(driver: Driver, address: str) -> str:
    """The line of a function in the tree, left of the details."""
    return next((line[:_TREE] for line in driver.text.splitlines() if address in line[:_TREE]), "")
