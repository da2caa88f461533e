"""From files to functions: each fact as the kernel means it, and what is odd or missing costs that fact only."""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from tests.hosts.machines import NAMES, copy, function, inventory_of, original, unhurried
from tests.probing import read_inventory
from tests.unit.conftest import Run
from vfioctl.binding.model.intents import BindIntent
from vfioctl.binding.plan.bind import plan_bind
from vfioctl.console.documents import document_text
from vfioctl.errors import GroupNotViable, KernelRefused, Stuck
from vfioctl.host import Host
from vfioctl.inventory.model.document import InventoryDocument, document_of
from vfioctl.inventory.model.functions import Bar, Function, Inventory, Link, Nvml
from vfioctl.inventory.model.numa_affinity import home_of
from vfioctl.inventory.model.values import PciAddress
from vfioctl.inventory.probe.facts import read_facts
from vfioctl.inventory.probe.inventory import read_some
from vfioctl.kernel.protocol import EVERY_LINK, IOMMU_GROUPS, PCI_DEVICES, Directory, Prefixes, Unanswered
from vfioctl.kernel.recorded.host import Recorded
from vfioctl.kernel.recorded.tree import Node, Tree
from vfioctl.session import Session

T = TypeVar("T")
ATTRIBUTES = st.sampled_from(
    [
        "numa_node",
        "resource",
        "power_state",
        "reset_method",
        "driver_override",
        "current_link_speed",
        "sriov_totalvfs",
        "boot_vga",
        "d3cold_allowed",
    ]
)
GPU, AUDIO = PciAddress("0000:0b:00.0"), PciAddress("0000:0b:00.1")


def spoilt(name: str = "workstation") -> Tree:
    return copy(original(name))


def device(tree: Tree, address: str = GPU) -> str:
    return tree.resolve(f"{PCI_DEVICES}/{address}")


def read(tree: Tree) -> Inventory:
    return read_inventory(Recorded(tree, ""))


def with_text(attribute: str, text: str) -> Function:
    """The GPU whose attribute says that."""
    tree = spoilt()
    tree.put(f"{device(tree)}/{attribute}", text)
    return read(tree).by_address[GPU]


# -- one function ----------------------------------------------------------------------------------------


class TestAttributes:
    @pytest.mark.parametrize(("text", "node"), [("-1", None), ("0", 0), ("7", 7), ("-2", None)])
    def test_a_numa_node_below_zero_is_unknown(self, text: str, node: int | None) -> None:
        gpu = with_text("numa_node", text)
        assert gpu.numa_node == node
        assert gpu.unknown == {}

    @pytest.mark.parametrize("attribute", ["numa_node", "resource", "sriov_totalvfs"])
    @pytest.mark.parametrize("text", ["", "x", "0x", "1 2", "0x0 0x1", "\0", "1.5", "1\n2\n3", "9" * 5000])
    def test_odd_text_costs_that_fact_and_says_so(self, attribute: str, text: str) -> None:
        gpu = with_text(attribute, text)
        assert list(gpu.unknown) == [attribute]
        assert gpu.unknown[attribute].startswith("unexpected text")
        assert len(gpu.unknown[attribute]) < 200
        assert gpu.driver == "nvidia"

    @pytest.mark.parametrize(
        ("attribute", "text"),
        [
            ("numa_node", "9" * 20),
            ("numa_node", "1_0"),
            ("sriov_totalvfs", "-5"),
            ("sriov_totalvfs", "65536"),
            ("resource", "0x00000000f1000000 0x00000000f0ffffff 0x0000000000040200"),
            ("resource", "0x00000000f1000000 0x100000000f0ffffff 0x0000000000040200"),
            ("resource", f"0x0 0x{'f' * 5000} 0x0000000000040200"),
        ],
    )
    def test_a_number_out_of_range_costs_that_fact_and_says_so(self, attribute: str, text: str) -> None:
        gpu = with_text(attribute, text)
        assert gpu.unknown == {attribute: f"unexpected text {text[:40]!r}"}

    def test_a_link_to_what_is_no_function_costs_that_fact(self) -> None:
        tree = spoilt()
        tree.put_link(f"{device(tree)}/physfn", "../0000:00:3f.0")
        assert read(tree).by_address[GPU].unknown == {"physfn": "unexpected target '../0000:00:3f.0'"}

    @pytest.mark.parametrize(
        "attribute", ["numa_node", "resource", "boot_vga", "power_state", "d3cold_allowed", "reset_method"]
    )
    def test_one_unreadable_attribute_costs_that_fact(self, attribute: str) -> None:
        tree = spoilt()
        tree.remove(f"{device(tree)}/{attribute}")
        tree.put_refused(f"{device(tree)}/{attribute}", 5)
        found, sound = read(tree), read(spoilt())
        assert found.by_address[GPU].unknown == {attribute: "EIO"}
        assert found.warnings == ()
        assert [f for f in found.functions if f.address != GPU] == [f for f in sound.functions if f.address != GPU]

    @pytest.mark.parametrize(("text", "name"), [("(null)", None), ("", None), ("vfio-pci", "vfio-pci"), ("no", "no")])
    def test_an_override_may_be_unset(self, text: str, name: str | None) -> None:
        assert with_text("driver_override", text).driver_override == name

    @pytest.mark.parametrize(
        ("attribute", "text", "field", "value"),
        [
            ("boot_vga", "1", "boot_vga", True),
            ("boot_vga", "0", "boot_vga", False),
            ("boot_vga", "x", "boot_vga", False),
            ("power_state", "D3cold", "power_state", "D3cold"),
            ("d3cold_allowed", "1", "d3cold_allowed", True),
            ("d3cold_allowed", "0", "d3cold_allowed", False),
            ("reset_method", "flr bus", "reset_methods", ("flr", "bus")),
            ("reset_method", "", "reset_methods", ()),
            ("sriov_totalvfs", "16", "sriov_totalvfs", 16),
        ],
    )
    def test_each_means_what_the_kernel_means(self, attribute: str, text: str, field: str, value: object) -> None:
        assert getattr(with_text(attribute, text), field) == value


