"""Cards that offer vGPUs, and vGPUs, read from made-up hosts: each dialect, odd files, what has gone meanwhile."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.hosts.machines import NAMES, copy, original, unhurried, written
from tests.unit.conftest import Run
from vfioctl.console.choice import Choice
from vfioctl.errors import BadSpec, KernelRefused, UnknownDevice
from vfioctl.host import Host
from vfioctl.kernel.captured.host import Captured
from vfioctl.kernel.lenient import number_in
from vfioctl.kernel.live.host import Live
from vfioctl.kernel.protocol import PCI_DEVICES, Directory, Kernel, NvmlAnswer, Unanswered
from vfioctl.kernel.recorded.capture import capture
from vfioctl.kernel.recorded.host import Recorded
from vfioctl.kernel.recorded.tree import Tree, form, parse
from vfioctl.opening import open_session
from vfioctl.session import Session
from vfioctl.vgpu.dialects.dialect import described
from vfioctl.vgpu.dialects.vendor import creatable, reported_types
from vfioctl.vgpu.model.lookup import cards_called, instance_called, requested
from vfioctl.vgpu.model.vgpu import Count, Dialect, Sharing, SizeMode, Vgpu, VgpuCard, Vgpus, VgpuState, VgpuType
from vfioctl.vgpu.probe.inventory import assemble, definition_in, read_vgpus
from vfioctl.vgpu.probe.scan import VgpuScan

T = TypeVar("T")
GIB = 1 << 30
MBOCHS = "/sys/devices/virtual/mbochs/mbochs"
UUID = "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001"
SLICED = {
    "a2": Dialect.MDEV,
    "t4": Dialect.MDEV,
    "l40s": Dialect.VENDOR,
    "mi300x-vf": Dialect.SRIOV,
    "xe": Dialect.XE,
}


def read(tree: Tree) -> Vgpus:
    return read_vgpus(Recorded(tree, ""))


def host(name: str) -> Vgpus:
    return read(original(name))


def only(tree: Tree) -> VgpuCard:
    (card,) = read(tree).cards
    return card


def mbochs(*, description: bool = True) -> Tree:
    """The kernel's sample of a device that is no PCI function (samples/vfio-mdev/mbochs.c), of 100 MB."""
    tree = Tree()
    tree.put_link("/sys/class/mdev_bus/mbochs", "../../devices/virtual/mbochs/mbochs")
    for name, size, free in (("small", 4, 25), ("medium", 16, 6), ("large", 64, 1)):
        home = f"{MBOCHS}/mdev_supported_types/mbochs-{name}"
        tree.put(f"{home}/available_instances", str(free))
        tree.put(f"{home}/device_api", "vfio-pci")
        tree.put(f"{home}/name", f"mbochs-{name}")
        if description:
            tree.put(f"{home}/description", f"virtual display, {size} MB video memory")
    return tree


def add_mdev(tree: Tree, uuid: str = UUID, kind: str = "mbochs-small", *, driver: bool = True) -> str:
    home = f"{MBOCHS}/{uuid}"
    tree.put_link(f"/sys/bus/mdev/devices/{uuid}", f"../../../devices/virtual/mbochs/mbochs/{uuid}")
    tree.put_link(f"{home}/mdev_type", f"../mdev_supported_types/{kind}")
    if driver:
        tree.put_link(f"{home}/driver", "../../../../../bus/mdev/drivers/mbochs")
    return home


