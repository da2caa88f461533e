"""The screen of the device plugin: what `vfioctl kubelet status` shows, kept current, and cordoning."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.conftest import Golden
from tests.unit.tui.conftest import LARGE, MIDDLE, SMALL, Drive, Driver, timeless
from tests.unit.tui.test_snapshots import settled
from vfioctl.claims.model.claim import Claim
from vfioctl.errors import StoreDamaged
from vfioctl.host import Host
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kubelet.api import KubeletApi
from vfioctl.kubelet.model.device import LABEL, PROVISIONAL, Birth, Device, Resource
from vfioctl.kubelet.model.settings import Consumer, ResourceSettings
from vfioctl.kubelet.model.status import Failure, Registration, Running, Status
from vfioctl.placement.model.claims import Owner
from vfioctl.placement.model.request import ClaimRequest
from vfioctl.tui.data.extra import Extra
from vfioctl.tui.data.feed import PAUSE, Feed
from vfioctl.tui.screens.kubelet import details, devices_of, rows
from vfioctl.tui.widgets.page import drawn

GPU, OTHER = "0000:1b:00.0", "0000:43:00.0"
NAME = "nvidia.com/GH100_H100"
POD = "pod/default/vm-1/compute"
NOW = "2026-01-01T12:00:00+00:00"


@pytest.fixture
def run_directory(fast_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Configures a resource of all GPUs; returns where the service writes its state."""
    file = fast_folder / "config.toml"
    file.write_text(
        f'[kubelet]\nrun = "{fast_folder}"\n[[kubelet.resources]]\nname = "{NAME}"\nconsumer = "kubevirt"\n'
    )
    monkeypatch.setenv("VFIOCTL_CONFIG", str(file))
    return fast_folder


def write(directory: Path, name: str = "hgx8", **changed: object) -> None:
    """Write the state of a service of this host, which runs."""
    registrations = (Registration(NAME, registered=True, since=NOW),)
    running = Running(os.getpid(), NOW, str(directory / f"{name}.db"), registrations)
    (directory / "kubelet.json").write_text(running._replace(**changed).text)  # type: ignore[arg-type]


def claimed(host: Host, owner: str, *labels: str) -> Claim:
    request = ClaimRequest(owner=Owner(owner), devices=tuple(host.find([GPU])), labels=dict.fromkeys(labels, NAME))
    return host.claims.create(request).claim


def line_of(driver: Driver, device: str) -> str:
    return next((line for line in driver.text.splitlines() if device in line), "")