def region(start: int, size: int, flags: int) -> str:
    return f"0x{start:016x} 0x{start + size - 1:016x} 0x{flags:016x}"


EMPTY_REGION = "0x0000000000000000 0x0000000000000000 0x0000000000000000"


class TestBars:
    @pytest.mark.parametrize(
        ("flags", "kind", "prefetchable"),
        [
            (0x40101, "io", False),
            (0x40200, "mem32", False),
            (0x42208, "mem32", True),
            (0x14220C, "mem64", True),
            (0x140204, "mem64", False),
        ],
    )
    def test_each_kind_of_region_is_known(self, flags: int, kind: str, prefetchable: bool) -> None:
        gpu = with_text("resource", region(0x82000000, 128 << 20, flags))
        assert gpu.bars == (Bar(index=0, size=128 << 20, kind=kind, prefetchable=prefetchable),)

    @pytest.mark.parametrize("line", [EMPTY_REGION, EMPTY_REGION[:-6] + "040200", region(1, 2, 0)])
    def test_a_region_without_addresses_or_kind_is_none(self, line: str) -> None:
        assert with_text("resource", line).bars == ()

    def test_only_wide_prefetchable_bars_count_and_the_rom_never(self) -> None:
        wide, narrow = region(1 << 40, 1 << 35, 0x14220C), region(1 << 30, 1 << 24, 0x42208)
        lines = [wide, EMPTY_REGION, wide, EMPTY_REGION, narrow, EMPTY_REGION, wide, wide, wide]
        gpu = with_text("resource", "\n".join(lines))
        assert [bar.index for bar in gpu.bars] == [0, 2, 4, 6]
        assert gpu.prefetchable_64 == 2 << 35


class TestTheLink:
    @pytest.mark.parametrize(
        ("text", "speed"),
        [
            ("32.0 GT/s PCIe", 32.0),
            ("2.5 GT/s PCIe", 2.5),
            ("8 GT/s", 8.0),
            ("Unknown", None),
            ("", None),
            ("Unknown speed", None),
            ("1e9 GT/s", None),
            ("-1", None),
            ("\u0663 GT/s", None),
            ("nan", None),
        ],
    )
    def test_has_a_speed_or_not(self, text: str, speed: float | None) -> None:
        link = with_text("current_link_speed", text).link
        assert link
        assert link.speed == speed

    @pytest.mark.parametrize(
        ("text", "width"),
        [("16", 16), ("1", 1), ("32", 32), ("0", None), ("63", None), ("255", None), ("", None), ("x16", None)],
    )
    def test_has_a_width_or_not(self, text: str, width: int | None) -> None:
        link = with_text("max_link_width", text).link
        assert link
        assert link.max_width == width

    def test_is_none_without_a_pcie_capability(self) -> None:
        tree = spoilt()
        for name in ("current_link_speed", "current_link_width", "max_link_speed", "max_link_width"):
            tree.remove(f"{device(tree)}/{name}")
        assert read(tree).by_address[GPU].link is None

    def test_of_a_virtual_function_is_that_of_its_physical_one(self) -> None:
        found = read(spoilt("mi300x"))
        vfs = [f for f in found.functions if f.physfn]
        assert len(vfs) == 2
        for vf in vfs:
            assert vf.physfn
            assert vf.link == found.by_address[vf.physfn].link
            assert isinstance(vf.link, Link)


class TestRelations:
    def test_device_links_virtual_functions_and_the_bridge_above_are_known(self) -> None:
        found = read(spoilt())
        gpu, audio = found.by_address[GPU], found.by_address[AUDIO]
        assert gpu.address in audio.suppliers
        assert audio.address in gpu.consumers
        assert gpu.upstream == audio.upstream
        assert gpu.upstream in found.by_address
        pf = next(f for f in read(spoilt("mi300x")).functions if f.virtfns)
        assert (pf.virtfns, pf.is_vf) == (("0000:e5:02.0", "0000:e5:02.1"), False)

    def test_a_link_that_only_begins_like_a_known_one_is_none(self) -> None:
        tree = spoilt()
        tree.put_link(f"{device(tree)}/driver_of_old", "../nvidia")
        tree.remove(f"{device(tree)}/driver")
        gpu = read(tree).by_address[GPU]
        assert (gpu.driver, gpu.unknown) == (None, {})

    def test_below_the_root_there_is_no_bridge_above(self) -> None:
        assert read(spoilt("laptop")).by_address[PciAddress("0000:00:02.0")].upstream is None

    def test_a_device_of_the_group_node_and_of_its_own_is_known(self) -> None:
        tree = spoilt()
        tree.put_node("/dev/vfio/12", Node("c", 243, 0))
        assert read(tree).by_address[GPU].vfio_cdev is None
        tree.put_directory(f"{device(tree)}/vfio-dev/vfio3")
        assert read(tree).by_address[GPU].vfio_cdev is None
        tree.put_node("/dev/vfio/devices/vfio3", Node("c", 511, 3))
        gpu = read(tree).by_address[GPU]
        assert (gpu.vfio_group, gpu.vfio_cdev) == ("/dev/vfio/12", "/dev/vfio/devices/vfio3")
        assert {f.vfio_group for f in read(tree).functions if f.iommu_group != 12} == {None}

    def test_a_device_that_lies_nowhere_has_no_bridge_above(self) -> None:
        tree = spoilt()
        tree.put(f"{PCI_DEVICES}/here/modalias", tree.files[f"{device(tree)}/modalias"])
        tree.put_link(f"{PCI_DEVICES}/{GPU}", "here")
        assert read(tree).by_address[GPU].upstream is None