class TestHosts:
    @pytest.mark.parametrize("name", SLICED)
    def test_each_is_of_its_dialect(self, name: str) -> None:
        found = host(name)
        assert [card.dialect for card in found.cards] == [SLICED[name]]
        assert found.warnings == ()

    def test_a2(self) -> None:
        (card,) = host("a2").cards
        assert (card.id, card.numa_node, card.driver, card.total_vfs) == ("0000:08:00.0", 0, "nvidia", 16)
        assert (card.size_mode, card.sharing, len(card.parents)) == (SizeMode.SAME, Sharing.SIZES, 16)
        by_name = {kind.profile: kind for kind in card.types}
        c4 = by_name["A2-4C"]
        assert (c4.id, c4.name, c4.heads, c4.framebuffer_bytes) == ("nvidia-754", "NVIDIA A2-4C", 1, 4 * GIB)
        assert (c4.max_instances, c4.existing, c4.max_resolution) == (4, 2, "4096x2160")
        assert {name: kind.available.at_most for name, kind in by_name.items() if kind.available.at_most} == {
            "A2-4Q": 2,
            "A2-4A": 2,
            "A2-4C": 2,
        }

    def test_instances_of_a2(self) -> None:
        live, other, defined = host("a2").instances
        assert (live.state, live.parent, live.card) == (VgpuState.LIVE, "0000:08:00.4", "0000:08:00.0")
        assert (live.iommu_group, live.vfio_group, live.numa_node) == (240, "/dev/vfio/240", 0)
        assert (live.owner, live.profile, live.driver) == ("foreign", "A2-4C", "nvidia")
        assert live.definition is not None
        assert live.definition.start == "auto"
        assert other.definition is None
        assert (defined.state, defined.parent, defined.profile) == (VgpuState.DEFINED, "0000:08:00.6", "A2-4C")

    def test_t4_counts_itself(self) -> None:
        (card,) = host("t4").cards
        assert [parent.name for parent in card.parents] == [card.id]
        assert all(kind.available == Count(kind.max_instances or 0, kind.max_instances) for kind in card.types)

    def test_l40s(self) -> None:
        found = host("l40s")
        (card,) = found.cards
        assert (len(card.types), card.size_mode) == (23, SizeMode.SAME)
        small, series_b = card.types[0], card.types[-1]
        assert (small.id, small.profile, small.framebuffer_bytes, small.heads) == ("1145", "L40S-1B", GIB, 4)
        assert (series_b.name, series_b.max_resolution, series_b.max_instances) == ("NVIDIA L40S-3B", "5120x2880", 16)
        assert [(vgpu.id, vgpu.profile) for vgpu in found.instances] == [
            ("0000:41:00.4", "L40S-12Q"),
            ("0000:41:00.5", "L40S-12A"),
        ]
        assert {kind.profile: kind.available for kind in card.types if kind.available != Count(0, 0)} == {
            "L40S-12Q": Count(2, 2),
            "L40S-12A": Count(2, 2),
        }
        assert found.instances[0].vfio_cdev == "/dev/vfio/devices/vfio0"

    def test_fixed_vfs(self) -> None:
        found = host("mi300x-vf")
        assert [kind.available for kind in found.cards[0].types] == [Count(0, 0)]
        assert {(vgpu.state, vgpu.driver) for vgpu in found.instances} == {(VgpuState.LIVE, "vfio-pci")}
        assert len(found.instances) == 8

    def test_profiles_of_xe(self) -> None:
        found = host("xe")
        (card,) = found.cards
        assert [profile.of for profile in card.profiles] == ["pf", "vf1", "vf2", "vf3", "vf4"]
        assert card.profiles[1].values["exec_quantum_ms"] == "20"
        assert [vgpu.state for vgpu in found.instances] == [VgpuState.LIVE, VgpuState.NO_DRIVER]
        assert found.instances[0].attributes["preempt_timeout_us"] == "40000"

    @pytest.mark.parametrize("name", NAMES)
    def test_a_snapshot_shows_the_same(self, name: str) -> None:
        again = read(parse(form(capture(Recorded(original(name), ""))[0]), "snapshot"))
        assert again.cards == host(name).cards
        assert [(v.parent, v.state, v.type) for v in again.instances] == [
            (v.parent, v.state, v.type) for v in host(name).instances
        ]

    @pytest.mark.parametrize("name", ["a2", "l40s", "xe"])
    def test_a_captured_directory_shows_the_same(self, name: str, tmp_path: Path) -> None:
        tree = copy(original(name))
        for path in (*tree.nodes, *tree.refused):  # a directory of files has neither
            tree.remove(path)
        tree.properties = {}
        found, expected = read_vgpus(Captured(str(written(tree, tmp_path)))), read(tree)
        assert (found.cards, found.instances) == (expected.cards, expected.instances)
        assert [warning.subject for warning in found.warnings] == [warning.subject for warning in expected.warnings]

    def test_a_snapshot_names_an_instance_by_one_stand_in(self) -> None:
        text = form(capture(Recorded(original("a2"), ""))[0])
        uuid = host("a2").instances[0].id
        assert uuid not in text
        assert "/etc/mdevctl.d/0000:08:00.4/00000000-0000-0000-0000-" in text


