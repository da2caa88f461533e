"""What Linux answers to each write that vfioctl makes. Runs on the simulated kernel and on the real one."""

from __future__ import annotations

import errno

import pytest

from tests.contract.conftest import HostWithPair
from vfioctl.errors import HostError, KernelRefused
from vfioctl.kernel.protocol import DRIVERS_PROBE, PCI_DEVICES, PCI_DRIVERS, FileReader


def refusal(machine: HostWithPair, path: str, value: str) -> int:
    with pytest.raises(KernelRefused) as caught:
        machine.kernel.write(path, value)
    return caught.value.errno


class TestDriverOverride:
    def test_reads_null_when_unset(self, machine: HostWithPair) -> None:
        assert machine.kernel.read(machine.device("driver_override")) == "(null)"

    @pytest.mark.parametrize("written", ["vfio-pci", "vfio-pci\n"])
    def test_reads_back_without_the_newline(self, machine: HostWithPair, written: str) -> None:
        machine.override(written)
        assert machine.kernel.read(machine.device("driver_override")) == "vfio-pci"

    @pytest.mark.parametrize("written", ["\n", "\0", "\0\0\0"])
    def test_newline_or_nul_clears(self, machine: HostWithPair, written: str) -> None:
        machine.override("vfio-pci")
        machine.override(written)
        assert machine.kernel.read(machine.device("driver_override")) == "(null)"

    def test_no_bytes_do_nothing(self, machine: HostWithPair) -> None:
        machine.override("vfio-pci")
        machine.override("")
        assert machine.kernel.read(machine.device("driver_override")) == "vfio-pci"

    @pytest.mark.parametrize(("length", "answer"), [(4094, 0), (4095, errno.EINVAL), (4096, errno.EINVAL)])
    def test_a_page_is_too_long(self, machine: HostWithPair, length: int, answer: int) -> None:
        path, value = machine.device("driver_override"), "x" * length
        if answer:
            assert refusal(machine, path, value) == answer
        else:
            machine.kernel.write(path, value)

    def test_neither_unbinds_nor_loads(self, machine: HostWithPair) -> None:
        machine.override("vfio-pci")
        assert machine.driver_of(machine.gpu) == machine.gpu_driver


class TestUnbind:
    def test_takes_the_driver_away(self, machine: HostWithPair) -> None:
        machine.unbind(machine.gpu)
        assert machine.driver_of(machine.gpu) is None
        assert machine.gpu not in machine.kernel.children(f"{PCI_DRIVERS}/{machine.gpu_driver}")

    def test_takes_a_newline_too(self, machine: HostWithPair) -> None:
        machine.kernel.write(f"{PCI_DRIVERS}/{machine.gpu_driver}/unbind", machine.gpu + "\n")
        assert machine.driver_of(machine.gpu) is None

    def test_not_bound_to_that_driver(self, machine: HostWithPair) -> None:
        assert refusal(machine, f"{PCI_DRIVERS}/vfio-pci/unbind", machine.gpu) == errno.ENODEV

    def test_not_bound_any_more(self, machine: HostWithPair) -> None:
        machine.unbind(machine.gpu)
        assert refusal(machine, f"{PCI_DRIVERS}/{machine.gpu_driver}/unbind", machine.gpu) == errno.ENODEV

    @pytest.mark.parametrize("value", ["ffff:ff:1f.7", "garbage", "\n", "01:00.0"])
    def test_no_such_device(self, machine: HostWithPair, value: str) -> None:
        assert refusal(machine, f"{PCI_DRIVERS}/vfio-pci/unbind", value) == errno.ENODEV


class TestBind:
    def test_without_an_override_vfio_pci_matches_nothing(self, machine: HostWithPair) -> None:
        machine.unbind(machine.gpu)
        assert refusal(machine, f"{PCI_DRIVERS}/vfio-pci/bind", machine.gpu) == errno.ENODEV

    def test_with_the_override_it_binds(self, machine: HostWithPair) -> None:
        machine.unbind(machine.gpu)
        machine.override("vfio-pci")
        machine.kernel.write(f"{PCI_DRIVERS}/vfio-pci/bind", machine.gpu)
        assert machine.driver_of(machine.gpu) == "vfio-pci"

    def test_a_bound_device_is_busy(self, machine: HostWithPair) -> None:
        assert refusal(machine, f"{PCI_DRIVERS}/{machine.gpu_driver}/bind", machine.gpu) == errno.EBUSY

    def test_a_bound_device_is_busy_for_another_driver(self, machine: HostWithPair) -> None:
        machine.override("vfio-pci")
        assert refusal(machine, f"{PCI_DRIVERS}/vfio-pci/bind", machine.gpu) == errno.EBUSY

    def test_the_override_keeps_the_native_driver_out(self, machine: HostWithPair) -> None:
        machine.override("vfio-pci")
        machine.unbind(machine.gpu)
        assert refusal(machine, f"{PCI_DRIVERS}/{machine.gpu_driver}/bind", machine.gpu) == errno.ENODEV