class TestIdentity:
    def test_is_what_the_modalias_says(self) -> None:
        gpu = read(spoilt()).by_address[GPU]
        assert (gpu.vendor_id, gpu.device_id, gpu.subsystem_vendor_id, gpu.subsystem_device_id) == (
            "10de",
            "1e04",
            "10de",
            "12a4",
        )
        assert (gpu.class_code, gpu.identity) == ("030000", "10de:1e04:10de:12a4:030000")

    def test_of_a_twin_is_its_own_function_all_the_same(self) -> None:
        twins = [f for f in read(spoilt("hgx8")).functions if f.device_id == "2330"]
        assert len({twin.identity for twin in twins}) == 1
        assert len({twin.address for twin in twins}) == len(twins) == 8
        assert {twin.title for twin in twins} == {"NVIDIA H100 80GB HBM3"}


class TestCompanions:
    def test_are_the_card_and_the_group_without_the_bridges(self) -> None:
        found = read(spoilt("shared-group"))
        disk, audio = PciAddress("0000:02:00.0"), PciAddress("0000:01:00.1")
        assert found.by_address[PciAddress("0000:01:00.0")].companions == (audio, disk)
        assert found.by_address[disk].companions == (PciAddress("0000:01:00.0"), audio)
        assert all(f.companions == () for f in found.functions if f.is_bridge)

    def test_of_a_card_in_two_groups_are_those_of_the_card(self) -> None:
        found = read(spoilt())
        assert found.by_address[PciAddress("0000:05:00.0")].companions == ("0000:05:00.1",)

    def test_in_no_group_are_those_of_the_card(self) -> None:
        found = read(spoilt("iommu-off"))
        assert found.by_address[PciAddress("0000:01:00.0")].companions == ("0000:01:00.1",)

    def test_of_a_virtual_function_are_none(self) -> None:
        assert {f.companions for f in read(spoilt("mi300x")).functions if f.physfn} == {()}


class TestNamesAndDrivers:
    def test_names_come_from_the_hardware_database(self) -> None:
        gpu = read(spoilt()).by_address[GPU]
        assert (gpu.vendor_name, gpu.device_name, gpu.class_name) == (
            "NVIDIA Corporation",
            "TU102 [GeForce RTX 2080 Ti]",
            "VGA compatible controller",
        )

    def test_without_a_subclass_the_class_is_the_name(self) -> None:
        tree = spoilt()
        subject = f"hwdb:{tree.files[f'{device(tree)}/modalias']}"
        tree.properties[subject] = {"ID_PCI_CLASS_FROM_DATABASE": "Display", "ID_PCI_SUBSYS_FROM_DATABASE": "S"}
        gpu = read(tree).by_address[GPU]
        assert (gpu.class_name, gpu.subsystem_name, gpu.device_name, gpu.vendor_name) == ("Display", "S", None, None)
        assert gpu.title == "NVIDIA GeForce RTX 2080 Ti"
        del tree.properties[subject]
        assert read(tree).by_address[GPU].class_name is None

    def test_available_drivers_have_the_names_that_their_modules_register(self) -> None:
        usb = read(spoilt()).by_address[PciAddress("0000:0b:00.2")]
        assert usb.available_drivers == ("xhci_hcd", "vfio-pci")

    def test_without_the_list_of_modules_there_are_none(self) -> None:
        tree = spoilt()
        tree.remove("/proc/sys/kernel/osrelease")
        assert {f.available_drivers for f in read(tree).functions} == {()}

    def test_a_module_without_pci_drivers_has_its_own_name(self) -> None:
        tree = spoilt()
        tree.remove("/sys/module/nvidia/drivers")
        tree.put_directory("/sys/module/nvidia/drivers/usb:x")
        tree.remove("/sys/module/vfio_pci")
        assert read(tree).by_address[GPU].available_drivers[0] == "nvidia"
        assert read(tree).by_address[GPU].available_drivers[-1] == "vfio-pci"


# -- the whole host --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_bundled_host_is_read_without_a_complaint(name: str) -> None:
    found = read(spoilt(name))
    assert found.warnings == ()
    assert [f.unknown for f in found.functions if f.unknown] == []
    document = document_of(found, everything=True)
    assert TypeAdapter(InventoryDocument).validate_json(document_text(document)) == document
    assert TypeAdapter(Inventory).validate_json(document_text(found)) == found
    named = {function.iommu_group for function in found.functions if function.iommu_group is not None}
    assert [group.id for group in found.groups] == sorted(named)
    for group in found.groups:
        assert all(found.by_address[member].iommu_group == group.id for member in group.members)
        assert group.viable == (not group.blockers)
    for each in found.functions:
        for other in each.companions:
            assert each.address in found.by_address[other].companions
            assert not found.by_address[other].is_bridge