class TestMdev:
    def test_a_parent_that_is_no_function(self) -> None:
        card = only(mbochs())
        assert (card.id, card.sharing, card.numa_node) == ("mbochs", Sharing.POOL, None)
        assert [kind.takes for kind in card.types] == [{"video memory": 64}, {"video memory": 4}, {"video memory": 16}]

    def test_no_class_means_nothing_to_vgpu(self) -> None:
        assert read(Tree()) == Vgpus()

    def test_without_descriptions_nothing_is_presumed(self) -> None:
        card = only(mbochs(description=False))
        assert card.sharing is Sharing.UNKNOWN
        assert {kind.available for kind in card.types} == {Count(25, 25), Count(6, 6), Count(1, 1)}

    @pytest.mark.parametrize("file", ["name", "description", "device_api"])
    def test_an_unreadable_text_costs_that_text(self, file: str) -> None:
        tree = mbochs()
        path = f"{MBOCHS}/mdev_supported_types/mbochs-small/{file}"
        tree.remove(path)
        tree.put_refused(path, errno.EIO)
        (kind,) = only(tree).called("mbochs-small")
        assert kind.unknown == {file: "EIO"}
        assert kind.available == Count(25, 25)

    @pytest.mark.parametrize("text", ["", "many", "-1", "1 2", "9" * 40, "1\n2", "\N{SUPERSCRIPT TWO}"])
    def test_a_number_that_is_none_is_unknown(self, text: str) -> None:
        tree = mbochs()
        tree.put(f"{MBOCHS}/mdev_supported_types/mbochs-small/available_instances", text)
        card = only(tree)
        (kind,) = card.called("mbochs-small")
        assert kind.available == Count(0, None)
        assert "mbochs-small" in card.parents[0].unknown
        assert card.called("mbochs-large")[0].available == Count(1, 1)

    def test_what_a_twin_could_not_say_another_does(self) -> None:
        tree = copy(original("a2"))
        home = tree.resolve(f"{PCI_DEVICES}/0000:08:00.4/mdev_supported_types/nvidia-742")
        tree.remove(f"{home}/name")
        tree.put_refused(f"{home}/name", errno.EIO)
        (kind,) = only(tree).called("A2-1B")
        assert (kind.name, kind.unknown) == ("NVIDIA A2-1B", {})

    def test_an_instance(self) -> None:
        tree = mbochs()
        add_mdev(tree)
        found = read(tree)
        assert [(v.id, v.state, v.type, v.parent) for v in found.instances] == [
            (UUID, VgpuState.LIVE, "mbochs-small", "mbochs")
        ]
        assert found.cards[0].called("mbochs-small")[0].existing == 1

    def test_one_without_a_driver_is_an_orphan_and_takes_nothing(self) -> None:
        tree = mbochs()
        add_mdev(tree, driver=False)
        found = read(tree)
        assert [v.state for v in found.instances] == [VgpuState.ORPHAN]
        assert found.cards[0].called("mbochs-small")[0].existing == 0

    def test_one_that_was_removed_while_it_was_open_is_a_zombie(self) -> None:
        """As mdev_device_remove leaves it: no entry on the bus, no type, no `remove`; its own directory stays."""
        tree = mbochs()
        home = add_mdev(tree)
        tree.remove(f"/sys/bus/mdev/devices/{UUID}")
        tree.remove(f"{home}/mdev_type")
        (vgpu,) = read(tree).instances
        assert (vgpu.state, vgpu.type) == (VgpuState.ZOMBIE, "")

    def test_attributes_of_the_driver(self) -> None:
        tree = mbochs()
        home = add_mdev(tree)
        tree.put(f"{home}/nvidia/vgpu_params", "frame_rate_limiter=0")
        tree.put(f"{home}/nvidia/vm_name", "")
        tree.put_refused(f"{home}/nvidia/placement_id", errno.ENXIO)
        (vgpu,) = read(tree).instances
        assert (vgpu.attributes, vgpu.unknown) == ({"vgpu_params": "frame_rate_limiter=0"}, {})


L40S = "0000:41:00.0"


def l40s(*, creatable: str | None = None, current: str | None = None, **told: str | None) -> Tree:
    """The host with those lists and types on all VFs, and with that from NVML: None takes a fact away."""
    tree = copy(original("l40s"))
    for name, text in (("creatable_vgpu_types", creatable), ("current_vgpu_type", current)):
        for path in [path for path in tree.files if path.endswith(f"/{name}") and text is not None]:
            tree.files[path] = text or ""
    facts = tree.properties[f"nvml:{L40S}"] | told
    tree.properties[f"nvml:{L40S}"] = {key: value for key, value in facts.items() if value is not None}
    return tree


def without_nvml(*, creatable: str | None = None, current: str | None = None) -> Tree:
    tree = l40s(creatable=creatable, current=current)
    del tree.properties[f"nvml:{L40S}"]
    return tree


