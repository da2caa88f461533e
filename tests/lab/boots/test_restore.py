"""What `vfioctl-restore.service` restores after a boot: VFs, the devices of claims, and who may open these."""

import re
from pathlib import Path

from tests.lab.boots.test_persistent import CARD, NVME, RESTORED, TWIN, driver
from tests.lab.outside.systemd_machine import SystemdMachine

DEVICES = (*CARD, *TWIN, *NVME)
GUIDE = Path(__file__).parents[3] / "docs/how-to/give-users-access.md"
USERS = r"""
groupadd vfioctl; useradd --groups vfioctl ada; useradd eve
cat >/etc/sudoers.d/vfioctl <<'END'
RECIPE
END
chmod 0440 /etc/sudoers.d/vfioctl
runuser -u ada -- sudo -n vfioctl claim create --owner user/ada --device 01:00.0 --access ada --yes --json >/tmp/claim
id=$(sed -n 's/^  "id": "\(.*\)",$/\1/p' /tmp/claim)
echo "node of ada: $(stat --format '%U %a' $(sed -n 's/.*"group": "\(.*\)",$/\1/p' /tmp/claim | head -1))"
for words in "bind 01:00.0 --yes" "claim release $id --yes --simulate hgx8" "claim list" \
    "claim create --owner user/ada --device 02:00.0 --access ada --yes --ledger /tmp/ledger" \
    "claim create --owner vm/web1 --gpus 1 --access ada --yes"; do
    runuser -u ada -- sudo -n vfioctl $words && echo "allowed: $words"
done
runuser -u eve -- sudo -n vfioctl claim release $id --yes && echo "allowed: eve"
runuser -u eve -- vfioctl claim list | grep -q user/ada && echo "eve may look"
runuser -u ada -- sudo -n vfioctl claim release $id --yes && echo "ada has released"
"""
FIRST = """
set -e
udevadm settle
vfioctl install --yes
vfioctl sriov set 03:00.0 2 --persistent --yes
vfioctl claim create --owner vm/web1 --device 02:00.0 --access nobody
# as other packages do
echo 'SUBSYSTEM=="vfio", GROUP="daemon", MODE="0666"' >/etc/udev/rules.d/70-other.rules
"""
SECOND = f"""{RESTORED}
for device in /sys/bus/pci/devices/*; do
    driver=$(basename "$(readlink $device/driver)")
    echo "function ${{device##*/}} ${{driver:-none}}"
done
vfioctl reconcile; echo "reconcile $?"
node=$(echo /dev/vfio/[0-9]*)
echo "node $(stat --format '%u %g %a' $node)"
udevadm trigger --action=add --subsystem-match=vfio; udevadm settle
echo "triggered $(stat --format '%u %g %a' $node)"
vfioctl bind 01:00.0 --yes
vfioctl claim create --owner vm/web2 --device 01:00.0 --access :daemon --json >claim
vfioctl claim release $(sed -n 's/.*"id": "\\(.*\\)".*/\\1/p' claim | head -1)
udevadm trigger --action=change --subsystem-match=vfio; udevadm settle
for each in /dev/vfio/[0-9]*; do [ $each = $node ] || echo "released $(stat --format '%u %g %a' $each)"; done
ls /run/vfioctl/access | sed 's/^/noted /'
journalctl --boot --unit vfioctl-restore --no-pager --output cat | sed 's/^/restore /'
"""


def test_vfs_and_claims_are_back(tmp_path: Path) -> None:
    machine = SystemdMachine(tmp_path / "machine")
    found = re.search(r"^Cmnd_Alias.*?NOPASSWD.*?$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    assert found
    recipe = found[0].replace("/usr/bin/vfioctl", "/usr/local/bin/vfioctl")
    before = machine.boot(DEVICES, FIRST + USERS.replace("RECIPE", recipe), keep=True)
    assert before.status == 0, before
    assert "node of ada: ada 600" in before.output, before
    assert "allowed:" not in before.output
    assert "eve may look" in before.output
    assert "ada has released" in before.output
    boot = machine.boot(DEVICES, SECOND)
    assert "function 0000:03:00.2 " in boot.output, boot
    assert "function 0000:03:00.3 " not in boot.output
    assert driver(boot, "02:00.0") == "vfio-pci", boot
    assert driver(boot, "01:00.0") == "bochs-drm"
    assert "reconcile 0" in boot.output, boot
    assert "node 65534 0 600" in boot.output, boot
    assert "triggered 65534 0 600" in boot.output, "the other rule, which comes before, does not count"
    assert "released 0 1 666" in boot.output, "the other rule decides again"
    assert boot.output.count("noted ") == 1
