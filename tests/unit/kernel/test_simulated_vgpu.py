"""vGPUs on simulated hosts, beyond the contract: NVIDIA's rules, what waits for whom, VFs that come back."""

from __future__ import annotations

import errno
import uuid

import pytest

from tests.hosts.machines import add_process, copy, original
from tests.hosts.pool import PARENT, SIZES, add_pool
from vfioctl.errors import BadDocument, HostError, KernelRefused, Stuck
from vfioctl.kernel.protocol import IOMMU_GROUPS, PCI_DEVICES, PCI_DRIVERS
from vfioctl.kernel.recorded.tree import Tree, form, parse
from vfioctl.kernel.simulated.capacity import facts_of, known_types
from vfioctl.kernel.simulated.faults import DIE, HANG, Fault, Refusal, SimulatedDeath, WouldBlock, kstrtoul
from vfioctl.kernel.simulated.host import Simulated

BUS = "/sys/bus/mdev/devices"
A2, A2_VFS = "0000:08:00.0", [f"0000:08:{n // 8:02x}.{n % 8}" for n in range(4, 20)]
A2_THERE = ["6d3f2c1a-0b4e-4f6d-8a7c-5e9b1f2a3c4d", "8d3f2c1a-0b4e-4f6d-8a7c-5e9b1f2a3c4d"]
A2_4C, A2_4Q, A2_8Q, A2_16Q = "nvidia-754", "nvidia-746", "nvidia-747", "nvidia-748"
L40S, L40S_VFS = "0000:41:00.0", [f"0000:41:{n // 8:02x}.{n % 8}" for n in range(4, 36)]
L40S_12Q, L40S_12A, L40S_48Q, L40S_24Q = "1153", "1163", "1156", "1155"
T4 = "0000:3b:00.0"
XE, GIM = "0000:03:00.0", "0000:05:00.0"


def simulated(name: str, *faults: Fault) -> Simulated:
    return Simulated(copy(original(name)), name, faults=faults)


def refusal(kernel: Simulated, path: str, value: str) -> str:
    with pytest.raises(KernelRefused) as caught:
        kernel.write(path, value)
    assert caught.value.text == value
    return caught.value.symbol


def new() -> str:
    return str(uuid.uuid4())


def create_file(parent: str, kind: str) -> str:
    return f"/sys/class/mdev_bus/{parent}/mdev_supported_types/{kind}/create"


def create(kernel: Simulated, parent: str, kind: str) -> str:
    name = new()
    kernel.write(create_file(parent, kind), name)
    return name


def remove(kernel: Simulated, name: str) -> None:
    kernel.write(f"{BUS}/{name}/remove", "1")


def available(kernel: Simulated, parent: str) -> dict[str, int]:
    found = kernel.texts_below(f"/sys/class/mdev_bus/{parent}/mdev_supported_types", "available_instances")
    return {kind: int(text) for kind, text in found.texts.items()}


def offered(kernel: Simulated, parent: str) -> dict[str, int]:
    return {kind: number for kind, number in available(kernel, parent).items() if number}


def device(address: str, attribute: str) -> str:
    return f"{PCI_DEVICES}/{address}/{attribute}"


def driver(kernel: Simulated, address: str) -> str | None:
    try:
        return kernel.link(device(address, "driver")).rpartition("/")[2]
    except KernelRefused:
        return None


def hold(kernel: Simulated, name: str) -> None:
    """A guest has the group of an instance or a function open."""
    home = f"{BUS}/{name}" if "-" in name else f"{PCI_DEVICES}/{name}"
    add_process(kernel.tree, 777, "qemu", "0::/", f"/dev/vfio/{kernel.link(f'{home}/iommu_group').rpartition('/')[2]}")


def hangs(kernel: Simulated, path: str, value: str) -> Stuck:
    with pytest.raises(Stuck) as caught:
        kernel.write(path, value)
    return caught.value


def survives_its_file(kernel: Simulated) -> bool:
    return form(parse(form(kernel.tree), "again")) == form(kernel.tree)


class TestNumbers:
    @pytest.mark.parametrize(
        ("text", "number"), [("0", 0), ("1\n", 1), ("0x1f", 31), ("010", 8), ("+7", 7), ("65535", 65535)]
    )
    def test_are_read_as_the_kernel_reads_them(self, text: str, number: int) -> None:
        assert kstrtoul(text, bits=16) == number

    @pytest.mark.parametrize(
        ("text", "why"),
        [
            ("", errno.EINVAL),
            ("\n", errno.EINVAL),
            ("1\n\n", errno.EINVAL),
            ("-1", errno.EINVAL),
            ("09", errno.EINVAL),
            ("1 ", errno.EINVAL),
            ("\u0661", errno.EINVAL),
            ("65536", errno.ERANGE),
        ],
    )
    def test_that_are_none_are_refused(self, text: str, why: int) -> None:
        with pytest.raises(Refusal) as caught:
            kstrtoul(text, bits=16)
        assert caught.value.errno == why

    def test_in_base_ten_a_zero_in_front_says_nothing(self) -> None:
        assert kstrtoul("010", base=10) == 10
        with pytest.raises(Refusal):
            kstrtoul("0x10", base=10)