TWO_TYPES = "ID    : vGPU Name\n1145  : NVIDIA L40S-1B\n1156  : NVIDIA L40S-48Q"


class TestVendor:
    def test_an_idle_card_lists_everything(self) -> None:
        card = only(l40s(creatable=TWO_TYPES, current="0", vgpu_types=None, vgpu_heterogeneous_mode=None))
        assert [(kind.profile, kind.available) for kind in card.types] == [
            ("L40S-1B", Count(1, 32)),
            ("L40S-48Q", Count(1, 1)),
        ]

    def test_a_full_card_still_shows_what_is_there(self) -> None:
        found = read(without_nvml(creatable=""))
        assert [(v.type, v.type_name) for v in found.instances] == [("1153", ""), ("1163", "")]
        assert [kind.available for kind in found.cards[0].types] == [Count(0, 0)] * 2

    @pytest.mark.parametrize("text", ["none", "-3", "1153 x"])
    def test_an_odd_current_type_is_unknown(self, text: str) -> None:
        tree = copy(original("l40s"))
        tree.put(tree.resolve(f"{PCI_DEVICES}/0000:41:00.4/nvidia/current_vgpu_type"), text)
        found = read(tree)
        assert len(found.instances) == 1
        assert "current_vgpu_type" in found.cards[0].parents[0].unknown

    def test_what_a_vf_could_have_instead_is_nothing_more(self) -> None:
        """With a type on each of the 32 there is no place left, whatever their lists name."""
        (card,) = read(l40s(creatable="1145  : NVIDIA L40S-1B", current="1147")).cards
        assert all(kind.available == Count(0, 0) for kind in card.types)

    @pytest.mark.parametrize("file", ["creatable_vgpu_types", "current_vgpu_type"])
    def test_a_vf_that_cannot_be_read_may_have_room(self, file: str) -> None:
        tree = l40s()
        path = tree.resolve(f"{PCI_DEVICES}/0000:41:00.6/nvidia/{file}")
        tree.remove(path)
        tree.put_refused(path, errno.EIO)
        (kind,) = only(tree).called("L40S-12Q")
        assert kind.available == Count(1, 2)


class TestWhatNvmlTells:
    def test_of_types_that_no_list_shows(self) -> None:
        found = read(l40s(creatable=""))
        assert [(v.type_name, v.profile) for v in found.instances] == [
            ("NVIDIA L40S-12Q", "L40S-12Q"),
            ("NVIDIA L40S-12A", "L40S-12A"),
        ]
        (card,) = found.cards
        assert len(card.types) == 23
        assert {kind.available for kind in card.types} == {Count(0, 0)}

    def test_comes_before_what_the_ledger_remembers(self) -> None:
        names = {L40S: {"1145": "NVIDIA OLD-8Q", "9999": "NVIDIA L40S-8C"}}
        tree = l40s(vgpu_types="1145|NVIDIA L40S-1B||4||;1150||4294967296|||12")
        (card,) = read_vgpus(Recorded(tree, ""), names=names).cards
        told, nameless, remembered = (card.called(kind)[0] for kind in ("1145", "1150", "9999"))
        assert (told.profile, told.framebuffer_bytes, told.heads, told.max_instances) == ("L40S-1B", GIB, 4, None)
        assert (nameless.profile, nameless.framebuffer_bytes, nameless.max_instances) == ("", 4 * GIB, 12)
        assert (remembered.profile, remembered.heads) == ("L40S-8C", None)

    def test_of_an_idle_card_makes_its_numbers_exact(self) -> None:
        card = only(l40s(creatable=TWO_TYPES, current="0"))
        assert [card.called(name)[0].available for name in ("L40S-1B", "L40S-48Q")] == [Count(32, 32), Count(1, 1)]

    @pytest.mark.parametrize(
        ("told", "mode", "available"),
        [
            ("0", SizeMode.SAME, Count(32, 32)),
            ("1", SizeMode.MIXED, Count(1, 32)),
            ("2", SizeMode.UNKNOWN, Count(1, 32)),
            (None, SizeMode.UNKNOWN, Count(1, 32)),
        ],
    )
    def test_of_sizes(self, told: str | None, mode: SizeMode, available: Count) -> None:
        card = only(l40s(creatable=TWO_TYPES, current="0", vgpu_heterogeneous_mode=told))
        assert (card.size_mode, card.called("L40S-1B")[0].available) == (mode, available)

    def test_is_that_of_the_card_itself(self) -> None:
        tree = without_nvml()
        tree.properties["nvml:0000:42:00.0"] = dict(original("l40s").properties[f"nvml:{L40S}"])
        card = only(tree)
        assert ([kind.profile for kind in card.types], card.memory_bytes) == (["L40S-12Q", "L40S-12A"], None)

    def test_that_says_nothing_is_a_warning(self) -> None:
        tree = without_nvml()
        assert [(w.subject, w.text) for w in read(tree).warnings] == [
            ("NVML", "no facts from the NVIDIA driver: not recorded")
        ]
        tree.properties[f"nvml:{L40S}"] = {"error": "the GPU is lost"}
        assert [(w.subject, w.text) for w in read(tree).warnings] == [
            (L40S, "no facts from the NVIDIA driver: the GPU is lost")
        ]

    def test_is_asked_only_where_a_card_gives_no_numbers_of_its_own(self) -> None:
        class Asked(Recorded):
            def nvml(
                self, gpus: Sequence[str], *, types: bool = False, links: bool = False, usage: bool = False
            ) -> Callable[[], NvmlAnswer]:
                raise AssertionError(gpus, types, links, usage)

        for name in SLICED.keys() - {"l40s"}:
            read_vgpus(Asked(original(name), ""))
        with pytest.raises(AssertionError):
            read_vgpus(Asked(original("l40s"), ""))

    @pytest.mark.parametrize("odd", ["", "x", "-1", "1e9", "\u00b2", "9" * 400, "9" * 18 + "x"])
    def test_that_is_no_amount_of_memory_says_nothing(self, odd: str) -> None:
        assert only(l40s(memory_bytes=odd)).memory_bytes is None


