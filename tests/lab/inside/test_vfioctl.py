"""Inventory, bind, use by a guest, and unbind on a real kernel."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.inside import l2, mdev, pci, view
from tests.lab.inside.command import vfioctl
from tests.lab.inside.topology import Topology, group_members
from vfioctl.core.change import Result
from vfioctl.errors import DeviceInUse, GroupNotViable
from vfioctl.host import Host
from vfioctl.inventory.model.holders import HolderKind
from vfioctl.inventory.model.values import PciAddress


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def host(ledger: Path) -> Host:
    return Host.live(ledger)


def whole_vfioctl(ledger: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """The installed command, whole process."""
    command = [str(Path(sys.executable).with_name("vfioctl")), "--ledger", str(ledger), *words]
    return subprocess.run(command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120)


def test_the_inventory_is_what_lspci_and_sysfs_say(host: Host) -> None:
    ours = {f.address: f for f in host.inventory().functions}
    theirs = view.functions()
    assert set(ours) == set(theirs)
    for address, seen in theirs.items():
        function = ours[PciAddress(address)]
        assert (function.vendor_id, function.device_id, function.class_code) == (seen.vendor, seen.device, seen.kind)
        assert function.driver == seen.driver
        assert function.iommu_group == seen.group
        assert (-1 if function.numa_node is None else function.numa_node) == seen.node
        modules = {name.replace("-", "_") for name in seen.modules}
        assert modules <= {name.replace("-", "_") for name in _with_modules(function.available_drivers)}


def _with_modules(drivers: tuple[str, ...]) -> set[str]:
    """Drivers, and the modules that registered them: lspci prints modules."""
    links = [pci.DRIVERS / driver / "module" for driver in drivers]
    return {*drivers, *(link.readlink().name for link in links if link.is_symlink())}


def test_groups_cards_and_companions(host: Host, lab: Topology) -> None:
    inventory = host.inventory()
    display = inventory.by_address[PciAddress(lab.display)]
    assert display.companions == (lab.audio,)
    assert inventory.card_of(PciAddress(lab.display)) == lab.card
    for group in inventory.groups:
        assert set(group.members) == group_members(group.members[0])
    assert inventory.by_address[PciAddress(lab.far_display)].companions == ()
    assert inventory.by_address[PciAddress(lab.far_display)].numa_node == 1
    assert display.numa_node is None
    assert display.reset_methods == ("bus",)
    assert inventory.by_address[PciAddress(lab.nvme)].sriov_totalvfs == 4
    assert inventory.iommu.translating
    assert inventory.iommu.kind == "intel-vt-d"
    assert [node.cpus for node in inventory.numa_nodes] == [(0, 1), (2, 3)]


def test_a_session_on_the_command_line_with_a_guest(ledger: Path, lab: Topology) -> None:
    before = vfioctl(ledger, "inventory", "--json")
    assert before.returncode == 0, before.stderr
    plan = vfioctl(ledger, "bind", lab.display, "--dry-run", "--json")
    assert pci.driver_of(lab.display) != "vfio-pci"
    bound = whole_vfioctl(ledger, "bind", lab.display, "--yes", "--json")
    assert bound.returncode == 0, bound.stderr
    assert json.loads(bound.stdout)["plan"]["id"] == json.loads(plan.stdout)["id"]
    assert {pci.driver_of(address) for address in lab.card} == {"vfio-pci"}
    with l2.paused(list(lab.card)) as guest:
        holders = json.loads(vfioctl(ledger, "holders", lab.display, "--json").stdout)["holders"]
        assert (HolderKind.GUEST, guest.pid) in [(each["kind"], each["pid"]) for each in holders]
        refused = vfioctl(ledger, "unbind", lab.display, "--yes")
        assert refused.returncode == 4
        assert f"process {guest.pid}" in refused.stderr
    again = vfioctl(ledger, "bind", lab.display, "--yes")
    assert again.returncode == 0
    assert "nothing to do" in (again.stdout + again.stderr).lower()
    returned = vfioctl(ledger, "unbind", lab.display, "--yes")
    assert returned.returncode == 0, returned.stderr
    assert (pci.driver_of(lab.display), pci.driver_of(lab.audio)) == ("bochs-drm", "snd_hda_intel")
    assert pci.attribute(lab.display, "driver_override") == pci.NO_OVERRIDE
    assert vfioctl(ledger, "inventory", "--json").stdout == before.stdout
    history = json.loads(vfioctl(ledger, "history", "--json").stdout)["entries"]
    assert [entry["state"] for entry in history] == ["done", "done"]


def test_a_snapshot_read_back_gives_the_same_inventory(ledger: Path, results: Path) -> None:
    file = results / "lab.host"
    assert vfioctl(ledger, "snapshot", "-o", str(file)).returncode == 0
    live = vfioctl(ledger, "inventory", "--json", "--all").stdout
    read_back = vfioctl(ledger, "inventory", "--json", "--all", "--host", str(file)).stdout
    for ours, theirs in zip(json.loads(live)["functions"], json.loads(read_back)["functions"], strict=True):
        assert ours == theirs
    assert read_back == live


def test_previous_means_previous(host: Host, lab: Topology) -> None:
    """A device that had no driver and an override of its own goes back to just that."""
    pci.unbind(lab.far_display)
    (pci.DEVICES / lab.far_display / "driver_override").write_text("none")
    device = (PciAddress(lab.far_display),)
    assert host.apply(host.binding.plan_bind(device)).result == Result.DONE
    assert pci.driver_of(lab.far_display) == "vfio-pci"
    assert host.apply(host.binding.plan_unbind(device)).result == Result.DONE
    assert pci.driver_of(lab.far_display) is None
    assert pci.attribute(lab.far_display, "driver_override") == "none"


def test_a_pf_with_live_vfs_is_refused(host: Host, lab: Topology) -> None:
    mdev.enable_vfs(lab.nvme, 2, autoprobe=False)  # the nvme driver probes asynchronously, while a plan is made
    with pytest.raises(DeviceInUse, match="live VFs"):
        host.binding.plan_bind((PciAddress(lab.nvme),))
    inventory = host.inventory()
    vfs = inventory.by_address[PciAddress(lab.nvme)].virtfns
    assert len(vfs) == 2
    assert all(inventory.by_address[vf].physfn == lab.nvme for vf in vfs)
    assert all(inventory.card_of(vf) == (vf,) for vf in vfs)
    assert host.apply(host.binding.plan_bind(vfs[:1])).result == Result.DONE
    assert host.apply(host.binding.plan_unbind(vfs[:1])).result == Result.DONE


def test_strangers_in_a_group_are_named(host: Host, original_drivers: dict[str, str | None]) -> None:
    """The machine's own disk controllers share the south bridge's group."""
    inventory = host.inventory()
    shared = [
        group
        for group in inventory.groups
        if len({inventory.card_of(m) for m in group.members if not inventory.by_address[m].is_bridge}) > 1
        and len(group.blockers) > 1
    ]
    for group in shared:
        with pytest.raises(GroupNotViable, match="also holds"):
            host.binding.plan_bind((group.blockers[0].address,))
    assert pci.drivers() == original_drivers
