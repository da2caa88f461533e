"""What the drawings say of hosts that no bundled host is like: odd, hostile, half done."""

from __future__ import annotations

import io
import shlex
from collections.abc import Iterable

import pytest
from rich.console import Console, RenderableType

from vfioctl.console import words
from vfioctl.console.columns import Column, Heading, Whole, table
from vfioctl.console.history_table import history_table
from vfioctl.console.plan_page import outcome_page, plan_page
from vfioctl.core.change import Binding, Change, Fact, Intent, JournalEntry, Outcome, Plan, Step, StepKind
from vfioctl.core.setting import Setting, SettingKind
from vfioctl.inventory.model.functions import (
    Blocker,
    Function,
    Group,
    Inventory,
    Link,
    ProbeWarning,
)
from vfioctl.inventory.model.values import PciAddress, Uuid
from vfioctl.inventory.render.function import function_page
from vfioctl.inventory.render.listing import inventory_table
from vfioctl.inventory.render.tree import inventory_tree
from vfioctl.vgpu.render.changes import settings_lines, undo_lines

PF, VF0, VF1 = (PciAddress(f"0000:08:00.{number}") for number in (0, 4, 5))
SOUND, DISK, PORT = PciAddress("0000:08:00.1"), PciAddress("0000:09:00.0"), PciAddress("0000:00:01.0")


def drawn(renderable: RenderableType, width: int = 80) -> str:
    out = io.StringIO()
    Console(file=out, width=width, markup=False, highlight=False, emoji=False).print(renderable)
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def function(address: PciAddress, **facts: object) -> Function:
    known: dict[str, object] = {
        "address": address,
        "vendor_id": "10de",
        "device_id": "25b6",
        "class": "030200",
        "subsystem_vendor_id": "10de",
        "subsystem_device_id": "157e",
    }
    return Function.model_validate(known | facts)


def group(number: int, *members: PciAddress, blockers: Iterable[tuple[PciAddress, str]] = ()) -> Group:
    named = tuple(Blocker(address=address, driver=driver) for address, driver in blockers)
    return Group.model_validate({"id": number, "members": members, "viable": not named, "blockers": named})


def host(*functions: Function, groups: Iterable[Group] = (), warnings: Iterable[ProbeWarning] = ()) -> Inventory:
    return Inventory.model_validate(
        {
            "functions": functions,
            "groups": tuple(groups),
            "numa_nodes": [{"id": 0, "cpus": "0-3,8", "memory_bytes": 1536 << 20}],
            "iommu": {"kind": "intel-vt-d", "translating": True},
            "warnings": tuple(warnings),
        }
    )


def table_of(inventory: Inventory, width: int = 80) -> str:
    return drawn(inventory_table(inventory, width=width, everything=False), width)


class TestVirtualFunctions:
    def partitioned(self, *drivers: str | None) -> Inventory:
        pf = function(PF, driver="nvidia", virtfns=(VF0, VF1), iommu_group=1, numa_node=0)
        vfs = [
            function(address, driver=driver, physfn=PF, iommu_group=number, numa_node=0)
            for number, (address, driver) in enumerate(zip((VF0, VF1), drivers, strict=True), start=40)
        ]
        return host(pf, *vfs, groups=(group(1, PF, blockers=[(PF, "nvidia")]), group(40, VF0), group(41, VF1)))

    def test_are_folded_under_their_pf(self) -> None:
        text = table_of(self.partitioned("vfio-pci", "vfio-pci"))
        assert "1 GPU, none ready for a guest; 2 VFs, 2 ready for a guest\n" in text
        assert "40-41  + 2 VFs             vfio-pci  ready" in text
        assert VF0 not in text

    def test_may_be_in_different_hands(self) -> None:
        assert "+ 2 VFs             2 drivers  1 ready" in table_of(self.partitioned("vfio-pci", "nvidia"))

    def test_are_counted_in_the_tree(self) -> None:
        inventory = self.partitioned(None, None)
        assert "2 VFs in groups 40-41" in drawn(inventory_tree(inventory, everything=False))
        everything = drawn(inventory_tree(inventory, everything=True))
        assert "group 41: viable for a guest" in everything
        assert VF1 in everything

    def test_without_their_pf_stand_alone(self) -> None:
        vf = function(VF0, physfn=PF, iommu_group=40)
        assert f"{VF0}       none    no" in table_of(host(vf, groups=(group(40, VF0),)))

    def test_name_their_pf(self) -> None:
        assert "virtual function of  0000:08:00.0" in drawn(function_page(self.partitioned(None, None), VF0, width=80))