class TestScreen:
    def test_it_shows_resources_devices_and_failures(self, drive: Drive, run_directory: Path) -> None:
        failure = Failure(NOW, NAME, "Allocate", "0000:5c:00.0 is claimed by vm/web1: vfioctl claim show 7c1e")
        write(run_directory, failures=(failure,), pods_problem="connection refused")

        async def work(driver: Driver) -> None:
            host = driver.app.host
            claim = claimed(host, POD, LABEL)
            await driver.press("8")
            await driver.shows("[8 Kubelet]", f"{NAME}  for kubevirt, registered: 8 devices, 8 healthy")
            await driver.shows("The service runs since 2026-01-01 12:00:00 (process ")
            await driver.go("service")
            await driver.shows("connection refused")
            await driver.shows("Last failures", "Allocate of nvidia.com/GH100_H100: 0000:5c:00.0 is claimed by vm/web1")
            line = line_of(driver, GPU)
            assert [word for word in ("healthy", claim.id, "default/vm-1/compute", " 0 ") if word not in line] == []
            await driver.press("slash", "=vm-1", "enter")
            await driver.lacks(OTHER)
            assert GPU in driver.text

        drive(work, size=LARGE)

    def test_details_of_each_row(self, drive: Drive, run_directory: Path) -> None:
        write(run_directory, failures=(Failure(NOW, NAME, "Allocate", "it is " + "very " * 40 + "busy"),))

        async def work(driver: Driver) -> None:
            await driver.press("8")
            await driver.shows(GPU)
            await driver.go(f"{NAME} {GPU}")
            await driver.press("d")
            await driver.shows(f"Device {GPU}", "NUMA node", "healthy", "pci-0000-1b-00-0")
            await driver.press("d")
            await driver.go(f"resource:{NAME}")
            await driver.press("d")
            await driver.shows(f"Resource {NAME}", "passthrough", "vfioctl-nvidia.com_GH100_H100.sock")
            await driver.press("d")
            await driver.go("failure:0")
            await driver.press("d")
            await driver.shows("Allocate", "very busy")

        drive(work)

    def test_it_follows_the_host(self, drive: Drive, run_directory: Path) -> None:
        """Another process claims a device: no pod gets it."""
        del run_directory

        async def work(driver: Driver) -> None:
            await driver.press("8")
            await driver.shows("8 healthy", "The service does not run: systemctl start vfioctl-kubelet")
            session = driver.app.host.session
            other = Host.simulated(str(session.kernel._file), session.ledger)  # type: ignore[attr-defined]
            claimed(other, "vm/web1")
            await driver.shows("7 healthy", "claimed by vm/web1")

        drive(work)

    def test_without_a_resource_it_says_so(self, drive: Drive) -> None:
        async def work(driver: Driver) -> None:
            await driver.press("8")
            await driver.shows("The configuration names no resource for the kubelet")
            assert "service" not in driver.text
            await driver.press("d", "d", "c")
            await driver.shows("Not possible: nothing is selected")

        drive(work)

    def test_a_wrong_configuration_costs_this_screen_only(self, drive: Drive, run_directory: Path) -> None:
        (run_directory / "config.toml").write_text('[kubelet]\npoll = "never"\n')

        async def work(driver: Driver) -> None:
            await driver.press("8")
            await driver.shows("The device plugin could not be read: ")
            await driver.press("d")
            await driver.shows("config.toml:2: kubelet.poll")
            await driver.press("d", "2")
            await driver.shows("No claims.")
            await driver.press("1")
            await driver.shows(GPU)

        drive(work)

    def test_a_damaged_ledger_costs_this_screen_only(
        self, drive: Drive, run_directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        del run_directory

        def fail(_: KubeletApi) -> None:
            raise StoreDamaged("ledger.db is damaged")

        monkeypatch.setattr(KubeletApi, "status", fail)

        async def work(driver: Driver) -> None:
            await driver.press("8")
            await driver.shows("The device plugin could not be read: ledger.db is damaged")
            await driver.press("1")
            await driver.shows(GPU)

        drive(work)

    def test_it_is_read_only_while_it_is_shown(
        self, drive: Drive, run_directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """So ten thousand functions cost the other screens nothing more."""
        del run_directory
        read: list[float] = []
        status = KubeletApi.status

        def counted(api: KubeletApi) -> Status:
            read.append(time.monotonic())
            return status(api)

        monkeypatch.setattr(KubeletApi, "status", counted)

        async def work(driver: Driver) -> None:
            await driver.press("7", "1", "r")
            await driver.until(lambda: driver.app.feed.reading_since is None)
            assert not read
            await driver.press("8")
            await driver.shows("8 healthy")
            assert len(read) == 1
            await driver.press("r")
            await driver.until(lambda: len(read) == 2)

        drive(work)


@pytest.mark.parametrize("size", [SMALL, MIDDLE, LARGE], ids=lambda size: "x".join(map(str, size)))
def test_the_screen_as_text(drive: Drive, golden: Golden, run_directory: Path, size: tuple[int, int]) -> None:
    why = "0000:02:00.0 is held by qemu-system-x86 (guest win11): vfioctl holders 0000:02:00.0"
    write(run_directory, "busy", pid=1, failures=(Failure(NOW, NAME, "Allocate", why),))
    shown = []

    async def work(driver: Driver) -> None:
        await driver.press("8")
        await driver.shows("for kubevirt, registered", "Last failures")
        await driver.go(f"{NAME} 0000:03:00.0")
        await settled(driver)
        shown.append(timeless(driver.text))

    drive(work, "busy", size=size)
    golden(f"tui/kubelet-{size[0]}x{size[1]}.txt", shown[0])


class TestCordon:
    def test_it_shows_its_effect_first_and_only_y_does_it(self, drive: Drive, run_directory: Path) -> None:
        del run_directory

        async def work(driver: Driver) -> None:
            host = driver.app.host
            await driver.press("8")
            await driver.shows("8 healthy")
            await driver.go(f"{NAME} {GPU}")
            await driver.press("u")
            await driver.shows("Not possible: it is healthy, so it is not cordoned")
            await driver.press("space", "space", "c")
            await driver.shows("Reason")
            await driver.press("=hot", "enter")
            await driver.shows(f"No pod would get {GPU} and {OTHER} from now on.", "[>Cancel<]", "y: apply this plan")
            assert f"vfioctl kubelet uncordon {GPU} {OTHER}" in driver.page
            await driver.press("escape")
            assert not host.kubelet.cordons()
            await driver.press("c", "=hot", "enter")
            await driver.shows("y: apply this plan")
            await driver.press("y")
            await driver.shows(f"Cordoned: {GPU} and {OTHER}.")
            await driver.close()
            await driver.shows("6 healthy", "cordoned by", "hot")
            assert {*host.kubelet.cordons()} == {GPU, OTHER}

        drive(work)

    def test_it_says_who_keeps_the_device_and_does_not_wait(self, drive: Drive, run_directory: Path) -> None:
        del run_directory

        async def work(driver: Driver) -> None:
            host = driver.app.host
            claimed(host, POD, LABEL)
            await driver.press("8")
            await driver.shows(GPU)
            await driver.go(f"{NAME} {GPU}")
            await driver.press("c", "enter")
            await driver.shows(f"{GPU}: default/vm-1/compute keeps it until it ends", "y: apply this plan")
            await driver.press("y")
            await driver.shows(f"Cordoned: {GPU}.")
            await driver.close()
            await driver.shows("7 healthy", "default/vm-1/compute: cor")

        drive(work)

    def test_uncordon(self, drive: Drive, run_directory: Path) -> None:
        del run_directory

        async def work(driver: Driver) -> None:
            host = driver.app.host
            host.kubelet.cordon([GPU], why="fan is loud", wait=0)
            await driver.press("8")
            await driver.shows("7 healthy")
            await driver.go(f"{NAME} {GPU}")
            await driver.press("c", "enter")
            await driver.shows("already: cordoned by", "Nothing has to be changed.", "[>Close<]")
            await driver.press("escape", "u")
            await driver.shows(f"Pods would get {GPU} again.", "fan is loud", "y: apply this plan")
            await driver.press("y")
            await driver.shows(f"Uncordoned: {GPU}.")
            await driver.close()
            await driver.shows("8 healthy")
            assert not host.kubelet.cordons()

        drive(work)

    def test_a_device_that_is_unhealthy_for_another_reason(self, drive: Drive, run_directory: Path) -> None:
        del run_directory

        async def work(driver: Driver) -> None:
            await driver.press("8")
            await driver.shows("held by")
            await driver.go(f"{NAME} 0000:02:00.0")
            await driver.press("u")
            await driver.shows("None of these devices is cordoned.", "Nothing has to be changed.")

        drive(work, "busy")

    def test_it_is_not_offered_on_a_host_that_is_only_looked_at(self, drive: Drive, run_directory: Path) -> None:
        del run_directory

        async def work(driver: Driver) -> None:
            await driver.press("8")
            await driver.shows("8 healthy")
            await driver.go(f"{NAME} {GPU}")
            await driver.press("c")
            await driver.shows("Not possible: --read-only was given")

        drive(work, read_only="--read-only was given")


HOSTILE = "evil\x1b[2J\n\x9b31m\u202e"


def status_of(*devices: Device, **changed: object) -> Status:
    settings = ResourceSettings(name=NAME, consumer=Consumer.KATA)
    registrations = (Registration(NAME, problem=HOSTILE),)
    running = Running(1, NOW, HOSTILE, registrations, (Failure(NOW, NAME, HOSTILE, HOSTILE),))
    return Status((Resource(settings, devices),), running, (HOSTILE,))._replace(**changed)  # type: ignore[arg-type]


class TestRows:
    def test_text_from_anywhere_is_escaped(self) -> None:
        status = status_of(
            Device(HOSTILE, PciAddress(GPU), 0, HOSTILE, HOSTILE, HOSTILE, Birth(HOSTILE, HOSTILE)),
        )
        made = [*rows(status, "")]
        keys = [row.key for row in made]
        assert len({*keys}) == len(keys)
        texts = [cell.text for row in made for cell in row.cells]
        assert any("evil\\x1b[2J\\n" in text for text in texts)
        lines = [line.text for key in keys for line in drawn(details(status, "", key), 80)]
        assert any("evil" in line for line in lines)
        assert [text for text in (*texts, *lines) if not text.isprintable()] == []
        (row,) = rows(None, HOSTILE)
        assert row.cells[0].text.isprintable()

    def test_what_a_device_is(self) -> None:
        waiting = Device("0000-1b-00.0", PciAddress(GPU), None, "", "7c1e", PROVISIONAL, Birth("nvidia-63", GPU))
        status = status_of(waiting)
        row = next(row for row in rows(status) if row.key == f"{NAME} {GPU}")
        texts = [cell.text for cell in row.cells]
        assert texts == ["0000-1b-00.0", "", "healthy", "7c1e", "waits for its pod"]
        assert row.has((NAME.lower(), GPU))
        page = "\n".join(line.text for line in drawn(details(status, "", row.key), 80))
        said = ("0000-1b-00.0", "unknown", "waits for its pod", f"for each pod, as a nvidia-63 on {GPU}")
        assert [word for word in said if word not in page] == []

    def test_a_device_of_two_resources_is_one_device(self) -> None:
        assert devices_of([f"{NAME} {GPU}", f"example.com/gpu {GPU}", f"{NAME} {OTHER}"]) == (GPU, OTHER)

    def test_a_reading_that_has_not_ended(self) -> None:
        assert [row.cells[0].text for row in rows(None)] == ["The device plugin is being read."]


class TestFeed:
    def test_a_long_reading_is_not_repeated_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now = [100.0]
        monkeypatch.setattr("vfioctl.tui.data.extra.time.monotonic", lambda: now[0])

        def read(_host: Host) -> int:
            now[0] += 2.0
            return 5

        extra = Extra(read, 0, is_live=True)
        extra.changed()
        assert 0.0 <= (extra.due or 0.0) <= now[0]
        extra.begin()
        assert extra.read(None).value == 5  # type: ignore[arg-type]
        extra.changed()
        assert extra.due == 102.0 + 6.0
        extra.ask()
        extra.changed()
        assert extra.due == 0.0, "what is asked for is read at once"

    def test_what_nobody_reports_is_seen_too(
        self, run_directory: Path, monkeypatch: pytest.MonkeyPatch, copied: Callable[[str], Path]
    ) -> None:
        """The file of the service changes without an event."""
        monkeypatch.setattr("vfioctl.tui.data.feed._USAGE", 0.1)
        monkeypatch.setattr(Host, "watch", lambda *_, **__: iter(()))
        feed = Feed(Host.simulated(str(copied("busy")), run_directory / "busy.db"))
        feed.start()
        feed.show(feed.kubelet)
        registered = False

        def wait(*, until: bool) -> None:
            nonlocal registered
            end = time.monotonic() + 20
            while registered is not until:
                assert time.monotonic() < end
                found = feed.take().kubelet
                if found and found.value:
                    registered = found.value.registration(NAME).registered
                time.sleep(PAUSE / 10)

        write(run_directory, "busy")
        wait(until=True)
        write(run_directory, "busy", registrations=())
        wait(until=False)
        feed.stop()