class Consulted(Recorded):
    """Counts look-ups in the hardware database."""

    def __init__(self, tree: Tree) -> None:
        super().__init__(tree, "")
        self.looked_up = 0

    def properties(self, modalias: str) -> Mapping[str, str]:
        self.looked_up += 1
        return super().properties(modalias)


class TestNamesAreLookedUp:
    def test_once_until_another_kernel_or_module_is_installed(self, tmp_path: Path) -> None:
        tree = spoilt()
        kernel = Consulted(tree)
        host = Host(Session(kernel, tmp_path / "ledger.db"))
        first, looked_up = host.inventory(), kernel.looked_up
        assert looked_up > 0
        assert host.inventory() == first
        assert kernel.looked_up == looked_up
        path = next(path for path in tree.files if path.endswith("modules.alias"))
        tree.put(path, f"{tree.files[path]}\nalias pci:v000010DEd*sv*sd*bc03sc*i* newest")
        assert "newest" in host.inventory().by_address[GPU].available_drivers
        assert kernel.looked_up == 2 * looked_up

    def test_not_at_all_where_only_functions_are_asked_for(self) -> None:
        kernel = Consulted(spoilt())
        (found,) = read_some(kernel, [GPU], names=False).functions
        assert kernel.looked_up == 0
        whole = read_inventory(kernel).by_address[GPU]
        assert (found.vendor_name, found.available_drivers) == (None, ())
        assert (found.driver, found.iommu_group, found.bars) == (whole.driver, whole.iommu_group, whole.bars)


def test_functions_are_in_address_order_with_long_domains_last() -> None:
    addresses = [f.address for f in read(spoilt("vmd-domain")).functions]
    assert addresses == sorted(addresses, key=lambda a: (int(a.split(":")[0], 16), a))
    assert addresses[-1].startswith("10000:")


def test_only_a_full_listing_has_all_functions() -> None:
    found = read(spoilt())
    assert document_of(found, everything=False).functions is None
    assert document_of(found, everything=True).functions == found.functions
    assert document_of(found, everything=False).gpus == found.gpus


class Vanishing(Recorded):
    """A host on which a device's directory is gone when it is read."""

    def directory(self, path: str, wanted: Collection[str], links: Prefixes = EVERY_LINK) -> Directory:
        if path.endswith(GPU):
            raise KernelRefused(path, 2)
        return super().directory(path, wanted, links)


def test_a_vanished_device_costs_itself() -> None:
    found, sound = read_inventory(Vanishing(spoilt(), "")), read(spoilt())
    assert [f.address for f in found.functions] == [f.address for f in sound.functions if f.address != GPU]
    assert [(w.subject, w.text) for w in found.warnings] == [(GPU, "not read: ENOENT")]
    assert read_facts(Vanishing(spoilt(), ""), [GPU, AUDIO]).keys() == {AUDIO}


def test_a_device_that_is_unbound_while_it_is_read_is_read() -> None:
    """Its vfio-dev is listed, and gone when it is opened."""

    class Unbinding(Recorded):
        def children(self, path: str) -> list[str]:
            if path.endswith("/vfio-dev"):
                raise KernelRefused(path, 2)
            return super().children(path)

    tree = spoilt()
    tree.put_directory(f"{device(tree)}/vfio-dev/vfio0")
    found = read_inventory(Unbinding(tree, ""))
    assert found.by_address[GPU].vfio_cdev is None
    assert not found.warnings


class TestAModaliasThatDoesNotParse:
    @pytest.mark.parametrize("text", ["", "pci:", "usb:v1", "garbage\n", None])
    def test_is_made_up_for_by_the_files_with_the_ids(self, text: str | None) -> None:
        tree = spoilt()
        if text is None:
            tree.remove(f"{device(tree)}/modalias")
        else:
            tree.put(f"{device(tree)}/modalias", text)
        assert read(tree) == read(spoilt())

    def test_in_lower_case_is_that_of_an_older_kernel(self) -> None:
        tree, newer = spoilt(), spoilt()
        modalias = tree.files[f"{device(tree)}/modalias"].rpartition("i")[0]
        newer.put(f"{device(tree)}/modalias", f"{modalias}i8F")
        tree.put(f"{device(tree)}/modalias", f"{modalias}i8f")
        for name in ("vendor", "device", "class"):
            tree.remove(f"{device(tree)}/{name}")
        assert read(tree).by_address[GPU] == read(newer).by_address[GPU]
        assert read(tree).by_address[GPU].class_code == "03008f"

    def test_and_a_class_alone_are_enough_to_be_listed(self) -> None:
        tree = spoilt()
        for name in ("modalias", "vendor", "device", "subsystem_vendor", "subsystem_device"):
            tree.remove(f"{device(tree)}/{name}")
        gpu = read(tree).by_address[GPU]
        assert (gpu.is_gpu, gpu.vendor_id, gpu.device_id) == (True, "0000", "0000")
        assert gpu.unknown.keys() >= {"vendor", "device", "subsystem_vendor", "subsystem_device"}
        assert GPU in read(tree).group_by_id[gpu.iommu_group or -1].members

    @pytest.mark.parametrize("directory", [True, False])
    def test_nor_do_the_files_leaves_the_viability_of_its_group_unknown(self, *, directory: bool) -> None:
        tree = spoilt()
        group = read(tree).by_address[AUDIO].iommu_group
        assert group is not None
        for name in ("modalias", "class"):
            tree.remove(f"{device(tree, AUDIO)}/{name}")
        if not directory:
            tree.remove(f"{IOMMU_GROUPS}/{group}/devices")
        for address in read(tree).group_by_id[group].members:
            tree.put_link(f"{device(tree, address)}/driver", "/sys/bus/pci/drivers/vfio-pci")
        found = read(tree)
        assert AUDIO not in found.by_address
        assert [w.subject for w in found.warnings] == [AUDIO]
        assert (*found.unread,) == found.group_by_id[group].unread == (AUDIO,)
        assert found.group_by_id[group].viable is None
        assert read_facts(Recorded(tree, ""), [AUDIO]) == {}
        with pytest.raises(GroupNotViable, match=f"{AUDIO} could not be read"):
            plan_bind(found, BindIntent(devices=(GPU,), allow_boot_vga=True))
        gpu_tree = copy(tree)
        gpu_tree.put_link(f"{device(tree)}/driver", "/sys/bus/pci/drivers/nouveau")
        assert read(gpu_tree).group_by_id[group].viable is False