class TestTypesAsNvmlTellsThem:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            (
                "7|x A-4Q|4294967296|4|7680x4320|4",
                {
                    "framebuffer_bytes": 4 * GIB,
                    "heads": 4,
                    "max_instances": 4,
                    "max_resolution": "7680x4320",
                    "profile": "A-4Q",
                    "name": "x A-4Q",
                    "device_api": "vfio-pci",
                },
            ),
            (
                "7|x A-1-5C|5100273664|0||7",
                {
                    "framebuffer_bytes": 4864 << 20,
                    "heads": 0,
                    "max_instances": 7,
                    "mig_slices": 1,
                    "profile": "A-1-5C",
                    "name": "x A-1-5C",
                    "device_api": "vfio-pci",
                },
            ),
            ("7|||||", {}),
            ("7", {}),
            ("7| |0|-1|0x0|x|more|and more", {}),
            ("7||\u00b2|1e3|1x|" + "9" * 99, {}),
            ("7||12|3", {"framebuffer_bytes": 12, "heads": 3}),
        ],
    )
    def test_one(self, text: str, expected: dict[str, object]) -> None:
        assert reported_types(text) == {"7": expected}

    @pytest.mark.parametrize("text", ["", ";;", "x|A-4Q", "0|A-4Q", "-7|A-4Q", "|A-4Q", " 7|A-4Q", "9" * 10 + "|A-4Q"])
    def test_none(self, text: str) -> None:
        assert reported_types(text) == {}

    def test_one_that_is_odd_costs_itself(self) -> None:
        assert reported_types("6||||1x1|;x|y;8||1|||2").keys() == {"6", "8"}

    @given(st.lists(st.sampled_from(["|", ";", "7", "0", "x", "A-1-5C"]) | st.text(max_size=5)).map("".join))
    @unhurried
    def test_of_any_text_are_types_or_none(self, text: str) -> None:
        for number, facts in reported_types(text).items():
            assert number.isascii()
            assert int(number) > 0
            known = VgpuType(id=number, **facts)
            assert known.framebuffer_bytes is None or known.framebuffer_bytes > 0
            assert all(amount is None or amount >= 0 for amount in (known.heads, known.max_instances))