class TestGroups:
    def shared(self, gpu_driver: str) -> Inventory:
        members = (PORT, PF, DISK)
        return host(
            function(PORT, **{"class": "060400"}, driver="pcieport", iommu_group=5),
            function(PF, driver=gpu_driver, iommu_group=5, companions=(DISK,), numa_node=0),
            function(DISK, **{"class": "010601"}, driver="ahci", iommu_group=5, companions=(PF,), device_name="SATA"),
            groups=(group(5, *members, blockers=[(DISK, "ahci")]),),
        )

    def test_strangers_are_named(self) -> None:
        assert "- Group 5 is shared with 0000:09:00.0 (ahci): to bind it takes --with-group.\n" in table_of(
            self.shared("nvidia")
        )

    def test_who_keeps_a_group_from_a_guest_is_named(self) -> None:
        text = table_of(self.shared("vfio-pci"))
        assert "vfio-pci  blocked" in text
        assert "- Group 5 is kept from a guest by 0000:09:00.0 (ahci).\n" in text

    def test_what_travels_and_what_stays(self) -> None:
        page = drawn(function_page(self.shared("nvidia"), PF, width=80))
        assert page.endswith(
            "Travels with it\n"
            "  0000:09:00.0  group 5: --with-group  ahci      SATA\n"
            "  0000:00:01.0  bridge: stays          pcieport  10de:25b6\n"
        )

    def test_a_bridge_travels_never(self) -> None:
        assert "Travels" not in drawn(function_page(self.shared("nvidia"), PORT, width=80))

    def test_a_card_tied_by_a_device_link(self) -> None:
        usb = PciAddress("0000:0a:00.0")
        inventory = host(
            function(PF, consumers=(usb,), companions=(usb,), iommu_group=1),
            function(usb, **{"class": "0c0330"}, suppliers=(PF,), companions=(PF,), iommu_group=2),
            groups=(group(1, PF), group(2, usb)),
        )
        assert "linked to the card" in drawn(function_page(inventory, PF, width=80))
        assert "lies in groups 1 and 2" in table_of(inventory)

    def test_none(self) -> None:
        assert "no IOMMU group" in drawn(inventory_tree(host(function(PF)), everything=False))


class TestPlaces:
    def test_an_unknown_node_is_not_node_0(self) -> None:
        text = table_of(host(function(PF), function(DISK, numa_node=0)))
        assert text.index("NUMA node 0   CPUs 0-3,8   1.5 GiB\n") < text.index("NUMA node unknown")
        assert text.index(DISK) < text.index("NUMA node unknown") < text.index(PF)

    def test_a_node_that_the_host_does_not_list(self) -> None:
        assert "NUMA node 7\n" in table_of(host(function(PF, numa_node=7)))

    def test_nothing_at_all(self) -> None:
        assert table_of(host()) == "no GPU among 0 functions\nIOMMU: intel-vt-d, on\n"


class TestHostileText:
    NAME = "\x1b[2J[bold]GPU[/bold]\r\nroot# :smile:"

    @pytest.mark.parametrize("width", [40, 80, 160])
    def test_neither_drives_the_terminal_nor_reads_as_markup(self, width: int) -> None:
        inventory = host(
            function(
                PF,
                device_name=self.NAME,
                vendor_name=self.NAME,
                class_name=self.NAME,
                driver=self.NAME,
                driver_override=self.NAME,
                available_drivers=(self.NAME,),
                iommu_group=1,
                power_state=self.NAME,
                unknown={self.NAME: self.NAME},
            ),
            groups=(group(1, PF, blockers=[(PF, self.NAME)]),),
            warnings=(ProbeWarning(subject=self.NAME, text=self.NAME),),
        )
        for renderable in (
            inventory_table(inventory, width=width, everything=False),
            inventory_table(inventory, width=width, everything=True),
            inventory_tree(inventory, everything=True),
            function_page(inventory, PF, width=width),
        ):
            text = drawn(renderable, width)
            assert "\x1b" not in text
            assert "\r" not in text
            assert "[bold]" in text or width == 40

    def test_in_plans(self) -> None:
        binding = Binding(driver=self.NAME, driver_override=self.NAME)
        step = Step(kind=StepKind.WRITE, target=self.NAME, value=self.NAME, why=self.NAME)
        plan = plan_of(step, before=binding, notes=(self.NAME,))
        assert "\x1b" not in drawn(plan_page(plan))


def plan_of(*steps: Step, before: Binding | None = None, verb: str = "bind", notes: tuple[str, ...] = ()) -> Plan:
    before = before or Binding(driver=None, driver_override=None)
    after = Binding(driver="vfio-pci", driver_override="vfio-pci")
    identity = "10de:25b6:10de:157e:030200"
    return Plan.make(
        intent=Intent.model_validate({"verb": verb, "devices": (PF,)}),
        facts=(Fact(address=PF, identity=identity, iommu_group=None, binding=before),),
        changes=(Change(address=PF, before=before, after=after),),
        steps=steps,
        notes=notes,
    )