def test_an_unread_member_of_the_first_group_is_known_from_its_directory() -> None:
    tree = spoilt()
    first = read(tree).group_by_id[0].members[0]
    for name in ("modalias", "class", "iommu_group"):
        tree.remove(f"{device(tree, first)}/{name}")
    other = next(address for address in read(tree).by_address if address != first)
    tree.put_link(f"{device(tree, other)}/iommu_group", "../../../kernel/iommu_groups/0")
    assert read(tree).group_by_id[0].unread == (first,)


def test_a_group_whose_members_have_no_link_is_known_from_its_directory() -> None:
    tree = spoilt()
    tree.remove(f"{device(tree)}/iommu_group")
    assert read(tree) == read(spoilt())


def test_an_entry_that_is_no_address_costs_itself() -> None:
    tree = spoilt()
    tree.put_link(f"{PCI_DEVICES}/garbage", tree.links[f"{PCI_DEVICES}/{GPU}"])
    found = read(tree)
    assert found.functions == read(spoilt()).functions
    assert [w.subject for w in found.warnings] == ["garbage"]


class Mute(Recorded):
    """A host on which one device does not answer, so many times."""

    def __init__(self, tree: Tree, times: int) -> None:
        super().__init__(tree, "")
        self._times = times

    def survey(
        self,
        reader: Callable[..., Callable[[str], T]],
        subjects: Iterable[str],
        *,
        args: Sequence[object] = (),
        timeout: float | None = None,
        total: float | None = None,
    ) -> Iterator[tuple[str, T | Unanswered]]:
        for subject, answer in super().survey(reader, subjects, args=args, timeout=timeout, total=total):
            if subject == GPU and self._times:
                self._times -= 1
                yield subject, Unanswered("no answer after 1 s")
            else:
                yield subject, answer


def test_a_device_that_does_not_answer_still_says_what_it_is() -> None:
    found, sound = read_inventory(Mute(spoilt(), 1)), read(spoilt()).by_address[GPU]
    gpu = found.by_address[GPU]
    assert (gpu.identity, gpu.driver, gpu.bars, gpu.iommu_group) == (
        sound.identity,
        sound.driver,
        sound.bars,
        sound.iommu_group,
    )
    assert gpu.unknown == {"driver_override": "no answer after 1 s"}
    assert [(w.subject, w.text) for w in found.warnings] == [(GPU, "reading it did not return: no answer after 1 s")]


def test_a_device_that_never_answers_costs_itself() -> None:
    found = read_inventory(Mute(spoilt(), 2))
    assert GPU not in found.by_address
    assert found.unread == {GPU: "no answer after 1 s"}
    assert [(w.subject, w.text) for w in found.warnings] == [(GPU, "not read: no answer after 1 s")]
    group = read(spoilt()).by_address[GPU].iommu_group
    assert found.group_by_id[group or -1].unread == (GPU,)
    assert found.unread_beside(found.by_address[AUDIO]) == (GPU,)


def test_a_function_alone_in_its_group_that_never_answers_leaves_the_group() -> None:
    tree, sound = spoilt(), read(spoilt())
    alone = next(group for group in sound.groups if len(group.members) == 1)
    tree.properties[f"sim:{alone.members[0]}"] = {"unanswered": "1"}
    group = read(tree).group_by_id[alone.id]
    assert (group.members, group.unread, group.viable) == ((), alone.members, None)


def test_facts_of_a_device_that_does_not_answer_are_stuck() -> None:
    with pytest.raises(Stuck, match="does not answer: no answer after 1 s") as caught:
        read_facts(Mute(spoilt(), 1), [AUDIO, GPU])
    assert caught.value.next_command == "vfioctl recover"


def test_facts_are_what_the_inventory_says() -> None:
    kernel = Recorded(spoilt(), "")
    inventory = read_inventory(kernel)
    facts = read_facts(kernel, inventory.by_address)
    assert facts.keys() == inventory.by_address.keys()
    for address, fact in facts.items():
        one = inventory.by_address[PciAddress(address)]
        assert (fact.kind, fact.subject) == ("function", address)
        assert fact.values == {
            "identity": one.identity,
            "iommu_group": one.iommu_group,
            "driver": one.driver,
            "driver_override": one.driver_override,
        }