class TestNamesOfInstances:
    NAME = "c0ffee00-0000-4000-8000-00000000000a"

    @pytest.mark.parametrize(
        "text",
        [NAME.replace("-", ""), f"{{{NAME}}}", NAME[:-1], f"{NAME}\n\n", NAME.replace("-", "_"), f" {NAME[1:]}"],
    )
    def test_have_one_form(self, text: str) -> None:
        assert refusal(simulated("a2"), create_file(A2_VFS[2], A2_4C), text) == "EINVAL"

    @pytest.mark.parametrize("text", [NAME.upper(), f"{NAME}\n"])
    def test_are_kept_in_lower_case(self, text: str) -> None:
        kernel = simulated("a2")
        kernel.write(create_file(A2_VFS[2], A2_4C), text)
        assert self.NAME in kernel.children(BUS)

    def test_are_taken_on_all_parents_and_in_either_case(self) -> None:
        kernel = simulated("a2")
        for name in (A2_THERE[0], A2_THERE[0].upper()):
            assert refusal(kernel, create_file(A2_VFS[5], A2_4C), name) == "EEXIST"


class TestNvidiaCardsWithVirtualFunctions:
    def test_what_is_there_when_the_write_returns(self) -> None:
        kernel = simulated("a2")
        name = create(kernel, A2_VFS[2], A2_4Q)
        home = f"{BUS}/{name}"
        assert kernel.tree.resolve(home) == f"{kernel.tree.resolve(device(A2_VFS[2], name))}"
        assert kernel.link(f"{home}/mdev_type").endswith(f"/{A2_4Q}")
        assert kernel.link(f"{home}/driver").endswith("/drivers/nvidia")
        assert kernel.read(f"{home}/nvidia/vgpu_params") == ""
        group = kernel.link(f"{home}/iommu_group").rpartition("/")[2]
        assert kernel.device_number(f"/dev/vfio/{group}")[0] == "c"
        assert kernel.viable(int(group))
        assert kernel.children(f"{IOMMU_GROUPS}/{group}/devices") == [name]
        types = device(A2_VFS[2], f"mdev_supported_types/{A2_4Q}/devices")
        assert kernel.children(types) == [name]
        assert survives_its_file(kernel)

    def test_each_carries_one_and_the_card_as_many_as_its_size_allows(self) -> None:
        kernel = simulated("a2")
        assert offered(kernel, A2_VFS[2]).keys() >= {A2_4C, A2_4Q}
        create(kernel, A2_VFS[2], A2_4Q)
        assert offered(kernel, A2_VFS[2]) == {}
        assert refusal(kernel, create_file(A2_VFS[2], A2_4C), new()) == "EINVAL"
        create(kernel, A2_VFS[3], A2_4C)
        assert all(offered(kernel, vf) == {} for vf in A2_VFS)
        assert refusal(kernel, create_file(A2_VFS[9], A2_4C), new()) == "EINVAL"

    def test_the_first_decides_the_size_and_the_last_sets_it_free(self) -> None:
        kernel = simulated("a2")
        assert refusal(kernel, create_file(A2_VFS[2], A2_8Q), new()) == "EINVAL"
        for name in A2_THERE:
            remove(kernel, name)
        assert all(set(available(kernel, vf).values()) == {1} for vf in A2_VFS)
        assert len(offered(kernel, A2_VFS[0])) == 15
        create(kernel, A2_VFS[7], A2_8Q)
        assert offered(kernel, A2_VFS[0]).keys() == {"nvidia-747", "nvidia-752", "nvidia-755"}

    def test_in_mixed_size_mode_only_memory_counts(self) -> None:
        kernel = simulated("a2")
        kernel.tree.properties[f"sim:{A2}"] = {"mixed_sizes": "1"}
        create(kernel, A2_VFS[2], A2_8Q)
        assert refusal(kernel, create_file(A2_VFS[3], "nvidia-742"), new()) == "EINVAL", "8 + 4 + 4 is all of it"
        remove(kernel, A2_THERE[0])
        create(kernel, A2_VFS[3], "nvidia-742")

    def test_removal_gives_back_what_there_was(self) -> None:
        kernel = simulated("a2")
        numbers = {vf: available(kernel, vf) for vf in A2_VFS}
        before = {path for path in form(kernel.tree).splitlines() if path.startswith("/")}
        remove(kernel, create(kernel, A2_VFS[2], A2_4C))
        assert {vf: available(kernel, vf) for vf in A2_VFS} == numbers
        after = {path for path in form(kernel.tree).splitlines() if path.startswith("/")}
        assert before <= after
        assert all(line.endswith("/devices/") for line in after - before), after - before

    def test_a_vf_without_the_driver_is_no_parent_and_is_one_again_with_it(self) -> None:
        kernel, vf = simulated("a2"), A2_VFS[2]
        numbers = available(kernel, vf)
        kernel.write(f"{PCI_DRIVERS}/nvidia/unbind", vf)
        assert not kernel.has(device(vf, "mdev_supported_types"))
        assert vf not in kernel.children("/sys/class/mdev_bus")
        assert refusal(kernel, create_file(vf, A2_4C), new()) == "ENOENT"
        create(kernel, A2_VFS[3], A2_4C)
        create(kernel, A2_VFS[4], A2_4C)
        kernel.write(f"{PCI_DRIVERS}/nvidia/bind", vf)
        assert available(kernel, vf).keys() == numbers.keys()
        assert offered(kernel, vf) == {}, "the card has become full in the meantime"

    def test_its_driver_takes_idle_instances_with_it(self) -> None:
        kernel = simulated("a2")
        kernel.write(f"{PCI_DRIVERS}/nvidia/unbind", A2_VFS[0])
        assert kernel.children(BUS) == [A2_THERE[1]]
        assert offered(kernel, A2_VFS[2]).keys() == {A2_4C, A2_4Q, "nvidia-751"}


