"""The Debian package, over boots: its units and its rule bind a device, without `vfioctl install`."""

from pathlib import Path

from tests.lab.boots.test_persistent import CARD, RESTORED, STATE, TWIN, driver, had_native_driver
from tests.lab.outside.overlay import overlay
from tests.lab.outside.systemd_machine import SystemdMachine
from tests.lab.packages.conftest import Built, built

__all__ = ["built"]  # a fixture
FIRST = """
set -e
udevadm settle
readlink -f "$(command -v vfioctl)"
vfioctl install --yes
vfioctl bind 01:00.0 --persistent --yes
"""


def test_its_units_bind_a_device_at_boot(built: Built, tmp_path: Path) -> None:
    """dpkg installs it on the machine that runs the tests, which takes a tenth of the time."""
    (tmp_path / "view").mkdir()
    with overlay(tmp_path / "view") as view:
        (view.root / "tmp" / built.deb.name).write_bytes(built.deb.read_bytes())
        view.says(f"dpkg --install /tmp/{built.deb.name}")
        machine = SystemdMachine(tmp_path / "machine", view.upper)
    first = machine.boot((*CARD, *TWIN), FIRST, keep=True)
    assert first.status == 0, first
    assert first.output.startswith("/opt/vfioctl/bin/vfioctl\nNothing to do"), first.output
    doctor = "touch /boot/initrd*; vfioctl doctor --json; ls -R /etc/systemd/system"
    boot = machine.boot((*CARD, *TWIN), RESTORED + STATE + doctor)
    assert (driver(boot, "01:00.0"), driver(boot, "01:00.1")) == ("vfio-pci", "vfio-pci"), boot
    assert not had_native_driver(boot, "01:00.0")
    assert driver(boot, "02:00.0") == "bochs-drm"
    assert "unit vfioctl-early active" in boot.output
    assert "unit vfioctl-restore active" in boot.output
    assert "check 0" in boot.output
    assert "the package vfioctl of this system are in place" in boot.output
