"""The screens and their keys: what they show, and that a new reading leaves cursor and selection alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from textual.widgets import Input

from tests.unit.tui.conftest import HOSTS, LARGE, MIDDLE, Drive, Driver
from vfioctl.host import Host
from vfioctl.tui.data.feed import Feed
from vfioctl.tui.dialogs.menu import Menu
from vfioctl.tui.model.sheet import View


def test_the_first_paint_does_not_wait_for_the_host(copied: Callable[[str], Path]) -> None:
    """The feed is never started: the host is not read at all."""
    import asyncio

    from vfioctl.tui.app import Tui

    host = Host.simulated(str(copied("hgx8")))

    async def main() -> None:
        app = Tui(host, Feed(host))
        async with app.run_test(size=(80, 24)) as pilot:
            driver = Driver(app, pilot)
            await driver.shows("1 Devices", "6 Log", "simulated host hgx8.host: reading", "q quit")
            await driver.press("b")
            await driver.shows("Not possible: the host was not read yet")
            await driver.press("enter", "s", "d", "d", "space", "down", "3", "1")
            await driver.shows("[1 Devices]")

    asyncio.run(main())


def test_numbers_change_the_screen(drive: Drive) -> None:
    async def work(driver: Driver) -> None:
        for number, view in enumerate(View, 1):
            await driver.press(str(number))
            assert driver.app.view is view
            await driver.shows(f"[{number} {view}]")
            await driver.until(lambda: driver.app.table.sheet.rows)
        await driver.press("6")
        await driver.shows("Nothing has happened since this screen was opened.")

    drive(work)


def test_the_tree_has_nodes_cards_and_functions(drive: Drive) -> None:
    async def work(driver: Driver) -> None:
        await driver.shows("HELD BY", "guest win")
        rows = driver.app.table.sheet.rows
        keys = [row.key for row in rows]
        assert keys[:3] == ["node:None", "0000:01:00.0", "0000:01:00.1"]
        assert [row.parent for row in rows[:3]] == ["", "node:None", "0000:01:00.0"]
        assert driver.cursor() == "0000:01:00.0"

    drive(work, "busy")


def test_left_and_right_fold_and_unfold(drive: Drive) -> None:
    async def work(driver: Driver) -> None:
        await driver.shows("0000:01:00.1")
        await driver.press("left")
        await driver.lacks("0000:01:00.1")
        assert driver.cursor() == "0000:01:00.0"
        await driver.press("right")
        await driver.shows("0000:01:00.1")
        await driver.press("down", "left")
        assert driver.cursor() == "0000:01:00.0"
        await driver.press("up", "enter")
        await driver.lacks("0000:04:00.0")

    drive(work, "busy")


def test_vfs_are_folded_at_first(drive: Drive) -> None:
    async def work(driver: Driver) -> None:
        await driver.shows("16 VFs")
        await driver.go("vfs:0000:08:00.0")
        assert "0000:08:00.4" not in driver.app.table.sheet.index
        await driver.press("right")
        await driver.shows("0000:08:00.4")

    drive(work, "a2")


def test_all_functions(drive: Drive) -> None:
    async def work(driver: Driver) -> None:
        count = len(driver.app.table.sheet.rows)
        await driver.press("a")
        await driver.shows("All functions.")
        await driver.until(lambda: len(driver.app.table.sheet.rows) > 3 * count)
        await driver.press("a")
        await driver.until(lambda: len(driver.app.table.sheet.rows) == count)

    drive(work)


def test_the_filter_keeps_what_rows_are_below(drive: Drive) -> None:
    async def work(driver: Driver) -> None:
        await driver.press("slash", "=win11", "enter")
        await driver.lacks("0000:01:00.0")
        await driver.shows("NUMA node unknown", "0000:02:00.0", "0000:02:00.1", "win11")
        assert driver.app.focused is driver.app.table
        await driver.press("escape")
        await driver.shows("0000:01:00.0")
        assert not driver.app.main.query_one("#filter-line").display

    drive(work, "busy")


def test_letters_in_the_filter_are_no_actions(drive: Drive) -> None:
    async def work(driver: Driver) -> None:
        await driver.press("slash", "=bqu1?")
        assert driver.app.main.query_one("#filter", Input).value == "bqu1?"
        assert len(driver.app.screen_stack) == 1

    drive(work)


def test_sorting_goes_through_the_columns(drive: Drive) -> None:
    async def work(driver: Driver) -> None:
        await driver.press("s")
        await driver.shows("Sorted by ADDRESS.")
        await driver.lacks("NUMA node")
        assert driver.app.table.sheet.rows[0].key == "0000:02:00.0"
        for _ in range(20):
            if "In the order of the host." in driver.text:
                break
            await driver.press("s")
        await driver.shows("In the order of the host.", "NUMA node 0")

    drive(work)


def test_details_take_the_place_of_a_narrow_table(drive: Drive) -> None:
    async def work(driver: Driver) -> None:
        await driver.press("d")
        await driver.shows("Identity", "10de NVIDIA Corporation")
        await driver.lacks("NUMA node unknown   the firmware does not say\n  ")
        await driver.press("end")
        await driver.shows("Held by", "nvidia-persistenced")
        await driver.press("escape")
        await driver.shows("HELD BY", "[1 Devices]")
        assert driver.app.focused is driver.app.table

    drive(work, "busy")


def test_details_are_beside_a_wide_table(drive: Drive) -> None:
    async def work(driver: Driver) -> None:
        await driver.shows("Identity", "HELD BY")
        await driver.go("0000:02:00.0")
        await driver.shows("0000:02:00.0  gpu1")
        await driver.press("d")
        await driver.lacks("Identity")
        await driver.press("d")
        await driver.shows("Identity")

    drive(work, "busy", size=LARGE)


def test_a_resize_changes_the_layout(drive: Drive) -> None:
    async def work(driver: Driver) -> None:
        assert "Identity" not in driver.text
        await driver.pilot.resize_terminal(*MIDDLE)
        await driver.shows("Identity")
        await driver.pilot.resize_terminal(60, 12)
        await driver.lacks("Identity")
        await driver.press("end")
        await driver.shows("0000:df:00.0")
        await driver.pilot.resize_terminal(20, 4)
        await driver.pilot.resize_terminal(80, 24)
        await driver.shows("0000:1b:00.0")

    drive(work)


def test_the_menu_greys_what_is_not_possible(drive: Drive) -> None:
    async def work(driver: Driver) -> None:
        await driver.press("enter")
        await driver.shows("Bind to VFIO", "not bound to a VFIO driver", "no claim has it")
        await driver.press("u")
        await driver.shows("Not possible: not bound to a VFIO driver")
        assert isinstance(driver.app.screen, Menu)
        await driver.press("b")
        await driver.shows("Plan 96ec8d2b5c90", "[>Cancel<]")

    drive(work)


def test_the_menu_opens_what_is_at_its_cursor(drive: Drive) -> None:
    async def work(driver: Driver) -> None:
        await driver.press("enter")
        await driver.shows("Bind to VFIO")
        await driver.press("enter")
        await driver.shows("bind 0000:1b:00.0", "Relies on")
        await driver.press("escape")
        await driver.shows("[1 Devices]")

    drive(work)


def test_the_cursor_and_the_selection_stay_with_their_devices(drive: Drive, copied: Callable[[str], Path]) -> None:
    """Another process binds a device: the rows are made anew."""
    file = copied("busy")
    host = Host.simulated(str(file), file.with_suffix(".db"))

    async def work(driver: Driver) -> None:
        await driver.go("0000:04:00.0")
        await driver.press("space", "space")
        assert list(driver.app.table.selected) == ["0000:04:00.0", "0000:04:00.1"]
        await driver.shows("2 selected")
        await driver.go("0000:09:00.0")
        other = Host.simulated(str(file), file.with_suffix(".db"))
        other.apply(other.binding.plan_bind(["0000:04:00.0"]))
        await driver.until(lambda: driver.text.count("vfio-pci") == 4)
        assert driver.cursor() == "0000:09:00.0"
        assert list(driver.app.table.selected) == ["0000:04:00.0", "0000:04:00.1"]
        await driver.press("escape")
        assert not driver.app.table.selected

    drive(work, host=host)


def test_the_name_of_a_gpu_survives_its_driver(drive: Drive) -> None:
    async def work(driver: Driver) -> None:
        await driver.shows("NVIDIA H100 80GB HBM3")
        other = Host.simulated(str(driver.app.host.session.kernel._file))  # type: ignore[attr-defined]
        other.session.ledger = driver.app.host.session.ledger
        other.apply(other.binding.plan_bind(["1b:00.0"]))
        await driver.shows("vfio-pci")
        row = next(line for line in driver.text.splitlines() if "0000:1b:00.0" in line)
        assert "NVIDIA H100 80GB HBM3" in row

    drive(work)


def test_events_are_in_the_log(drive: Drive) -> None:
    async def work(driver: Driver) -> None:
        await driver.press("6")
        await driver.shows("Nothing has happened")
        other = Host.simulated(str(driver.app.host.session.kernel._file))  # type: ignore[attr-defined]
        other.session.ledger = driver.app.host.session.ledger
        other.apply(other.binding.plan_bind(["1b:00.0"]))
        await driver.shows("kernel")
        await driver.lacks("Nothing has happened")

    drive(work)


@pytest.mark.parametrize("name", ["hgx8", "busy", "a2"])
def test_a_recorded_host_can_be_looked_at_only(drive: Drive, name: str) -> None:
    host = Host.recorded(str(HOSTS / f"{name}.host"))

    async def work(driver: Driver) -> None:
        await driver.shows("Nothing can be changed here")
        await driver.press("b")
        await driver.shows("Not possible:")
        await driver.press("enter")
        await driver.shows("WHY NOT", host.session.kernel.read_only[:20])
        assert len(driver.app.screen_stack) == 2

    drive(work, host=host)


def test_read_only_if_the_user_wishes(drive: Drive) -> None:
    async def work(driver: Driver) -> None:
        await driver.shows("Nothing can be changed here: --read-only was given")
        await driver.press("b")
        await driver.shows("Not possible: --read-only was given")

    drive(work, read_only="--read-only was given")


def test_help_and_palette(drive: Drive) -> None:
    async def work(driver: Driver) -> None:
        await driver.press("question_mark")
        await driver.shows("Keys of the screen Devices", "Bind to VFIO, ready for a guest")
        await driver.press("escape", "colon", "=show cla")
        await driver.shows("Show Claims")
        await driver.press("enter")
        await driver.until(lambda: driver.app.view is View.CLAIMS)

    drive(work)


def test_the_mouse(drive: Drive) -> None:
    async def work(driver: Driver) -> None:
        await driver.pilot.click("#bar", offset=(14, 0))
        await driver.until(lambda: driver.app.view is View.CLAIMS)
        await driver.pilot.click("#bar", offset=(2, 0))
        await driver.until(lambda: driver.app.view is View.DEVICES)
        await driver.pilot.click("#devices", offset=(6, 4))
        await driver.until(lambda: driver.cursor() == "0000:02:00.0")
        await driver.pilot.click("#devices", offset=(2, 4))
        await driver.lacks("0000:02:00.1")
        await driver.pilot.click("#devices", offset=(6, 0))
        await driver.shows("Sorted by ADDRESS")
        await driver.pilot.click("#devices", offset=(6, 2), times=2)
        await driver.shows("ACTION", "WHY NOT")

    drive(work, "busy")


def test_q_quits(drive: Drive) -> None:
    async def work(driver: Driver) -> None:
        await driver.press("q")
        await driver.until(lambda: driver.app._exit)
        assert driver.app.return_value == 0

    drive(work)
