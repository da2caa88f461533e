"""What Debian's kernel does with virtual functions, on the lab's nvme: the contracts that vfioctl relies on."""

import subprocess

import pytest

from tests.lab.inside import mdev, pci
from tests.lab.inside.conftest import Hold, Load, WriteApart
from tests.lab.inside.refusal import refused
from tests.lab.inside.topology import Topology

BLOCKED_SECONDS = 2.0
ENDS_SECONDS = 10.0


class TestTurningThemOn:
    def test_without_autoprobe_they_have_no_driver(self, lab: Topology) -> None:
        functions = mdev.enable_vfs(lab.nvme, 4, autoprobe=False)
        assert [pci.driver_of(one) for one in functions] == [None] * 4
        assert pci.attribute(lab.nvme, "sriov_numvfs") == "4"
        assert {pci.attribute(one, "numa_node") for one in functions} == {pci.attribute(lab.nvme, "numa_node")}
        # theirs is the address of the physical function, moved by offset and stride
        offset, stride = (int(pci.attribute(lab.nvme, f"sriov_{name}")) for name in ("offset", "stride"))
        assert [_routing(one) - _routing(lab.nvme) for one in functions] == [offset + k * stride for k in range(4)]
        mdev.set_vf_count(lab.nvme, 0)
        assert mdev.vfs(lab.nvme) == []
        # it stays for the next time
        assert pci.attribute(lab.nvme, "sriov_drivers_autoprobe") == "0"


class TestGivingThemAway:
    def test_one_goes_to_vfio_alone(self, lab: Topology, hold: Hold) -> None:
        first, second = mdev.enable_vfs(lab.nvme, 2, autoprobe=False)
        pci.bind_to_vfio(first)
        assert pci.driver_of(second) is None
        assert pci.attribute(second, "driver_override") == pci.NO_OVERRIDE
        hold(first)

    def test_turning_them_off_blocks_at_a_held_one_whose_link_is_gone_then(
        self, lab: Topology, hold: Hold, write_apart: WriteApart
    ) -> None:
        first, second, third = mdev.enable_vfs(lab.nvme, 3, autoprobe=False)
        pci.bind_to_vfio(second)
        holder = hold(second)
        writer = write_apart(pci.DEVICES / lab.nvme / "sriov_numvfs", "0")
        assert writer.status(BLOCKED_SECONDS) is None
        assert "sriov_disable" in writer.stack()
        # from the first to the last, and of each the link goes first
        assert not (pci.DEVICES / first).exists()
        assert mdev.vfs(lab.nvme) == [third]
        assert (pci.DEVICES / second).exists()
        assert pci.driver_of(second) is None
        with pytest.raises(TimeoutError, match="sriov_numvfs_show"):
            pci.within(BLOCKED_SECONDS, lambda: _read_count(lab.nvme))
        holder.kill()
        assert writer.status(ENDS_SECONDS) == 0
        assert mdev.vfs(lab.nvme) == []


class TestThePhysicalFunction:
    def test_unbound_from_nvme_it_leaves_them_on_and_nobody_can_turn_them_off(self, lab: Topology) -> None:
        mdev.enable_vfs(lab.nvme, 2, autoprobe=False)
        pci.unbind(lab.nvme)
        assert len(mdev.vfs(lab.nvme)) == 2
        assert refused(lambda: mdev.set_vf_count(lab.nvme, 0)) == "ENOENT"

    def test_with_them_on_it_does_not_go_to_vfio(self, lab: Topology) -> None:
        pci.load_vfio()
        mdev.enable_vfs(lab.nvme, 2, autoprobe=False)
        pci.write(pci.DEVICES / lab.nvme / "driver_override", "vfio-pci")
        pci.unbind(lab.nvme)
        assert refused(lambda: pci.write(pci.DRIVERS / "vfio-pci/bind", lab.nvme)) == "EBUSY"
        # this file takes the write all the same
        pci.write(pci.DRIVERS.parent / "drivers_probe", lab.nvme)
        assert pci.driver_of(lab.nvme) is None

    def test_on_vfio_it_has_none_unless_the_driver_is_told_to(self, lab: Topology) -> None:
        pci.bind_to_vfio(lab.nvme)
        assert refused(lambda: mdev.set_vf_count(lab.nvme, 1)) == "ENOENT"
        mdev.set_parameter("vfio_pci", "enable_sriov", "Y")
        try:
            # it overrides their driver, and what has an override is probed in any case
            for autoprobe in (True, False):
                (function,) = mdev.enable_vfs(lab.nvme, 1, autoprobe=autoprobe)
                assert pci.attribute(function, "driver_override") == pci.driver_of(function) == "vfio-pci"
                mdev.set_vf_count(lab.nvme, 0)
        finally:
            mdev.set_parameter("vfio_pci", "enable_sriov", "N")

    def test_the_stub_for_physical_functions_turns_them_on(self, lab: Topology) -> None:
        subprocess.run(["modprobe", "pci-pf-stub"], check=True, timeout=60)
        pci.bind_to(lab.nvme, "pci-pf-stub")
        assert len(mdev.enable_vfs(lab.nvme, 4, autoprobe=False)) == 4
        mdev.set_vf_count(lab.nvme, 0)


class TestUnderAStandIn:
    def test_a_driver_of_the_vendors_name_turns_them_on_and_takes_them_with_it(self, lab: Topology, load: Load) -> None:
        load("standin_vendor")
        pci.bind_to(lab.nvme, "nvidia")
        assert not (pci.DEVICES / lab.nvme / "nvidia").exists()
        assert len(mdev.enable_vfs(lab.nvme, 4, autoprobe=False)) == 4
        pci.unbind(lab.nvme)
        assert mdev.vfs(lab.nvme) == []


def _routing(address: str) -> int:
    _, bus, slot = address.split(":")
    device, function = slot.split(".")
    return int(bus, 16) << 8 | int(device, 16) << 3 | int(function)


def _read_count(physical: str) -> None:
    pci.attribute(physical, "sriov_numvfs")