class TestWhatGoesWrong:
    def test_a_parent_that_vanishes_costs_itself(self) -> None:
        class Vanishing(Recorded):
            def texts_below(self, path: str, name: str) -> Directory:
                if "0000:08:01.0" in path:
                    raise KernelRefused(path, errno.ENOENT)
                return super().texts_below(path, name)

        found = read_vgpus(Vanishing(original("a2"), ""))
        assert len(found.cards[0].parents) == 15
        assert [(w.subject, w.text) for w in found.warnings] == [("0000:08:01.0", "it could not be read: ENOENT")]

    def test_one_that_does_not_answer_costs_itself(self) -> None:
        class Mute(Recorded):
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
                    yield subject, Unanswered("no answer after 1 s") if subject.endswith("08:01.0") else answer

        found = read_vgpus(Mute(original("a2"), ""))
        assert len(found.cards[0].parents) == 15
        assert found.warnings[0].text == "reading it did not return: no answer after 1 s"

    def test_what_is_wedged_is_not_asked(self) -> None:
        kernel = Recorded(original("a2"), "")
        found = assemble(kernel, VgpuScan(kernel, suspects={"0000:08:00.0"}))
        assert found.cards == ()
        assert len(found.warnings) == 17  # it itself and its VFs
        one = assemble(kernel, VgpuScan(kernel, suspects={"0000:08:01.0"}))
        assert len(one.cards[0].parents) == 15

    def test_damaged_definitions_cost_themselves(self) -> None:
        tree = copy(original("a2"))
        home = "/etc/mdevctl.d/0000:08:00.7"
        for number, text in enumerate(["{", "[]", '{"mdev_type": 7}', '{"mdev_type": "x", "attrs": 3}', "[" * 100_000]):
            tree.put(f"{home}/{UUID[:-1]}{number}", text)
        tree.put_refused(f"{home}/{UUID[:-1]}9", errno.EACCES)
        tree.put(f"{home}/scripts.d", "no definition")
        found = read(tree)
        assert len(found.warnings) == 6
        assert len(found.instances) == 3

    @pytest.mark.parametrize("name", SLICED)
    @pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ENODEV])
    def test_whatever_file_is_unreadable_the_rest_is_there(self, name: str, number: int) -> None:
        tree = copy(original(name))
        about = ("/mdev_supported_types/", "/nvidia/", "/sriov_admin/", "/sriov_totalvfs", "/numa_node", "/etc/")
        paths = [path for path in tree.files if any(word in path for word in about)]
        for path in paths[:: max(1, len(paths) // 40)]:
            spoilt = copy(tree)
            spoilt.remove(path)
            spoilt.put_refused(path, number)
            assert read(spoilt).cards or path.endswith("/sriov_totalvfs")


class TestTextsBelow:
    """The method of the kernel protocol that reads one file of each directory in a directory."""

    def tree(self) -> Tree:
        tree = Tree()
        tree.put("/sys/x/one/number", "1")
        tree.put("/sys/x/two/other", "2")
        tree.put("/sys/x/file", "no directory")
        tree.put_link("/sys/x/away", "../secret")
        tree.put("/sys/secret/number", "42")
        return tree

    def test_of_a_tree_and_of_a_captured_directory_it_is_the_same(self, tmp_path: Path) -> None:
        recorded = Recorded(self.tree(), "").texts_below("/sys/x", "number")
        captured = Captured(str(written(self.tree(), tmp_path))).texts_below("/sys/x", "number")
        assert recorded.names == captured.names == {"one", "two", "file", "away"}
        assert recorded.texts == captured.texts == {"one": "1"}
        assert recorded.refused == captured.refused == {"two": "ENOENT"}

    def test_no_fifo_of_a_captured_directory_is_opened(self, tmp_path: Path) -> None:
        root = written(self.tree(), tmp_path)
        os.mkfifo(root / "sys/x/two/number")
        assert Captured(str(root)).texts_below("/sys/x", "number").refused == {"two": "ENXIO"}

    def test_on_a_machine_itself(self, tmp_path: Path) -> None:
        root = written(self.tree(), tmp_path)
        found = Live().texts_below(str(root / "sys/x"), "number")
        assert (found.texts, found.refused) == ({"one": "1", "away": "42"}, {"two": "ENOENT"})

    @pytest.mark.parametrize("kernel", [Recorded(Tree(), ""), Live()])
    def test_a_directory_that_has_gone(self, kernel: Kernel) -> None:
        with pytest.raises(KernelRefused):
            kernel.texts_below("/sys/nothing/here", "number")


TEXT = st.text(max_size=200) | st.binary(max_size=100).map(lambda data: data.decode("utf-8", "replace"))


class TestParsers:
    @pytest.mark.parametrize(
        ("name", "description", "expected"),
        [
            (
                "NVIDIA A2-4C",
                "num_heads=1, frl_config=60, framebuffer=4096M, max_resolution=4096x2400, max_instance=4",
                {
                    "profile": "A2-4C",
                    "framebuffer_bytes": 4 * GIB,
                    "heads": 1,
                    "max_instances": 4,
                    "max_resolution": "4096x2400",
                },
            ),
            ("GRID T4-2B4", "", {"profile": "T4-2B4", "framebuffer_bytes": 2 * GIB}),
            ("GRID M10-0Q", "", {"profile": "M10-0Q", "framebuffer_bytes": GIB // 2}),
            ("NVIDIA A100-1-5CME", "", {"profile": "A100-1-5CME", "framebuffer_bytes": 5 * GIB, "mig_slices": 1}),
            ("NVIDIA H100XM-7-80C", "", {"profile": "H100XM-7-80C", "framebuffer_bytes": 80 * GIB, "mig_slices": 7}),
            ("Dual port serial", "", {"profile": "serial"}),
            ("", "", {"profile": ""}),
            (
                "i915-GVTg_V5_4",
                "low_gm_size: 128MB\nhigh_gm_size: 512MB\nfence: 4\nresolution: 1920x1200\nweight: 4",
                {
                    "profile": "i915-GVTg_V5_4",
                    "takes": {"low_gm_size": 128, "high_gm_size": 512, "fence": 4},
                    "framebuffer_bytes": 640 << 20,
                },
            ),
        ],
    )
    def test_descriptions(self, name: str, description: str, expected: dict[str, object]) -> None:
        assert described(name, description) == expected

    @given(TEXT, TEXT)
    @unhurried
    def test_any_text_describes_something_or_nothing(self, name: str, description: str) -> None:
        found = described(name, description)
        assert all(isinstance(found[field], int) for field in found.keys() & {"heads", "max_instances", "mig_slices"})
        assert all(number > 0 for number in found.get("takes", {}).values())

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("ID    : vGPU Name\n1145  : NVIDIA L40S-1B", {"1145": "NVIDIA L40S-1B"}),
            ("1145  : NVIDIA L40S-1B\n", {"1145": "NVIDIA L40S-1B"}),
            ("1145:a:b", {"1145": "a:b"}),
            ("0 : none\n: x\n7 :\n-1 : y\nx", {}),
            ("", {}),
        ],
    )
    def test_creatable_types(self, text: str, expected: dict[str, str]) -> None:
        assert creatable(text) == expected

    @given(TEXT)
    @unhurried
    def test_any_text_lists_types_or_none(self, text: str) -> None:
        assert all(number.isascii() and int(number) > 0 and name for number, name in creatable(text).items())

    @given(TEXT)
    @example("0\x1f")
    @unhurried
    def test_any_text_is_a_number_or_none(self, text: str) -> None:
        assert (number_in(text) or 0) >= 0

    @given(TEXT | st.recursive(st.none() | st.booleans() | st.integers() | TEXT, st.lists).map(json.dumps))
    @unhurried
    def test_any_text_is_a_definition_or_says_why_not(self, text: str) -> None:
        try:
            found = definition_in("/etc/x", text)
        except ValueError:
            return
        assert isinstance(found.type, str)


class TestWhatIsMeant:
    def test_a_card_by_its_address_its_vf_or_its_name(self) -> None:
        found = host("a2")
        for word in ("0000:08:00.0", "08:00.0", "8:0.0", "0000:08:01.3", "08:01.3"):
            assert cards_called(found, word) == found.cards
        assert cards_called(read(mbochs()), "mbochs")[0].id == "mbochs"
        with pytest.raises(UnknownDevice):
            cards_called(found, "09:00.0")

    def test_an_instance_by_its_beginning(self) -> None:
        found = host("a2")
        assert instance_called(found, "6D3F2C1A").parent == "0000:08:00.4"
        for word in ("6d3", "7d3f2c1a", ""):
            with pytest.raises(UnknownDevice):
                instance_called(found, word)
        twins = Vgpus(instances=tuple(Vgpu(UUID, Dialect.MDEV, f"c{n}", f"p{n}") for n in range(2)))
        with pytest.raises(BadSpec, match="matches several vGPUs"):
            instance_called(twins, UUID)

    def test_types_by_id_name_or_profile(self) -> None:
        cards = host("t4").cards
        for word in ("nvidia-319", "GRID T4-4C", "t4-4c"):
            assert requested(cards, [word, f"{word}=2"]) == {"0000:3b:00.0": {"nvidia-319": 3}}

    @pytest.mark.parametrize("word", ["T4-5C", "", "T4-4C=0", "T4-4C=x", "T4-4C=-1", "T4-4C=99999999", "=3"])
    def test_words_that_are_no_type(self, word: str) -> None:
        with pytest.raises(BadSpec):
            requested(host("t4").cards, [word])

    def test_a_type_that_several_cards_have(self) -> None:
        with pytest.raises(BadSpec, match="matches several types") as caught:
            requested(host("mi300x").cards, ["vf"])
        assert caught.value.hint == "name the card, or the type by its id"


class TestCommands:
    def test_a_forecast_in_json(self, run: Run) -> None:
        document = run("vgpu types 08:00.0 --after A2-4C --json --host a2").document
        (forecast,) = document["after"]
        assert (forecast["card"], forecast["made"], forecast["certain"]) == ("0000:08:00.0", {"nvidia-754": 1}, True)
        assert forecast["available"]["nvidia-746"] == {"at_least": 1, "at_most": 1}

    def test_a_card_by_its_number(self, run: Run) -> None:
        assert run("vgpu types gpu0 --host t4") == run("vgpu types --host t4")
        assert run("vgpu list gpu0 --host a2") == run("vgpu list --host a2")

    def test_no_room_is_a_conflict(self, run: Run) -> None:
        answer = run("vgpu types --after A2-4C=3 --host a2")
        assert (answer.code, answer.out) == (4, "")
        assert "no room for 3 of A2-4C: at most 2" in answer.err

    def test_a_host_without_vgpus(self, run: Run) -> None:
        assert run("vgpu types --host busy").out == "No card here offers vGPUs.\n"
        assert run("vgpu list --host busy").out == "There are no vGPUs.\n"

    def test_options_stand_anywhere(self, run: Run) -> None:
        assert run("--host xe vgpu list") == run("vgpu --host xe list") == run("vgpu list --host xe")

    def test_alone_it_shows_its_verbs(self, run: Run) -> None:
        answer = run("vgpu")
        assert answer.code == 2
        assert all(verb in answer.out for verb in ("types", "list", "show"))

    def test_a_listing_of_types_needs_no_pydantic(self) -> None:
        import subprocess
        import sys

        program = (
            "import sys; from vfioctl.app import main; main(['vgpu', 'types', '--host', 't4', '--json']); "
            "print({'pydantic', 'rich'} & set(sys.modules))"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "set()"

    @pytest.mark.parametrize("command", ["types", "list"])
    def test_the_pages_need_no_pydantic(self, command: str) -> None:
        import subprocess
        import sys

        program = f"""
import sys; from vfioctl.app import main; main(['vgpu', '{command}', '--host', 'a2']); print('pydantic' in sys.modules)
"""
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "False"

    def test_completion(self) -> None:
        from vfioctl.vgpu.cli import completion as vgpus

        class Context:
            def __init__(self, name: str) -> None:
                self.obj = Choice(open_session)
                self.obj.given["host"] = name

            def find_root(self) -> Context:
                return self

        there: Any = Context("a2")
        assert vgpus.complete_parent(there, "") == [("0000:08:00.0", "mdev")]
        assert ("A2-4C", "0000:08:00.0") in vgpus.complete_type(there, "")
        assert vgpus.complete_vgpu(there, "")[0] == ("6d3f2c1a-0b4e-4f6d-8a7c-5e9b1f2a3c4d", "A2-4C")
        assert vgpus.complete_type(cast("Any", Context("no-such-host")), "") == []

    def test_the_library_says_what_a_card_is(self) -> None:
        found = Host.recorded("l40s")
        assert found.vgpu.titles(found.vgpu.vgpus().cards) == {"0000:41:00.0": "AD102GL [L40S]"}


@pytest.mark.parametrize("name", NAMES)
def test_an_inventory_names_the_pfs(name: str) -> None:
    """Reading them from the inventory, or of one dialect only, gives no other vGPUs than looking at all functions."""
    known = Host.recorded(name)
    everything = known.vgpu.vgpus()
    assert known.vgpu.vgpus(inventory=known.inventory()) == everything
    of_mdev = known.vgpu.vgpus(dialects=(Dialect.MDEV,))
    assert of_mdev.instances == tuple(vgpu for vgpu in everything.instances if vgpu.dialect == Dialect.MDEV)


def test_a_pf_that_cannot_be_read_whole_is_one_still(tmp_path: Path) -> None:
    tree = copy(original("mi300x-vf"))
    file = next(path for path in tree.files if path.endswith("/sriov_totalvfs"))
    tree.remove(file)
    tree.put_refused(file, errno.EIO)
    known = Host(Session(Recorded(tree, "a host"), tmp_path / "ledger.db"))
    assert known.vgpu.vgpus(inventory=known.inventory()) == known.vgpu.vgpus()
