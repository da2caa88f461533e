"""One boot of a machine on which all is well: what doctor says, and which GPUs the processes of a unit may open.

The first card is on vfio-pci, the second one on its own driver.
"""

import json

import pytest

from tests.lab.boots.test_doctor import DOCTOR, TOUCH, first_results
from tests.lab.boots.test_persistent import CARD, TWIN
from tests.lab.outside.systemd_machine import Boot, SystemdMachine

ALLOW = """
cat >/run/systemd/system/probe.service <<'END'
[Service]
ExecStart=/bin/sleep 1000
END
systemctl daemon-reload
systemctl start probe.service
cgroup=/system.slice/probe.service
tries() {
    for node in /dev/null /dev/kmsg /dev/vfio/vfio /dev/vfio/[0-9]* /dev/dri/card*; do
        sh -c 'echo $$ >/sys/fs/cgroup/$1/cgroup.procs; exec 3<>$2' sh $cgroup $node 2>/dev/null
        echo "$1 ${node%%[0-9]*} $?"
    done
}
tries before
vfioctl share allow $cgroup --device 02:00.0 --yes; echo "allow $?"
tries allowed
vfioctl share allowed $cgroup
systemctl daemon-reload
tries reloaded
vfioctl share disallow $cgroup --yes; echo "disallow $?"
tries after
systemctl show probe.service --property=DevicePolicy,DeviceAllow
"""
EXAMINED = "examined"
"""Between what doctor prints and the rest."""
GROUP, CARDS = "/dev/vfio/", "/dev/dri/card"
WELL = (
    *("iommu", "interrupt-remapping", "iommu-group", "vfio-pci"),
    *("marks", "persistent", "boot-files", "unfinished"),
)


@pytest.fixture(scope="module")
def boot(first_boot: tuple[SystemdMachine, bytes]) -> Boot:
    machine, _ = first_boot
    return machine.boot((*CARD, *TWIN), f"{DOCTOR}echo {EXAMINED}\n{ALLOW}", before=TOUCH)


def test_doctor_finds_no_problem(boot: Boot) -> None:
    results = first_results(json.loads(boot.output.partition(EXAMINED)[0]))
    assert {name: results[name]["status"] for name in WELL} == dict.fromkeys(WELL, "pass"), results


def test_the_unit_opens_the_gpu_that_it_may_and_no_other(boot: Boot) -> None:
    """By DeviceAllow of the unit."""
    said = boot.output.splitlines()
    for when in ("before", "allowed", "reloaded", "after"):
        assert f"{when} {CARDS} 0" in said, boot
        for node in ("/dev/null", "/dev/kmsg", "/dev/vfio/vfio"):
            assert f"{when} {node} 0" in said, boot
        opened = f"{when} {GROUP} 0" in said
        assert opened == (when in ("before", "after")), boot
    assert "allow 0" in said
    assert "disallow 0" in said
    assert "  restricted by  systemd" in said
    assert "DevicePolicy=auto" in said
    assert not [line for line in said if line.startswith("DeviceAllow=/")]
