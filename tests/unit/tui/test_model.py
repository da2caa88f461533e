"""Sheets, marks and actions as values: no application runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.cells import cell_len

from tests.unit.tui.conftest import HOSTS
from vfioctl.core.events import EventKind, StepEvent
from vfioctl.core.published import BeingChanged
from vfioctl.core.registry import Registry
from vfioctl.host import Host
from vfioctl.inventory.model.holders import Holder, HolderKind
from vfioctl.inventory.model.usage import Usage
from vfioctl.inventory.model.values import PciAddress
from vfioctl.overview.model.overview import Overview, Part
from vfioctl.tui.data.prepare import PREPARE
from vfioctl.tui.model.actions import ACTIONS, Situation, called, offered, reason
from vfioctl.tui.model.marks import ASCII, UNICODE, marks_for
from vfioctl.tui.model.names import Names
from vfioctl.tui.model.sheet import Column, Row, Sheet, View, arranged, cell, cut, heading
from vfioctl.tui.screens.devices import holders_cell, usage_words
from vfioctl.tui.screens.lists import domain_rows
from vfioctl.tui.screens.progress import progress_lines, state_line
from vfioctl.tui.screens.sheets import Arrangement, Known, sheet_of
from vfioctl.tui.terminal import folded

ROWS = (
    heading("n0", "NUMA node 0", is_open=True),
    Row("a", (cell("a"), cell("10")), 0, "n0", is_open=True),
    Row("b", (cell("b"), cell("9 red")), 1, "a", hidden="10de:2330"),
    heading("n1", "NUMA node 1", is_open=True),
    Row("c", (cell("c"), cell("")), 0, "n1"),
)


def keys(*arguments: object, **options: object) -> list[str]:
    return [row.key for row in arranged(ROWS, *arguments, **options)]  # type: ignore[arg-type]


class TestSheet:
    def test_folding_hides_everything_below(self) -> None:
        assert keys(closed={"a"}) == ["n0", "a", "n1", "c"]
        assert keys(closed={"n0"}) == ["n0", "n1", "c"]

    def test_a_filter_keeps_what_rows_are_below_and_opens_it(self) -> None:
        assert keys(words=("red",), closed={"n0", "a"}) == ["n0", "a", "b"]
        assert keys(words=("10de", "9")) == ["n0", "a", "b"]
        assert keys(words=("node",)) == []

    def test_sorting_is_by_number_and_the_empty_are_last(self) -> None:
        assert keys(sort=1) == ["b", "a", "c"]

    @pytest.mark.parametrize("width", range(1, 120, 7))
    def test_columns_fit_the_width(self, width: int) -> None:
        columns = (Column("A"), Column("B", rank=2, least=3), Column("C", rank=1), Column("LAST"))
        row = Row("x", tuple(cell(text) for text in ("a" * 10, "b" * 20, "c" * 5, "d" * 30)))
        fitted = Sheet(columns, [row]).fitted(width)
        assert sum(wide for _, wide in fitted) + 2 * (len(fitted) - 1) <= max(width, 13)
        assert fitted[-1][0] == 3

    def test_an_empty_optional_column_is_not_shown(self) -> None:
        sheet = Sheet((Column("A"), Column("B", rank=1), Column("C")), [Row("x", (cell("a"), cell(""), cell("c")))])
        assert [number for number, _ in sheet.fitted(80)] == [0, 2]

    @pytest.mark.parametrize(
        "text", ["", "abc", "abcdefghij", "\u6f22\u5b57\u6f22\u5b57\u6f22\u5b57", "a\u6f22\u5b57b"]
    )
    @pytest.mark.parametrize("width", [1, 2, 3, 5, 8])
    def test_cut_text_has_the_width(self, text: str, width: int) -> None:
        assert cell_len(cut(text, width, "~")) == width

    def test_cells_are_escaped(self) -> None:
        assert cell("a\x1b[2J\nb").text == "a\\x1b[2J\\nb"


class TestMarks:
    @pytest.mark.parametrize(
        ("environment", "marks"),
        [
            ({"LC_ALL": "C.UTF-8", "TERM": "xterm"}, UNICODE),
            ({"LANG": "de_DE.utf8", "TERM": "screen"}, UNICODE),
            ({"LANG": "de_DE.UTF-8", "LC_ALL": "C", "TERM": "xterm"}, ASCII),
            ({"LANG": "de_DE.ISO-8859-1", "TERM": "xterm"}, ASCII),
            ({"LANG": "C.UTF-8", "TERM": "linux"}, ASCII),
            ({"LC_CTYPE": "C.UTF-8", "TERM": "xterm"}, ASCII),  # as Python sets it for the locale C
            ({"TERM": "xterm"}, ASCII),
        ],
    )
    def test_follow_the_locale(self, environment: dict[str, str], marks: object) -> None:
        assert marks_for(environment) is marks

    def test_folding_keeps_the_width(self) -> None:
        text = "\u2502 \u250c\u2500\u2510 \u6f22 \u2026 \u25be"
        assert folded(text) == "| +-+ ?? ~ ?"
        assert cell_len(folded(text)) == cell_len(text)


def overview_of(name: str, **changed: object) -> Overview:
    return replace(Host.recorded(str(HOSTS / f"{name}.host")).overview(), read_only="", **changed)  # type: ignore[arg-type]


class TestActions:
    def test_every_action_can_be_prepared_and_has_a_key_of_its_own(self) -> None:
        assert {action.name for action in ACTIONS} == set(PREPARE)
        for view in View:
            names = [action.key for action in offered(view)]
            assert len(names) == len(set(names))
            assert not {*names} & {*"12345678/sadrp?:q"}, "the application has these keys"

    @pytest.mark.parametrize(
        ("host", "view", "key", "rows", "why"),
        [
            ("hgx8", View.DEVICES, "b", ["0000:1b:00.0"], ""),
            ("hgx8", View.DEVICES, "b", [], "nothing is selected"),
            ("hgx8", View.DEVICES, "u", ["0000:1b:00.0"], "not bound to a VFIO driver"),
            ("hgx8", View.DEVICES, "x", ["0000:1b:00.0"], "no claim has it"),
            ("hgx8", View.DEVICES, "v", ["0000:1b:00.0"], "it offers no vGPUs"),
            ("hgx8", View.DEVICES, "n", ["0000:1b:00.0"], "it has no SR-IOV"),
            ("hgx8", View.DEVICES, "b", ["0000:00:00.0"], "it could not be read"),
            ("busy", View.DEVICES, "b", ["0000:02:00.0"], "bound to vfio-pci already"),
            ("busy", View.DEVICES, "u", ["0000:02:00.0"], ""),
            ("iommu-off", View.DEVICES, "b", ["0000:01:00.0"], "the IOMMU is off, so no device can go to a guest"),
            ("a2", View.DEVICES, "v", ["0000:08:00.0"], ""),
            ("a2", View.DEVICES, "n", ["0000:08:00.0"], ""),
            ("a2", View.VGPUS, "v", ["type:0000:08:00.0/nvidia-742"], "there is no room for more"),
            ("a2", View.VGPUS, "v", ["type:0000:08:00.0/nvidia-754"], ""),
            ("a2", View.VGPUS, "x", ["type:0000:08:00.0/nvidia-754"], "choose vGPUs, not types or cards"),
            ("a2", View.VGPUS, "c", ["type:0000:08:00.0/nvidia-754"], "choose a vGPU: v creates one of this type"),
            ("hgx8", View.DOMAINS, "t", ["web1"], "choose a domain"),
            ("hgx8", View.HISTORY, "R", [], "no change was interrupted"),
        ],
    )
    def test_reasons(self, host: str, view: View, key: str, rows: list[str], why: str) -> None:
        action = called(view, key)
        assert action
        assert reason(action, Situation(view, overview_of(host)), rows) == why

    def test_a_change_under_way_and_a_read_only_host_come_first(self) -> None:
        bind = called(View.DEVICES, "b")
        assert bind
        busy = Situation(View.DEVICES, overview_of("hgx8"), busy="unbind x")
        assert "a change is under way: unbind x" in reason(bind, busy, ["0000:1b:00.0"])
        looked_at = Situation(View.DEVICES, replace(busy.overview, read_only="it is a file"), busy="unbind x")
        assert reason(bind, looked_at, ["0000:1b:00.0"]) == "it is a file"

    @pytest.mark.parametrize(("under_way", "why"), [(True, "another process is still making the change"), (False, "")])
    def test_recover_leaves_a_living_process_alone(self, *, under_way: bool, why: str) -> None:
        recover = called(View.LOG, "R")
        assert recover
        unfinished = (BeingChanged(1, ("0000:1b:00.0",), 1 if under_way else None),)
        situation = Situation(View.LOG, overview_of("hgx8", unfinished=unfinished))
        assert reason(recover, situation, []) == why


def test_a_wait_for_the_lock_is_one_line_that_counts_on() -> None:
    waits = [StepEvent(EventKind.LOCK, at=float(at), timeout=10.0) for at in range(4)]
    (line,) = progress_lines(waits, Registry(()), 5.0)
    assert line.plain == "...    5 of 10 s  waiting for another vfioctl that is changing this host"
    assert state_line(waits, 5.0, 0.0) == "waits for another vfioctl, 5 s"
    first, _ = progress_lines([*waits, StepEvent(EventKind.VERIFY, at=6.0)], Registry(()), 7.0)
    assert first.plain.startswith("done      6.0 s  waiting for")


class TestRows:
    def test_a_name_stays_while_the_device_is_the_same(self) -> None:
        names, overview = Names(), overview_of("hgx8")
        gpu = overview.inventory.by_address[PciAddress("0000:1b:00.0")]
        names.learn(overview.inventory)
        without = replace(gpu, nvml=None, driver=None)
        assert names.of(without) == "NVIDIA H100 80GB HBM3"
        assert names.of(replace(without, device_id="1234")) != "NVIDIA H100 80GB HBM3"

    def test_holders_in_few_words(self) -> None:
        def holder(**values: object) -> Holder:
            return Holder(**{"address": PciAddress("0000:01:00.0"), "kind": HolderKind.PROCESS, "name": "x"} | values)  # type: ignore[arg-type]

        assert holders_cell([]).text == ""
        assert holders_cell([holder(name="python", pid=1), holder(name="b", pid=2)]).text == "python 1 +1"
        assert holders_cell([holder(guest="win11", pid=1)]).text == "guest win11"
        assert holders_cell([holder(kind=HolderKind.VF, name="vf")] * 2).text == "2 VFs"
        assert holders_cell([holder(name="evil\x1b[2J", pid=1)]).text == "evil\\x1b[2J 1"

    def test_usage(self) -> None:
        usage = Usage(source="nvml", utilisation_percent=23, temperature_celsius=45, memory_used_bytes=3 << 30)
        assert usage_words(usage) == "23% 45C 3 GiB"
        assert usage_words(replace(usage, memory_total_bytes=80 << 30)) == "23% 45C 3 GiB of 80 GiB"
        assert usage_words(Usage(source="nvml")) == usage_words(None) == ""

    def test_a_missing_part_says_why(self) -> None:
        rows = list(domain_rows(overview_of("hgx8", missing={Part.DOMAINS: "no\x1banswer"})))
        assert [row.cells[0].text for row in rows] == ["Domains could not be read: no\\x1banswer"]

    @pytest.mark.parametrize("host", sorted(path.stem for path in HOSTS.glob("*.host")))
    @pytest.mark.parametrize("view", View)
    def test_every_host_has_rows_with_keys_of_their_own(self, host: str, view: View) -> None:
        for everything in (False, True):
            sheet = sheet_of(view, Known(overview_of(host), Names()), Arrangement(everything=everything))
            assert sheet.rows
            assert len(sheet.index) == len(sheet.rows)
            parents = {row.parent for row in sheet.rows} - {""}
            assert parents <= set(sheet.index)