class TestDriversProbe:
    def test_binds_by_ids(self, machine: HostWithPair) -> None:
        machine.unbind(machine.gpu)
        machine.kernel.write(DRIVERS_PROBE, machine.gpu)
        assert machine.driver_of(machine.gpu) == machine.gpu_driver

    @pytest.mark.parametrize("name", ["no-such-driver", "none"])
    def test_succeeds_when_nothing_binds(self, machine: HostWithPair, name: str) -> None:
        machine.override(name)
        machine.unbind(machine.gpu)
        machine.kernel.write(DRIVERS_PROBE, machine.gpu)
        assert machine.driver_of(machine.gpu) is None

    def test_leaves_a_bound_device_alone(self, machine: HostWithPair) -> None:
        machine.override("vfio-pci")
        machine.kernel.write(DRIVERS_PROBE, machine.gpu)
        assert machine.driver_of(machine.gpu) == machine.gpu_driver

    def test_does_not_ask_autoprobe(self, machine: HostWithPair) -> None:
        machine.kernel.write("/sys/bus/pci/drivers_autoprobe", "0")
        try:
            machine.unbind(machine.gpu)
            machine.kernel.write(DRIVERS_PROBE, machine.gpu)
            assert machine.driver_of(machine.gpu) == machine.gpu_driver
        finally:
            machine.kernel.write("/sys/bus/pci/drivers_autoprobe", "1")

    @pytest.mark.parametrize("value", ["ffff:ff:1f.7", "garbage"])
    def test_no_such_device(self, machine: HostWithPair, value: str) -> None:
        assert refusal(machine, DRIVERS_PROBE, value) == errno.ENODEV


class TestEntries:
    def test_are_those_of_the_directory(self, machine: HostWithPair) -> None:
        home, wanted = f"{PCI_DEVICES}/{machine.gpu}", {"class", "modalias", "nothing", "subsystem"}
        names = ("driver", "iommu_group", "physfn", "power", "class")
        found = machine.kernel.entries(home, wanted, names)
        assert found == FileReader.entries(machine.kernel, home, wanted, names)
        assert found.names >= {"class", "modalias", "subsystem", "driver", "iommu_group"}
        assert found.texts.keys() == {"class", "modalias"}
        assert found.links.keys() == {"driver", "iommu_group"}
        assert not found.names & {"physfn", "nothing"}

    def test_of_nothing_are_refused(self, machine: HostWithPair) -> None:
        with pytest.raises(KernelRefused) as refused:
            machine.kernel.entries(f"{PCI_DEVICES}/ffff:ff:1f.7", {"class"}, ("driver",))
        assert refused.value.symbol == "ENOENT"


class TestVfioGroup:
    def test_its_node_comes_and_goes(self, machine: HostWithPair) -> None:
        node = f"/dev/vfio/{machine.group}"
        assert not machine.kernel.has(node)
        machine.move(machine.gpu, "vfio-pci")
        assert machine.kernel.has(node)
        assert machine.kernel.device_number(node)[0] == "c"
        machine.unbind(machine.gpu)
        assert not machine.kernel.has(node)

    def test_a_member_on_its_native_driver_makes_it_unviable(self, machine: HostWithPair) -> None:
        machine.move(machine.gpu, "vfio-pci")
        assert not machine.kernel.viable(machine.group)

    def test_a_member_without_a_driver_does_no_harm(self, machine: HostWithPair) -> None:
        machine.move(machine.gpu, "vfio-pci")
        machine.unbind(machine.companion)
        assert machine.kernel.viable(machine.group)

    def test_all_members_on_vfio_make_it_viable(self, machine: HostWithPair) -> None:
        machine.move(machine.gpu, "vfio-pci")
        machine.move(machine.companion, "vfio-pci")
        assert machine.kernel.viable(machine.group)

    def test_its_node_stays_for_the_last_member(self, machine: HostWithPair) -> None:
        machine.move(machine.gpu, "vfio-pci")
        machine.move(machine.companion, "vfio-pci")
        machine.unbind(machine.gpu)
        assert machine.kernel.has(f"/dev/vfio/{machine.group}")

    def test_without_a_node_there_is_nobody_to_ask(self, machine: HostWithPair) -> None:
        with pytest.raises(KernelRefused) as caught:
            machine.kernel.viable(machine.group)
        assert caught.value.errno == errno.ENOENT

    def test_the_device_is_a_vfio_device(self, machine: HostWithPair) -> None:
        assert not machine.kernel.has(machine.device("vfio-dev"))
        machine.move(machine.gpu, "vfio-pci")
        assert machine.kernel.children(machine.device("vfio-dev"))[0].startswith("vfio")


class TestFilesAndModules:
    def test_loading_what_is_loaded(self, machine: HostWithPair) -> None:
        machine.kernel.load("vfio-pci")
        machine.kernel.load("vfio_pci")
        assert machine.kernel.has(f"{PCI_DRIVERS}/vfio-pci")
        assert machine.kernel.device_number("/dev/vfio/vfio") == ("c", 10, 196)

    def test_an_unknown_module(self, machine: HostWithPair) -> None:
        with pytest.raises(HostError) as caught:
            machine.kernel.load("vfioctl-no-such-module")
        assert "not found" in caught.value.kernel_said

    def test_a_read_only_attribute(self, machine: HostWithPair) -> None:
        assert refusal(machine, machine.device("vendor"), "0x10de") == errno.EACCES

    def test_a_missing_file(self, machine: HostWithPair) -> None:
        assert refusal(machine, machine.device("no_such_attribute"), "1") == errno.ENOENT
        assert refusal(machine, f"{PCI_DRIVERS}/no-such-driver/bind", machine.gpu) == errno.ENOENT

    def test_reading(self, machine: HostWithPair) -> None:
        with pytest.raises(KernelRefused) as missing:
            machine.kernel.read(machine.device("no_such_attribute"))
        assert missing.value.symbol == "ENOENT"
        with pytest.raises(KernelRefused) as folder:
            machine.kernel.read(f"{PCI_DEVICES}/{machine.gpu}")
        assert folder.value.symbol == "EISDIR"
        with pytest.raises(KernelRefused) as no_link:
            machine.kernel.link(machine.device("vendor"))
        assert no_link.value.symbol == "EINVAL"
        with pytest.raises(KernelRefused) as no_folder:
            machine.kernel.children(machine.device("vendor"))
        assert no_folder.value.symbol == "ENOTDIR"