@unhurried
@given(st.dictionaries(ATTRIBUTES, st.text(max_size=40)))
def test_no_text_of_an_attribute_costs_the_function(texts: dict[str, str]) -> None:
    tree = spoilt("iommu-firmware")
    home = device(tree, "0000:01:00.0")
    for name, text in texts.items():
        tree.put(f"{home}/{name}", text)
    found = read(tree)
    assert len(found.functions) == len(read(spoilt("iommu-firmware")).functions)
    assert document_text(found)


# -- NUMA nodes ------------------------------------------------------------------------------------------


NODE = "/sys/devices/system/node/node0"


class TestNodes:
    def test_have_cpus_memory_and_distances(self) -> None:
        nodes = read(spoilt("hgx8")).numa_nodes
        assert [node.id for node in nodes] == [0, 1]
        assert nodes[0].cpus == (*range(48), *range(96, 144))
        assert nodes[0].memory_bytes == 1 << 40
        assert (nodes[0].distances, nodes[1].distances) == ({0: 10, 1: 21}, {0: 21, 1: 10})

    def test_may_have_no_cpus(self) -> None:
        assert read(spoilt("gh200")).numa_nodes[1].cpus == ()

    def test_that_are_not_there_are_none(self) -> None:
        tree = spoilt()
        tree.remove("/sys/devices/system/node")
        assert read(tree).numa_nodes == ()

    @pytest.mark.parametrize("text", ["", "garbage", "Node 0 MemTotal: x kB", "Node 0 MemFree: 1 kB"])
    def test_with_odd_memory_keep_the_rest(self, text: str) -> None:
        tree = spoilt()
        tree.put(f"{NODE}/meminfo", text)
        (node,) = read(tree).numa_nodes
        assert node.memory_bytes is None
        assert node.cpus

    def test_with_nothing_to_read_keep_their_cpus(self) -> None:
        tree = spoilt()
        for name in ("meminfo", "distance"):
            tree.remove(f"{NODE}/{name}")
        (node,) = read(tree).numa_nodes
        assert (node.memory_bytes, node.distances) == (None, {})

    @pytest.mark.parametrize(("text", "distances"), [("", {}), ("x", {}), ("10", {0: 10}), ("10 21 30", {})])
    def test_with_odd_distances_keep_the_rest(self, text: str, distances: dict[int, int]) -> None:
        tree = spoilt()
        tree.put(f"{NODE}/distance", text)
        assert read(tree).numa_nodes[0].distances == distances

    def test_with_distances_of_another_number_are_reported(self) -> None:
        tree = spoilt("hgx8")
        tree.put(f"{NODE}/distance", "10")
        found = read(tree)
        assert found.numa_nodes[0].distances == {}
        assert [(w.subject, w.text) for w in found.warnings] == [
            ("NUMA node 0", "1 distances to 2 nodes: none of them is used")
        ]

    @pytest.mark.parametrize("text", ["x", "3-1", "0-9999999"])
    def test_with_odd_cpus_have_none_and_are_nodes_all_the_same(self, text: str) -> None:
        tree = spoilt("hgx8")
        tree.put(f"{NODE}/cpulist", text)
        found = read(tree)
        assert [(node.id, bool(node.cpus)) for node in found.numa_nodes] == [(0, False), (1, True)]
        assert [w.subject for w in found.warnings] == ["NUMA node 0"]

    def test_that_cannot_be_read_make_no_host_of_one_node(self) -> None:
        """A function without a node would otherwise be at home on the one that can be read."""
        tree = spoilt("hgx8")
        tree.remove(f"{NODE}/cpulist")
        tree.put("/sys/bus/pci/devices/0000:1b:00.0/numa_node", "-1")
        found = read(tree)
        assert [node.id for node in found.numa_nodes] == [0, 1]
        assert not [f for f in found.functions if home_of(f, found).reported_by == "the host, which has one node"]

    @pytest.mark.parametrize(
        ("file", "text", "node"),
        [
            ("local_cpulist", "48-95,144-191", 1),
            ("local_cpus", "ffffffff,ffff0000,00000000,ffffffff,ffff0000,00000000", 1),
            ("local_cpulist", "0-191", None),  # all: the kernel does not know
            ("local_cpulist", "48-94", None),
            ("local_cpulist", "x", None),
            ("local_cpus", "", None),
        ],
    )
    def test_with_the_local_cpus_of_a_function_is_its_node_where_numa_node_is_missing(
        self, file: str, text: str, node: int | None
    ) -> None:
        tree = spoilt("hgx8")
        home = tree.resolve("/sys/bus/pci/devices/0000:1b:00.0")
        for name in ("numa_node", "local_cpulist", "local_cpus"):
            tree.remove(f"{home}/{name}")
        tree.put(f"{home}/{file}", text)
        gpu = read(tree).by_address[PciAddress("0000:1b:00.0")]
        assert (gpu.numa_node, gpu.unknown) == (node, {})

    def test_have_the_cpus_of_their_map_where_there_is_no_list(self) -> None:
        tree = spoilt("hgx8")
        tree.remove(f"{NODE}/cpulist")
        tree.put(f"{NODE}/cpumap", "0000ffff,ffffffff,00000000,0000ffff,ffffffff")
        assert read(tree).numa_nodes[0].cpus == (*range(48), *range(96, 144))

    def test_that_overlap_are_reported(self) -> None:
        tree = spoilt("hgx8")
        tree.put("/sys/devices/system/node/node1/cpulist", "47-95")
        assert [w.text for w in read(tree).warnings] == ["CPU 47 are also those of another node"]

    def test_are_known_by_their_names(self) -> None:
        tree = spoilt()
        for name in ("nodeX", "node", "node\u0663", "has_cpu", "node99999"):
            tree.put_directory(f"/sys/devices/system/node/{name}")
        assert [node.id for node in read(tree).numa_nodes] == [0]


