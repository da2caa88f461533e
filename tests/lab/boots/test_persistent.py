"""Devices that `vfioctl bind --persistent` has recorded, over boots of a real kernel with systemd and udev.

The machine has two identical cards. The first is recorded, the second stays with its driver. Each test boots from the
same disk, whose changes are gone after it."""

import re
from pathlib import Path

from tests.lab.outside.systemd_machine import MODULES_BUILT, Boot, SystemdMachine

PORT = "pcie-root-port,id={0},chassis={1},slot={1},bus=pcie.0,addr={1}"
CARD = (
    PORT.format("first", 5),
    "bochs-display,bus=first,addr=0.0,multifunction=on",
    "intel-hda,bus=first,addr=0.1",
)
TWIN = (PORT.format("second", 6), "bochs-display,bus=second")
EARLIER = (PORT.format("earlier", 4), "qemu-xhci,bus=earlier")
"""A card in a slot before the others: the kernel numbers the buses behind them anew."""
NVME = (
    PORT.format("third", 7),
    "nvme-subsys,id=subsystem",
    "nvme,serial=abc,subsys=subsystem,sriov_max_vfs=4,sriov_vq_flexible=8,sriov_vi_flexible=4,bus=third",
)
FIRST = """
set -e
udevadm settle
vfioctl install --yes
vfioctl bind 01:00.0 --persistent --yes
ls /etc/vfioctl/devices.d /etc/udev/rules.d
"""
STATE = """
udevadm settle --timeout=20
for device in /sys/bus/pci/devices/*; do
    driver=$(readlink $device/driver)
    driver=${driver##*/}
    echo "function ${device##*/} ${driver:-none}"
done
for unit in vfioctl-early vfioctl-restore; do
    echo "unit $unit $(systemctl show --property ActiveState --value $unit)"
done
vfioctl persist check; echo "check $?"
dmesg | grep -E 'vfioctl: |bochs-drm ' | sed 's/^/kernel /'
journalctl --boot --unit vfioctl-restore --no-pager --output cat | sed 's/^/restore /'
"""
RESTORED = """
for second in $(seq 200); do
    [ "$(systemctl show --property ActiveState --value vfioctl-restore)" = activating ] || break
    sleep 1
done
"""
"""Waits for it, longer than systemd does. Asking more often takes time from what it waits for."""


def driver(boot: Boot, address: str) -> str:
    found = re.search(rf"^function 0000:{re.escape(address)} (\S+)", boot.output, re.MULTILINE)
    return found[1] if found else "no such function"


def had_native_driver(boot: Boot, address: str) -> bool:
    return f"for 0000:{address} on minor" in boot.output or f"bochs-drm 0000:{address}" in boot.output


def test_a_module_that_is_loaded_early_does_not_take_it(machine: SystemdMachine) -> None:
    """modules-load.d loads the driver of both cards before udev has seen either."""
    boot = machine.boot((*CARD, *TWIN), STATE, before="echo bochs >/new/etc/modules-load.d/early.conf")
    assert driver(boot, "01:00.0") == "vfio-pci"
    assert not had_native_driver(boot, "01:00.0")
    assert driver(boot, "02:00.0") == "bochs-drm"


def test_udev_alone_binds_it(machine: SystemdMachine) -> None:
    """Where no other device has its driver loaded: the early unit is there for that."""
    before = """
rm /new/etc/systemd/system/sysinit.target.wants/vfioctl-early.service
busybox ln -sf /dev/null /new/etc/systemd/system/vfioctl-restore.service
"""
    boot = machine.boot(CARD, STATE, before=before)
    assert (driver(boot, "01:00.0"), driver(boot, "01:00.1")) == ("vfio-pci", "vfio-pci"), boot
    assert not had_native_driver(boot, "01:00.0")


def test_the_card_is_found_at_another_address(machine: SystemdMachine) -> None:
    """Everything moves by one bus: the twin's old address is the card's now."""
    boot = machine.boot((*EARLIER, *CARD, *TWIN), RESTORED + STATE)
    assert driver(boot, "01:00.0") == "xhci_hcd"
    assert (driver(boot, "02:00.0"), driver(boot, "02:00.1")) == ("vfio-pci", "vfio-pci"), boot
    assert not had_native_driver(boot, "02:00.0")
    assert driver(boot, "03:00.0") == "bochs-drm"
    assert "it moved from 0000:01:00.0 to 0000:02:00.0" in boot.output
    assert "check 4" in boot.output


