"""From a key to a change: plan pages, applying, cancelling, failing, leaving, quitting. On simulated hosts, whose rules
answer as the kernel does."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.conftest import PROGRAM, ROOT, Run
from tests.unit.domain.test_starting import URI, Machine, xml
from tests.unit.tui.conftest import Drive, Driver
from vfioctl.config import Config, ConfigFile
from vfioctl.console.plan_page import plan_page
from vfioctl.host import Host
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel.simulated.faults import Fault, parse_fault
from vfioctl.kernel.simulated.host import Simulated
from vfioctl.tui.dialogs.plan import PlanPage
from vfioctl.tui.dialogs.progress import ProgressPage
from vfioctl.tui.dialogs.question import Quit
from vfioctl.tui.model.sheet import View
from vfioctl.tui.widgets.page import drawn

GPU = PciAddress("0000:1b:00.0")


def driver_of(host: Host, address: str = GPU) -> str | None:
    return host.inventory().by_address[PciAddress(address)].driver


def other(driver: Driver) -> Host:
    """Another process on the same host and ledger."""
    session = driver.app.host.session
    file = session.kernel._file  # type: ignore[attr-defined]
    return Host.simulated(str(file), session.ledger)


class TestPlanPage:
    def test_is_what_a_dry_run_prints(self, drive: Drive) -> None:
        async def work(driver: Driver) -> None:
            await driver.press("b")
            await driver.until(lambda: "Undone by" in driver.page)
            host = driver.app.host
            plan = host.binding.plan_bind([GPU])
            lines = drawn([plan_page(plan, host.session.registry)], 77)
            assert driver.page == "\n".join(line.text.rstrip() for line in lines)

        drive(work)

    @pytest.mark.parametrize("key", ["enter", "escape", "n", "q", "space"])
    def test_only_y_applies(self, drive: Drive, key: str) -> None:
        async def work(driver: Driver) -> None:
            await driver.press("b")
            await driver.shows("[>Cancel<]", "y: apply this plan")
            await driver.press(key)
            await driver.until(lambda: len(driver.app.screen_stack) == 1)
            assert driver.app.last_change is None

        host = drive(work)
        assert driver_of(host) == "nvidia"
        assert not host.history()

    def test_y_does_nothing_before_the_plan_is_there(self, drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
        go = threading.Event()

        async def work(driver: Driver) -> None:
            api = driver.app.host.binding
            planned = api.plan_bind
            monkeypatch.setattr(api, "plan_bind", lambda *a: (go.wait(10), planned(*a))[1])
            await driver.press("b", "y", "a", "y")
            await driver.shows("Planning, ")
            go.set()
            await driver.shows("y: apply this plan")
            assert driver.app.last_change is None

        drive(work)

    def test_a_refusal_says_why_and_what_to_do(self, drive: Drive) -> None:
        async def work(driver: Driver) -> None:
            await driver.go("0000:03:00.0")
            await driver.press("b")
            await driver.shows("Nothing was changed.", "a: plan again", "[>Close<]", "hint:")
            await driver.press("y")
            assert isinstance(driver.app.screen, PlanPage)
            await driver.press("a")
            await driver.shows("hint:")

        drive(work, "busy")

    def test_a_key_that_comes_twice_leaves_once(self, drive: Drive) -> None:
        async def work(driver: Driver) -> None:
            await driver.press("b")
            await driver.shows("[>Cancel<]", "y: apply this plan")
            page = driver.app.screen
            assert isinstance(page, PlanPage)
            page.action_leave()
            page.action_apply()
            page.action_leave()
            await driver.until(lambda: len(driver.app.screen_stack) == 1)
            assert driver.app.last_change is None

        drive(work)

    def test_scrolls_while_cancel_has_the_focus(self, drive: Drive) -> None:
        async def work(driver: Driver) -> None:
            await driver.press("b")
            await driver.shows("Relies on")
            await driver.press("pagedown", "pagedown")
            await driver.shows("Undone by", "[>Cancel<]")
            await driver.press("pageup", "pageup")
            await driver.shows("Relies on")

        drive(work)

    def test_several_devices_have_one_plan(self, drive: Drive) -> None:
        async def work(driver: Driver) -> None:
            await driver.press("space", "space", "b")
            await driver.shows("bind 0000:1b:00.0 and 0000:43:00.0")
            await driver.press("y")
            await driver.shows("Done: bind")
            await driver.close()
            await driver.until(lambda: not driver.app.table.selected)

        host = drive(work)
        assert [driver_of(host, address) for address in (GPU, "0000:43:00.0")] == ["vfio-pci"] * 2


class TestApply:
    def test_binds_and_unbinds(self, drive: Drive) -> None:
        async def work(driver: Driver) -> None:
            await driver.press("b")
            await driver.shows("y: apply this plan")
            await driver.press("y")
            await driver.shows("[8/8]", "verified: the change is done", "IOMMU group 21 is ready", "[>Close<]")
            await driver.close()
            await driver.shows("ready", "vfio-pci")
            await driver.press("5")
            await driver.shows("done", "bind 0000:1b:00.0")
            await driver.press("1", "b")
            await driver.shows("Not possible: bound to vfio-pci already")
            await driver.press("u")
            await driver.shows("y: apply this plan")
            await driver.press("y")
            await driver.shows("Done: unbind")

        assert driver_of(drive(work)) == "nvidia"

    def test_a_host_that_changed_meanwhile_is_told_and_planned_again(self, drive: Drive) -> None:
        async def work(driver: Driver) -> None:
            await driver.press("b")
            await driver.shows("y: apply this plan")
            other(driver).session.kernel.write("/sys/bus/pci/drivers/nvidia/unbind", GPU)
            await driver.press("y")
            await driver.shows("changed", "Failed.", "a: plan again")
            assert driver_of(driver.app.host) is None
            await driver.press("a")
            await driver.shows("y: apply this plan", "[>Cancel<]")
            await driver.press("y")
            await driver.shows("Done: bind")

        assert driver_of(drive(work)) == "vfio-pci"

    def test_a_failure_is_rolled_back_in_sight(self, drive: Drive) -> None:
        async def work(driver: Driver) -> None:
            await driver.press("b")
            await driver.shows("y: apply this plan")
            await driver.press("y")
            await driver.until(lambda: driver.app.last_change and driver.app.last_change.is_done)
            await driver.shows("Failed.")
            page = driver.page
            said = ("failed", "failed at step", ": rolling back", "rolled back", "kernel:", "EBUSY", "restored:")
            assert [word for word in said if word not in page] == []
            await driver.close()
            await driver.press("5")
            await driver.shows("back")

        assert driver_of(drive(work, faults=[parse_fault("5:EBUSY")])) == "nvidia"

    def test_a_write_that_never_returns_ends_as_stuck(self, drive: Drive) -> None:
        async def work(driver: Driver) -> None:
            await driver.press("b")
            await driver.shows("y: apply this plan")
            await driver.press("y")
            await driver.shows("Failed.", "vfioctl recover")
            await driver.press("escape")
            await driver.shows("could not be finished: R says why", "wedged")
            await driver.press("R")
            await driver.shows("This cannot be done now", "is still wedged", "still under way", "plan again")
            assert "y: apply" not in driver.text

        drive(work, faults=[Fault(5, "hang")])

    def test_an_interrupted_change_is_recovered(self, drive: Drive, copied: Callable[[str], Path]) -> None:
        file = copied("hgx8")
        line = f"bind {GPU} --yes --simulate {file} --ledger {file.with_suffix('.db')}"
        environment = {**os.environ, "VFIOCTL_FAULTS": "4:die"}
        died = subprocess.run([*PROGRAM, *line.split()], env=environment, cwd=ROOT, capture_output=True, check=False)
        assert died.returncode == 137

        async def work(driver: Driver) -> None:
            await driver.shows("A change of 0000:1b:00.0 was interrupted: R recovers it.")
            await driver.press("5")
            await driver.shows("interrupted", "bind 0000:1b:00.0")
            await driver.press("R")
            await driver.shows("Cut short: bind", "y: apply this plan")
            await driver.press("y")
            await driver.shows("Put back: bind", "Done.")
            await driver.close()
            await driver.lacks("was interrupted")

        assert driver_of(drive(work, host=Host.simulated(str(file), file.with_suffix(".db")))) == "nvidia"

    def test_a_shared_group_goes_and_comes_back_as_a_whole(self, drive: Drive) -> None:
        gpu, disk = "0000:01:00.0", "0000:02:00.0"

        async def work(driver: Driver) -> None:
            await driver.go(gpu)
            await driver.press("b")
            await driver.shows("--with-group", "This cannot be done now")
            await driver.press("escape", "g")
            await driver.shows("y: apply this plan")
            assert disk in driver.page
            await driver.press("y")
            await driver.close()
            assert [driver_of(driver.app.host, address) for address in (gpu, disk)] == ["vfio-pci", "vfio-pci"]
            await driver.until(lambda: driver.app.feed.reading_since is None)
            await driver.press("G")
            await driver.shows("y: apply this plan")
            await driver.press("y")
            await driver.close()

        host = drive(work, "shared-group")
        assert [driver_of(host, address) for address in (gpu, disk)] == ["nvidia", "nvme"]

    def test_a_group_of_one_card_is_no_shared_one(self, drive: Drive) -> None:
        async def work(driver: Driver) -> None:
            await driver.press("g")
            await driver.shows("Not possible: nothing shares its group")

        drive(work)


class Slow:
    """Holds a write of the host until it may go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, file: str = "driver_override") -> None:
        self.go, self.held = threading.Event(), threading.Event()
        write = Simulated.write

        def held(host: Simulated, path: str, value: str) -> None:
            if path.endswith(file) and threading.current_thread().name == "vfioctl-change":
                self.held.set()
                assert self.go.wait(30)
            write(host, path, value)

        monkeypatch.setattr(Simulated, "write", held)