class TestAnOlderCard:
    def test_its_function_counts_down(self) -> None:
        kernel = simulated("t4")
        before = available(kernel, T4)
        first = create(kernel, T4, "nvidia-319")
        assert offered(kernel, T4) == dict.fromkeys(("nvidia-319", "nvidia-232", "nvidia-227"), 3)
        for _ in range(3):
            create(kernel, T4, "nvidia-232")
        assert offered(kernel, T4) == {}
        assert refusal(kernel, create_file(T4, "nvidia-319"), new()) == "EINVAL"
        remove(kernel, first)
        assert offered(kernel, T4) == dict.fromkeys(("nvidia-319", "nvidia-232", "nvidia-227"), 1)
        for name in kernel.children(BUS):
            remove(kernel, name)
        assert available(kernel, T4) == before

    def test_its_driver_waits_for_a_held_instance(self) -> None:
        kernel = simulated("t4")
        idle, held = sorted(create(kernel, T4, "nvidia-319") for _ in range(2))
        hold(kernel, held)
        error = hangs(kernel, f"{PCI_DRIVERS}/nvidia/unbind", T4)
        assert error.facts["ticket"] == f"sim:{T4}"
        assert kernel.children(BUS) == kernel.children("/sys/class/mdev_bus") == []
        assert driver(kernel, T4) is None
        assert not kernel.has(device(T4, idle))
        assert kernel.has(device(T4, held))
        folder = device(T4, "mdev_supported_types/nvidia-319")
        assert kernel.read(f"{folder}/available_instances") == "3"
        assert refusal(kernel, f"{folder}/create", new()) == "ENODEV"
        with pytest.raises(WouldBlock):
            kernel.read(device(T4, "driver_override"))
        kernel.release(T4)
        assert not kernel.has(device(T4, held))
        assert not kernel.has(device(T4, "mdev_supported_types"))
        kernel.write(f"{PCI_DRIVERS}/nvidia/bind", T4)
        assert available(kernel, T4)["nvidia-319"] == 4
        assert survives_its_file(kernel)


class TestRemoval:
    @pytest.mark.parametrize("nothing", ["0", "0\n", "0x0"])
    def test_is_not_asked_for_with_zero(self, nothing: str) -> None:
        kernel = simulated("a2")
        kernel.write(f"{BUS}/{A2_THERE[0]}/remove", nothing)
        assert kernel.children(BUS) == A2_THERE

    @pytest.mark.parametrize("value", ["yes", "-1", "1 1", "\n"])
    def test_is_asked_for_with_a_number(self, value: str) -> None:
        assert refusal(simulated("a2"), f"{BUS}/{A2_THERE[0]}/remove", value) == "EINVAL"

    def test_is_done_once(self) -> None:
        kernel = simulated("a2")
        kernel.write(f"{BUS}/{A2_THERE[0]}/remove", "2")
        assert refusal(kernel, f"{BUS}/{A2_THERE[0]}/remove", "1") == "ENOENT"
        assert not kernel.has(device(A2_VFS[0], A2_THERE[0]))
        assert not kernel.has("/dev/vfio/240")
        assert not kernel.has(f"{IOMMU_GROUPS}/240")

    @pytest.mark.parametrize("by_its_own_path", [False, True])
    def test_of_a_held_one_hides_it_and_its_share_stays_taken(self, *, by_its_own_path: bool) -> None:
        kernel, name = simulated("a2"), A2_THERE[0]
        hold(kernel, name)
        numbers, home = available(kernel, A2_VFS[2]), device(A2_VFS[0], name)
        error = hangs(kernel, f"{home if by_its_own_path else f'{BUS}/{name}'}/remove", "1")
        assert error.facts["ticket"] == f"sim:{name}"
        assert kernel.write_ended(f"sim:{name}") is None
        assert kernel.children(BUS) == [A2_THERE[1]]
        assert kernel.children(device(A2_VFS[0], f"mdev_supported_types/{A2_4C}/devices")) == []
        assert kernel.has(home)
        for gone in ("mdev_type", "remove", "driver"):
            assert not kernel.has(f"{home}/{gone}")
        assert kernel.has("/dev/vfio/240")
        assert available(kernel, A2_VFS[2]) == numbers
        assert offered(kernel, A2_VFS[0]) == {}
        assert survives_its_file(kernel)
        kernel.release(name)
        assert not kernel.has(home)
        assert kernel.write_ended(f"sim:{name}") == "returned"
        create(kernel, A2_VFS[0], A2_4C)

    def test_another_write_about_it_waits_behind_the_first(self) -> None:
        kernel, name = simulated("a2"), A2_THERE[0]
        hold(kernel, name)
        hangs(kernel, f"{BUS}/{name}/remove", "1")
        hangs(kernel, device(A2_VFS[0], f"{name}/remove"), "1")
        hangs(kernel, create_file(A2_VFS[3], A2_4C), name)

    def test_a_cdev_holds_as_well(self) -> None:
        tree = copy(original("a2"))
        tree.put_directory("/dev/vfio/devices")
        kernel = Simulated(tree, "")
        name = create(kernel, A2_VFS[2], A2_4C)
        (cdev,) = kernel.children(f"{BUS}/{name}/vfio-dev")
        add_process(tree, 778, "qemu", "0::/", f"/dev/vfio/devices/{cdev}")
        hangs(kernel, f"{BUS}/{name}/remove", "1")
        kernel.release(name)
        assert not kernel.has(f"/dev/vfio/devices/{cdev}")

    def test_told_to_hang_it_looks_like_a_held_one(self) -> None:
        kernel, name = simulated("a2", Fault(1, HANG)), A2_THERE[0]
        hangs(kernel, f"{BUS}/{name}/remove", "1")
        assert name not in kernel.children(BUS)
        assert kernel.has(device(A2_VFS[0], name))
        kernel.release(name)
        assert not kernel.has(device(A2_VFS[0], name))

    def test_an_orphan_takes_no_share_and_can_be_removed(self) -> None:
        kernel, name = simulated("a2"), A2_THERE[0]
        kernel.write("/sys/bus/mdev/drivers/nvidia/unbind", name)
        assert name in kernel.children(BUS)
        assert not kernel.has(f"{BUS}/{name}/driver")
        assert not kernel.has(f"{BUS}/{name}/iommu_group")
        assert A2_4C in offered(kernel, A2_VFS[0])
        assert refusal(kernel, "/sys/bus/mdev/drivers/nvidia/bind", name) == "ENODEV"
        remove(kernel, name)
        assert kernel.children(BUS) == [A2_THERE[1]]


