"""The stand-ins keep the rules they stand in for: NVIDIA-like parents and the vendor's folder, on real functions."""

from pathlib import Path

import pytest

from tests.lab.inside import mdev, pci
from tests.lab.inside.conftest import BindVfs, Hold, Load, WriteApart
from tests.lab.inside.refusal import refused
from tests.lab.inside.topology import Topology

BLOCKED_SECONDS = 2.0
ENDS_SECONDS = 10.0
A2_1B, A2_2Q, A2_4Q, A2_4C = "nvidia-742", "nvidia-745", "nvidia-746", "nvidia-754"
A2_8Q, A2_16C = "nvidia-747", "nvidia-756"
A2_EMPTY = {A2_1B: 16, A2_2Q: 8, A2_4Q: 4, A2_4C: 4, A2_8Q: 2, A2_16C: 1}
L40S_2Q, L40S_16Q, L40S_16A, L40S_24Q, L40S_48Q = "1148", "1154", "1164", "1155", "1156"


def only(left: dict[str, int]) -> dict[str, int]:
    """What is left of each type of an A2, 0 where not said."""
    return dict.fromkeys(A2_EMPTY, 0) | left


class TestAnOlderCard:
    def test_its_function_is_the_parent_and_counts_down(self, lab: Topology, load: Load) -> None:
        load("standin_mdev")
        pci.bind_to(lab.far_display, "nvidia")
        assert mdev.parents() == {lab.far_display}
        assert mdev.available(lab.far_display) == A2_EMPTY
        kind = mdev.supported(lab.far_display)[A2_4C]
        assert (kind / "name").read_text() == "NVIDIA A2-4C\n"
        assert (kind / "description").read_text() == (
            "num_heads=1, frl_config=60, framebuffer=4096M, max_resolution=4096x2400, max_instance=4\n"
        )
        first = mdev.create(lab.far_display, A2_4C)
        assert mdev.available(lab.far_display) == only({A2_4Q: 3, A2_4C: 3})
        mdev.create(lab.far_display, A2_4Q)
        assert mdev.available(lab.far_display) == only({A2_4Q: 2, A2_4C: 2})
        assert refused(lambda: mdev.create(lab.far_display, A2_8Q)) == "EINVAL"
        mdev.remove(first)
        mdev.remove_all()
        assert mdev.available(lab.far_display) == A2_EMPTY

    def test_in_mixed_size_mode_only_memory_counts(self, lab: Topology, load: Load) -> None:
        load("standin_mdev", same_size=0, refusal=28)
        pci.bind_to(lab.far_display, "nvidia")
        mdev.create(lab.far_display, A2_8Q)
        assert mdev.available(lab.far_display) == only({A2_1B: 8, A2_2Q: 4, A2_4Q: 2, A2_4C: 2, A2_8Q: 1})
        assert refused(lambda: mdev.create(lab.far_display, A2_16C)) == "ENOSPC"

    def test_parameters_of_an_instance(self, lab: Topology, load: Load) -> None:
        load("standin_mdev")
        pci.bind_to(lab.far_display, "nvidia")
        parameters = mdev.BUS / "devices" / mdev.create(lab.far_display, A2_4C) / "nvidia/vgpu_params"
        assert parameters.read_text() == "\n"
        pci.write(parameters, "frame_rate_limiter=0, enable_profiling=1\n")
        assert parameters.read_text() == "frame_rate_limiter=0, enable_profiling=1\n"
        pci.write(parameters, " ")
        assert parameters.read_text() == "\n"

    def test_its_driver_takes_idle_instances_with_it_and_waits_for_a_held_one(
        self, lab: Topology, load: Load, hold: Hold, write_apart: WriteApart
    ) -> None:
        load("standin_mdev")
        pci.bind_to(lab.far_display, "nvidia")
        mdev.create(lab.far_display, A2_4C)
        pci.unbind(lab.far_display)
        assert mdev.instances() == mdev.parents() == set()
        pci.bind_to(lab.far_display, "nvidia")
        holder = hold(mdev.create(lab.far_display, A2_4C))
        writer = write_apart(pci.DRIVERS / "nvidia/unbind", lab.far_display)
        assert writer.status(BLOCKED_SECONDS) is None
        assert "mdev_unregister_parent" in writer.stack()
        # hidden at once, as a removal hides it, and the parent with it
        assert mdev.instances() == mdev.parents() == set()
        kind = pci.DEVICES / lab.far_display / "mdev_supported_types" / A2_4C
        assert (kind / "available_instances").read_text() == "3\n"
        assert refused(lambda: pci.write(kind / "create", mdev.new_uuid())) == "ENODEV"
        holder.kill()
        assert writer.status(ENDS_SECONDS) == 0
        assert pci.driver_of(lab.far_display) is None


class TestACardWithVirtualFunctions:
    def test_each_is_a_parent_of_one_and_the_first_decides_the_size(self, bind_vfs: BindVfs) -> None:
        functions = bind_vfs("standin_mdev", 4)
        assert mdev.parents() == set(functions)
        assert all(mdev.available(one) == dict.fromkeys(A2_EMPTY, 1) for one in functions)
        name = mdev.create(functions[0], A2_8Q)
        assert mdev.available(functions[0]) == only({})
        assert all(mdev.available(one) == only({A2_8Q: 1}) for one in functions[1:])
        mdev.create(functions[1], A2_8Q)
        # two functions are free, and the card is full
        assert all(mdev.available(one) == only({}) for one in functions)
        assert refused(lambda: mdev.create(functions[2], A2_8Q)) == "EINVAL"
        mdev.remove(name)
        assert mdev.available(functions[0]) == only({A2_8Q: 1})
        mdev.remove_all()
        assert all(mdev.available(one) == dict.fromkeys(A2_EMPTY, 1) for one in functions)

    def test_they_take_their_instances_with_them(self, lab: Topology, bind_vfs: BindVfs) -> None:
        functions = bind_vfs("standin_mdev", 2)
        mdev.create(functions[0], A2_4C)
        mdev.set_vf_count(lab.nvme, 0)
        assert mdev.instances() == mdev.parents() == set()