class TestUnderWay:
    def test_a_slow_step_counts_on_and_can_be_left(self, drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
        slow = Slow(monkeypatch)

        async def work(driver: Driver) -> None:
            await driver.press("b")
            await driver.shows("y: apply this plan")
            await driver.press("y")
            await driver.until(slow.held.is_set)
            await driver.shows("...", "driver_override", "Under way: step 5 of 8, 1 s")
            await driver.press("escape")
            await driver.shows("[1 Devices]", "bind 0000:1b:00.0: step 5 of 8", "p shows it")
            await driver.press("down", "u")
            await driver.shows("Not possible: a change is under way")
            await driver.press("p")
            await driver.shows("Leave it running")
            await driver.press("enter")
            await driver.until(lambda: len(driver.app.screen_stack) == 1)
            slow.go.set()
            await driver.shows("Done: bind 0000:1b:00.0; p shows it.")
            await driver.press("p")
            await driver.shows("Done: bind", "[>Close<]")

        assert driver_of(drive(work)) == "vfio-pci"

    def test_k_rolls_it_back(self, drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
        slow = Slow(monkeypatch)

        async def work(driver: Driver) -> None:
            await driver.press("b")
            await driver.shows("y: apply this plan")
            await driver.press("y")
            await driver.until(slow.held.is_set)
            await driver.press("k")
            await driver.shows("It is rolled back after this step.")
            slow.go.set()
            await driver.shows("cancelled: rolling back", "Failed.", "vfioctl: cancelled", "put back as before")

        assert driver_of(drive(work)) == "nvidia"

    @pytest.mark.parametrize(("key", "driver"), [("c", "nvidia"), ("w", "vfio-pci")])
    def test_quitting_asks(self, drive: Drive, monkeypatch: pytest.MonkeyPatch, key: str, driver: str) -> None:
        slow = Slow(monkeypatch)

        async def work(driver: Driver) -> None:
            await driver.press("b")
            await driver.shows("y: apply this plan")
            await driver.press("y")
            await driver.until(slow.held.is_set)
            await driver.press("escape", "q")
            await driver.shows("A change is under way", "[>Stay<]")
            await driver.press("enter")
            await driver.until(lambda: not isinstance(driver.app.screen, Quit))
            assert not driver.app._exit
            await driver.press("q", key)
            await driver.shows("then this program ends")
            assert not driver.app._exit
            slow.go.set()
            await driver.until(lambda: driver.app._exit)
            assert driver.app.return_value == 0

        assert driver_of(drive(work)) == driver

    def test_a_signal_rolls_back_and_ends(self, drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
        slow = Slow(monkeypatch)

        async def work(driver: Driver) -> None:
            await driver.press("b")
            await driver.shows("y: apply this plan")
            await driver.press("y")
            await driver.until(slow.held.is_set)
            assert isinstance(driver.app.screen, ProgressPage)
            driver.app.end_by(15)
            slow.go.set()
            await driver.until(lambda: driver.app._exit)
            assert driver.app.return_value == 15

        assert driver_of(drive(work)) == "nvidia"

    def test_waiting_for_the_lock_is_told(self, drive: Drive) -> None:
        async def work(driver: Driver) -> None:
            session = driver.app.host.session
            with session.kernel.exclusive(session.store.lock_file, wait=1):
                await driver.press("b")
                await driver.shows("y: apply this plan")
                await driver.press("y")
                await driver.shows("waiting for another vfioctl", "of 10 s", "waits for another vfioctl")
            await driver.shows("Done: bind")

        drive(work)


class TestOtherChanges:
    def test_a_claim_and_its_release(self, drive: Drive) -> None:
        async def work(driver: Driver) -> None:
            await driver.press("c")
            await driver.shows("Owner", "vm/NAME")
            await driver.press("=vm/web1", "enter")
            await driver.shows("y: apply this plan")
            assert "vfioctl claim release CLAIM" in driver.page
            await driver.press("y")
            await driver.shows("Done.", "of vm/web1")
            await driver.close()
            await driver.shows("OWNER", "vm/web1")
            await driver.press("2")
            await driver.shows("held", "0000:1b:00.0")
            await driver.press("x")
            await driver.shows("would be released", "y: apply this plan")
            await driver.press("y")
            await driver.shows("is released.")
            await driver.close()
            await driver.shows("No claims.")

        host = drive(work)
        assert driver_of(host) == "nvidia"
        assert [entry.plan.intent.verb for entry in host.history()] == ["unbind", "bind"]

    def test_a_wrong_owner_is_refused_with_its_hint(self, drive: Drive) -> None:
        async def work(driver: Driver) -> None:
            await driver.press("c")
            await driver.shows("Owner")
            await driver.press("=nobody", "enter")
            await driver.shows("vfioctl: ", "Nothing was changed.")

        drive(work)

    def test_a_claimed_device_names_its_claim_for_release(self, drive: Drive) -> None:
        async def work(driver: Driver) -> None:
            await driver.press("c", "=vm/a", "enter")
            await driver.shows("y: apply this plan")
            await driver.press("y")
            await driver.shows("Done.")
            await driver.close()
            await driver.shows("vm/a")
            await driver.press("u")
            await driver.shows("is claimed by vm/a: x releases the claim")
            await driver.press("x")
            await driver.shows("would be released")

        drive(work)

    def test_vgpus_are_created_and_removed(self, drive: Drive) -> None:
        async def work(driver: Driver) -> None:
            await driver.press("3")
            await driver.go("type:0000:08:00.0/nvidia-754")
            await driver.press("v")
            await driver.shows("A2-4C", "Number")
            await driver.press("enter", "enter")
            await driver.shows("y: apply this plan", "vgpu create A2-4C")
            shown = driver.page
            await driver.press("y")
            await driver.shows("Done: vgpu create")
            uuid = driver.app.host.history()[0].plan.subjects[0]
            assert uuid in shown
            await driver.close()
            await driver.go(uuid)
            await driver.press("x")
            await driver.shows("y: apply this plan", "vgpu remove")
            await driver.press("y")
            await driver.shows("Done: vgpu remove")

        host = drive(work, "a2")
        assert [entry.plan.intent.verb for entry in host.history()] == ["vgpu remove", "vgpu create"]

    def test_foreign_vgpus_are_left_alone(self, drive: Drive) -> None:
        async def work(driver: Driver) -> None:
            await driver.press("3")
            await driver.until(lambda: driver.app.view is View.VGPUS and len(driver.app.table.sheet.rows) > 5)
            await driver.press("x")
            await driver.shows("Not possible: vfioctl did not create")

        drive(work, "a2")

    def test_vfs(self, drive: Drive) -> None:
        async def work(driver: Driver) -> None:
            await driver.go("0000:05:00.0")
            await driver.press("n")
            await driver.shows("Number of VFs", "0 to 8; 0 now")
            await driver.press("=x", "enter")
            await driver.shows("vfioctl: not a number: 'x'")
            await driver.press("escape", "n", "=2", "enter")
            await driver.shows("sriov set 0000:05:00.0 2", "y: apply this plan")
            await driver.press("y")
            await driver.shows("Done: sriov set")
            await driver.close()
            await driver.shows("2 VFs")

        drive(work, "mi300x")

    def test_a_domain_is_started_and_stopped(self, drive: Drive, run: Run, fast_folder: Path) -> None:
        pytest.importorskip("libvirt")
        machine = Machine(run, fast_folder)
        machine.define(xml())
        session = machine.session()
        tables = {"domain": {"connect": URI}}
        session.config = Config(file=ConfigFile(exists=True, tables=tables))

        async def work(driver: Driver) -> None:
            await driver.press("4")
            await driver.shows("web1", "defined")
            await driver.go("web1")
            await driver.press("x")
            await driver.shows("Not possible: it does not run")
            await driver.press("t")
            await driver.shows("Start domain web1", "y: apply this plan")
            await driver.press("y")
            await driver.shows("Domain web1 started.", "Done.")
            await driver.close()
            await driver.shows("running")
            await driver.press("x")
            await driver.shows("Domain web1 would be shut down.", "y: apply this plan")
            await driver.press("y")
            await driver.shows("Domain web1 stopped.")

        drive(work, host=Host(session))
        assert machine.state() == "defined"


def test_no_text_of_a_plan_is_markup(drive: Drive) -> None:
    """A name in brackets is shown as it is, and control characters are escaped."""

    async def work(driver: Driver) -> None:
        await driver.press("c", "=vm/[red]a", "enter")
        await driver.shows("[red]a")
        driver.app.say("[bold]\x1b[2J[/nothing]")
        await driver.press("escape")
        driver.app.say("[bold]\x1b[2J[/nothing]")
        await driver.shows("[bold]\\x1b[2J[/nothing]")

    drive(work)


def test_nothing_of_textual_is_needed_to_read_the_host() -> None:
    program = (
        "import sys\nfrom vfioctl.host import Host\nfrom vfioctl.tui.cli import tui\n"
        "from vfioctl.tui.data.feed import Feed\nfrom vfioctl.tui import run\nprint('textual' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
