"""The screens on a host of 10,000 functions, with 1,000 claims, in a storm of events, without any, and for others."""

from __future__ import annotations

import itertools
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import ledger, synthetic
from tests.hosts.machines import copy, original
from tests.unit.tui.conftest import HOSTS, LARGE, Drive, Driver
from tests.users import as_nobody, as_root
from vfioctl.config import Config, ConfigFile
from vfioctl.host import Host
from vfioctl.kernel.simulated.host import Simulated
from vfioctl.overview.model.event import EventSource, HostEvent
from vfioctl.placement.model.claims import Owner
from vfioctl.placement.model.request import ClaimRequest
from vfioctl.session import Session
from vfioctl.tui.screens.kubelet import devices_of

GPU = "0000:1b:00.0"
CLAIMS = 1000


def test_ten_thousand_functions(drive: Drive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.unit.tui.conftest._SECONDS", 60.0)  # the page of the device plugin is read for itself
    synthetic.write(tmp_path / "root", 10_000)
    host = Host.at(tmp_path / "root", tmp_path / "ledger.db")
    tables = {"kubelet": {"resources": [{"name": "nvidia.com/gpu"}]}}
    host.session.config = Config(file=ConfigFile(exists=True, tables=tables))

    async def work(driver: Driver) -> None:
        assert driver.app.known
        functions = [f for f in driver.app.known.overview.inventory.functions if not f.physfn]  # VFs are folded
        gpus = {function.address for function in functions if function.is_gpu}
        assert gpus <= set(driver.app.table.sheet.index)
        await driver.press("a")
        await driver.until(lambda: {f.address for f in functions} <= set(driver.app.table.sheet.index))
        await driver.press("end")
        assert driver.cursor() == driver.app.table.sheet.rows[-1].key
        await driver.shows(driver.cursor())
        wanted = max(gpus)
        await driver.press("slash", f"={wanted}", "enter")
        await driver.until(lambda: sum(not row.is_heading for row in driver.app.table.sheet.rows) < 50)
        await driver.shows(wanted)
        await driver.press("8")
        await driver.until(lambda: len(driver.app.table.sheet.rows) > 10)
        pods = set(devices_of([*driver.app.table.sheet.index]))
        assert {function.address for function in functions if function.is_gpu and not function.boot_vga} <= pods

    drive(work, host=host, size=LARGE)


def test_a_thousand_claims(drive: Drive, tmp_path: Path) -> None:
    file = Path(shutil.copy(HOSTS / "hgx8.host", tmp_path / "hgx8.host"))
    ledger.write(tmp_path / "ledger.db", entries=2000, marked="0000:ff:1f.7", claims=CLAIMS)

    async def work(driver: Driver) -> None:
        await driver.press("2")
        await driver.until(lambda: len(driver.app.table.sheet.rows) == CLAIMS)
        await driver.press("end")
        await driver.shows(driver.cursor())
        await driver.press("slash", "=vm/v199", "enter")
        await driver.until(lambda: len(driver.app.table.sheet.rows) == CLAIMS // 200)
        await driver.press("5")
        await driver.shows("bind")

    drive(work, host=Host.simulated(str(file), tmp_path / "ledger.db"))


def test_a_storm_of_events_leaves_the_keys_answered(drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = itertools.count()

    def storm(_host: Host, *, stop: object, **_: object) -> Iterator[HostEvent]:
        assert callable(stop)
        while not stop():
            at = f"2026-01-01T00:00:{next(sent) % 60:02}.000+00:00"
            yield HostEvent(at=at, source=EventSource.KERNEL, action="change", subject=GPU, addresses=(GPU,))  # type: ignore[arg-type]
            time.sleep(0.002)

    monkeypatch.setattr(Host, "watch", storm)

    async def work(driver: Driver) -> None:
        await driver.press("down")
        at = driver.cursor()
        for key, title in (("2", "[2 Claims]"), ("6", "[6 Log]"), ("1", "[1 Devices]")):
            await driver.press(key)
            await driver.shows(title)
        assert driver.cursor() == at, "events do not move the cursor"
        await driver.press("b")
        await driver.shows("y: apply this plan")
        await driver.press("escape")
        await driver.until(lambda: next(sent) > 200)
        await driver.press("6")
        await driver.shows(GPU)

    drive(work)


def test_without_events_the_user_asks_again(drive: Drive, monkeypatch: pytest.MonkeyPatch, fast_folder: Path) -> None:
    """As in a container without uevents: nothing is reported, and `r` reads the host."""

    def silent(_host: Host, *, stop: object, **_: object) -> Iterator[HostEvent]:
        assert callable(stop)
        while not stop():
            time.sleep(0.01)
        yield from ()

    file = Path(shutil.copy(HOSTS / "hgx8.host", fast_folder / "hgx8.host"))
    other = Host.simulated(str(file), file.with_suffix(".db"))

    async def work(driver: Driver) -> None:
        await driver.shows(GPU)
        other.apply(other.binding.plan_bind([GPU]))
        await driver.pilot.pause(0.5)
        assert "vfio-pci" not in driver.text, "nothing was reported"
        await driver.press("r")
        await driver.shows("vfio-pci")

    monkeypatch.setattr(Host, "watch", silent)
    drive(work, host=Host.simulated(str(file), file.with_suffix(".db")))


@as_root
def test_another_user_sees_what_is_published_and_why_it_can_change_nothing(
    drive: Drive, fast_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast_folder.chmod(0o755)
    monkeypatch.setattr(sys, "argv", ["vfioctl"])
    kernel, public = Simulated(copy(original("laptop")), "simulated"), fast_folder / "public" / "public.json"
    host = Host(Session(kernel, fast_folder / "private" / "ledger.db", settle=0.0, lock_wait=0.0, public=public))
    claim = host.claims.create(ClaimRequest(owner=Owner("vm/web1"), devices=(host.find(["0000:01:00.0"])[0],))).claim

    def look() -> list[str]:
        shown = []

        async def work(driver: Driver) -> None:
            await driver.shows("vm/web1", "Nothing can be changed here: ")
            shown.append(driver.text)
            await driver.press("b")
            await driver.shows("Not possible: ")
            await driver.press("2")
            await driver.shows(claim.id[:8], "vm/web1")
            shown.append(driver.text)

        drive(work, host=host)
        return shown

    devices, claims = as_nobody(look)
    assert "vfio-pci" in devices
    assert "vm/web1" in claims
