"""Creating vGPUs: mediated devices of one pool, and VFs. The simulated kernel behaves like the real one.

The pool is samples/vfio-mdev/mbochs.c with 100 MB, the VFs are those of the lab's nvme.
"""

from __future__ import annotations

import errno
import functools
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from tests.contract.conftest import HOSTS, IN_LAB
from tests.hosts.machines import add_process
from tests.hosts.pool import PARENT, add_pool
from tests.lab.inside import holder, mdev
from vfioctl.errors import KernelRefused, Stuck
from vfioctl.kernel.lenient import text as read_text
from vfioctl.kernel.live.host import Live
from vfioctl.kernel.protocol import DRIVERS_PROBE, PCI_DEVICES, PCI_DRIVERS, Kernel, Unanswered
from vfioctl.kernel.recorded.host import read_tree
from vfioctl.kernel.simulated.host import Simulated
from vfioctl.kernel.timeouts import Timeouts

BUS = "/sys/bus/mdev/devices"
TYPES = f"/sys/class/mdev_bus/{PARENT}/mdev_supported_types"
SMALL, MEDIUM, LARGE = "mbochs-small", "mbochs-medium", "mbochs-large"
BLOCKED_SECONDS, ENDS_SECONDS = 2.0, 10.0
LetGo = Callable[[str], None]


@dataclass(frozen=True)
class Host:
    """A kernel with the lab's devices, and a way to hold one of them open."""

    kernel: Kernel
    hold: Callable[[str], LetGo]
    """Opens an instance or a function through its group; what it gives ends that, for the write that waits."""

    @functools.cached_property
    def physical(self) -> str:
        """The nvme that can have VFs."""
        (found,) = (a for a in self.kernel.children(PCI_DEVICES) if self.kernel.has(self.at(a, "sriov_totalvfs")))
        return found

    def at(self, address: str, attribute: str) -> str:
        return f"{PCI_DEVICES}/{address}/{attribute}"

    def refusal(self, path: str, value: str) -> int:
        with pytest.raises(KernelRefused) as caught:
            self.kernel.write(path, value)
        return caught.value.errno

    def blocks(self, path: str, value: str) -> str:
        """The ticket of a write that has not returned."""
        with pytest.raises(Stuck) as caught:
            self.kernel.write(path, value)
        ticket = str(caught.value.facts["ticket"])
        assert self.kernel.write_ended(ticket) is None
        return ticket

    def target(self, path: str) -> str | None:
        """What a link there leads to, by its last name."""
        try:
            return self.kernel.link(path).rpartition("/")[2]
        except KernelRefused:
            return None

    def create(self, kind: str) -> str:
        name = str(uuid.uuid4())
        self.kernel.write(f"{TYPES}/{kind}/create", name)
        return name

    def available(self) -> tuple[int, ...]:
        """Of the small, the medium and the large type."""
        found = self.kernel.texts_below(TYPES, "available_instances")
        return tuple(int(found.texts[kind]) for kind in (SMALL, MEDIUM, LARGE))

    def vfs(self) -> list[str]:
        links = self.kernel.directory(f"{PCI_DEVICES}/{self.physical}", (), ("virtfn",)).links
        return [links[name].rpartition("/")[2] for name in sorted(links, key=lambda name: int(name[6:]))]

    def set_vfs(self, count: int) -> list[str]:
        """So many VFs, without drivers."""
        self.kernel.write(self.at(self.physical, "sriov_drivers_autoprobe"), "0")
        self.kernel.write(self.at(self.physical, "sriov_numvfs"), str(count))
        return self.vfs()

    def to_vfio(self, address: str) -> None:
        self.kernel.load("vfio-pci")
        self.kernel.write(self.at(address, "driver_override"), "vfio-pci")
        self.kernel.write(DRIVERS_PROBE, address)
        assert self.target(self.at(address, "driver")) == "vfio-pci"


