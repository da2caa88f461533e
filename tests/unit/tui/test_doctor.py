"""The screen of the checks: what `vfioctl doctor` finds."""

from __future__ import annotations

import pytest

from tests.unit.tui.conftest import Drive, Driver
from vfioctl.doctor.api import DoctorApi
from vfioctl.errors import HostError


def test_it_shows_problems_first_and_their_remedies(drive: Drive) -> None:
    async def work(driver: Driver) -> None:
        await driver.press("7")
        await driver.shows("group-sharing", "interrupt-remapping", "pass")
        states = [word for line in driver.text.splitlines() for word in line.split()[:2] if word in ("fail", "pass")]
        assert states[0] == "fail"
        assert states == sorted(states), "problems are first"
        await driver.press("d")
        await driver.shows("->", "enable ACS for the root ports")
        await driver.press("escape", "slash", "=remapping", "enter")
        await driver.shows("interrupt-remapping")
        await driver.lacks("group-sharing")

    drive(work, name="shared-group")


def test_it_is_read_when_it_is_opened_and_when_asked_for(drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    examine = DoctorApi.examine

    def counted(api: DoctorApi) -> object:
        asked.append(api)
        return examine(api)

    monkeypatch.setattr(DoctorApi, "examine", counted)

    async def work(driver: Driver) -> None:
        await driver.press("2", "1")
        assert not asked
        await driver.press("7")
        await driver.shows("interrupt-remapping")
        assert len(asked) == 1
        await driver.press("r")
        await driver.until(lambda: len(asked) == 2)

    drive(work)


def test_a_failure_is_told_in_its_place(drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: DoctorApi) -> None:
        raise HostError("/proc is not mounted")

    monkeypatch.setattr(DoctorApi, "examine", fail)

    async def work(driver: Driver) -> None:
        await driver.press("7")
        await driver.shows("The checks could not be run: /proc is not mounted")
        await driver.press("1")
        await driver.shows("0000:1b:00.0")

    drive(work)