class TestStocks:
    def pool(self, megabytes: int) -> Simulated:
        tree = copy(original("workstation"))
        add_pool(tree, megabytes)
        return Simulated(tree, "")

    def test_types_share_one(self) -> None:
        kernel = self.pool(100)
        matrix = {}
        for kind in SIZES:
            name = create(kernel, PARENT, kind)
            matrix[kind] = tuple(available(kernel, PARENT)[each] for each in SIZES)
            remove(kernel, name)
        assert matrix == {"mbochs-small": (24, 6, 1), "mbochs-medium": (21, 5, 1), "mbochs-large": (9, 2, 0)}
        assert tuple(available(kernel, PARENT)[each] for each in SIZES) == (25, 6, 1)

    def test_one_is_reckoned_with_what_is_there_already(self) -> None:
        kernel = self.pool(100)
        name = create(kernel, PARENT, "mbochs-large")
        del kernel.tree.properties[f"sim:{PARENT}"]
        remove(kernel, name)
        assert available(kernel, PARENT) == {"mbochs-small": 25, "mbochs-medium": 6, "mbochs-large": 1}

    def test_the_drivers_of_mbochs_have_its_name(self) -> None:
        kernel = self.pool(100)
        name = create(kernel, PARENT, "mbochs-small")
        assert kernel.children(f"/sys/bus/mdev/drivers/{PARENT}") == [name]
        assert not kernel.has(f"{BUS}/{name}/nvidia")

    @pytest.mark.parametrize("description", ["virtual display, 640x480 framebuffer", ""])
    def test_the_core_counts_for_drivers_that_do_not(self, description: str) -> None:
        tree = copy(original("workstation"))
        add_pool(tree, 100)
        home = f"/sys/devices/virtual/{PARENT}/{PARENT}/mdev_supported_types"
        for kind in SIZES:
            tree.put(f"{home}/{kind}/description", description)
            tree.put(f"{home}/{kind}/available_instances", "2")
        kernel = Simulated(tree, "")
        create(kernel, PARENT, "mbochs-small")
        assert set(available(kernel, PARENT).values()) == {1}
        create(kernel, PARENT, "mbochs-large")
        assert refusal(kernel, create_file(PARENT, "mbochs-small"), new()) == "EUSERS"

    def test_gvt_runs_out_of_what_is_least(self) -> None:
        tree = copy(original("workstation"))
        add_pool(tree, 100)
        home = f"/sys/devices/virtual/{PARENT}/{PARENT}/mdev_supported_types"
        for kind, (low, high, left) in {
            "small": (64, 384, 7),
            "medium": (128, 512, 3),
            "large": (256, 1024, 1),
        }.items():
            text = f"low_gm_size: {low}MB\nhigh_gm_size: {high}MB\nfence: 4\nresolution: 1024x768\nweight: 2"
            tree.put(f"{home}/mbochs-{kind}/description", text)
            tree.put(f"{home}/mbochs-{kind}/available_instances", str(left))
        kernel = Simulated(tree, "")
        create(kernel, PARENT, "mbochs-medium")
        assert available(kernel, PARENT) == {"mbochs-small": 5, "mbochs-medium": 2, "mbochs-large": 1}
        create(kernel, PARENT, "mbochs-medium")
        assert available(kernel, PARENT) == {"mbochs-small": 3, "mbochs-medium": 1, "mbochs-large": 0}

    def test_of_a_driver_that_says_nothing_each_type_counts_for_itself(self) -> None:
        tree = copy(original("workstation"))
        add_pool(tree, 100)
        for kind in SIZES:
            tree.remove(f"/sys/devices/virtual/{PARENT}/{PARENT}/mdev_supported_types/{kind}/description")
        kernel = Simulated(tree, "")
        create(kernel, PARENT, "mbochs-large")
        assert available(kernel, PARENT) == {"mbochs-small": 25, "mbochs-medium": 6, "mbochs-large": 0}
        assert refusal(kernel, create_file(PARENT, "mbochs-large"), new()) == "ENOSPC"


def current(address: str) -> str:
    return device(address, "nvidia/current_vgpu_type")


def creatable(kernel: Simulated, address: str) -> list[str]:
    lines = kernel.read(device(address, "nvidia/creatable_vgpu_types")).split("\n")
    return [line.split(":")[0].strip() for line in lines[1:]]