# -- the IOMMU -------------------------------------------------------------------------------------------


def without_iommu(**files: str) -> Tree:
    """A host without groups, with these files: cmdline, cpuinfo, and ACPI tables by name."""
    tree = Tree()
    tree.put_directory(PCI_DEVICES)
    for name, text in files.items():
        if name.isupper():
            tree.put_refused(f"/sys/firmware/acpi/tables/{name}", 13)
        else:
            tree.put(f"/proc/{name}", text)
    return tree


class TestTheIommu:
    @pytest.mark.parametrize(
        ("unit", "kind"),
        [
            ("dmar0", "intel-vt-d"),
            ("ivhd1", "amd-vi"),
            ("smmu3.0x0", "arm-smmu-v3"),
            ("smmu.0x0", "arm-smmu"),
            ("riscv", "riscv"),
        ],
    )
    def test_is_of_a_kind(self, unit: str, kind: str) -> None:
        tree = without_iommu()
        tree.put_directory(f"/sys/class/iommu/{unit}")
        tree.put_directory(f"{IOMMU_GROUPS}/0/devices")
        iommu = read(tree).iommu
        assert (iommu.kind, iommu.translating, iommu.reason) == (kind, True, "")

    def test_of_no_known_kind_may_still_translate(self) -> None:
        tree = without_iommu()
        tree.put_directory(f"{IOMMU_GROUPS}/0/devices")
        assert (read(tree).iommu.kind, read(tree).iommu.translating) == (None, True)

    @pytest.mark.parametrize(
        ("files", "reason"),
        [
            ({"cmdline": "quiet intel_iommu=off"}, "command line (intel_iommu=off)"),
            ({"cmdline": "amd_iommu=off iommu=soft", "IVRS": ""}, "command line (amd_iommu=off iommu=soft)"),
            ({"cmdline": "xintel_iommu=off", "DMAR": ""}, "add intel_iommu=on"),
            ({"cmdline": "quiet", "DMAR": "", "cpuinfo": "flags: vmx"}, "add intel_iommu=on"),
            ({"IVRS": ""}, "offers AMD-Vi"),
            ({"IORT": ""}, "offers SMMU"),
            ({"VIOT": "", "FACP": ""}, "offers a virtio IOMMU"),
            ({"FACP": "", "cpuinfo": "flags : fpu vmx sse"}, "switched off in the firmware"),
            ({"FACP": "", "cpuinfo": "flags : fpu svm sse"}, "switched off in the firmware"),
            ({"FACP": "", "cpuinfo": "flags : fpu xsvmx sse"}, "not supported"),
            ({"FACP": "", "cpuinfo": "CPU implementer : 0x41\nFeatures : fp asimd"}, "unknown why"),
            ({"cpuinfo": "flags : fpu vmx sse"}, "unknown why"),  # a capture without the tables
            ({"SSDT": "", "cpuinfo": "flags : fpu vmx sse"}, "unknown why"),  # with a few of them
            ({"cpuinfo": "flags : fpu sse"}, "unknown why"),
            ({}, "unknown why"),
        ],
    )
    def test_that_is_off_says_why(self, files: dict[str, str], reason: str) -> None:
        iommu = read(without_iommu(**files)).iommu
        assert not iommu.translating
        assert reason in iommu.reason

    def test_is_on_where_a_function_names_its_group(self) -> None:
        tree = spoilt()
        tree.remove(IOMMU_GROUPS)
        found = read(tree)
        assert (found.iommu.translating, found.by_address[GPU].iommu_group) == (True, 12)

    def test_a_group_says_who_keeps_it_from_a_guest(self) -> None:
        tree = spoilt()
        group = read(tree).group_by_id[12]
        assert (group.viable, group.type, group.node) == (False, "DMA-FQ", None)
        assert [(b.address, b.driver) for b in group.blockers][:2] == [(GPU, "nvidia"), (AUDIO, "snd_hda_intel")]
        tree.put_node("/dev/vfio/12", Node("c", 243, 0))
        tree.put(f"{IOMMU_GROUPS}/12/type", "identity")
        for number, driver in enumerate(("vfio-pci", "pci-stub", "pcieport", "mlx5_vfio_pci")):
            tree.put_link(f"{device(tree, f'0000:0b:00.{number}')}/driver", f"x/{driver}")
        group = read(tree).group_by_id[12]
        assert (group.viable, group.type, group.node, group.blockers) == (True, "identity", "/dev/vfio/12", ())

    def test_a_group_without_a_type_is_a_group(self) -> None:
        tree = spoilt()
        tree.remove(f"{IOMMU_GROUPS}/12/type")
        assert read(tree).group_by_id[12].type is None


# -- look-ups of the model -------------------------------------------------------------------------------


