"""Verifies on the real kernel each fact about the lab that other tests rely on."""

import subprocess
from pathlib import Path

import pytest

from tests.lab.inside import pci, topology, view
from tests.lab.inside.conftest import Hold
from tests.lab.inside.topology import Topology

BLOCKED_SECONDS = 2.0


def test_the_display_and_its_audio_share_a_group_of_their_own(lab: Topology) -> None:
    assert topology.group_members(lab.display) == set(lab.card)


def test_the_functions_of_the_far_node_are_alone_in_their_groups(lab: Topology) -> None:
    assert topology.group_members(lab.far_display) == {lab.far_display}
    assert topology.group_members(lab.nvme) == {lab.nvme}
    assert pci.attribute(lab.far_display, "numa_node") == pci.attribute(lab.nvme, "numa_node") == "1"


def test_the_busy_card_is_one_group_of_three_functions(lab: Topology) -> None:
    assert topology.group_members(lab.busy_display) == set(lab.busy_card)


def test_udev_loaded_the_drivers_as_on_any_host(lab: Topology) -> None:
    drivers = {address: pci.driver_of(address) for address in (*lab.card, lab.far_display, lab.nvme, *lab.busy_card)}
    assert drivers == {
        lab.display: "bochs-drm",
        lab.audio: "snd_hda_intel",
        lab.far_display: "bochs-drm",
        lab.nvme: "nvme",
        lab.busy_display: "bochs-drm",
        lab.busy_disk: "nvme",
        lab.busy_nic: "e1000e",
    }


def test_lspci_agrees_with_sysfs(lab: Topology, original_drivers: dict[str, str | None]) -> None:
    seen = view.functions()
    assert {address: one.driver for address, one in seen.items()} == original_drivers
    display = seen[lab.display]
    assert (display.vendor, display.device, display.kind, display.modules) == ("1234", "1111", "038000", ("bochs",))
    assert str(display.group) == pci.group_of(lab.display)
    assert seen[lab.far_display].node == 1


def test_udev_runs_with_its_hardware_database(lab: Topology) -> None:
    asked = ["udevadm", "info", "--query=property", f"--path={pci.DEVICES / lab.display}"]
    properties = subprocess.run(asked, check=True, capture_output=True, text=True).stdout
    assert "ID_PCI_CLASS_FROM_DATABASE=Display controller" in properties
    assert subprocess.run(["udevadm", "control", "--ping"], check=False).returncode == 0


def test_control_groups_are_version_two() -> None:
    assert Path("/sys/fs/cgroup/cgroup.controllers").read_text()


def test_the_firmware_describes_an_intel_iommu() -> None:
    assert Path("/sys/firmware/acpi/tables/DMAR").read_bytes()[:4] == b"DMAR"
    assert [path.name for path in Path("/sys/class/iommu").iterdir()] == ["dmar0"]


def test_an_unbind_of_a_held_device_cannot_be_killed_and_ends_with_its_holder(lab: Topology, hold: Hold) -> None:
    pci.bind_to_vfio(lab.far_display)
    holder = hold(lab.far_display)
    writer = subprocess.Popen(["sh", "-c", f"echo {lab.far_display} >/sys/bus/pci/drivers/vfio-pci/unbind"])
    with pytest.raises(subprocess.TimeoutExpired):
        writer.wait(timeout=BLOCKED_SECONDS)
    assert "vfio_unregister_group_dev" in Path(f"/proc/{writer.pid}/stack").read_text()
    writer.kill()
    with pytest.raises(subprocess.TimeoutExpired):
        writer.wait(timeout=BLOCKED_SECONDS)
    assert _state(writer.pid) == "D"
    assert pci.driver_of(lab.far_display) is None
    with pytest.raises(TimeoutError, match="driver_override"):
        pci.within(BLOCKED_SECONDS, lambda: _read_override(lab.far_display))
    holder.kill()
    assert writer.wait(timeout=10) == -9
    assert pci.attribute(lab.far_display, "driver_override") == "vfio-pci"


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _read_override(address: str) -> None:
    pci.attribute(address, "driver_override")
