"""Who holds a function, told from the files of a small host: a fact at a time."""

from __future__ import annotations

import errno
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.hosts.machines import HOSTS, GrowingTree, function, inventory_of, original, written
from tests.unit.conftest import Run
from vfioctl.console.documents import document_text
from vfioctl.core.limits import read_document
from vfioctl.errors import KernelRefused
from vfioctl.host import Host
from vfioctl.inventory.model.functions import Function
from vfioctl.inventory.model.holders import Holder, HolderKind, Holders
from vfioctl.inventory.probe.holders import read_holders
from vfioctl.inventory.probe.processes import Processes
from vfioctl.kernel.protocol import PCI_DEVICES
from vfioctl.kernel.recorded.host import Recorded

GPU = function("0000:01:00.0")
ON_VFIO = function("0000:01:00.0", driver="vfio-pci", iommu_group=7, vfio_group="/dev/vfio/7")
HOME = f"{PCI_DEVICES}/0000:01:00.0"
MDEV = "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001"


class HostOfOneGpu(GrowingTree):
    """A host that has a GPU and init, and what a test adds to it."""

    def __init__(self) -> None:
        super().__init__()
        self.put_directory(HOME)
        self.process(1, name="systemd")

    def below(self, path: str, subsystem: str, number: str = "") -> str:
        """A device below the GPU, by its path from there."""
        return self.device(f"{HOME}/{path}", subsystem, number)

    def held(self, *functions: Function, others: Sequence[Function] = ()) -> Holders:
        kernel = Recorded(self, "a small host")
        functions = functions or (GPU,)
        return read_holders(kernel, functions, inventory_of(*functions, *others), Processes(kernel))


@pytest.fixture
def machine() -> HostOfOneGpu:
    return HostOfOneGpu()


BY_ROOT = "Uid:\t0\t0\t0\t0"


def only(found: Holders) -> Holder:
    (holder,) = found.holders
    return holder


# -- processes ------------------------------------------------------------------------------------------


class TestProcesses:
    def test_are_matched_by_number_not_by_path(self, machine: HostOfOneGpu) -> None:
        machine.below("drm/card0", "drm", "226:0")
        machine.node("/dev/dri/card1", "c", 226, 1)
        machine.node("/var/lib/box/dev/other name", "c", 226, 0)
        machine.process(7, "/dev/dri/card1")
        machine.process(8, "/var/lib/box/dev/other name")
        assert (only(machine.held()).pid, only(machine.held()).path) == (8, "/var/lib/box/dev/other name")

    def test_a_block_device_is_no_character_device(self, machine: HostOfOneGpu) -> None:
        machine.below("drm/card0", "drm", "226:0")
        machine.node("/dev/sdx", "b", 226, 0)
        machine.process(7, "/dev/sdx")
        assert not machine.held().holders

    def test_are_told_with_all_that_they_belong_to(self, machine: HostOfOneGpu) -> None:
        machine.below("drm/card0", "drm", "226:0")
        machine.node("/dev/dri/card0", "c", 226, 0)
        machine.process(7, "/dev/dri/card0", status="Name:\tpython3\nUid:\t0\t1000\t0\t0", cgroup="0::/a.service")
        machine.properties["user:1000"] = {"name": "ada"}
        holder = only(machine.held())
        assert (holder.kind, holder.user, holder.unit) == (HolderKind.PROCESS, "ada", "a.service")
        assert (holder.how, holder.remedy) == ("open", "systemctl stop a.service")
        assert holder.refuses
        assert holder.can_be_forced

    def test_open_and_mapped_is_one_line(self, machine: HostOfOneGpu) -> None:
        machine.below("drm/card0", "drm", "226:0")
        machine.node("/dev/dri/card0", "c", 226, 0)
        maps = "7f00-7f01 rw-s 00000000 00:06 94       /dev/dri/card0\n7f02-7f03 r--p 0 08:01 5      /usr/lib/libc.so.6"
        machine.process(7, "/dev/dri/card0", maps=maps)
        assert only(machine.held()).how == "open, mapped"

    def test_of_a_usb_device_and_a_hidraw_below_a_function(self, machine: HostOfOneGpu) -> None:
        machine.below("usb1/1-1", "usb", "189:2")
        machine.below("usb1/1-1/1-1:1.0/0003:046D:C52B.0001/hidraw/hidraw0", "hidraw", "240:0")
        machine.node("/dev/bus/usb/001/003", "c", 189, 2)
        machine.node("/dev/hidraw0", "c", 240, 0)
        machine.process(7, "/dev/bus/usb/001/003")
        machine.process(8, "/dev/hidraw0")
        assert [holder.pid for holder in machine.held().holders] == [7, 8]

    def test_of_a_function_below_another_are_not_its_own(self, machine: HostOfOneGpu) -> None:
        machine.below("0000:02:00.0/drm/card1", "drm", "226:1")
        machine.node("/dev/dri/card1", "c", 226, 1)
        machine.process(7, "/dev/dri/card1")
        assert not machine.held().holders

    def test_that_may_not_be_read_are_counted(self, machine: HostOfOneGpu) -> None:
        machine.put_refused("/proc/7/fd", errno.EACCES)
        machine.process(8)
        machine.put_refused("/proc/8/maps", errno.EPERM)
        machine.process(9)
        assert (machine.held().read, machine.held().unread) == (2, 2)

    def test_that_are_hidden_are_said(self, machine: HostOfOneGpu) -> None:
        assert machine.held().hidden == ""
        machine.put_link("/proc/self/ns/pid", "pid:[4026531836]")
        assert machine.held().hidden == ""
        machine.remove("/proc/1")
        machine.process(7)
        assert "hidepid" in machine.held().hidden
        machine.put_link("/proc/self/ns/pid", "pid:[4026532199]")
        assert "container" in machine.held().hidden


