"""vfioctl-early on a small sysfs of files, run by each shell that an initramfs may have.

Its paths below /sys, /proc and /etc are those of the test's directory."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.unit.persist.initramfs import REPO, definition

SHELLS = ("dash", "bash", "busybox sh", "/usr/lib/klibc/bin/sh")
IDS = {"vendor": "0x10de", "device": "0x2684", "subsystem_vendor": "0x10de", "subsystem_device": "0x1467"}
PLACE, OTHER_PLACE = "pci0000:00/0000:00:01.0", "pci0000:00/0000:00:02.0"
GPU, TWIN = "0000:01:00.0", "0000:02:00.0"


class Machine:
    """A machine with two identical GPUs. `root`: its file system, which is that of the initramfs."""

    def __init__(self, root: Path, shell: str) -> None:
        self.root, self.shell, self.new = root, shell, root / "new"
        text = (REPO / "udev/vfioctl-early").read_text()
        for path in ("/sys/devices", "/sys/bus", "/proc/cmdline", "/etc/vfioctl"):
            assert path in text
            text = text.replace(path, f"{root}{path}")
        (root / "early").write_text(text.replace(">/dev/kmsg", f">>{root}/log"))
        for folder in ("proc", "etc/vfioctl/devices.d", "sys/bus/pci/drivers/vfio-pci", "sys/bus/pci/drivers/nouveau"):
            (root / folder).mkdir(parents=True)
        (root / "proc/cmdline").write_text("quiet splash\n")
        self.gpu, self.twin = self.device(f"{PLACE}/{GPU}"), self.device(f"{OTHER_PLACE}/{TWIN}")

    def device(self, place: str) -> Path:
        at = self.root / "sys/devices" / place
        at.mkdir(parents=True)
        for name, value in {**IDS, "class": "0x030000", "boot_vga": "0", "driver_override": "(null)"}.items():
            (at / name).write_text(f"{value}\n")
        return at

    def bind(self, at: Path, driver: str) -> None:
        (at / "driver").symlink_to(self.root / "sys/bus/pci/drivers" / driver)
        (at / "driver_override").write_text(f"{driver}\n")

    def run(self, *words: str) -> str:
        """Return what it logged."""
        command = [*self.shell.split(), str(self.root / "early"), *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env={"PATH": "/nowhere"})
        assert (done.returncode in (0, 1), done.stderr) == (True, "")
        log = self.root / "log"
        return log.read_text() if log.exists() else ""

    def release(self) -> str:
        return self.run("release", str(self.new))

    def define(self, name: str, text: str, *, inside: str = "") -> None:
        folder = Path(f"{self.new if inside else ''}{self.root}/etc/vfioctl/devices.d")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def override(at: Path) -> str:
    return (at / "driver_override").read_text().strip()


@pytest.fixture(params=SHELLS)
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Machine:
    program = shutil.which(request.param.split()[0])
    if program is None:
        pytest.skip(f"needs {request.param}")
    return Machine(tmp_path, request.param.replace(request.param.split()[0], program, 1))


class TestReserve:
    def test_only_the_device_in_the_slot(self, machine: Machine) -> None:
        machine.define(f"{GPU}.toml", definition(GPU, PLACE))
        assert f"{GPU} is for vfio-pci" in machine.run()
        assert (override(machine.gpu), override(machine.twin)) == ("vfio-pci", "(null)")

    def test_the_device_whose_bus_has_another_number(self, machine: Machine) -> None:
        (machine.root / "sys/devices/pci0000:00/0000:00:01.0" / GPU).rename(machine.gpu.with_name("0000:07:00.0"))
        machine.define(f"{GPU}.toml", definition(GPU, PLACE))
        assert "0000:07:00.0 is for vfio-pci" in machine.run()

    @pytest.mark.parametrize("name", ["device", "class", "subsystem_device"])
    def test_nothing_that_is_another_device_now(self, machine: Machine, name: str) -> None:
        """As a definition in an initramfs that is older than a new card."""
        machine.define(f"{GPU}.toml", definition(GPU, PLACE))
        (machine.gpu / name).write_text("0xffff\n")
        assert machine.run() == ""
        assert override(machine.gpu) == "(null)"

    def test_nothing_that_has_a_driver_or_the_boot_display(self, machine: Machine) -> None:
        machine.define(f"{GPU}.toml", definition(GPU, PLACE))
        machine.define(f"{TWIN}.toml", definition(TWIN, OTHER_PLACE))
        machine.bind(machine.gpu, "nouveau")
        (machine.twin / "boot_vga").write_text("1\n")
        assert "is the boot display" in machine.run()
        assert (override(machine.gpu), override(machine.twin)) == ("nouveau", "(null)")

    @pytest.mark.parametrize("line", ["ro vfioctl.disable quiet", "vfioctl.disable=1", "vfioctl.disable"])
    def test_nothing_with_the_kernel_argument(self, machine: Machine, line: str) -> None:
        machine.define(f"{GPU}.toml", definition(GPU, PLACE))
        (machine.root / "proc/cmdline").write_text(f"{line}\n")
        assert "vfioctl.disable on the kernel command line" in machine.run()
        assert override(machine.gpu) == "(null)"

    def test_nothing_with_the_file(self, machine: Machine) -> None:
        machine.define(f"{GPU}.toml", definition(GPU, PLACE))
        (machine.root / "etc/vfioctl/disabled").touch()
        assert "disabled exists" in machine.run()
        assert override(machine.gpu) == "(null)"

    @pytest.mark.parametrize(
        "change",
        [
            ('driver = "vfio-pci"', 'driver = "../../x"'),
            ('driver = "vfio-pci"', ""),
            ("0000:00/01.0", "*/*"),
            ("0000:00/01.0", "$(touch x)"),
        ],
    )
    def test_nothing_of_a_file_that_is_no_definition(self, machine: Machine, change: tuple[str, str]) -> None:
        """The others are not concerned."""
        text = definition(GPU, PLACE)
        assert change[0] in text
        machine.define("0 a\nb $(touch x).toml", text.replace(*change))
        machine.define(f"{TWIN}.toml", definition(TWIN, OTHER_PLACE))
        assert "cannot be used" in machine.run()
        assert (override(machine.gpu), override(machine.twin)) == ("(null)", "vfio-pci")
        assert not list(machine.root.rglob("x"))


class TestRelease:
    @pytest.fixture(autouse=True)
    def bound(self, machine: Machine) -> None:
        machine.define(f"{GPU}.toml", definition(GPU, PLACE))
        machine.bind(machine.gpu, "vfio-pci")
        (machine.root / "sys/bus/pci/drivers_probe").touch()

    def released(self, machine: Machine) -> bool:
        unbound = machine.root / "sys/bus/pci/drivers/vfio-pci/unbind"
        probed = (machine.root / "sys/bus/pci/drivers_probe").read_text()
        assert (unbound.exists(), probed) in ((True, f"{GPU}\n"), (False, ""))
        assert override(machine.gpu) == ("" if unbound.exists() else "vfio-pci")
        return unbound.exists()

    def test_what_the_host_has_no_definition_of(self, machine: Machine) -> None:
        machine.define(f"{TWIN}.toml", definition(TWIN, OTHER_PLACE), inside="new")
        assert "is given back" in machine.release()
        assert self.released(machine)

    def test_what_is_bound_where_the_host_has_no_definitions(self, machine: Machine) -> None:
        assert "is given back" in machine.release()
        assert self.released(machine)

    def test_not_what_the_host_defines_by_another_name(self, machine: Machine) -> None:
        """The device has been bound at another address since, which does not matter to its slot."""
        machine.define("0000:09:00.0.toml", definition("0000:09:00.0", PLACE), inside="new")
        assert machine.release() == ""
        assert not self.released(machine)

    def test_what_the_host_wants_on_another_driver(self, machine: Machine) -> None:
        text = definition(GPU, PLACE).replace("vfio-pci", "nvgrace_gpu_vfio_pci")
        machine.define(f"{GPU}.toml", text, inside="new")
        machine.release()
        assert self.released(machine)

    def test_all_if_the_host_has_the_file(self, machine: Machine) -> None:
        machine.define(f"{GPU}.toml", definition(GPU, PLACE), inside="new")
        Path(f"{machine.new}{machine.root}/etc/vfioctl/disabled").touch()
        machine.release()
        assert self.released(machine)

    def test_nothing_if_a_definition_of_the_host_cannot_be_read(self, machine: Machine) -> None:
        """It may be about the device."""
        text = definition(GPU, PLACE).replace('driver = "vfio-pci"', 'driver="vfio-pci"')
        machine.define(f"{GPU}.toml", text, inside="new")
        assert "cannot be used" in machine.release()
        assert not self.released(machine)

    def test_not_what_another_program_has_bound(self, machine: Machine) -> None:
        (machine.gpu / "driver").unlink()
        machine.bind(machine.gpu, "nouveau")
        (machine.gpu / "driver_override").write_text("vfio-pci\n")
        assert machine.release() == ""
        (machine.gpu / "driver_override").write_text("(null)\n")
        assert machine.release() == ""

    def test_what_is_reserved_and_not_bound_yet(self, machine: Machine) -> None:
        (machine.gpu / "driver").unlink()
        machine.release()
        assert override(machine.gpu) == ""
        assert not (machine.root / "sys/bus/pci/drivers/vfio-pci/unbind").exists()

    def test_nothing_with_the_kernel_argument(self, machine: Machine) -> None:
        (machine.root / "proc/cmdline").write_text("vfioctl.disable\n")
        machine.release()
        assert not self.released(machine)
