"""`vfioctl doctor` on a real kernel: with what kernel arguments and a missing module take away."""

import json
from pathlib import Path
from typing import Any

from tests.lab.boots.test_persistent import CARD, RESTORED, TWIN
from tests.lab.outside.systemd_machine import SystemdMachine

NO_MODULE = r"""
cd /new/lib/modules/*/
busybox rm kernel/drivers/vfio/pci/vfio-pci.ko*
for file in modules.dep modules.alias; do busybox sed -i '/vfio[-_]pci\(\.ko.*\)\?$/d; /vfio-pci\.ko/d' $file; done
cd /
"""
TOUCH = "busybox touch /new/boot/initrd.img-$(busybox uname -r)\n"
"""As update-initramfs after the first boot."""
OUTDATED = TOUCH.replace("touch", "touch -d '2020-01-01 00:00'")
DOCTOR = f"{RESTORED}\nvfioctl doctor --json\n"


def first_results(document: dict[str, Any]) -> dict[str, Any]:
    """The first result of each check; a problem before what is well."""
    first: dict[str, Any] = {}
    for result in document["results"]:
        first.setdefault(result["check"], result)
    return first


def test_without_an_iommu_without_the_module_and_locked_down(machine: SystemdMachine) -> None:
    arguments = ("intel_iommu=off", "lockdown=integrity")
    boot = machine.boot((*CARD, *TWIN), DOCTOR, arguments=arguments, before=NO_MODULE + OUTDATED)
    assert boot.status in (0, 1, 2), boot
    results = first_results(json.loads(boot.output))
    assert results["vfio-pci"]["status"] == "fail", results
    assert "the kernel has no vfio-pci" in results["vfio-pci"]["meaning"]
    assert (results["iommu"]["status"], results["persistent"]["status"]) == ("fail", "fail"), results
    assert "remove intel_iommu=off" in results["iommu"]["remedy"]
    assert "is older than /etc/vfioctl/devices.d" in results["boot-files"]["evidence"], results
    assert results["boot-files"]["command"] == "update-initramfs -u -k all"
    assert results["unsigned-modules"]["status"] in ("note", "fail"), results
    assert Path(results["unsigned-modules"]["evidence"].partition(":")[0]).name == "lockdown"