class TestNvidia:
    @pytest.fixture(autouse=True)
    def driver(self, machine: HostOfOneGpu) -> None:
        machine.put("/proc/driver/nvidia/gpus/0000:01:00.0/information", "Model: \t\t X\nDevice Minor: \t 3")
        for minor in (0, 3, 255):
            machine.node(f"/dev/nvidia{minor}" if minor < 255 else "/dev/nvidiactl", "c", 195, minor)

    def test_the_node_of_the_gpu_counts_and_what_all_share_does_not(self, machine: HostOfOneGpu) -> None:
        machine.node("/dev/nvidia-uvm", "c", 509, 0)
        machine.process(7, "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0")
        machine.process(8, "/dev/nvidiactl", "/dev/nvidia3")
        assert only(machine.held()).pid == 8

    def test_a_vgpu_of_it_counts(self, machine: HostOfOneGpu) -> None:
        machine.put("/proc/devices", "Character devices:\n195 nvidia\n238 nvidia-caps\n\nBlock devices:\n  8 sd")
        home = "/proc/driver/nvidia/capabilities"
        machine.put(f"{home}/gpu3/mig/gi1/access", "DeviceFileMinor: 30\nDeviceFileMode: 292")
        machine.put(f"{home}/gpu3/mig/gi1/ci0/access", "DeviceFileMinor: 31\nDeviceFileMode: 292")
        machine.put(f"{home}/gpu0/mig/gi1/access", "DeviceFileMinor: 3\nDeviceFileMode: 292")
        for pid, minor in enumerate((3, 30, 31), start=7):
            machine.node(f"/dev/nvidia-caps/nvidia-cap{minor}", "c", 238, minor)
            machine.process(pid, f"/dev/nvidia-caps/nvidia-cap{minor}")
        assert [holder.pid for holder in machine.held().holders] == [8, 9]

    def test_any_node_of_a_switch_holds_every_switch(self, machine: HostOfOneGpu) -> None:
        machine.put("/proc/devices", "Character devices:\n507 nvidia-nvswitch")
        machine.node("/dev/nvidia-nvswitch2", "c", 507, 2)
        machine.node("/dev/nvidia-nvswitchctl", "c", 507, 255)
        machine.process(7, "/dev/nvidia-nvswitch2", name="nv-fabricmanage")
        machine.process(8, "/dev/nvidia-nvswitchctl")
        assert only(machine.held(function("0000:01:00.0", "068000", driver="nvidia-nvswitch"))).pid == 7