class TestInventory:
    def test_gpus_are_numbered_with_the_boot_display_last(self) -> None:
        shown, vf = function("01:00.0", boot_vga=True), function("03:00.0", physfn="02:00.0")
        host = inventory_of(shown, function("02:00.0"), vf)
        assert host.numbered_gpus == {"gpu0": "0000:02:00.0", "gpu1": "0000:01:00.0"}

    @pytest.mark.parametrize(
        ("class_code", "gpu", "bridge"),
        [
            ("030000", True, False),
            ("030100", True, False),
            ("030200", True, False),
            ("038000", True, False),
            ("120000", True, False),
            ("040300", False, False),
            ("060400", False, True),
            ("068000", False, False),
            ("120100", False, False),
        ],
    )
    def test_a_gpu_is_known_by_its_class(self, class_code: str, gpu: bool, bridge: bool) -> None:
        one = function("01:00.0", class_code)
        assert (one.is_gpu, one.is_bridge) == (gpu, bridge)

    def test_a_function_is_called_by_the_best_name_there_is(self) -> None:
        one = function("01:00.0")
        assert one.title == "10de:2330"
        one = replace(one, device_name="GH100")
        assert one.title == "GH100"
        assert replace(one, nvml=Nvml(name="NVIDIA H100")).title == "NVIDIA H100"
        assert replace(one, nvml=Nvml()).title == "GH100"

    def test_a_virtual_function_is_never_of_a_card(self) -> None:
        pf, vf = function("01:00.0", virtfns=("01:00.1",)), function("01:00.1", physfn="01:00.0")
        host = inventory_of(pf, vf, function("01:00.2", "040300"))
        assert host.card_of(PciAddress("01:00.0")) == ("0000:01:00.0", "0000:01:00.2")
        assert host.card_of(PciAddress("01:00.1")) == ("0000:01:00.1",)
        assert [(card.slot, card.functions, card.groups) for card in host.cards] == [
            ("0000:01:00", ("0000:01:00.0", "0000:01:00.2"), (1,))
        ]

    def test_cards_are_joined_by_a_chain_of_links(self) -> None:
        host = inventory_of(
            function("01:00.0", consumers=("02:00.0",), iommu_group=3),
            function("02:00.0", "0c0330", suppliers=("01:00.0",), consumers=("03:00.0",), iommu_group=None),
            function("03:00.0", "0c8000", iommu_group=2),
            function("04:00.0", iommu_group=4),
        )
        joined = ("0000:01:00.0", "0000:02:00.0", "0000:03:00.0")
        assert [host.card_of(PciAddress(address)) for address in joined] == [joined] * 3
        assert [(card.functions, card.groups) for card in host.cards] == [(joined, (2, 3)), (("0000:04:00.0",), (4,))]

    def test_a_bridge_is_no_part_of_a_card(self) -> None:
        bridges = (function("00:01.0", "060400"), function("01:00.1", "060400"))
        host = inventory_of(function("01:00.0", suppliers=("00:01.0",)), *bridges)
        assert host.card_of(PciAddress("01:00.0")) == ("0000:01:00.0",)

    def test_a_group_that_is_not_there_has_no_members(self) -> None:
        host = inventory_of(function("01:00.0"))
        assert (host.members_of(1), host.members_of(2), host.members_of(None)) == (("0000:01:00.0",), (), ())


# -- vGPUs -----------------------------------------------------------------------------------------------


class TestVgpus:
    MDEV = "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001"

    def test_mdevs_are_those_below_a_function_that_offers_them(self, run: Run) -> None:
        (there,) = read(original("a2")).by_address[PciAddress("0000:08:00.4")].mdevs
        assert there == "6d3f2c1a-0b4e-4f6d-8a7c-5e9b1f2a3c4d"
        assert run(f"vgpu create T4-1B --uuid {self.MDEV} --simulate t4").code == 0
        gpu = run("show gpu0 --json --simulate t4").document
        assert (gpu["mdevs"], gpu["vgpu_type"]) == ([self.MDEV], None)
        assert self.MDEV in run("show gpu0 --simulate t4").out
        table = run("inventory --simulate t4").out
        assert "; 1 vGPU\n" in table
        assert "+ 1 vGPU " in table

    def test_a_vf_has_the_type_that_its_driver_tells(self) -> None:
        tree = spoilt("l40s")
        found = read(tree)
        assert found.by_address[PciAddress("0000:41:00.4")].vgpus == 1
        assert found.by_address[PciAddress("0000:41:00.6")].vgpus == 0
        file = f"{device(tree, '0000:41:00.4')}/nvidia/current_vgpu_type"
        tree.remove(file)
        assert "current_vgpu_type" not in read(tree).by_address[PciAddress("0000:41:00.4")].unknown
        tree.put_refused(file, errno.EIO)
        vf = read(tree).by_address[PciAddress("0000:41:00.4")]
        assert (vf.vgpus, vf.unknown["current_vgpu_type"]) == (0, "EIO")

    @pytest.mark.parametrize("option", ["", "--tree"])
    def test_gpus_are_listed_in_the_order_of_their_names(self, run: Run, option: str) -> None:
        for host in ("laptop", "a2", "workstation"):
            listed = run(f"inventory --host {host} {option}").out.split()
            names = [word for word in listed if word.startswith("gpu") and word[3:].isdecimal()]
            assert names == sorted(names), host