@pytest.fixture(scope="module")
def live() -> Iterator[Kernel]:
    """The lab's kernel, with the pool."""
    mdev.load(PARENT, count=100)
    yield Live(timeouts=Timeouts(default=BLOCKED_SECONDS))
    mdev.unload(PARENT)


@pytest.fixture
def host(request: pytest.FixtureRequest) -> Iterator[Host]:
    if not IN_LAB:
        yield _simulated()
        return
    started: list[subprocess.Popen[str]] = []
    found = Host(request.getfixturevalue("live"), functools.partial(_hold, started))
    yield found
    for process in started:  # before what they hold is taken away
        process.kill()
        process.communicate()
    mdev.remove_all()
    if found.vfs():
        found.kernel.write(found.at(found.physical, "sriov_numvfs"), "0")
    found.kernel.write(found.at(found.physical, "sriov_drivers_autoprobe"), "1")


def _hold(started: list[subprocess.Popen[str]], name: str) -> LetGo:
    process = subprocess.Popen([sys.executable, "-S", "-E", holder.__file__, name], stdout=subprocess.PIPE, text=True)
    started.append(process)
    assert process.stdout
    assert process.stdout.readline() == "ready\n"

    def release(ticket: str) -> None:
        process.kill()
        deadline = time.monotonic() + ENDS_SECONDS
        while Live().write_ended(ticket) is None:
            assert time.monotonic() < deadline
            time.sleep(0.05)

    return release


def _simulated() -> Host:
    tree = read_tree(HOSTS / "lab.host")
    add_pool(tree, 100)
    kernel = Simulated(tree, "lab")

    def hold(name: str) -> LetGo:
        (home,) = (f"{bus}/{name}" for bus in (BUS, PCI_DEVICES) if kernel.has(f"{bus}/{name}"))
        group = kernel.link(f"{home}/iommu_group").rpartition("/")[2]
        add_process(tree, 777, "holder", "0::/", f"/dev/vfio/{group}")

        def release(ticket: str) -> None:
            tree.remove("/proc/777")
            kernel.release(ticket.removeprefix("sim:"))

        return release

    return Host(kernel, hold)