class TestGuests:
    def test_by_the_group_that_they_have_open(self, machine: HostOfOneGpu) -> None:
        machine.node("/dev/vfio/7", "c", 243, 0)
        command = "qemu\0-name\0guest=win11\0-device\0vfio-pci,host=01:00.0\0"
        machine.process(7, "/dev/vfio/7", name="qemu-system-x86", cmdline=command, status=BY_ROOT)
        holder = only(machine.held(ON_VFIO))
        assert (holder.kind, holder.guest) == (HolderKind.GUEST, "win11")
        assert (holder.path, holder.how) == ("/dev/vfio/7", "open")

    def test_by_the_devices_own_file(self, machine: HostOfOneGpu) -> None:
        machine.below("vfio-dev/vfio3", "vfio-dev", "511:3")
        machine.node("/dev/vfio/devices/vfio3", "c", 511, 3)
        machine.process(7, "/dev/vfio/devices/vfio3", name="cloud-hyperviso")
        assert only(machine.held(ON_VFIO)).kind == HolderKind.GUEST

    def test_by_what_the_kernel_tells_of_an_open_device(self, machine: HostOfOneGpu) -> None:
        text = "pos:\t0\nvfio-device-syspath: /sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0"
        machine.process(7, "/dev/null", "anon_inode:[vfio-device]", name="dpdk")
        machine.put("/proc/7/fdinfo/1", text)
        holder = only(machine.held(ON_VFIO))
        assert (holder.kind, holder.path) == (HolderKind.PROCESS, "anon_inode:[vfio-device]")

    def test_by_their_command_line_where_their_files_may_not_be_read(self, machine: HostOfOneGpu) -> None:
        machine.put_refused("/proc/7/fd", errno.EACCES)
        machine.put("/proc/7/comm", "qemu-system-x86")
        machine.put("/proc/7/status", BY_ROOT)
        machine.put("/proc/7/cmdline", "qemu\0-device\0vfio-pci,host=0000:01:00.0\0")
        found = machine.held(ON_VFIO)
        assert (only(found).how, only(found).path, found.unread) == ("command line", "", 1)

    def test_another_programs_command_line_says_nothing(self, machine: HostOfOneGpu) -> None:
        machine.process(7, name="vim", cmdline="vim\0host=0000:01:00.0\0")
        assert not machine.held(ON_VFIO).holders

    def test_with_a_vgpu_of_the_function(self, machine: HostOfOneGpu) -> None:
        path = machine.below(MDEV, "mdev")
        machine.put_link(f"{path}/iommu_group", "../../../kernel/iommu_groups/40")
        machine.node("/dev/vfio/40", "c", 243, 5)
        machine.process(7, "/dev/vfio/40", name="kvm")
        command = f"qemu\0-device\0vfio-pci,sysfsdev=/sys/bus/mdev/devices/{MDEV}\0"
        machine.process(8, name="qemu-system-x86", cmdline=command, status=BY_ROOT)
        found = machine.held().holders
        assert [(holder.kind, holder.pid) for holder in found] == [(HolderKind.GUEST, 7), (HolderKind.MDEV, None)]
        machine.unreadable(8)
        found = machine.held().holders
        assert [(holder.kind, holder.pid) for holder in found] == [
            (HolderKind.GUEST, 7),
            (HolderKind.GUEST, 8),
            (HolderKind.MDEV, None),
        ]

    def test_whoever_has_kvm_open_is_one(self, machine: HostOfOneGpu) -> None:
        machine.node("/dev/vfio/7", "c", 243, 0)
        machine.node("/dev/kvm", "c", 10, 232)
        machine.process(7, "/dev/kvm", "/dev/vfio/7", name="renamed")
        assert only(machine.held(ON_VFIO)).kind == HolderKind.GUEST


