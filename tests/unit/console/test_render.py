"""What the drawings say of hosts that no bundled host is like: odd, hostile, half done."""

from __future__ import annotations

import io
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import pytest
from pydantic import TypeAdapter
from rich.console import Console, RenderableType
from rich.console import Group as Stack

from vfioctl.binding.model.binding import KERNEL_CHOICE, Binding
from vfioctl.binding.model.intents import UnbindIntent
from vfioctl.binding.resources.driver import binding_change
from vfioctl.console import words
from vfioctl.console.columns import Column, Heading, Whole, table
from vfioctl.console.history_page import history_table
from vfioctl.console.plan_page import outcome_page, plan_page
from vfioctl.core.action import Context
from vfioctl.core.change import Change, CheckRequest, Draft, Fact, Intent, JournalEntry, Outcome, Phase, Plan, Step
from vfioctl.core.registry import Parts, Registry
from vfioctl.core.reservations import Reservation
from vfioctl.core.resource import Description, FileResource
from vfioctl.errors import some_of
from vfioctl.inventory.model.functions import Function, Inventory, Link, ProbeWarning
from vfioctl.inventory.model.machine import Blocker, Group, Iommu, NumaNode
from vfioctl.inventory.model.values import PciAddress
from vfioctl.inventory.render import phrases
from vfioctl.inventory.render.function import function_page
from vfioctl.inventory.render.listing import inventory_table
from vfioctl.inventory.render.tree import inventory_tree
from vfioctl.kernel.protocol import Reader
from vfioctl.subsystems import SUBSYSTEMS
from vfioctl.units import CpuSet, Uuid, format_size
from vfioctl.vgpu.model.intents import RemoveVgpuIntent, SetVfsIntent
from vfioctl.vgpu.model.kinds import AUTOPROBE, DEFINITION, MDEV, PARAMETER, VF_COUNT, VGPU_TYPE

PF, VF0, VF1 = (PciAddress(f"0000:08:00.{number}") for number in (0, 4, 5))
SOUND, DISK, PORT = PciAddress("0000:08:00.1"), PciAddress("0000:09:00.0"), PciAddress("0000:00:01.0")


def drawn(renderable: RenderableType, width: int = 80) -> str:
    out = io.StringIO()
    Console(file=out, width=width, markup=False, highlight=False, emoji=False).print(renderable)
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


_FUNCTION = TypeAdapter(Function)  # making one takes ten milliseconds


def function(address: PciAddress, **facts: object) -> Function:
    known: dict[str, object] = {
        "address": address,
        "vendor_id": "10de",
        "device_id": "25b6",
        "class": "030200",
        "subsystem_vendor_id": "10de",
        "subsystem_device_id": "157e",
    }
    return _FUNCTION.validate_python(known | facts)


def group(number: int, *members: PciAddress, blockers: Iterable[tuple[PciAddress, str]] = ()) -> Group:
    named = tuple(Blocker(address=address, driver=driver) for address, driver in blockers)
    return Group(id=number, members=members, viable=not named, blockers=named)