class TestMediatedDevices:
    def test_types_share_a_pool(self, host: Host) -> None:
        assert host.available() == (25, 6, 1)
        large = host.create(LARGE)
        assert host.available() == (9, 2, 0)
        medium = host.create(MEDIUM)
        assert host.available() == (5, 1, 0)
        for name in (large, medium):
            host.kernel.write(f"{BUS}/{name}/remove", "1")
        assert host.available() == (25, 6, 1)

    def test_what_is_there_when_the_write_returns(self, host: Host) -> None:
        name = host.create(SMALL)
        home = f"{BUS}/{name}"
        assert host.kernel.children(BUS) == host.kernel.children(f"{TYPES}/{SMALL}/devices") == [name]
        assert [host.target(f"{home}/{link}") for link in ("mdev_type", "driver", "subsystem")] == [
            SMALL,
            PARENT,
            "mdev",
        ]
        assert host.kernel.has(f"/sys/class/mdev_bus/{PARENT}/{name}/remove")
        group = host.target(f"{home}/iommu_group")
        assert host.kernel.device_number(f"/dev/vfio/{group}")[0] == "c"
        assert host.kernel.read(f"/sys/kernel/iommu_groups/{group}/name") == "vfio-noiommu"
        assert host.kernel.children(f"/sys/kernel/iommu_groups/{group}/devices") == [name]
        (node,) = host.kernel.children(f"{home}/vfio-dev")
        assert node.startswith("vfio")

    def test_what_is_gone_when_it_was_removed(self, host: Host) -> None:
        name = host.create(SMALL)
        group = host.target(f"{BUS}/{name}/iommu_group")
        host.kernel.write(f"{BUS}/{name}/remove", "1")
        gone = (
            f"{BUS}/{name}",
            f"/sys/class/mdev_bus/{PARENT}/{name}",
            f"/dev/vfio/{group}",
            f"/sys/kernel/iommu_groups/{group}",
            f"/sys/bus/mdev/drivers/{PARENT}/{name}",
        )
        assert [path for path in gone if host.kernel.has(path)] == []
        assert host.kernel.children(f"{TYPES}/{SMALL}/devices") == []

    def test_a_full_pool(self, host: Host) -> None:
        host.create(LARGE)
        assert host.refusal(f"{TYPES}/{LARGE}/create", str(uuid.uuid4())) == errno.ENOSPC
        host.create(SMALL)

    def test_names_have_one_form(self, host: Host) -> None:
        name = str(uuid.uuid4())
        for text in (name.replace("-", ""), f"{{{name}}}", name[:-1], f"{name}\n\n", name.replace("-", "_")):
            assert host.refusal(f"{TYPES}/{SMALL}/create", text) == errno.EINVAL
        host.kernel.write(f"{TYPES}/{SMALL}/create", f"{name.upper()}x")  # guid_parse looks at 36 of them
        assert host.kernel.children(BUS) == [name]

    def test_names_are_taken_in_either_case_and_for_every_type(self, host: Host) -> None:
        name = host.create(SMALL)
        for text in (name, name.upper(), f"{name}\n"):
            assert host.refusal(f"{TYPES}/{MEDIUM}/create", text) == errno.EEXIST

    def test_removal_takes_a_number(self, host: Host) -> None:
        remove = f"{BUS}/{host.create(SMALL)}/remove"
        host.kernel.write(remove, "0")
        for text in ("yes", "-1", "\n"):
            assert host.refusal(remove, text) == errno.EINVAL
        host.kernel.write(remove, "0x2")
        assert host.kernel.children(BUS) == []
        assert host.refusal(remove, "1") == errno.ENOENT

    def test_removal_of_a_held_one_hides_it_and_its_share_stays_taken(self, host: Host) -> None:
        name = host.create(LARGE)
        group, home = host.target(f"{BUS}/{name}/iommu_group"), f"/sys/class/mdev_bus/{PARENT}/{name}"
        release = host.hold(name)
        ticket = host.blocks(f"{BUS}/{name}/remove", "1")
        assert host.kernel.children(BUS) == host.kernel.children(f"{TYPES}/{LARGE}/devices") == []
        assert host.kernel.has(home)
        assert [n for n in ("mdev_type", "remove", "driver", "subsystem") if host.kernel.has(f"{home}/{n}")] == []
        assert host.target(f"{home}/iommu_group") == group
        assert host.kernel.has(f"/dev/vfio/{group}")
        assert host.available() == (9, 2, 0)
        release(ticket)
        assert host.kernel.write_ended(ticket) is not None
        assert not host.kernel.has(home)
        assert host.available() == (25, 6, 1)

    def test_without_its_driver_one_takes_no_share(self, host: Host) -> None:
        name = host.create(LARGE)
        host.kernel.write(f"/sys/bus/mdev/drivers/{PARENT}/unbind", name)
        assert host.kernel.children(BUS) == [name]
        assert [n for n in ("driver", "iommu_group") if host.kernel.has(f"{BUS}/{name}/{n}")] == []
        assert host.available() == (25, 6, 1)
        assert host.refusal(f"/sys/bus/mdev/drivers/{PARENT}/bind", name) == errno.ENODEV
        host.kernel.write(f"{BUS}/{name}/remove", "1")
        assert host.kernel.children(BUS) == []