def test_the_twin_is_not_taken_when_the_card_is_gone(machine: SystemdMachine) -> None:
    """The twin has the card's address and ids then; it is in another slot."""
    boot = machine.boot(TWIN, RESTORED + STATE)
    assert driver(boot, "01:00.0") == "bochs-drm", boot
    assert "unit vfioctl-restore failed" in boot.output
    assert "cannot be told from others with the same ids" in boot.output


def test_a_driver_that_was_there_first_gives_the_card_back(machine: SystemdMachine) -> None:
    """As a driver that is built into the kernel, or loaded by another initramfs."""
    early = """
busybox mount --bind /proc /new/proc
busybox mount --bind /sys /new/sys
busybox chroot /new /sbin/modprobe bochs
busybox umount /new/proc /new/sys
"""
    boot = machine.boot((*CARD, *TWIN), RESTORED + STATE, before=early)
    assert had_native_driver(boot, "01:00.0")
    assert (driver(boot, "01:00.0"), driver(boot, "01:00.1")) == ("vfio-pci", "vfio-pci"), boot
    assert driver(boot, "02:00.0") == "bochs-drm"
    assert "unit vfioctl-restore active" in boot.output


STUCK = f"""[Unit]
DefaultDependencies=no
Before=vfioctl-restore.service
After=sysinit.target
[Service]
Type=oneshot
ExecStart=/bin/sh -c 'for f in 0 1; do d=/sys/bus/pci/devices/0000:01:00.$$f; \
echo 0000:01:00.$$f >$$d/driver/unbind; echo standin_stuck >$$d/driver_override; done; \
insmod {MODULES_BUILT}/standin_stuck.ko'
"""


def test_a_driver_that_never_lets_go_does_not_stall_the_boot(machine: SystemdMachine, tmp_path: Path) -> None:
    before = f"cat >/new/etc/systemd/system/stuck.service <<'END'\n{STUCK}END\n"
    before += (
        "busybox mkdir -p /new/etc/systemd/system/lab.target.wants\n"
        "busybox ln -s ../stuck.service /new/etc/systemd/system/lab.target.wants/stuck.service\n"
    )
    boot = machine.boot(
        (*CARD, *TWIN),
        "echo reached; vfioctl --version;" + RESTORED + STATE,
        before=before.replace("cat >", "busybox cat >", 1),
    )
    assert boot.output.startswith("reached\nvfioctl ")
    assert "unit vfioctl-restore failed" in boot.output, boot
    assert "did not return in" in boot.output
    assert driver(boot, "01:00.0") == "none", "its removal is still under way"
    assert driver(boot, "02:00.0") == "bochs-drm"


DRIVERCTL = """
driverctl set-override 0000:02:00.0 vfio-pci
vfioctl persist list
vfioctl persist import --yes && ls /etc/driverctl.d && vfioctl persist list
"""


def test_unbind_returns_the_card_to_its_driver_and_driverctl_hands_its_own_over(machine: SystemdMachine) -> None:
    """After a boot nothing is recorded about the first; the kernel chooses its driver. The other one stays bound."""
    unbind = "vfioctl unbind 01:00.0 --persistent --yes\n"
    boot = machine.boot((*CARD, *TWIN), RESTORED + unbind + STATE + "ls /etc/vfioctl/devices.d\n" + DRIVERCTL)
    assert boot.status == 0, boot
    assert (driver(boot, "01:00.0"), driver(boot, "01:00.1")) == ("bochs-drm", "snd_hda_intel"), boot
    assert "0000:01:00.0.toml" not in boot.output
    assert re.search(r"0000:02:00.0 +vfio-pci +not checked +driverctl", boot.output), boot.output
    assert re.search(r"0000:02:00.0 +vfio-pci +ready +vfioctl", boot.output), boot.output
