"""Devices in use on a real kernel: a change is refused and names the users; when forced, it blocks and is recovered."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.lab.inside import holder, in_use, pci
from tests.lab.inside.command import vfioctl
from tests.lab.inside.conftest import Hold
from tests.lab.inside.topology import Topology
from vfioctl.core.change import JournalState, Result
from vfioctl.core.events import EventKind, StepEvent
from vfioctl.core.marks import MarkKind
from vfioctl.errors import DeviceInUse, Stuck, VfioctlError
from vfioctl.host import Host
from vfioctl.inventory.model.holders import Holder, HolderKind
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel.live.host import Live
from vfioctl.kernel.timeouts import Timeouts
from vfioctl.session import Session

DEADLINE = 3.0
AFTER_THE_DEADLINE = 1.0
MORE_FOR_AN_INVENTORY = 2.0
SETTLE = 20.0


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def host(ledger: Path) -> Host:
    """It does not wait long for the kernel."""
    return Host(Session(Live(timeouts=Timeouts(default=DEADLINE)), ledger))


def refused(ask: Callable[[], object]) -> DeviceInUse:
    with pytest.raises(DeviceInUse) as caught:
        ask()
    return caught.value


def holders_of(host: Host, address: str) -> list[Holder]:
    found = host.holders([address])
    assert found.unread == 0
    return [each for each in found.holders if each.refuses and each.address == address]


@contextmanager
def _ready(*lines: str) -> "Iterator[subprocess.Popen[str]]":
    """A Python process that has run these lines, and waits until the block ends."""
    program = "\n".join([*lines, "print('ready', flush=True)", "signal.pause()"])
    process = subprocess.Popen([sys.executable, "-S", "-E", "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


# -- who holds it ----------------------------------------------------------------------------------------


def test_a_process_with_a_vfio_device_open_is_named_and_nothing_is_touched(
    host: Host, ledger: Path, lab: Topology, hold: Hold
) -> None:
    host.apply(host.binding.plan_bind([lab.far_display]))
    process = hold(lab.far_display)
    (found,) = holders_of(host, lab.far_display)
    assert (found.kind, found.pid, found.user) == (HolderKind.PROCESS, process.pid, "root")
    assert found.path == f"/dev/vfio/{pci.group_of(lab.far_display)}"
    answer = vfioctl(ledger, "unbind", lab.far_display, "--yes")
    assert answer.returncode == 4, answer.stderr
    assert str(process.pid) in answer.stderr
    assert pci.driver_of(lab.far_display) == "vfio-pci"
    process.kill()
    process.wait()
    assert vfioctl(ledger, "unbind", lab.far_display, "--yes").returncode == 0


@pytest.mark.parametrize("kept", ["device", "mapping"])
def test_vfio_without_an_open_group_is_found_by_asking_the_kernel(
    host: Host, lab: Topology, kept: str, drivers_put_back: None
) -> None:
    """No file of the process leads to the device then: the kernel says that the group is taken."""
    host.apply(host.binding.plan_bind([lab.far_display]))
    with _keeping(lab.far_display, kept):
        found = holders_of(host, lab.far_display)
        assert found, "nobody was found"
        assert refused(lambda: host.binding.plan_unbind([lab.far_display])).facts["holders"]
    assert holders_of(host, lab.far_display) == []
    host.apply(host.binding.plan_unbind([lab.far_display]))


def _keeping(address: str, kept: str) -> "AbstractContextManager[subprocess.Popen[str]]":
    """A process that has opened the device through its group, and closed all but the device, or a mapping of it."""
    return _ready(
        "import sys, mmap, os, signal",
        f"sys.path.insert(0, {str(Path(holder.__file__).parent)!r})",
        "import holder",
        f"container, group, device = holder.hold({address!r})",
        *(["page = mmap.mmap(device, 4096, offset=0)", "os.close(device)"] if kept == "mapping" else []),
        "os.close(group)",
        "os.close(container)",
    )


def test_a_sound_card_that_somebody_listens_to_is_refused(host: Host, lab: Topology) -> None:
    with _opened(f"/sys/bus/pci/devices/{lab.audio}/sound/card*/controlC*", "/dev/snd") as process:
        error = refused(lambda: host.binding.plan_bind([lab.display]))
        assert f"process {process.pid}" in error.message
        assert error.facts["holders"][0]["address"] == lab.audio  # type: ignore[index] # a list of objects


def _opened(pattern: str, folder: str) -> "AbstractContextManager[subprocess.Popen[str]]":
    """A process with a device file open: the one whose directory in sysfs the pattern finds."""
    (place,) = Path("/").glob(pattern.lstrip("/"))
    return _ready("import os, signal", f"os.open('{folder}/{place.name}', os.O_RDWR)")


def test_a_mounted_disk_and_the_default_route_are_never_taken_along(
    host: Host, lab: Topology, tmp_path: Path, original_drivers: dict[str, str | None]
) -> None:
    place = tmp_path / "data"
    place.mkdir()
    with in_use.mounted(lab.busy_disk, place) as node:
        for force in (False, True):
            error = refused(lambda force=force: host.binding.plan_bind([lab.busy_display], force_holders=force))  # type: ignore[misc]
            assert str(place) in error.message
            assert node.name in error.message
    with in_use.with_address(lab.busy_nic, "192.0.2.1/24") as name:
        subprocess.run(["ip", "route", "add", "default", "via", "192.0.2.2", "dev", name], check=True)
        for force in (False, True):
            error = refused(lambda force=force: host.binding.plan_bind([lab.busy_display], force_holders=force))  # type: ignore[misc]
            assert name in error.message
            assert "default route" in error.message
    assert pci.drivers() == original_drivers
    assert host.apply(host.binding.plan_bind([lab.busy_display])).result == Result.DONE
    assert {pci.driver_of(address) for address in lab.busy_card} == {"vfio-pci"}
    assert host.apply(host.binding.plan_unbind([lab.busy_display])).result == Result.DONE
    assert pci.drivers() == original_drivers


# -- when it is forced -----------------------------------------------------------------------------------


def test_a_forced_unbind_blocks_in_the_kernel_and_wedges_nothing_but_its_device(
    host: Host, ledger: Path, lab: Topology, hold: Hold
) -> None:
    far = PciAddress(lab.far_display)
    host.apply(host.binding.plan_bind([far]))
    usual = _seconds(lambda: vfioctl(ledger, "inventory", "--json"))
    process = hold(far)
    error, late = _forced(host, far)
    assert DEADLINE <= late < DEADLINE + AFTER_THE_DEADLINE
    assert "vfio" in str(error.facts["wchan"])
    assert error.facts["stat"] in ("D", "S")
    assert [each["pid"] for each in error.facts["holders"]] == [process.pid]  # type: ignore[attr-defined] # a list
    assert str(process.pid) in error.hint
    writer = int(str(error.facts["pid"]))
    assert Path(f"/proc/{writer}").exists(), "what cannot be killed was killed"

    inventory = vfioctl(ledger, "inventory", "--json")
    assert inventory.returncode == 0
    assert _seconds(lambda: vfioctl(ledger, "inventory", "--json")) < usual + MORE_FOR_AN_INVENTORY
    marks = {gpu["address"]: gpu["mark"] for gpu in json.loads(inventory.stdout)["gpus"]}
    assert marks[far]["kind"] == MarkKind.WEDGED
    assert all(mark is None for address, mark in marks.items() if address != far)
    assert "wedged" in vfioctl(ledger, "inventory").stdout
    for verb in ("bind", "unbind"):
        assert vfioctl(ledger, verb, far, "--yes").returncode == 4
    recovered = vfioctl(ledger, "recover")
    assert recovered.returncode == 7, recovered.stderr
    assert "still under way" in recovered.stderr

    process.kill()
    process.wait()
    in_use.within_seconds(SETTLE, lambda: not Path(f"/proc/{writer}").exists())  # a zombie would still be there
    verdict = json.loads(ledger.with_name(f"{ledger.name}.verdicts").read_text())
    assert verdict == {"ticket": error.facts["ticket"], "said": "returned"}
    assert vfioctl(ledger, "recover").returncode == 0
    assert host.inventory().by_address[far].mark is None
    assert host.history()[0].state in (JournalState.BACK, JournalState.DONE)
    host.apply(host.binding.plan_unbind([far]))
    assert pci.driver_of(far) == "bochs-drm"


def test_a_native_driver_can_hang_as_well(host: Host, lab: Topology) -> None:
    """ALSA waits for whoever has the sound card open (snd_card_free): the audio function is wedged."""
    with _opened(f"/sys/bus/pci/devices/{lab.audio}/sound/card*/controlC*", "/dev/snd") as process:
        with pytest.raises(Stuck) as caught:
            host.apply(host.binding.plan_bind([lab.display], force_holders=True))
        assert caught.value.facts["address"] == lab.audio
        assert "snd" in str(caught.value.facts["wchan"])
        assert f"process {process.pid}" in caught.value.hint
        assert host.inventory().by_address[PciAddress(lab.audio)].mark
    in_use.within_seconds(SETTLE, lambda: _recovers(host))
    assert pci.driver_of(lab.audio) == "snd_hda_intel"
    assert pci.driver_of(lab.display) == "bochs-drm"


def _forced(host: Host, address: PciAddress) -> tuple[Stuck, float]:
    """What was raised, and how long after the write began."""
    began: list[float] = []

    def progress(event: StepEvent) -> None:
        if event.kind == EventKind.BEGIN and event.step and event.step.target.endswith("/unbind"):
            began.append(time.monotonic())

    plan = host.binding.plan_unbind([address], force_holders=True)
    assert any("--force-holders" in note for note in plan.notes)
    with pytest.raises(Stuck) as caught:
        host.apply(plan, progress=progress)
    return caught.value, time.monotonic() - began[0]


def _recovers(host: Host) -> bool:
    try:
        host.recover()
    except VfioctlError:
        return False
    return True


def _seconds(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


# -- releasing ------------------------------------------------------------------------------------------

CONSOLE = Path("/sys/class/vtconsole/vtcon1/bind")


def test_the_text_console_is_released_and_put_back(host: Host, lab: Topology) -> None:
    """Other framebuffers remain: the kernel does not move the console there, nor take it back by itself."""
    assert Path("/sys/class/vtconsole/vtcon1/name").read_text().strip() == "(M) frame buffer device"
    assert CONSOLE.read_text().strip() == "1"
    shown = _with_console(host, lab)
    plan = host.binding.plan_bind([shown], allow_boot_vga=True)
    assert any(step.target == str(CONSOLE) and step.value == "0" for step in plan.steps)
    assert any("goes dark" in note for note in plan.notes)
    host.apply(plan)
    assert CONSOLE.read_text().strip() == "0"
    host.apply(host.binding.plan_unbind([shown]))
    assert CONSOLE.read_text().strip() == "1"


def _with_console(host: Host, lab: Topology) -> str:
    """The display with the first framebuffer; which one that is changes as drivers come and go."""
    displays = (lab.display, lab.far_display, lab.busy_display)
    numbers = {
        int(match[1]): display
        for display in displays
        for place in (pci.DEVICES / display / "graphics").glob("fb*")
        if (match := re.fullmatch(r"fb([0-9]+)", place.name))
    }
    return numbers[min(numbers)]


def test_a_device_on_vfio_is_kept_awake_and_goes_back_to_its_own_settings(host: Host, lab: Topology) -> None:
    before = _power(lab.nvme)
    host.apply(host.binding.plan_bind([lab.nvme]))
    assert _power(lab.nvme) == ("on", "0")
    assert pci.attribute(lab.nvme, "power/runtime_status") == "active"
    host.apply(host.binding.plan_unbind([lab.nvme]))
    assert _power(lab.nvme) == before == ("on", "1")
    (pci.DEVICES / lab.nvme / "power/control").write_text("auto")
    host.apply(host.binding.plan_bind([lab.nvme]))
    host.apply(host.binding.plan_unbind([lab.nvme]))
    assert _power(lab.nvme) == ("auto", "1")
    (pci.DEVICES / lab.nvme / "power/control").write_text("on")


def _power(address: str) -> tuple[str, str]:
    return pci.attribute(address, "power/control"), pci.attribute(address, "d3cold_allowed")


def test_resets(ledger: Path, host: Host, lab: Topology, hold: Hold) -> None:
    assert vfioctl(ledger, "reset", lab.far_display, "--yes").returncode == 0
    assert host.apply(host.binding.plan_reset(lab.nvme, method="flr")).result == Result.DONE
    assert host.apply(host.binding.plan_reset(lab.nvme, method="bus")).result == Result.DONE
    assert pci.attribute(lab.nvme, "reset_method") == "flr bus"
    error = refused(lambda: host.binding.plan_reset(lab.display))
    assert lab.audio in error.message
    host.apply(host.binding.plan_bind([lab.far_display]))
    process = hold(lab.far_display)
    assert f"process {process.pid}" in refused(lambda: host.binding.plan_reset(lab.far_display)).message
    process.kill()
    process.wait()
    host.apply(host.binding.plan_unbind([lab.far_display]))