class TestChanges:
    STEP = Step(kind=StepKind.WRITE, target="/sys/x", value="\n", why="so that")

    def test_a_lone_newline_is_shown(self) -> None:
        assert "/sys/x <- (an empty line)" in drawn(plan_page(plan_of(self.STEP)))

    def test_no_driver_and_no_group_are_said(self) -> None:
        assert "0000:08:00.0  10de:25b6  group none  no driver\n" in drawn(plan_page(plan_of(self.STEP)))

    def test_notes_come_last(self) -> None:
        assert drawn(plan_page(plan_of(self.STEP, notes=("mind the gap",)))).endswith("\n\n- mind the gap\n")

    def test_a_way_back_for_unbind(self) -> None:
        assert "vfioctl bind 0000:08:00.0\n" in drawn(plan_page(plan_of(self.STEP, verb="unbind")))

    @pytest.mark.parametrize("result", ["put back", "undone by a reboot"])
    def test_what_did_not_last_shows_what_is(self, result: str) -> None:
        plan = plan_of(self.STEP)
        outcome = Outcome.model_validate({"plan": plan, "result": result, "found": plan.facts, "seconds": 1.0})
        text = drawn(outcome_page(outcome))
        assert text.startswith(f"{result.capitalize()}: bind 0000:08:00.0 (plan {plan.id}, 1.00 s)\n")
        assert "->" not in text

    def test_the_kernels_choice(self) -> None:
        chosen = Binding(driver="(kernel's choice)", driver_override=None)
        assert "the kernel's choice" in drawn(plan_page(plan_of(self.STEP, before=chosen)))

    def test_an_open_entry_has_no_end(self) -> None:
        entry = JournalEntry.model_validate(
            {"id": 1, "plan": plan_of(self.STEP), "state": "open", "boot_id": "b", "began": "2026-01-02T03:04:05.6Z"}
        )
        text = drawn(history_table([entry], width=120), 120)
        assert " 1  2026-01-02 03:04:05  open " in text
        assert "ENDED" not in text


class TestColumns:
    COLUMNS = (Column("A"), Column("MORE", optional=True), Column("B", right=True), Column("NAME"))
    ROWS = (("1", "extra", "22", "a rather long name"), ("333", "", "4", "short"))

    def lines(self, width: int) -> list[str]:
        return [line.plain for line in table(self.COLUMNS, self.ROWS, width)]

    def test_narrow_cuts_the_last(self) -> None:
        assert self.lines(22) == ["A     B  NAME", "1    22  a rather lon…", "333   4  short"]

    def test_wide_has_more(self) -> None:
        assert self.lines(80)[1] == "1    extra  22  a rather long name"

    def test_more_only_where_nothing_is_cut_for_it(self) -> None:
        assert "extra" not in self.lines(33)[1]
        assert "extra" in self.lines(34)[1]

    def test_an_optional_column_that_says_nothing_is_left_out(self) -> None:
        rows = [(a, "", b, name) for a, _, b, name in self.ROWS]
        assert "MORE" not in next(iter(table(self.COLUMNS, rows, 80))).plain

    def test_wide_characters_count_twice(self) -> None:
        (_, line) = table((Column("NAME"), Column("X")), (("図形", "x"),), 80)
        assert line.plain == "図形  x"


class TestLinesThatStayWhole:
    def lines(self, renderable: RenderableType, width: int) -> list[str]:
        out = io.StringIO()
        Console(file=out, width=width, markup=False, highlight=False, emoji=False).print(renderable, crop=False)
        return [line.rstrip() for line in out.getvalue().splitlines()]

    def test_have_the_rest_beside_them_where_there_is_room(self) -> None:
        assert self.lines(Whole("1  /a/path", "<- value", hang=3), 21) == ["  1  /a/path <- value"]
        assert self.lines(Whole("1  /a/path", "<- value", hang=3), 20) == ["  1  /a/path", "     <- value"]

    @pytest.mark.parametrize("width", [5, 10, 80])
    def test_are_never_cut_nor_folded(self, width: int) -> None:
        path = "/sys/bus/pci/devices/0000:41:00.4/nvidia/current_vgpu_type"
        assert self.lines(Whole(f"vfioctl {path} x"), width) == [f"  vfioctl {path} x"]
        assert path in "".join(self.lines(Whole(path, path), width))

    def test_a_heading_goes_on_and_its_rest_does_not(self) -> None:
        assert self.lines(Heading("Done: a b", "(plan 1, 0.1 s)"), 25) == ["Done: a b (plan 1, 0.1 s)"]
        assert self.lines(Heading("Done: a b", "(plan 1, 0.1 s)"), 24) == ["Done: a b", "  (plan 1, 0.1 s)"]
        assert self.lines(Heading("Done: a b c d", "(1 s)"), 7) == ["Done: a", "b c d", "  (1 s)"]