class Busy(Recorded):
    """A host that calls every group open."""

    def viable(self, group: int) -> bool:
        raise KernelRefused(f"/dev/vfio/{group}", errno.EBUSY)


class TestGroupsThatAreOpen:
    def test_are_told_when_no_process_is_found_with_who_it_may_be(self, machine: HostOfOneGpu) -> None:
        machine.process(7, "anon_inode:[vfio-device]", name="dpdk")
        kernel = Busy(machine, "")
        found = read_holders(kernel, [ON_VFIO], inventory_of(ON_VFIO), Processes(kernel))
        assert (only(found).kind, only(found).path) == (HolderKind.VFIO_GROUP, "/dev/vfio/7")
        assert "dpdk (pid 7)" in only(found).remedy

    def test_are_not_asked_for_when_the_process_is_known_or_the_host_has_the_device(
        self, machine: HostOfOneGpu
    ) -> None:
        machine.node("/dev/vfio/7", "c", 243, 0)
        machine.process(7, "/dev/vfio/7")
        kernel = Busy(machine, "")
        found = read_holders(kernel, [ON_VFIO], inventory_of(ON_VFIO), Processes(kernel))
        assert only(found).kind == HolderKind.PROCESS
        other = Busy(HostOfOneGpu(), "")
        assert not read_holders(other, [GPU], inventory_of(GPU), Processes(other)).holders


# -- captures ---------------------------------------------------------------------------------------------


class TestCaptures:
    """A captured directory and a recording: they have devices, but often no processes."""

    @pytest.fixture(params=["--root", "--host"])
    def capture(self, request: pytest.FixtureRequest, tmp_path: Path) -> str:
        if request.param == "--host":
            return "--host a2"
        return f"--root {written(original('a2'), tmp_path)}"

    def test_live_mdevs_count_and_are_not_planned_over(self, run: Run, capture: str) -> None:
        document = run(f"holders 08:00.4 --json {capture}").document
        assert [(holder["kind"], holder["name"]) for holder in document["holders"] if holder["kind"] == "mdev"] == [
            ("mdev", "6d3f2c1a-0b4e-4f6d-8a7c-5e9b1f2a3c4d")
        ]
        answer = run(f"bind 08:00.4 --dry-run {capture}")
        assert answer.code == 4
        assert "6d3f2c1a" in answer.err

    def test_who_has_a_device_open_is_unknown_not_nobody(self, run: Run, capture: str) -> None:
        answer = run(f"holders 08:00.6 {capture}")
        assert "Nobody" not in answer.out
        assert "unknown: the capture has no processes" in answer.out
        assert run(f"holders 08:00.6 --json {capture}").document["unknown"] == "the capture has no processes"
        assert "unknown: the capture has no processes" in run(f"bind 08:00.6 --dry-run {capture}").out

    def test_a_simulated_host_and_a_recording_with_processes_are_known(self, run: Run) -> None:
        for host in ("--simulate a2", "--host busy"):
            assert run(f"holders gpu0 --json {host}").document["unknown"] == ""


# -- disks ----------------------------------------------------------------------------------------------