class TestVirtualFunctions:
    def test_each_is_a_function_with_a_group_of_its_own(self, host: Host) -> None:
        found = host.set_vfs(4)
        assert len(found) == 4
        assert host.kernel.read(host.at(host.physical, "sriov_numvfs")) == "4"
        assert [host.target(host.at(one, "physfn")) for one in found] == [host.physical] * 4
        assert [host.target(host.at(one, "driver")) for one in found] == [None] * 4
        groups = {host.target(host.at(one, "iommu_group")) for one in (host.physical, *found)}
        assert len(groups) == 5
        for name in ("vendor", "device", "class", "numa_node", "subsystem_vendor", "modalias"):
            theirs = {host.kernel.read(host.at(one, name)) for one in found}
            assert theirs == {host.kernel.read(host.at(host.physical, name))}, name
        assert {host.kernel.read(host.at(one, "driver_override")) for one in found} == {"(null)"}

    def test_they_go_with_their_groups_and_autoprobe_stays(self, host: Host) -> None:
        first, *_ = host.set_vfs(2)
        group = host.target(host.at(first, "iommu_group"))
        host.set_vfs(0)
        assert host.vfs() == []
        assert not host.kernel.has(f"{PCI_DEVICES}/{first}")
        assert not host.kernel.has(f"/sys/kernel/iommu_groups/{group}")
        assert host.kernel.read(host.at(host.physical, "sriov_drivers_autoprobe")) == "0"
        assert first in host.set_vfs(1)

    def test_counts(self, host: Host) -> None:
        path = host.at(host.physical, "sriov_numvfs")
        assert host.refusal(path, "5") == errno.ERANGE
        for text in ("-1", "65536", "some", "\n"):
            assert host.refusal(path, text) == errno.EINVAL
        host.set_vfs(2)
        assert host.refusal(path, "3") == errno.EBUSY
        host.kernel.write(path, "2")
        host.kernel.write(path, "0x2")
        assert len(host.vfs()) == 2

    def test_autoprobe(self, host: Host) -> None:
        path = host.at(host.physical, "sriov_drivers_autoprobe")
        for text, read in (("0", "0"), ("y", "1"), ("off\n", "0"), ("1", "1")):
            host.kernel.write(path, text)
            assert host.kernel.read(path) == read
        for text in ("2", "maybe", "\n"):
            assert host.refusal(path, text) == errno.EINVAL

    def test_without_autoprobe_one_gets_a_driver_only_by_its_override(self, host: Host) -> None:
        first, second = host.set_vfs(2)
        assert host.refusal(f"{PCI_DRIVERS}/nvme/bind", first) == errno.ENODEV
        host.kernel.write(DRIVERS_PROBE, first)
        assert host.target(host.at(first, "driver")) is None
        host.to_vfio(first)
        assert host.target(host.at(second, "driver")) is None
        assert host.kernel.viable(int(host.target(host.at(first, "iommu_group")) or -1))

    def test_without_a_driver_of_the_physical_function_nothing_changes(self, host: Host) -> None:
        host.set_vfs(2)
        path = host.at(host.physical, "sriov_numvfs")
        host.kernel.write(f"{PCI_DRIVERS}/nvme/unbind", host.physical)
        try:
            assert len(host.vfs()) == 2
            assert host.refusal(path, "0") == errno.ENOENT
            host.kernel.write(path, "2")
        finally:
            host.kernel.write(DRIVERS_PROBE, host.physical)
        assert len(host.vfs()) == 2

    def test_turning_them_off_waits_for_a_held_one(self, host: Host) -> None:
        first, second, third = host.set_vfs(3)
        host.to_vfio(second)
        release = host.hold(second)
        ticket = host.blocks(host.at(host.physical, "sriov_numvfs"), "0")
        assert not host.kernel.has(f"{PCI_DEVICES}/{first}")
        assert host.vfs() == [third]
        assert host.kernel.has(f"{PCI_DEVICES}/{second}")
        assert host.target(host.at(second, "driver")) is None
        asked = host.kernel.survey(read_text, [host.at(host.physical, "sriov_numvfs")])
        assert [isinstance(answer, Unanswered) for _, answer in asked] == [True]
        release(ticket)
        assert host.vfs() == []
        assert host.kernel.read(host.at(host.physical, "sriov_numvfs")) == "0"