class TestTheVendorsFolder:
    def test_a_number_creates_and_the_lists_shrink(self) -> None:
        kernel = simulated("l40s")
        assert creatable(kernel, L40S_VFS[2]) == [L40S_12Q, L40S_12A]
        kernel.write(current(L40S_VFS[2]), L40S_12A)
        assert kernel.read(current(L40S_VFS[2])) == L40S_12A
        assert creatable(kernel, L40S_VFS[2]) == []
        assert creatable(kernel, L40S_VFS[3]) == [L40S_12Q, L40S_12A]
        kernel.write(current(L40S_VFS[3]), f"{L40S_12Q}\n")
        assert all(creatable(kernel, vf) == [] for vf in L40S_VFS)
        assert refusal(kernel, current(L40S_VFS[4]), L40S_12Q) == "EIO"
        assert kernel.read(device(L40S_VFS[4], "nvidia/creatable_vgpu_types")) == "ID    : vGPU Name"
        assert survives_its_file(kernel)

    def test_zero_deletes_and_the_last_sets_the_size_free(self) -> None:
        kernel = simulated("l40s")
        assert refusal(kernel, current(L40S_VFS[2]), L40S_48Q) == "EIO"
        for vf in L40S_VFS[:2]:
            kernel.write(current(vf), "0")
        assert len(creatable(kernel, L40S_VFS[0])) == 23
        kernel.write(current(L40S_VFS[0]), L40S_48Q)
        assert creatable(kernel, L40S_VFS[1]) == []

    def test_a_list_names_only_what_was_seen(self) -> None:
        tree = copy(original("l40s"))
        del tree.properties[f"sim:{L40S}"]["types"]
        kernel = Simulated(tree, "")
        for vf in L40S_VFS[:2]:
            kernel.write(current(vf), "0")
        assert creatable(kernel, L40S_VFS[0]) == [L40S_12Q, L40S_12A]

    @pytest.mark.parametrize(
        ("value", "why"),
        [
            ("1", "EIO"),
            ("some", "EINVAL"),
            ("", ""),
            ("-1", "EINVAL"),
            ("0x10", "EINVAL"),
            ("4294967296", "ERANGE"),
        ],
    )
    def test_what_is_no_type_is_refused(self, value: str, why: str) -> None:
        kernel = simulated("l40s")
        if why:
            assert refusal(kernel, current(L40S_VFS[2]), value) == why
        else:
            kernel.write(current(L40S_VFS[2]), value)
        assert kernel.read(current(L40S_VFS[2])) == "0"

    def test_a_change_goes_by_way_of_none(self) -> None:
        kernel = simulated("l40s")
        assert refusal(kernel, current(L40S_VFS[0]), L40S_12A) == "EBUSY"
        kernel.write(current(L40S_VFS[0]), "0")
        kernel.write(current(L40S_VFS[0]), L40S_12A)

    def test_parameters_need_a_type_and_go_with_it(self) -> None:
        kernel = simulated("l40s")
        parameters, placement = (device(L40S_VFS[2], f"nvidia/{name}") for name in ("vgpu_params", "placement_id"))
        for path, value in ((parameters, "enable_profiling=1"), (placement, "8")):
            assert refusal(kernel, path, value) == "EPERM"
        kernel.write(current(L40S_VFS[2]), L40S_12Q)
        kernel.write(parameters, "enable_profiling=1\n")
        kernel.write(placement, "8")
        assert (kernel.read(parameters), kernel.read(placement)) == ("enable_profiling=1", "8")
        assert refusal(kernel, parameters, "x" * 256) == refusal(kernel, placement, "much") == "EINVAL"
        assert survives_its_file(kernel)
        kernel.write(parameters, " ")
        assert kernel.read(parameters) == ""
        kernel.write(current(L40S_VFS[2]), "0")
        with pytest.raises(KernelRefused) as caught:
            kernel.read(placement)
        assert caught.value.symbol == "ENXIO"
        assert survives_its_file(kernel)

    def test_in_use_nothing_changes(self) -> None:
        kernel, vf = simulated("l40s"), L40S_VFS[0]
        add_process(kernel.tree, 779, "qemu", "0::/", "/dev/vfio/devices/vfio0")
        for name, value in (("current_vgpu_type", "0"), ("vgpu_params", "x=1"), ("placement_id", "1")):
            assert refusal(kernel, device(vf, f"nvidia/{name}"), value) == "EBUSY"
        hangs(kernel, f"{PCI_DRIVERS}/nvidia/unbind", vf)

    def test_without_the_driver_there_is_none_and_with_it_there_is_no_type(self) -> None:
        kernel, vf = simulated("l40s"), L40S_VFS[0]
        kernel.write(f"{PCI_DRIVERS}/nvidia/unbind", vf)
        assert not kernel.has(device(vf, "nvidia"))
        assert not kernel.has("/dev/vfio/devices/vfio0")
        kernel.write("/sys/bus/pci/drivers_probe", vf)
        assert kernel.read(current(vf)) == "0"
        assert creatable(kernel, vf) == [L40S_12Q, L40S_12A]
        assert kernel.device_number("/dev/vfio/devices/vfio0") == ("c", 511, 0)
        assert kernel.read(device(vf, "vfio-dev/vfio0/dev")) == "511:0"


def vfs(kernel: Simulated, physical: str) -> list[str]:
    names = [name for name in kernel.children(f"{PCI_DEVICES}/{physical}") if name.startswith("virtfn")]
    links = sorted(names, key=lambda name: int(name[6:]))
    return [kernel.link(device(physical, name)).rpartition("/")[2] for name in links]