class TestDisks:
    @pytest.fixture(autouse=True)
    def disk(self, machine: HostOfOneGpu) -> None:
        for name, number, minor in (("nvme0n1", "259:0", 0), ("nvme0n1/nvme0n1p1", "259:1", 1)):
            machine.below(f"nvme/nvme0/{name}", "block", number)
            machine.node(f"/dev/{name.rpartition('/')[2]}", "b", 259, minor)

    def stack(self, machine: HostOfOneGpu, name: str, minor: int, label: str, *below: str) -> None:
        home = f"/sys/class/block/{name}"
        machine.put(f"{home}/dev", f"254:{minor}")
        machine.node(f"/dev/{name}", "b", 254, minor)
        if label:
            machine.put(f"{home}/dm/name", label)
        for path in below:
            machine.put_link(f"{path}/holders/{name}", home)

    def told(self, machine: HostOfOneGpu) -> list[tuple[str, str, str]]:
        found = machine.held().holders
        assert all(h.kind == HolderKind.DISK and h.refuses and not h.can_be_forced for h in found)
        return [(h.path, h.name, h.how) for h in found]

    def test_at_rest(self, machine: HostOfOneGpu) -> None:
        machine.put("/proc/self/mountinfo", "26 1 8:1 / / rw - ext4 /dev/sda1 rw")
        assert not self.told(machine)

    def test_mounted_by_number(self, machine: HostOfOneGpu) -> None:
        machine.put("/proc/self/mountinfo", "26 1 259:1 / /a\\040b rw shared:1 - ext4 /dev/root rw")
        assert self.told(machine) == [("/dev/nvme0n1p1", "/a b", "mounted")]

    def test_mounted_by_what_the_file_system_says_it_is_on(self, machine: HostOfOneGpu) -> None:
        """btrfs has numbers of its own."""
        lines = ["26 1 0:33 /@ / rw - btrfs /dev/nvme0n1p1 rw", "27 1 0:33 /@home /home rw - btrfs /dev/nvme0n1p1 rw"]
        machine.put("/proc/1/mountinfo", "\n".join([*lines, "odd", "1 2 3 - "]))
        assert self.told(machine) == [("/dev/nvme0n1p1", "/", "mounted at 2 places")]

    def test_swap(self, machine: HostOfOneGpu) -> None:
        lines = ["Filename\tType\tSize", "/dev/nvme0n1p1  partition  1  0  -2", "/swapfile  file  1  0  -3"]
        machine.put("/proc/swaps", "\n".join(lines))
        assert self.told(machine) == [("/dev/nvme0n1p1", "swap", "swap")]

    def test_through_encryption_and_volumes(self, machine: HostOfOneGpu) -> None:
        self.stack(machine, "dm-0", 0, "crypt", f"{HOME}/nvme/nvme0/nvme0n1/nvme0n1p1")
        self.stack(machine, "dm-1", 1, "vg-data", "/sys/class/block/dm-0")
        machine.put("/proc/self/mountinfo", "26 1 254:1 / /data rw - xfs /dev/mapper/vg-data rw")
        (holder,) = machine.held().holders
        assert (holder.name, holder.how) == ("/data", "mounted, through vg-data, through crypt")
        assert holder.remedy == "umount /data, then dmsetup remove vg-data, then dmsetup remove crypt"

    def test_a_part_of_raid(self, machine: HostOfOneGpu) -> None:
        self.stack(machine, "md0", 0, "", f"{HOME}/nvme/nvme0/nvme0n1")
        assert self.told(machine) == [("/dev/nvme0n1", "md0", "a part of md0")]
        assert only(machine.held()).remedy == "mdadm --stop /dev/md0"

    def test_stacked_in_a_circle(self, machine: HostOfOneGpu) -> None:
        self.stack(machine, "dm-0", 0, "a", f"{HOME}/nvme/nvme0/nvme0n1", "/sys/class/block/dm-0")
        assert len(self.told(machine)) == 1

    def test_that_the_kernel_keeps_are_told_once_not_for_the_whole_disk_too(self, machine: HostOfOneGpu) -> None:
        machine.properties["sim:claimed"] = {"259:0": "zfs", "259:1": "zfs"}
        ((path, name, how),) = self.told(machine)
        assert (path, name) == ("/dev/nvme0n1p1", "nvme0n1p1")
        assert "ZFS" in how

    def test_of_which_a_part_is_mounted_are_not_asked_for(self, machine: HostOfOneGpu) -> None:
        machine.put("/proc/self/mountinfo", "26 1 259:1 / /data rw - ext4 /dev/nvme0n1p1 rw")
        machine.properties["sim:claimed"] = {"259:0": "ext4", "259:1": "ext4"}
        assert self.told(machine) == [("/dev/nvme0n1p1", "/data", "mounted")]

    def test_of_an_nvme_subsystem_with_multipath(self, machine: HostOfOneGpu) -> None:
        machine.below("nvme/nvme1", "nvme", "240:1")
        home = "/sys/devices/virtual/nvme-subsystem/nvme-subsys1"
        machine.put_link("/sys/class/nvme-subsystem/nvme-subsys1", home)
        machine.put_link(f"{home}/nvme1", f"{HOME}/nvme/nvme1")
        machine.device(f"{home}/nvme1n1", "block", "259:9")
        machine.put("/proc/self/mountinfo", "26 1 259:9 / /fast rw - ext4 /dev/nvme1n1 rw")
        assert self.told(machine) == [("/dev/nvme1n1", "/fast", "mounted")]


