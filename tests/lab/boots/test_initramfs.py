"""Initramfs images with vfioctl's hook; that of mkinitramfs, with the card's own driver in it, on a real kernel.

The twin is persistent in the initramfs only, as if it had been removed after that was made."""

import io
import re
import tarfile
from pathlib import Path

import pytest

from tests.lab.boots.test_persistent import CARD, RESTORED, STATE, TWIN, driver, had_native_driver
from tests.lab.outside.overlay import overlay
from tests.lab.outside.requirements import look
from tests.lab.outside.systemd_machine import RESULTS, Boot, SystemdMachine

IN_INITRAMFS = f"""
for device in /sys/bus/pci/devices/0000:0[12]:*; do
    driver=$(busybox readlink $device/driver)
    echo "function ${{device##*/}} ${{driver##*/}}"
done >/new{RESULTS}/early
busybox ls /sys/bus/pci/drivers >>/new{RESULTS}/early
"""
DEFINITION = "etc/vfioctl/devices.d/0000:0{}:00.0.toml"


@pytest.fixture(scope="session")
def image(first_boot: tuple[SystemdMachine, bytes]) -> Path:
    machine, archive = first_boot
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        definition = files.extractfile(DEFINITION.format(1))
        assert definition is not None
        text = definition.read().decode()
    of_twin = text.replace("0000:01:00.0", "0000:02:00.0").replace("0000:00/05.0", "0000:00/06.0").encode()
    assert of_twin.count(b"06.0") == 1
    both = io.BytesIO(archive)
    with tarfile.open(fileobj=both, mode="a") as files:
        added = tarfile.TarInfo(DEFINITION.format(2))
        added.size, added.mode = len(of_twin), 0o644
        files.addfile(added, io.BytesIO(of_twin))
    return machine.made_by_mkinitramfs(both.getvalue(), ["bochs"])


def in_initramfs(machine: SystemdMachine) -> dict[str, str]:
    """Return the driver of each function, before the root file system was there."""
    text = machine.left("early").decode()
    assert "\nbochs-drm\n" in text, "the driver is not in the initramfs"
    return dict(re.findall(r"^function 0000:(\S+) (\S*)$", text, re.MULTILINE))


def booted(machine: SystemdMachine, image: Path, *arguments: str) -> Boot:
    return machine.boot((*CARD, *TWIN), RESTORED + STATE, arguments=arguments, before=IN_INITRAMFS, initramfs=image)


def test_the_card_is_bound_before_a_driver_that_is_in_the_initramfs(machine: SystemdMachine, image: Path) -> None:
    boot = booted(machine, image)
    before = in_initramfs(machine)
    assert (before["01:00.0"], before["01:00.1"], before["02:00.0"]) == ("vfio-pci", "vfio-pci", "vfio-pci"), boot
    assert (driver(boot, "01:00.0"), driver(boot, "01:00.1")) == ("vfio-pci", "vfio-pci"), boot
    assert not had_native_driver(boot, "01:00.0")
    assert "check 0" in boot.output
    # what is not persistent any more is its own driver's again before systemd starts
    assert "0000:02:00.0 is given back: the initramfs is older" in boot.output
    assert driver(boot, "02:00.0") == "bochs-drm"


def test_it_can_be_turned_off(machine: SystemdMachine, image: Path) -> None:
    boot = booted(machine, image, "vfioctl.disable")
    before = in_initramfs(machine)
    assert (before["01:00.0"], before["02:00.0"]) == ("bochs-drm", "bochs-drm"), boot
    assert (driver(boot, "01:00.0"), driver(boot, "02:00.0")) == ("bochs-drm", "bochs-drm"), boot


@pytest.mark.skipif(not Path("/usr/bin/dracut").exists(), reason="needs dracut, of the Debian package dracut-core")
def test_dracut_puts_the_same_into_its_initramfs(first_boot: tuple[SystemdMachine, bytes], tmp_path: Path) -> None:
    _, archive = first_boot
    with overlay(tmp_path) as view:
        (view.root / "tmp/archive.tar").write_bytes(archive)
        view.says("tar --extract --file=/tmp/archive.tar --directory=/")
        options = f"-m 'base udev-rules vfioctl' --no-compress --force --kver {look().release}"
        view.says(f"dracut {options} /tmp/initrd.img")
        files = {line.split()[-1] for line in view.says("lsinitrd /tmp/initrd.img").splitlines() if line.strip()}
    names = {file.rpartition("/")[2] for file in files}
    assert {DEFINITION.format(1), "usr/lib/vfioctl/vfioctl-early"} <= files
    assert {"61-vfioctl-0000:01:00.1.rules", "62-vfioctl-boot.rules"} <= names
    assert {"vfio-pci.ko", "vfio.ko", "vfio_iommu_type1.ko"} <= {name.removesuffix(".xz") for name in names}
    hooks = "usr/lib/dracut/hooks"
    assert {f"{hooks}/pre-udev/00-vfioctl-reserve.sh", f"{hooks}/pre-pivot/00-vfioctl-release.sh"} <= files
