"""What `vfioctl inventory` lists when it is asked for less, and in which form."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import signal
import subprocess
import time
from pathlib import Path

import pytest
from rich.console import Console

from docs.pictures import FOLDER, svg
from tests.hosts.machines import HOSTS
from tests.unit.conftest import PROGRAM, Golden, Run, running
from vfioctl.host import Host
from vfioctl.inventory.render.listing import FIELDS, inventory_table
from vfioctl.kernel.simulated.files import replace

ROOT = HOSTS.parents[1]


class TestFilters:
    @pytest.mark.parametrize(
        ("line", "addresses"),
        [
            ("--driver nvidia --numa 1", ["0000:9d:00.0", "0000:c3:00.0", "0000:d1:00.0", "0000:df:00.0"]),
            ("--driver ast", ["0000:02:00.0"]),
            ("gpu1 1b:00.0", ["0000:1b:00.0", "0000:43:00.0"]),
            ("1a03:2000", ["0000:02:00.0"]),
            ("gpu0 gpu4 --numa 0", ["0000:1b:00.0"]),
            ("--ready", []),
        ],
    )
    def test_choose_gpus(self, run: Run, line: str, addresses: list[str]) -> None:
        answer = run(f"inventory {line} --columns address --no-header --host hgx8")
        assert (answer.code, answer.out.split()) == (0, addresses)
        document = run(f"inventory {line} --json --host hgx8").document
        assert [gpu["address"] for gpu in document["gpus"]] == addresses

    def test_an_id_may_mean_several(self, run: Run) -> None:
        assert len(run("inventory 10de:2330 --columns gpu --no-header --host hgx8").out.splitlines()) == 8

    def test_choose_among_all_functions_with_all(self, run: Run) -> None:
        text = run("inventory --all --driver vfio-pci --columns address --no-header --host busy").out
        assert text.split() == ["0000:02:00.0", "0000:02:00.1"]
        assert len(run("inventory --all --driver none --host laptop").out.splitlines()) > 1

    def test_a_device_need_not_be_a_gpu(self, run: Run) -> None:
        assert "High Definition Audio" in run("inventory 01:00.1 --host laptop").out
        document = run("inventory 01:00.1 --json --host laptop").document
        assert [function["address"] for function in document["functions"]] == ["0000:01:00.1"]
        assert document["gpus"] == []

    def test_ready_is_what_the_page_calls_ready(self, run: Run) -> None:
        ready = run("inventory --ready --columns address,guest --no-header --host busy").out
        assert ready == "0000:02:00.0  ready\n"

    def test_drivers_are_spelled_as_modules_too(self, run: Run) -> None:
        spelled = [run(f"inventory --driver {name} --host busy").out for name in ("vfio-pci", "vfio_pci")]
        assert spelled[0] == spelled[1] != ""

    @pytest.mark.parametrize("form", ["", "--format csv --no-header", "--columns gpu --no-header"])
    def test_nothing_that_matches_is_said_and_is_no_error(self, run: Run, form: str) -> None:
        answer = run(f"inventory gpu0 --driver vfio-pci --ready {form} --host hgx8")
        assert answer == (0, "", "No device matches gpu0 --driver vfio-pci --ready.\n")

    @pytest.mark.parametrize(
        ("line", "hint"),
        [
            ("--driver nvidai", "there are ast, mlx5_core, nouveau, "),
            ("--numa 2", "there are 0, 1"),
            ("--columns gpu,dirver", "the columns are address, gpu, "),
            ("--columns", "the columns are address, gpu, "),
        ],
    )
    def test_names_that_are_not_there_are_refused_with_those_that_are(self, run: Run, line: str, hint: str) -> None:
        answer = run(f"inventory --host hgx8 {line}", *([""] if line == "--columns" else []))
        assert (answer.code, answer.out) == (2, "")
        assert hint in answer.err

    def test_a_device_that_is_not_there_is_refused(self, run: Run) -> None:
        assert run("inventory gpu99 --host hgx8").code == 2


class TestForms:
    def test_csv_has_every_column_of_every_device(self, run: Run) -> None:
        rows = list(csv.DictReader(run("inventory --format csv --host laptop").out.splitlines()))
        assert list(rows[0]) == list(FIELDS)
        assert [(row["gpu"], row["driver"], row["guest"]) for row in rows] == [
            ("gpu0", "nouveau", "no"),
            ("gpu1", "i915", "no"),
        ]

    def test_wide_has_every_column_on_a_narrow_terminal(self, terminal: Run, run: Run) -> None:
        wide = terminal("inventory --format wide --host laptop").out
        assert wide == run("inventory --host laptop").out
        assert "COULD USE" in wide

    def test_json_is_that_of_the_option(self, run: Run) -> None:
        assert run("inventory --format json --host laptop") == run("inventory --json --host laptop")
        for form in ("--format json", "--format=json"):
            assert run(f"inventory gpu7 {form} --host laptop").document["error"]["exit_code"] == 2

    def test_chosen_columns_are_shown_in_that_order_on_any_terminal(
        self, terminal: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", "70")
        header, *rows = terminal("inventory --columns could-use,ids,gpu --host laptop").out.splitlines()
        assert header.split() == ["COULD", "USE", "IDS", "GPU"]
        assert rows[0].split() == ["nouveau", "vfio-pci", "10de:25a0", "gpu0"]

    @pytest.mark.parametrize(
        "line",
        [
            "--json --format csv",
            "--tree --json",
            "--tree --ready",
            "--tree --columns gpu",
            "--json --no-header",
            "--format xml",
            "--watch=0s",
            "--watch=often",
        ],
    )
    def test_that_contradict_each_other_are_refused(self, run: Run, line: str) -> None:
        assert run(f"inventory {line} --host laptop").code == 2


class TestWatching:
    """In a process of its own, on a host file that changes."""

    @pytest.fixture
    def busy(self, tmp_path: Path) -> Path:
        file = tmp_path / "busy.host"
        file.write_text((HOSTS / "busy.host").read_text(encoding="utf-8"), encoding="utf-8")
        return file

    def rebind(self, file: Path) -> None:
        override = "0000:02:00.0/driver_override = "
        replace(file, file.read_text(encoding="utf-8").replace(f"{override}vfio-pci", f"{override}nouveau"))

    def test_prints_each_change_to_a_pipe_until_ctrl_c(self, busy: Path) -> None:
        line = [
            "inventory",
            "gpu1",
            "--columns",
            "gpu,override",
            "--no-header",
            "--watch=0.2s",
            "--simulate",
            str(busy),
        ]
        with running([*PROGRAM, *line], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
            assert child.stdout is not None
            assert child.stderr is not None
            assert child.stdout.readline() == "gpu1  vfio-pci\n"
            time.sleep(0.5)  # nothing changes
            self.rebind(busy)
            assert child.stdout.readline() == "gpu1  nouveau\n"
            child.send_signal(signal.SIGINT)
            assert child.wait(20) == 130
            assert (child.stdout.read(), child.stderr.read()) == ("", "vfioctl: interrupted\n")

    def test_redraws_a_terminal(self, busy: Path) -> None:
        ours, theirs = pty.openpty()
        line = ["inventory", "--ready", "--watch", "--simulate", str(busy)]
        environment = {**os.environ, "TERM": "xterm"}
        with running([*PROGRAM, *line], cwd=ROOT, env=environment, stdout=theirs) as child:
            os.close(theirs)
            shown = b""
            while b"gpu1" not in shown:
                shown += os.read(ours, 65536)
            self.rebind(busy)
            while shown.count(b"gpu1") < 2:
                shown += os.read(ours, 65536)
            child.send_signal(signal.SIGINT)
            assert child.wait(20) == 130
        os.close(ours)
        assert shown.index(b"\x1b[2J") > shown.index(b"gpu1"), "the second page replaces the first"

    def test_json_is_one_line_for_each_change(self, busy: Path) -> None:
        line = ["inventory", "gpu1", "--format", "json", "--watch=0.2s", "--simulate", str(busy)]
        with running([*PROGRAM, *line], cwd=ROOT, text=True, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            overrides = [json.loads(child.stdout.readline())["gpus"][0]["driver_override"]]
            self.rebind(busy)
            overrides.append(json.loads(child.stdout.readline())["gpus"][0]["driver_override"])
            child.send_signal(signal.SIGINT)
        assert overrides == ["vfio-pci", "nouveau"]


def test_the_picture_of_an_inventory_in_the_documents(golden: Golden) -> None:
    console = Console(width=100, file=io.StringIO(), force_terminal=True, color_system="truecolor", record=True)
    console.print("$ vfioctl inventory --simulate hgx8", highlight=False)
    console.print(inventory_table(Host.recorded("hgx8").inventory(), width=100, everything=False))
    golden(f"{FOLDER}/inventory.svg", svg(console, "vfioctl inventory"))