# -- network --------------------------------------------------------------------------------------------

DEFAULT = "eth0\t00000000\t0101A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0"
LOCAL = "eth0\t0001A8C0\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0"
ELSEWHERE = "wlan0\t0002A8C0\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0"
HEADER = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask"


class TestNetwork:
    def told(self, machine: HostOfOneGpu) -> list[tuple[str, str]]:
        found = machine.held().holders
        assert all(h.kind == HolderKind.NETWORK and h.refuses and not h.can_be_forced for h in found)
        return [(h.name, h.how) for h in found]

    @pytest.fixture(autouse=True)
    def interface(self, machine: HostOfOneGpu) -> None:
        machine.below("net/eth0", "net")
        machine.put(f"{HOME}/net/eth0/flags", "0x1003")

    def test_down(self, machine: HostOfOneGpu) -> None:
        machine.put(f"{HOME}/net/eth0/flags", "0x1002")
        machine.put("/proc/net/route", f"{HEADER}\n{DEFAULT}")
        assert not self.told(machine)

    @pytest.mark.parametrize("text", ["", "odd", "0x"])
    def test_of_which_nothing_is_known(self, machine: HostOfOneGpu, text: str) -> None:
        machine.put(f"{HOME}/net/eth0/flags", text)
        assert not self.told(machine)

    def test_up(self, machine: HostOfOneGpu) -> None:
        assert self.told(machine) == [("eth0", "up")]

    def test_the_default_route(self, machine: HostOfOneGpu) -> None:
        machine.put("/proc/net/route", f"{HEADER}\n{LOCAL}\n{DEFAULT}\nodd\n")
        assert self.told(machine) == [("eth0", "up, the default route")]

    def test_no_default_route_of_another_or_one_that_refuses(self, machine: HostOfOneGpu) -> None:
        refusing = DEFAULT.replace("0003", "0201")
        machine.put("/proc/net/route", f"{HEADER}\n{refusing}\n{DEFAULT.replace('eth0', 'wlan0')}")
        assert self.told(machine) == [("eth0", "up")]

    def test_the_default_route_of_ipv6(self, machine: HostOfOneGpu) -> None:
        zero = "0" * 32
        ends = ("ffffffff 00000001 00000000 00200200 lo", "00000400 00000001 00000000 00000003 eth0")
        machine.put("/proc/net/ipv6_route", "\n".join(f"{zero} 00 {zero} 00 {zero} {end}" for end in ends))
        assert self.told(machine) == [("eth0", "up, the default route")]

    def test_through_a_bond_and_a_bridge(self, machine: HostOfOneGpu) -> None:
        machine.put_link(f"{HOME}/net/eth0/upper_bond0", "../../../../../virtual/net/bond0")
        machine.put_link("/sys/class/net/bond0/upper_br0", "../br0")
        machine.put_link("/sys/class/net/br0/upper_bond0", "../bond0")
        machine.put("/proc/net/route", f"{HEADER}\n{DEFAULT.replace('eth0', 'br0')}")
        assert self.told(machine) == [("eth0", "up, a part of bond0, a part of br0, the default route")]

    @pytest.mark.parametrize(
        ("client", "through"),
        [
            ("192.168.1.7", True),
            ("203.0.113.5", True),
            ("192.168.2.7", False),
            ("::ffff:192.168.1.7", True),
            ("fe80::1%eth0", True),
            ("fe80::1%wlan0", False),
            ("2001:db8::7", True),
            ("2001:db8:1::7", False),
            ("127.0.0.1", False),
            ("::1", False),
            ("UNKNOWN", False),
            ("", False),
        ],
    )
    def test_the_readers_own_ssh_session(self, machine: HostOfOneGpu, client: str, *, through: bool) -> None:
        def v6(prefix: str, length: int, interface: str) -> str:
            return f"{prefix:0<32} {length:02x} {'0' * 32} 00 {'0' * 32} 00000400 1 0 00000001 {interface}"

        machine.put("/proc/net/route", f"{HEADER}\n{LOCAL}\n{DEFAULT}\n{ELSEWHERE}")
        machine.put("/proc/net/ipv6_route", "\n".join([v6("20010db8", 32, "eth0"), v6("20010db80001", 48, "wlan0")]))
        machine.put("/proc/self/stat", "90 (a (b) c) S 80 90 80 0 -1")
        machine.put("/proc/80/stat", "80 (sudo) S 70 80 80 0 -1")
        machine.put("/proc/80/environ", "HOME=/root\0XSSH_CONNECTION=1.2.3.4 1 2 3\0")
        machine.put("/proc/70/environ", f"A=b\0SSH_CONNECTION={client} 50022 192.168.1.2 22\0")
        (holder,) = machine.held().holders
        assert ("this SSH session" in holder.how) is through
        assert ("console" in holder.remedy) is through

    def test_a_session_at_the_console(self, machine: HostOfOneGpu) -> None:
        machine.put("/proc/self/stat", "90 (bash) S 1 90 80 0 -1")
        machine.put("/proc/1/environ", "SSH_CONNECTION=192.168.1.7 1 192.168.1.2 22\0")  # init's is nobody's session
        machine.put("/proc/net/route", f"{HEADER}\n{LOCAL}")
        assert self.told(machine) == [("eth0", "up")]


