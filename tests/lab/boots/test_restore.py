"""What `vfioctl-restore.service` restores after a boot: VFs, and the devices of claims."""

from pathlib import Path

from tests.lab.boots.test_persistent import CARD, NVME, RESTORED, TWIN, driver
from tests.lab.outside.systemd_machine import SystemdMachine

DEVICES = (*CARD, *TWIN, *NVME)
FIRST = """
set -e
udevadm settle
vfioctl install --yes
vfioctl sriov set 03:00.0 2 --persistent --yes
vfioctl claim create --owner vm/web1 --device 02:00.0
vfioctl claim list
"""
SECOND = f"""{RESTORED}
for device in /sys/bus/pci/devices/*; do
    driver=$(basename "$(readlink $device/driver)")
    echo "function ${{device##*/}} ${{driver:-none}}"
done
vfioctl claim list
vfioctl reconcile; echo "reconcile $?"
journalctl --boot --unit vfioctl-restore --no-pager --output cat | sed 's/^/restore /'
"""


def test_vfs_and_claims_are_back(tmp_path: Path) -> None:
    machine = SystemdMachine(tmp_path / "machine")
    before = machine.boot(DEVICES, FIRST, keep=True)
    assert before.status == 0, before
    boot = machine.boot(DEVICES, SECOND)
    assert "function 0000:03:00.2 " in boot.output, boot
    assert "function 0000:03:00.3 " not in boot.output
    assert driver(boot, "02:00.0") == "vfio-pci", boot
    assert driver(boot, "01:00.0") == "bochs-drm"
    assert "vm/web1" in boot.output
    assert "reconcile 0" in boot.output, boot