class TestSettingsOfVgpus:
    UUID = Uuid("4e8c5df7-c4fa-4719-904f-5579cd5ac35f")
    HOME = f"/sys/bus/mdev/devices/{UUID}"

    def lines(self, *settings: Setting) -> list[str]:
        return [line.plain.rstrip() for line in settings_lines(settings)]

    def made(self) -> Setting:
        return Setting(kind=SettingKind.MDEV, name=self.UUID, address=self.UUID, before="", after="mtty/mtty-2")

    def test_one_is_one_line(self) -> None:
        assert self.lines(self.made()) == [f"mdev {self.UUID}  none  ->  mtty/mtty-2"]

    def test_several_of_one_vgpu_are_a_paragraph(self) -> None:
        name = f"{self.HOME}/vendor/x"
        own = Setting(kind=SettingKind.PARAMETER, name=name, address=self.UUID, before="", after="1")
        assert self.lines(self.made(), own) == [
            f"mdev {self.UUID}",
            "  vGPU      none  ->  mtty/mtty-2",
            "  vendor/x  none  ->  1",
        ]

    def test_of_a_definition_its_text_is_not_told(self) -> None:
        name = f"/etc/mdevctl.d/mtty/{self.UUID}"
        kept = Setting(kind=SettingKind.KEPT, name=name, address=self.UUID, before="", after="long\ntext")
        assert self.lines(kept) == [f"definition of {self.UUID}  none  ->  written"]

    def test_what_stays_as_it_is_is_not_told(self) -> None:
        name = f"/sys/bus/pci/devices/{PF}/sriov_drivers_autoprobe"
        same = Setting(kind=SettingKind.AUTOPROBE, name=name, address=PF, before="1", after="1", during="0")
        assert self.lines(same) == []


class TestUndoing:
    """The commands work as they are printed, in a shell."""

    def undone(self, *settings: Setting) -> list[str]:
        intent = Intent.model_validate({"verb": "vgpu remove", "devices": (), "vgpu_request": {}})
        return [*undo_lines(Plan.make(intent=intent, facts=(), changes=(), settings=settings, steps=()))]

    def test_of_a_vgpu_with_parameters_is_quoted(self) -> None:
        name = f"/sys/bus/pci/devices/{VF0}/nvidia"
        gone = Setting(kind=SettingKind.VGPU_TYPE, name=f"{name}/current_vgpu_type", address=VF0, before="9", after="0")
        own = Setting(
            kind=SettingKind.PARAMETER, name=f"{name}/vgpu_params", address=VF0, before="a=1, b=$(x)", after=""
        )
        (line,) = self.undone(gone, own)
        assert shlex.split(line)[1:] == [
            "vgpu",
            "create",
            "9",
            "--parent",
            VF0,
            "--param",
            "nvidia/vgpu_params=a=1, b=$(x)",
        ]

    def test_of_another_count_is_the_count_before(self) -> None:
        name = f"/sys/bus/pci/devices/{PF}/sriov_numvfs"
        for before, line in (("0", f"off {PF}"), ("2", f"set {PF} 2")):
            count = Setting(kind=SettingKind.VF_COUNT, name=name, address=PF, before=before, after="4")
            assert self.undone(count) == [f"vfioctl sriov {line}"]

    def test_of_a_file_alone_is_the_file(self) -> None:
        name = f"/etc/vfioctl/vgpu.d/{PF}.json"
        written = Setting(kind=SettingKind.KEPT, name=name, address=PF, before="", after="x")
        assert self.undone(written) == [f"rm {name}"]


class TestWords:
    @pytest.mark.parametrize(
        ("count", "text"),
        [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536 << 20, "1.5 GiB"), (3 << 50, "3072 TiB")],
    )
    def test_sizes(self, count: int, text: str) -> None:
        assert words.size(count) == text

    def test_lists(self) -> None:
        assert [words.listed("abc"[:length]) for length in range(4)] == ["", "a", "a and b", "a, b and c"]

    def test_links(self) -> None:
        assert words.link_pair(2.5, 16) == "2.5 GT/s x16"
        assert words.link_pair(None, None) == "unknown"
        assert words.link_now(Link(speed=None, width=8, max_speed=None, max_width=None)) == "x8"

    def test_a_device_without_a_name_has_its_class(self) -> None:
        assert words.name_of(function(PF, class_name="3D controller")) == "3D controller 10de:25b6"