class TestTheVendorsFolder:
    def test_what_is_there(self, lab: Topology, bind_vfs: BindVfs) -> None:
        (function,) = bind_vfs("standin_vendor", 1)
        folder = pci.DEVICES / function / "nvidia"
        assert {path.name for path in folder.iterdir()} == {
            "creatable_vgpu_types",
            "current_vgpu_type",
            "vgpu_params",
            "gpu_instance_id",
            "placement_id",
        }
        lines = (folder / "creatable_vgpu_types").read_text().splitlines()
        assert lines[:2] == ["ID    : vGPU Name", "1145  : NVIDIA L40S-1B"]
        assert mdev.current(function) == mdev.NONE
        assert (folder / "vgpu_params").read_text() == "\n"
        assert refused((folder / "placement_id").read_text) == "ENXIO"
        assert refused((folder / "gpu_instance_id").read_text) == "ENXIO"
        assert not (pci.DEVICES / function / "mdev_supported_types").exists()
        assert [path.name[:4] for path in (pci.DEVICES / function / "vfio-dev").iterdir()] == ["vfio"]
        assert not (pci.DEVICES / lab.nvme / "nvidia").exists()

    def test_the_list_shrinks_on_all_functions_of_the_card(self, bind_vfs: BindVfs) -> None:
        functions = bind_vfs("standin_vendor", 4)
        assert len(mdev.creatable(functions[3])) == 7
        mdev.set_current(functions[0], L40S_16Q)
        assert mdev.current(functions[0]) == L40S_16Q
        assert mdev.creatable(functions[0]) == {}
        assert mdev.creatable(functions[3]) == {L40S_16Q: "NVIDIA L40S-16Q", L40S_16A: "NVIDIA L40S-16A"}
        assert refused(lambda: mdev.set_current(functions[3], L40S_24Q)) == "EIO"
        mdev.set_current(functions[1], L40S_16A)
        mdev.set_current(functions[2], L40S_16Q)
        # one function is free, and the card is full
        assert mdev.creatable(functions[3]) == {}
        assert refused(lambda: mdev.set_current(functions[3], L40S_16Q)) == "EIO"
        mdev.set_current(functions[1], mdev.NONE)
        assert set(mdev.creatable(functions[3])) == {L40S_16Q, L40S_16A}

    def test_a_change_goes_by_way_of_none_and_no_type_is_unknown(self, bind_vfs: BindVfs) -> None:
        (function,) = bind_vfs("standin_vendor", 1)
        assert refused(lambda: mdev.set_current(function, "1")) == "EIO"
        assert refused(lambda: mdev.set_current(function, "some")) == "EINVAL"
        mdev.set_current(function, mdev.NONE)
        mdev.set_current(function, L40S_48Q)
        assert refused(lambda: mdev.set_current(function, L40S_2Q)) == "EBUSY"

    def test_parameters_need_a_type_and_go_with_it(self, bind_vfs: BindVfs) -> None:
        (function,) = bind_vfs("standin_vendor", 1)
        parameters = pci.DEVICES / function / "nvidia/vgpu_params"
        placement = pci.DEVICES / function / "nvidia/placement_id"
        assert refused(lambda: pci.write(parameters, "enable_profiling=1")) == "EPERM"
        mdev.set_current(function, L40S_16Q)
        pci.write(parameters, "enable_profiling=1")
        pci.write(placement, "16")
        assert (parameters.read_text(), placement.read_text()) == ("enable_profiling=1\n", "16\n")
        mdev.set_current(function, mdev.NONE)
        assert parameters.read_text() == "\n"
        assert refused(placement.read_text) == "ENXIO"

    def test_in_use_nothing_changes(self, bind_vfs: BindVfs, hold: Hold) -> None:
        first, second = bind_vfs("standin_vendor", 2)
        for function in (first, second):
            mdev.set_current(function, L40S_2Q)
        holder = hold(first)
        mark = pci.DEVICES / second / "standin_in_use"
        pci.write(mark, "1")
        for function in (first, second):
            assert (pci.DEVICES / function / "standin_in_use").read_text() == "1\n"
            assert refused(lambda function=function: mdev.set_current(function, mdev.NONE)) == "EBUSY"  # type: ignore[misc]
        holder.kill()
        holder.wait()
        pci.write(mark, "0")
        for function in (first, second):
            mdev.set_current(function, mdev.NONE)

    def test_without_a_type_it_cannot_be_opened(self, bind_vfs: BindVfs, hold: Hold) -> None:
        (function,) = bind_vfs("standin_vendor", 1)
        with pytest.raises(AssertionError):
            hold(function)
        assert Path("/dev/vfio", pci.group_of(function)).exists()

    def test_it_can_lack_its_header_and_do_nothing(self, bind_vfs: BindVfs) -> None:
        (function,) = bind_vfs("standin_vendor", 1, header=0, deaf=1)
        listed = (pci.DEVICES / function / "nvidia/creatable_vgpu_types").read_text()
        assert listed.startswith("1145  : NVIDIA L40S-1B\n")
        mdev.set_current(function, L40S_2Q)
        assert mdev.current(function) == mdev.NONE