class TestVirtualFunctions:
    NVME = "0000:42:00.0"

    def test_the_next_ones_look_like_the_last(self) -> None:
        kernel = simulated("xe")
        before = form(kernel.tree)
        kernel.write(f"{PCI_DRIVERS}/vfio-pci/unbind", "0000:03:00.1")
        kernel.write(device(XE, "sriov_drivers_autoprobe"), "0")
        kernel.write(device(XE, "sriov_numvfs"), "0")
        assert vfs(kernel, XE) == []
        assert not kernel.has(f"{PCI_DEVICES}/0000:03:00.1")
        assert not kernel.has(device(XE, "sriov_admin/vf1/device"))
        assert survives_its_file(kernel)
        kernel.write(device(XE, "sriov_numvfs"), "2")
        assert vfs(kernel, XE) == ["0000:03:00.1", "0000:03:00.2"]
        assert kernel.link(device(XE, "sriov_admin/vf1/device")).endswith("/0000:03:00.1")
        kernel.write(device(XE, "sriov_drivers_autoprobe"), "1")
        kernel.write(device("0000:03:00.1", "driver_override"), "vfio-pci")
        kernel.write("/sys/bus/pci/drivers_probe", "0000:03:00.1")
        difference = {line for line in {*before.split("\n")} ^ {*form(kernel.tree).split("\n")} if line.startswith("/")}
        enabled = [line for line in difference if not line.rpartition("/")[2].startswith(("enable", "control"))]
        assert not enabled

    def test_one_that_never_was_is_plain(self) -> None:
        kernel = simulated("xe")
        kernel.write(device(XE, "sriov_drivers_autoprobe"), "0")
        kernel.write(f"{PCI_DRIVERS}/vfio-pci/unbind", "0000:03:00.1")
        kernel.write(device(XE, "sriov_numvfs"), "0")
        kernel.write(device(XE, "sriov_numvfs"), "4")
        new_one = "0000:03:00.4"
        assert kernel.read(device(new_one, "class")) == kernel.read(device(XE, "class"))
        assert kernel.read(device(new_one, "modalias")) == kernel.read(device("0000:03:00.1", "modalias"))
        assert len({kernel.link(device(vf, "iommu_group")) for vf in vfs(kernel, XE)}) == 4
        shares = [kernel.read(device(vf, "resource")).split("\n")[2].split()[0] for vf in vfs(kernel, XE)]
        assert len(set(shares)) == 4
        assert shares == sorted(shares)

    @pytest.mark.parametrize(
        ("value", "why"),
        [
            ("8", "ERANGE"),
            ("65535", "ERANGE"),
            ("65536", "EINVAL"),
            ("-1", "EINVAL"),
            ("some", "EINVAL"),
            ("3", "EBUSY"),
        ],
    )
    def test_counts_that_cannot_be(self, value: str, why: str) -> None:
        assert refusal(simulated("xe"), device(XE, "sriov_numvfs"), value) == why

    def test_the_same_count_is_no_change(self) -> None:
        kernel = simulated("xe")
        kernel.write(device(XE, "sriov_numvfs"), "2")
        assert driver(kernel, "0000:03:00.1") == "vfio-pci"

    def test_without_a_driver_that_can_there_are_none(self) -> None:
        kernel = simulated("xe")
        kernel.write(f"{PCI_DRIVERS}/xe/unbind", XE)
        assert vfs(kernel, XE), "most drivers leave them"
        assert refusal(kernel, device(XE, "sriov_numvfs"), "0") == "ENOENT"
        kernel.write(device(XE, "sriov_numvfs"), "2")
        assert refusal(simulated("mi300x-vf"), device(GIM, "sriov_numvfs"), "0") == "ENOENT"

    def test_a_physical_function_on_vfio_has_them_only_when_the_driver_is_told_to(self) -> None:
        kernel = simulated("lab")
        kernel.load("vfio-pci")
        kernel.write(device(self.NVME, "driver_override"), "vfio-pci")
        kernel.write(f"{PCI_DRIVERS}/nvme/unbind", self.NVME)
        kernel.write("/sys/bus/pci/drivers_probe", self.NVME)
        assert refusal(kernel, device(self.NVME, "sriov_numvfs"), "1") == "ENOENT"
        kernel.tree.put("/sys/module/vfio_pci/parameters/enable_sriov", "Y")
        kernel.write(device(self.NVME, "sriov_drivers_autoprobe"), "0")
        kernel.write(device(self.NVME, "sriov_numvfs"), "1")
        (function,) = vfs(kernel, self.NVME)
        assert driver(kernel, function) == kernel.read(device(function, "driver_override")) == "vfio-pci"

    def test_drivers_take_them_unless_told_not_to(self) -> None:
        kernel = simulated("lab")
        kernel.write(device(self.NVME, "sriov_numvfs"), "2")
        assert [driver(kernel, vf) for vf in vfs(kernel, self.NVME)] == ["nvme"] * 2
        kernel.write(device(self.NVME, "sriov_numvfs"), "0")
        kernel.write(device(self.NVME, "sriov_drivers_autoprobe"), "0")
        kernel.write(device(self.NVME, "sriov_numvfs"), "2")
        (first, _) = vfs(kernel, self.NVME)
        assert driver(kernel, first) is None
        assert refusal(kernel, f"{PCI_DRIVERS}/nvme/bind", first) == "ENODEV", "pci_device_can_probe"

    @pytest.mark.parametrize(
        ("value", "read"), [("0", "0"), ("n", "0"), ("off", "0"), ("1", "1"), ("Y\n", "1"), ("on", "1")]
    )
    def test_autoprobe_is_yes_or_no(self, value: str, read: str) -> None:
        kernel = simulated("lab")
        kernel.write(device(self.NVME, "sriov_drivers_autoprobe"), value)
        assert kernel.read(device(self.NVME, "sriov_drivers_autoprobe")) == read

    @pytest.mark.parametrize("value", ["2", "x", "o", "\n"])
    def test_autoprobe_is_nothing_else(self, value: str) -> None:
        assert refusal(simulated("lab"), device(self.NVME, "sriov_drivers_autoprobe"), value) == "EINVAL"

    def test_they_wait_for_a_held_one(self) -> None:
        kernel = simulated("lab")
        kernel.load("vfio-pci")
        kernel.write(device(self.NVME, "sriov_drivers_autoprobe"), "0")
        kernel.write(device(self.NVME, "sriov_numvfs"), "3")
        first, second, third = vfs(kernel, self.NVME)
        kernel.write(device(second, "driver_override"), "vfio-pci")
        kernel.write("/sys/bus/pci/drivers_probe", second)
        hold(kernel, second)
        error = hangs(kernel, device(self.NVME, "sriov_numvfs"), "0")
        assert error.facts["ticket"] == f"sim:{self.NVME}"
        assert not kernel.has(f"{PCI_DEVICES}/{first}")
        assert vfs(kernel, self.NVME) == [third]
        assert kernel.has(f"{PCI_DEVICES}/{second}")
        assert driver(kernel, second) is None
        with pytest.raises(WouldBlock):
            kernel.read(device(self.NVME, "sriov_numvfs"))
        assert survives_its_file(kernel)
        kernel.release(self.NVME)
        assert vfs(kernel, self.NVME) == []
        assert kernel.read(device(self.NVME, "sriov_numvfs")) == "0"
        kernel.write(device(self.NVME, "sriov_numvfs"), "3")
        assert vfs(kernel, self.NVME) == [first, second, third]
        assert kernel.read(device(second, "driver_override")) == "(null)"

    def test_faults_come_at_their_writes(self) -> None:
        kernel = simulated("lab", Fault(1, "errno", errno.ENOMEM), Fault(2, HANG))
        path = device(self.NVME, "sriov_numvfs")
        assert refusal(kernel, path, "2") == "ENOMEM"
        hangs(kernel, path, "2")
        assert vfs(kernel, self.NVME) == []
        kernel.release(self.NVME)
        assert len(vfs(kernel, self.NVME)) == 2
        kernel = simulated("lab", Fault(1, DIE))
        with pytest.raises(SimulatedDeath):
            kernel.write(path, "2")
        assert len(vfs(kernel, self.NVME)) == 2