def host(*functions: Function, groups: Iterable[Group] = (), warnings: Iterable[ProbeWarning] = ()) -> Inventory:
    return Inventory(
        functions=functions,
        groups=tuple(groups),
        numa_nodes=(NumaNode(id=0, cpus=CpuSet((0, 1, 2, 3, 8)), memory_bytes=1536 << 20),),
        iommu=Iommu(kind="intel-vt-d", translating=True),
        warnings=tuple(warnings),
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
        step = Step(phase=Phase.LOAD, target=self.NAME, value=self.NAME, why=self.NAME, alternatives=(self.NAME,))
        plan = plan_of(step, Driver.change(self.NAME, self.NAME), notes=(self.NAME,), words=self.NAME)
        for page in (plan_page(plan, REGISTRY), outcome_page(outcome_of(plan), REGISTRY)):
            text = drawn(page)
            assert "\x1b" not in text
            assert "\r" not in text
            assert "[bold]GPU[/bold]" in text


# -- changes: of kinds that no subsystem has, for the pages know none --------------------------------------


class Turn(Intent):
    """A verb of nobody's."""

    verb: str = "turn"
    words: str = "turn 0000:08:00.0"
    way_back: tuple[str, ...] = ("vfioctl turn --back 0000:08:00.0",)

    def title(self) -> str:
        return self.words

    def permits(self, plan: Plan) -> bool:
        return bool(plan)

    def undone_by(self, plan: Plan) -> tuple[str, ...]:
        del plan
        return self.way_back


class Driver(FileResource):
    """Of which a device has one, that is called like it."""

    kind: ClassVar[str] = "knob"

    def describe(self, change: Change) -> Description:
        return Description(change.name, change.before or "none", change.after or "none")

    @staticmethod
    def change(before: str, after: str, *, name: str = PF, subject: str = PF) -> Change:
        return Change(kind="knob", name=name, subject=subject, before=before, after=after)


class Place:
    """A fact of two columns."""

    kind: ClassVar[str] = "place"

    def read(self, kernel: Reader, facts: Sequence[Fact]) -> Mapping[str, Fact]:
        del kernel
        return {fact.subject: fact for fact in facts}

    def holds(self, fact: Fact, now: Fact | None) -> bool:
        return fact == now

    def relatives(self, kernel: Reader, fact: Fact) -> Iterable[str]:
        del kernel, fact
        return ()

    def describe(self, fact: Fact) -> Sequence[str]:
        return [fact.subject, f"slot {fact.values['slot']}"] if fact.values["slot"] is not None else []


class Turned:
    """A check."""

    kind: ClassVar[str] = "turned"

    def verify(self, context: Context, plan: Plan, subjects: Sequence[str]) -> Mapping[str, Any]:
        del context, plan, subjects
        return {}

    def dead(self, context: Context, subjects: Sequence[str]) -> Mapping[str, str]:
        del context, subjects
        return {}

    def describe(self, plan: Plan, subjects: Sequence[str]) -> Sequence[str]:
        del plan
        return [f"{subject} has turned" for subject in subjects]

    def conclude(self, subjects: Sequence[str], report: Mapping[str, Any]) -> Sequence[str]:
        return [f"{subject} has turned {report.get('times', 'once')}." for subject in subjects]


REGISTRY = Registry(())
vars(REGISTRY)["parts"] = {
    "turning": Parts(resources=(Driver(),), checks=(Turned(),), facts=(Place(),), intents=(Turn,))
}
PLACE = Fact(kind="place", subject=PF, values={"slot": 7})
STEP = Step(phase=Phase.SET, target="/sys/x", value="\n", why="so that")


def plan_of(
    step: Step = STEP,
    *changes: Change,
    notes: tuple[str, ...] = (),
    words: str = "turn 0000:08:00.0",
    facts: tuple[Fact, ...] = (PLACE,),
    checks: tuple[CheckRequest, ...] = (CheckRequest(kind="turned", subjects=(PF,)),),
    way_back: tuple[str, ...] = ("vfioctl turn --back 0000:08:00.0",),
) -> Plan:
    changes = changes or (Driver.change("a", "b"),)
    intent = Turn(words=words, way_back=way_back)
    return Plan.of(Draft(intent=intent, facts=facts, changes=changes, checks=checks, notes=notes), [step])


def outcome_of(plan: Plan, result: str = "done", **more: object) -> Outcome:
    return Outcome.model_validate({"plan": plan, "result": result, "found": plan.facts, "seconds": 1.0, **more})


class TestPlans:
    def page(self, plan: Plan, width: int = 80) -> str:
        return drawn(plan_page(plan, REGISTRY), width)

    def test_say_what_every_part_says_of_itself(self) -> None:
        plan = plan_of()
        assert self.page(plan).splitlines() == [
            f"Plan {plan.id}: turn 0000:08:00.0",
            "",
            "Relies on",
            "  0000:08:00.0  slot 7",
            "",
            "Steps",
            "  1  /sys/x <- (an empty line)",
            "     (so that)",
            "",
            "What changes",
            "  0000:08:00.0  a  ->  b",
            "",
            "Verified afterwards",
            "  every value above is read again and must be as planned",
            "  0000:08:00.0 has turned",
            "  otherwise everything is rolled back",
            "",
            "Undone by",
            "  vfioctl turn --back 0000:08:00.0",
        ]

    def test_leave_out_what_says_nothing(self) -> None:
        silent = Fact(kind="place", subject=VF0, values={"slot": None})
        page = self.page(plan_of(STEP, Driver.change("a", "a"), facts=(silent,), checks=(), way_back=()))
        for heading in ("Relies on", "What changes", "Verified", "Undone by"):
            assert heading not in page

    def test_tell_the_other_spellings_that_a_step_may_write(self) -> None:
        step = STEP.model_copy(update={"value": "a_b", "alternatives": ("a-b", "A-b")})
        assert (
            "  1  /sys/x <- a_b\n     (or a-b or A-b: whichever is registered by then)\n     (so that)\n"
        ) in self.page(plan_of(step))

    def test_notes_come_last(self) -> None:
        assert self.page(plan_of(notes=("mind the gap",))).endswith("\n\n- mind the gap\n")

    def test_nothing_to_do(self) -> None:
        intent = Turn()
        plan = Plan.of(Draft(intent=intent, facts=(PLACE,), notes=("for once",)), [])
        told = "Nothing to do, it is as asked for already:\n  0000:08:00.0  slot 7\n\n- for once\n"
        assert self.page(plan) == drawn(outcome_page(outcome_of(plan, "nothing to do"), REGISTRY)) == told

    def test_what_changes_of_one_device_stands_together_and_its_own_value_first(self) -> None:
        own = f"{PF} power/control"
        rows = (
            Driver.change("on", "auto", name=own),
            Driver.change("a", "b", name=VF0, subject=VF0),
            Driver.change("a", "b"),
        )
        assert (
            "  0000:08:00.0                a   ->  b\n"
            "  0000:08:00.0 power/control  on  ->  auto\n"
            "  0000:08:00.4                a   ->  b\n"
        ) in self.page(plan_of(STEP, *rows))

    def test_what_does_not_fit_becomes_a_paragraph_for_each_device(self) -> None:
        rows = (Driver.change("a", "b"), Driver.change("x", "one two three four five six", name=f"{PF} power/control"))
        assert (
            "  0000:08:00.0\n"
            "    knob           a  ->  b\n"
            "    power/control  x  ->  one two three\n"
            "                          four five six\n"
        ) in self.page(plan_of(STEP, *rows), width=42)


class TestOutcomes:
    def test_of_what_is_done_are_the_changes_and_what_the_checks_found(self) -> None:
        plan = plan_of()
        assert drawn(outcome_page(outcome_of(plan, report={"times": "twice"}), REGISTRY)) == (
            f"Done: turn 0000:08:00.0 (plan {plan.id}, 1.00 s)\n"
            "  0000:08:00.0  a  ->  b\n"
            "0000:08:00.0 has turned twice.\n"
        )

    @pytest.mark.parametrize("result", ["put back", "undone by a reboot"])
    def test_of_what_did_not_last_are_what_is(self, result: str) -> None:
        plan = plan_of()
        assert drawn(outcome_page(outcome_of(plan, result), REGISTRY)) == (
            f"{result.capitalize()}: turn 0000:08:00.0 (plan {plan.id}, 1.00 s)\n  0000:08:00.0  slot 7\n"
        )

    def test_of_what_leaves_no_value_changed_are_what_is(self) -> None:
        page = drawn(outcome_page(outcome_of(plan_of(STEP, Driver.change("a", "a"))), REGISTRY))
        assert page.splitlines()[1] == "  0000:08:00.0  slot 7"


class TestHistory:
    def test_an_open_entry_has_no_end(self) -> None:
        entry = JournalEntry.model_validate(
            {"id": 1, "plan": plan_of(), "state": "open", "boot_id": "b", "began": "2026-01-02T03:04:05.6Z"}
        )
        text = drawn(history_table([entry], width=120), 120)
        assert " 1  2026-01-02 03:04:05  open " in text
        assert "turn 0000:08:00.0" in text
        assert "ENDED" not in text


class TestColumns:
    COLUMNS = (Column("A"), Column("MORE", optional=True), Column("B", right=True), Column("NAME"))
    LONG = "a name of sixty characters, which is longer than other names"
    ROWS = (("1", "extra", "22", LONG), ("333", "", "4", "short"))

    def lines(self, width: int, rows: Sequence[Sequence[str]] = ROWS) -> list[str]:
        return drawn(Stack(*table(self.COLUMNS, rows, width)), width).splitlines()

    def test_a_terminal_cuts_the_last(self) -> None:
        assert self.lines(62) == [
            "A     B  NAME",
            f"1    22  {self.LONG[:52]}\N{HORIZONTAL ELLIPSIS}",
            "333   4  short",
        ]

    def test_wide_has_more(self) -> None:
        assert self.lines(80)[1] == f"1    extra  22  {self.LONG}"

    def test_more_only_where_nothing_is_cut_for_it(self) -> None:
        assert "extra" not in self.lines(75)[1]
        assert "extra" in self.lines(76)[1]

    def test_an_optional_column_that_says_nothing_is_left_out(self) -> None:
        rows = [(a, "", b, name) for a, _, b, name in self.ROWS]
        assert "MORE" not in self.lines(80, rows)[0]

    def test_wide_characters_count_twice(self) -> None:
        (_, line) = drawn(Stack(*table((Column("NAME"), Column("X")), (("図形", "x"),), 80))).splitlines()
        assert line == "図形  x"

    def test_below_60_columns_each_row_is_a_block(self) -> None:
        assert len(self.lines(60)) == 3
        assert self.lines(30) == [
            "",
            "A     1",
            "B     22",
            "NAME  a name of sixty",
            "      characters, which is",
            "      longer than other names",
            "",
            "A     333",
            "B     4",
            "NAME  short",
        ]

    def test_columns_that_leave_no_room_for_the_last_make_blocks(self) -> None:
        wide = [("1", "", "x" * 60, "a name that matters")]
        assert self.lines(70, wide)[-1] == "NAME  a name that matters"


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


# -- what the kinds of the subsystems say of themselves on these pages ------------------------------------

REAL = Registry(SUBSYSTEMS)


class TestPagesOfBindings:
    def page(self, *changes: Change, **facts: object) -> str:
        values = {
            "identity": "10de:25b6:10de:157e:030200",
            "iommu_group": None,
            "driver": None,
            "driver_override": None,
        }
        fact = Fact.model_validate({"kind": "function", "subject": PF, "values": {**values, **facts}})
        draft = Draft(intent=UnbindIntent(devices=(PF,)), facts=(fact,), changes=changes)
        return drawn(plan_page(Plan.of(draft, [STEP]), REAL))

    def test_no_driver_and_no_group_are_said(self) -> None:
        assert "0000:08:00.0  10de:25b6  group none  no driver\n" in self.page()

    def test_an_override_is_said(self) -> None:
        vfio = {"iommu_group": 7, "driver": "vfio-pci", "driver_override": "vfio-pci"}
        assert "group 7  vfio-pci, override vfio-pci\n" in self.page(**vfio)

    def test_a_way_back_for_unbind(self) -> None:
        change = binding_change(PF, Binding("vfio-pci"), Binding("nvidia"))
        assert "vfioctl bind 0000:08:00.0 --driver vfio-pci\n" in self.page(change, driver="vfio-pci")

    def test_the_kernels_choice(self) -> None:
        change = binding_change(PF, Binding("vfio-pci"), Binding(KERNEL_CHOICE))
        assert REAL.resource(change).describe(change).after == "the kernel's choice"


class TestPagesOfVgpus:
    UUID = Uuid("4e8c5df7-c4fa-4719-904f-5579cd5ac35f")
    HOME = f"/sys/bus/mdev/devices/{UUID}"

    def lines(self, *changes: Change) -> list[str]:
        """What the page says below `What changes`."""
        plan = Plan.of(Draft(intent=RemoveVgpuIntent(vgpus=()), changes=changes), [STEP])
        return drawn(plan_page(plan, REAL)).partition("What changes\n")[2].partition("\n\n")[0].splitlines()

    def created(self) -> Change:
        return Change(kind=MDEV, name=self.UUID, subject=self.UUID, before="", after="mtty/mtty-2")

    def test_one_is_one_line(self) -> None:
        assert self.lines(self.created()) == [f"  mdev {self.UUID}  none  ->  mtty/mtty-2"]

    def test_several_of_one_vgpu_that_do_not_fit_are_a_paragraph(self) -> None:
        own = Change(
            kind=PARAMETER,
            name=f"{self.HOME}/nvidia/vgpu_params",
            subject=self.UUID,
            before="",
            after="frame_rate_limiter=0",
        )
        assert self.lines(self.created(), own) == [
            f"  {self.UUID}",
            "    mdev                none  ->  mtty/mtty-2",
            "    nvidia/vgpu_params  none  ->  frame_rate_limiter=0",
        ]

    def test_of_a_definition_its_text_is_not_told(self) -> None:
        name = f"/etc/mdevctl.d/mtty/{self.UUID}"
        defined = Change(kind=DEFINITION, name=name, subject=self.UUID, before="", after="long\ntext")
        assert self.lines(defined) == [f"  definition of {self.UUID}  none  ->  written"]

    def test_what_stays_as_it_is_is_not_told(self) -> None:
        name = f"/sys/bus/pci/devices/{PF}/sriov_drivers_autoprobe"
        assert self.lines(Change(kind=AUTOPROBE, name=name, subject=PF, before="1", after="1", during="0")) == []


class TestUndoingVgpus:
    """The commands work as they are printed, in a shell."""

    def undone(self, intent: Intent, *changes: Change) -> tuple[str, ...]:
        return intent.undone_by(Plan.of(Draft(intent=intent, changes=changes), []))

    def test_of_a_vgpu_with_parameters_is_quoted(self) -> None:
        name = f"/sys/bus/pci/devices/{VF0}/nvidia"
        gone = Change(kind=VGPU_TYPE, name=f"{name}/current_vgpu_type", subject=VF0, before="9", after="0")
        own = Change(kind=PARAMETER, name=f"{name}/vgpu_params", subject=VF0, before="a=1, b=$(x)", after="")
        (line,) = self.undone(RemoveVgpuIntent(vgpus=(VF0,)), gone, own)
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
            count = Change(kind=VF_COUNT, name=name, subject=PF, before=before, after="4")
            assert self.undone(SetVfsIntent(devices=(PF,), vfs=4), count) == (f"vfioctl sriov {line}",)

    def test_of_a_file_alone_is_the_file(self) -> None:
        name = f"/etc/vfioctl/vgpu.d/{PF}.json"
        written = Change(kind=DEFINITION, name=name, subject=PF, before="", after="x")
        assert self.undone(SetVfsIntent(devices=(PF,), vfs=4, persistent=True), written) == (f"rm {name}",)


class TestWords:
    def test_a_list_that_is_cut_says_how_many_more(self) -> None:
        assert some_of("abcdef") == "a, b, c, d and 2 more"
        assert some_of("abcd") == "a, b, c, d"
        assert some_of("abc", most=1) == "a and 2 more"
        assert some_of([]) == ""

    @pytest.mark.parametrize(
        ("count", "text"),
        [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536 << 20, "1.5 GiB"), (3 << 50, "3072 TiB")],
    )
    def test_sizes(self, count: int, text: str) -> None:
        assert format_size(count) == text

    def test_lists(self) -> None:
        assert [words.listed("abc"[:length]) for length in range(4)] == ["", "a", "a and b", "a, b and c"]

    def test_links(self) -> None:
        assert phrases.link_pair(2.5, 16) == "2.5 GT/s x16"
        assert phrases.link_pair(None, None) == "unknown"
        assert phrases.link_now(Link(speed=None, width=8, max_speed=None, max_width=None)) == "x8"

    def test_a_device_without_a_name_has_its_class(self) -> None:
        assert phrases.name_of(function(PF, class_name="3D controller")) == "3D controller 10de:25b6"


def test_notes_name_some_of_many_claims() -> None:
    """Seen: a ledger with 10,000 claims took a listing from 0.2 s to 1.5 s."""
    many = [Reservation(f"0000:08:00.{n}", f"claim {n:08x}", "vm/a", whole=n != 0, release="") for n in range(40)]
    first, *rest = list(phrases.reservation_notes(many, shown={f"{1:08x}"}))
    assert first == "A part of 0000:08:00.0 belongs to claim 00000000 of vm/a."
    assert rest[-1] == "23 more claims: vfioctl claim list."
    assert (len(rest), rest[0]) == (16, "0000:08:00.2 belongs to claim 00000002 of vm/a.")
