"""What Debian's kernel does with mediated devices, by its own sample drivers: the contracts that vfioctl relies on."""

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab.inside import mdev
from tests.lab.inside.conftest import Hold, Load, WriteApart
from tests.lab.inside.refusal import refused

BLOCKED_SECONDS = 2.0
ENDS_SECONDS = 10.0
ROUNDS = 10


def bochs(small: int, medium: int, large: int) -> dict[str, int]:
    """What the types of mbochs have left."""
    return {"mbochs-small": small, "mbochs-medium": medium, "mbochs-large": large}


class TestAccounting:
    def test_what_each_create_leaves_of_the_others(self, load: Load) -> None:
        load("mbochs", count=100)
        matrix = {}
        for kind in bochs(0, 0, 0):
            name = mdev.create("mbochs", kind)
            matrix[kind] = mdev.available("mbochs")
            mdev.remove(name)
        assert matrix == {
            "mbochs-small": bochs(24, 6, 1),
            "mbochs-medium": bochs(21, 5, 1),
            "mbochs-large": bochs(9, 2, 0),
        }


class TestWhatATypeSays:
    def test_the_files_of_a_type(self, load: Load) -> None:
        load("mbochs")
        load("mtty")
        assert mdev.parents() == {"mbochs", "mtty"}
        (large, ports) = mdev.supported("mbochs")["mbochs-large"], mdev.supported("mtty")["mtty-2"]
        assert {path.name for path in large.iterdir()} == {
            "available_instances",
            "create",
            "description",
            "device_api",
            "devices",
            "name",
        }
        assert (large / "device_api").read_text() == "vfio-pci\n"
        assert (large / "name").read_text().endswith("\n")
        assert (ports / "name").read_text() == "Dual port serial\n"
        assert not (ports / "description").exists()
        assert [path.stat().st_mode & 0o777 for path in (large / "create", large / "available_instances")] == [
            0o200,
            0o444,
        ]

    def test_the_files_of_an_instance_are_there_when_the_write_returns(self, load: Load) -> None:
        load("mbochs")
        name = mdev.create("mbochs", "mbochs-small")
        group = (mdev.BUS / "devices" / name / "iommu_group").readlink().name
        node_is_there = Path("/dev/vfio", group).exists()
        device = mdev.BUS / "devices" / name
        assert (device / "mdev_type").resolve() == mdev.supported("mbochs")["mbochs-small"].resolve()
        assert device.resolve().parent == (mdev.PARENTS / "mbochs").resolve()
        assert (device / "driver").readlink().name == "mbochs"
        assert mdev.instances_of("mbochs", "mbochs-small") == {name}
        assert [path.name[:4] for path in (device / "vfio-dev").iterdir()] == ["vfio"]
        assert not (device / "numa_node").exists()
        assert Path("/sys/kernel/iommu_groups", group, "name").read_text() == "vfio-noiommu\n"
        assert node_is_there, "/dev/vfio/GROUP is devtmpfs's own, not udev's"


class TestRefusals:
    @pytest.mark.parametrize(
        ("module", "kind", "reason"),
        [
            ("mdpy", "mdpy-vga", "EUSERS"),
            ("mtty", "mtty-1", "ENOSPC"),
            ("mbochs", "mbochs-large", "ENOSPC"),
        ],
    )
    def test_a_full_parent(self, load: Load, module: str, kind: str, reason: str) -> None:
        load(module)
        mdev.fill(module, kind, mdev.available(module)[kind])
        assert mdev.available(module)[kind] == 0
        assert refused(lambda: mdev.create(module, kind)) == reason

    def test_of_two_for_the_last_place_one_gets_it(self, load: Load) -> None:
        load("mbochs", count=64)
        for _ in range(ROUNDS):
            outcomes = _race([lambda: mdev.create("mbochs", "mbochs-large")] * 2)
            assert sorted(outcomes) == [0, errno.ENOSPC]
            assert len(mdev.instances()) == 1
            mdev.remove_all()


class TestAHeldInstance:
    def test_its_removal_blocks_unkillably_and_hides_it_while_its_place_stays_taken(
        self, load: Load, hold: Hold, write_apart: WriteApart
    ) -> None:
        load("mbochs", count=100)
        name = mdev.create("mbochs", "mbochs-large")
        group = (mdev.BUS / "devices" / name / "iommu_group").readlink().name
        device = (mdev.PARENTS / "mbochs").resolve() / name
        holder = hold(name)
        writer = write_apart(device / "remove", "1")
        assert writer.status(BLOCKED_SECONDS) is None
        assert (writer.state(), writer.blocked_in()) == ("S", "vfio_unregister_group_dev")
        writer.kill()
        assert writer.status(BLOCKED_SECONDS) is None
        assert writer.state() == "D"
        assert mdev.instances() == mdev.instances_of("mbochs", "mbochs-large") == set()
        assert device.exists()
        assert not (device / "mdev_type").is_symlink()
        assert not (device / "remove").exists()
        assert mdev.available("mbochs") == bochs(9, 2, 0)
        assert refused(lambda: mdev.create("mbochs", "mbochs-small", name)) == "EEXIST"
        assert refused(lambda: os.open(f"/dev/vfio/{group}", os.O_RDWR)) == "EBUSY"
        holder.kill()
        assert writer.status(ENDS_SECONDS) == -9
        assert not device.exists()
        assert mdev.available("mbochs") == bochs(25, 6, 1)

    def test_who_holds_it_is_seen_by_the_path_of_a_descriptor(self, load: Load, hold: Hold) -> None:
        load("mtty")
        name = mdev.create("mtty", "mtty-1")
        group = (mdev.BUS / "devices" / name / "iommu_group").readlink().name
        holder = hold(name)
        held = {os.readlink(path) for path in Path(f"/proc/{holder.pid}/fd").iterdir()}
        assert {f"/dev/vfio/{group}", "anon_inode:[vfio-device]"} <= held

    def test_the_module_of_its_parent_stays(self, load: Load, hold: Hold) -> None:
        load("mtty")
        hold(mdev.create("mtty", "mtty-1"))
        with pytest.raises(Exception, match="rmmod"):
            mdev.unload("mtty")


class TestSideDoors:
    def test_a_module_takes_its_idle_instances_with_it(self, load: Load) -> None:
        load("mtty")
        mdev.fill("mtty", "mtty-1", 2)
        mdev.unload("mtty")
        assert mdev.instances() == mdev.parents() == set()


def _race(writes: list[Callable[[], object]]) -> list[int]:
    """The errno of each write, 0 for success; all begin at one moment, each in its own process."""
    begin = time.monotonic() + 0.2
    children = []
    for write in writes:
        child = os.fork()
        if child == 0:
            while time.monotonic() < begin:
                pass
            try:
                write()
            except OSError as error:
                os._exit(error.errno or 255)
            os._exit(0)
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