class TestNvidiasTool:
    @pytest.mark.parametrize(("name", "physical"), [("a2", A2), ("l40s", L40S)])
    def test_the_plain_write_is_refused(self, name: str, physical: str) -> None:
        assert refusal(simulated(name), device(physical, "sriov_numvfs"), "0") == "EPERM"

    def test_it_does_nothing_while_there_are_instances(self) -> None:
        kernel = simulated("a2")
        before = form(kernel.tree)
        assert "has vGPUs" in kernel.manage_vfs(A2, on=False)
        assert "has vGPUs" in kernel.manage_vfs(A2, on=True)
        assert form(kernel.tree) == before
        assert kernel.writes == [(f"sriov-manage:{A2}", "0"), (f"sriov-manage:{A2}", "1")]

    def test_off_and_on_again_there_are_the_same_types_and_no_instances(self) -> None:
        kernel = simulated("a2")
        for name in A2_THERE:
            remove(kernel, name)
        groups = [kernel.link(device(vf, "iommu_group")) for vf in A2_VFS]
        before = {line for line in form(kernel.tree).split("\n") if line.startswith("/")}
        assert kernel.manage_vfs(A2, on=False) == f"Disabling VFs on {A2}"
        assert vfs(kernel, A2) == kernel.children("/sys/class/mdev_bus") == []
        assert "already" in kernel.manage_vfs(A2, on=False)
        assert survives_its_file(kernel)
        assert kernel.manage_vfs(A2, on=True) == f"Enabling VFs on {A2}"
        assert vfs(kernel, A2) == A2_VFS == kernel.children("/sys/class/mdev_bus")
        assert {driver(kernel, vf) for vf in A2_VFS} == {"nvidia"}
        assert all(set(available(kernel, vf).values()) == {1} for vf in A2_VFS)
        assert [kernel.link(device(vf, "iommu_group")) for vf in A2_VFS] == groups
        after = {line for line in form(kernel.tree).split("\n") if line.startswith("/")}
        assert all(line.rpartition("/")[2].startswith("enable") for line in before ^ after), before ^ after

    def test_the_vendors_folders_come_back_without_types(self) -> None:
        kernel = simulated("l40s")
        for vf in L40S_VFS[:2]:
            kernel.write(current(vf), "0")
        kernel.manage_vfs(L40S, on=False)
        kernel.manage_vfs(L40S, on=True)
        assert {kernel.read(current(vf)) for vf in L40S_VFS} == {"0"}
        assert len(creatable(kernel, L40S_VFS[31])) == 23
        assert len(kernel.children("/dev/vfio/devices")) == 32

    def test_it_waits_for_a_held_vf(self) -> None:
        kernel = simulated("l40s")
        for vf in L40S_VFS[:2]:
            kernel.write(current(vf), "0")
        add_process(kernel.tree, 779, "qemu", "0::/", "/dev/vfio/devices/vfio7")
        with pytest.raises(Stuck) as caught:
            kernel.manage_vfs(L40S, on=False)
        assert caught.value.facts["ticket"] == f"sim:{L40S}"
        assert len(vfs(kernel, L40S)) == 24
        kernel.release(L40S)
        assert vfs(kernel, L40S) == []
        kernel.manage_vfs(L40S, on=True)
        assert len(vfs(kernel, L40S)) == 32

    def test_of_another_card_it_says_so_and_elsewhere_there_is_none(self) -> None:
        assert "Error" in simulated("t4").manage_vfs(T4, on=True)
        assert "Error" in simulated("a2").manage_vfs("0000:ff:00.0", on=True)
        with pytest.raises(HostError, match="cannot be run"):
            simulated("xe").manage_vfs(XE, on=True)

    def test_faults_come_at_it_too(self) -> None:
        kernel = simulated("a2", Fault(1, "errno", errno.EIO), Fault(2, HANG))
        with pytest.raises(KernelRefused):
            kernel.manage_vfs(A2, on=False)
        with pytest.raises(Stuck):
            kernel.manage_vfs(A2, on=False)

    def test_its_driver_takes_them_along_as_it_leaves_the_card(self) -> None:
        kernel = simulated("a2")
        hold(kernel, A2_THERE[1])
        hangs(kernel, f"{PCI_DRIVERS}/nvidia/unbind", A2)
        assert driver(kernel, A2) is None
        assert kernel.children(BUS) == []
        assert vfs(kernel, A2) == A2_VFS[2:]
        assert kernel.has(device(A2_VFS[1], A2_THERE[1]))
        kernel.release(A2)
        assert vfs(kernel, A2) == []
        assert not kernel.has(f"{PCI_DEVICES}/{A2_VFS[1]}")
        kernel.write(f"{PCI_DRIVERS}/nvidia/bind", A2)
        kernel.manage_vfs(A2, on=True)
        assert set(available(kernel, A2_VFS[1]).values()) == {1}