# -- the kernel itself ----------------------------------------------------------------------------------


class TestKernel:
    def console(self, machine: HostOfOneGpu, *, bind: str = "1", name: str = "(M) frame buffer device") -> None:
        machine.put("/sys/class/vtconsole/vtcon0/name", "(S) dummy device")
        machine.put("/sys/class/vtconsole/vtcon0/bind", "1")
        machine.put("/sys/class/vtconsole/vtcon1/name", name)
        machine.put("/sys/class/vtconsole/vtcon1/bind", bind)

    def test_the_text_console_is_told_and_refuses_nothing(self, machine: HostOfOneGpu) -> None:
        machine.below("graphics/fb0", "graphics", "29:0")
        self.console(machine)
        holder = only(machine.held())
        assert (holder.kind, holder.name, holder.path) == (HolderKind.CONSOLE, "vtcon1", "/dev/fb0")
        assert not holder.refuses

    @pytest.mark.parametrize("state", [{"bind": "0"}, {"name": "(S) VGA+"}])
    def test_a_framebuffer_without_console(self, machine: HostOfOneGpu, state: dict[str, str]) -> None:
        machine.below("graphics/fb0", "graphics", "29:0")
        self.console(machine, **state)
        assert not machine.held().holders

    @pytest.mark.parametrize(("boot", "count"), [(True, 1), (False, 0)])
    def test_the_firmwares_framebuffer_is_the_boot_displays(
        self, machine: HostOfOneGpu, *, boot: bool, count: int
    ) -> None:
        machine.put_link("/sys/class/graphics/fb0/device", "../../../efi-framebuffer.0")
        self.console(machine)
        assert len(machine.held(function("0000:01:00.0", "030000", driver=None, boot_vga=boot)).holders) == count

    def test_a_module_that_others_use(self, machine: HostOfOneGpu) -> None:
        machine.put_link("/sys/bus/pci/drivers/nvidia/module", "../../../../module/nvidia")
        machine.put("/sys/module/nvidia/refcnt", "3")
        machine.put_link("/sys/module/nvidia/holders/nvidia_uvm", "../../nvidia_uvm")
        holder = only(machine.held())
        assert (holder.kind, holder.name, holder.refuses) == (HolderKind.MODULE, "nvidia", False)
        assert "nvidia_uvm" in holder.how

    @pytest.mark.parametrize("count", ["0", "-1", ""])
    def test_a_module_that_nobody_uses(self, machine: HostOfOneGpu, count: str) -> None:
        machine.put_link("/sys/bus/pci/drivers/nvidia/module", "../../../../module/nvidia")
        machine.put("/sys/module/nvidia/refcnt", count)
        assert not machine.held().holders