class TestProfiles:
    def profile(self, scope: str, name: str) -> str:
        return device(XE, f"sriov_admin/{scope}/profile/{name}")

    @pytest.mark.parametrize("name", ["exec_quantum_ms", "preempt_timeout_us"])
    @pytest.mark.parametrize("scope", ["pf", "vf1", "vf4"])
    def test_times_are_numbers(self, scope: str, name: str) -> None:
        kernel, path = simulated("xe"), self.profile(scope, name)
        kernel.write(path, "10\n")
        assert kernel.read(path) == "10"
        assert refusal(kernel, path, "long") == refusal(kernel, path, "-1") == "EINVAL"
        assert refusal(kernel, path, "4294967296") == "ERANGE"

    def test_the_priority_is_one_word_and_only_the_physical_functions_can_be_set(self) -> None:
        kernel = simulated("xe")
        kernel.write(self.profile("pf", "sched_priority"), "high\n")
        assert kernel.read(self.profile("pf", "sched_priority")) == "low normal [high]"
        assert refusal(kernel, self.profile("pf", "sched_priority"), "[low]") == "EINVAL"
        assert refusal(kernel, self.profile("vf1", "sched_priority"), "low") == "ENOTSUP", "the same number"
        assert refusal(kernel, self.profile("vf1", "sched_priority"), "high") == "EINVAL"


class TestKeptFiles:
    PATH = f"/etc/mdevctl.d/{A2_VFS[5]}/{A2_THERE[0]}"

    def test_are_replaced_whole_and_removed(self) -> None:
        kernel = simulated("a2")
        kernel.replace_file(self.PATH, '{\n  "start": "auto"\n}\n')
        assert kernel.read(self.PATH) == '{\n  "start": "auto"\n}'
        kernel.replace_file(self.PATH, "{}")
        assert kernel.read(self.PATH) == "{}"
        assert survives_its_file(kernel)
        kernel.replace_file(self.PATH, None)
        kernel.replace_file(self.PATH, None)
        assert not kernel.has(self.PATH)
        assert [value for _, value in kernel.writes] == ['{\n  "start": "auto"\n}\n', "{}", "", ""]

    def test_do_not_wait_for_the_instance_that_they_are_about(self) -> None:
        kernel = simulated("a2")
        hold(kernel, A2_THERE[0])
        hangs(kernel, f"{BUS}/{A2_THERE[0]}/remove", "1")
        kernel.replace_file(self.PATH, "{}")

    def test_lie_where_a_host_file_can_hold_them(self) -> None:
        for path in ("/sys/x", "/root/x", "/etc"):
            with pytest.raises(HostError, match="no such directory"):
                simulated("a2").replace_file(path, "x")

    def test_faults_come_at_them_too(self) -> None:
        kernel = simulated("a2", Fault(1, "errno", errno.ENOSPC), Fault(2, DIE))
        with pytest.raises(KernelRefused):
            kernel.replace_file(self.PATH, "{}")
        with pytest.raises(SimulatedDeath):
            kernel.replace_file(self.PATH, "{}")
        assert kernel.read(self.PATH) == "{}"


@pytest.mark.parametrize("note", ["", "{", "[]", '{"1155": 7}', "[" * 100_000])
def test_a_damaged_note_of_the_simulation_is_told(note: str) -> None:
    tree = Tree()
    facts_of(tree, L40S)["types"] = note
    with pytest.raises(BadDocument, match="damaged note of the simulation"):
        known_types(tree, L40S, [])