class TestVirtualFunctions:
    PF = function("0000:01:00.0", virtfns=("0000:01:00.4", "0000:01:00.5"))

    def vf(self, number: int, driver: str | None) -> Function:
        return function(f"0000:01:00.{number}", physfn="0000:01:00.0", driver=driver, iommu_group=10 + number)

    def test_on_vfio_refuse(self, machine: HostOfOneGpu) -> None:
        found = machine.held(self.PF, others=[self.vf(4, "vfio-pci"), self.vf(5, None)])
        assert (only(found).kind, only(found).name) == (HolderKind.VF, "0000:01:00.4")
        assert only(found).address == self.PF.address
        assert found.devices == (self.PF.address,)

    def test_that_are_held_refuse(self, machine: HostOfOneGpu) -> None:
        machine.device(f"{PCI_DEVICES}/0000:01:00.5/net/eth9", "net")
        machine.put(f"{PCI_DEVICES}/0000:01:00.5/net/eth9/flags", "0x1003")
        found = machine.held(self.PF, others=[self.vf(4, None), self.vf(5, "mlx5_core")]).holders
        assert [(holder.address, holder.kind) for holder in found] == [
            ("0000:01:00.0", HolderKind.VF),
            ("0000:01:00.5", HolderKind.NETWORK),
        ]

    def test_that_nobody_uses_are_no_holders(self, machine: HostOfOneGpu) -> None:
        assert not machine.held(self.PF, others=[self.vf(4, None), self.vf(5, "amdgpu")]).holders


# -- a whole host ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ("gpu0", {("process", "nvidia-persiste"), ("process", "python3"), ("process", "tritonserver")}),
        ("gpu1", {("guest", "qemu-system-x86")}),
        ("gpu2", {("disk", "/data"), ("disk", "nvme1n1p2"), ("network", "enp6s0")}),
        ("gpu3", set()),
        ("gpu4", {("process", "Xorg"), ("process", "pipewire")}),
    ],
)
def test_the_bundled_host_that_is_in_use(device: str, expected: set[tuple[str, str]]) -> None:
    found = Host.recorded(str(HOSTS / "busy.host")).holders([device])
    assert {(holder.kind.value, holder.name) for holder in found.refusing} == expected
    assert read_document(Holders, json.loads(document_text(found))) == found


def test_several_devices_and_ids(run: Run) -> None:
    everyone = run("holders 10de:2684 --every --host busy --json").document
    assert {holder["address"] for holder in everyone["holders"] if holder["pid"]} == {
        "0000:01:00.0",
        "0000:02:00.0",
        "0000:02:00.1",
    }
    assert run("holders 10de:2684 --host busy").code == 2


def test_names_from_a_host_drive_no_terminal(run: Run, tmp_path: Path) -> None:
    text = (HOSTS / "busy.host").read_text().replace("/proc/3107/comm = python3", "/proc/3107/comm = a\\x1b[31m\\nb")
    file = tmp_path / "odd.host"
    file.write_text(text)
    told = run(f"holders gpu0 --host {file}").out
    assert "\x1b" not in told
    assert r"a\x1b[31m\nb" in told
