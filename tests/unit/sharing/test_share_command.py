"""`vfioctl share`: refused where no processes run, and its results as text and JSON."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.unit.conftest import Run
from vfioctl.inventory.model.functions import Function
from vfioctl.inventory.model.values import PciAddress
from vfioctl.sharing.measuring.gpus import gpus_of
from vfioctl.sharing.model.gpu_time import Measurement, Source, Usage, measurement_document
from vfioctl.sharing.render.measurement import measurement_page

A, GPU = "/user.slice/a", "0000:41:00.0"
FOUND = Measurement(
    2.0,
    (Usage(A, GPU, Source.NVML, 1.5, 0.01), Usage("vm/x", "0000:42:00.0", Source.LEASE, 2.0, 0.0)),
    {A: 100},
    {"0000:43:00.0": "its driver ast does not tell who uses it"},
    {"/init.scope": "process 1 is in it"},
    (A,),
)


@pytest.mark.parametrize("host", ["--host hgx8", "--simulate hgx8"])
@pytest.mark.parametrize("command", ["serve --once", "serve", "serve --dry-run", "thaw"])
def test_a_host_without_processes_is_refused(run: Run, command: str, host: str) -> None:
    answer = run(f"share {command} {host}")
    assert answer.code == 3
    assert "no processes run on" in answer.err


@pytest.mark.parametrize("words", ["--for 2s", "--json", "--once --for 0s", "--once --for nonsense", "--config /none"])
def test_wrong_requests(run: Run, words: str) -> None:
    assert run(f"share serve {words} --host hgx8").code == 2


def test_a_captured_directory_has_no_processes(run: Run, tmp_path: Path) -> None:
    (tmp_path / "sys").mkdir()
    answer = run(f"share serve --once --root {tmp_path}")
    assert answer.code == 3


def drawn(measurement: Measurement) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(measurement_page(measurement, width=200))
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def test_text() -> None:
    text = drawn(FOUND)
    assert [line.split() for line in text.splitlines()[:3]] == [
        ["GPU", "SOURCE", "GPU", "TIME", "ERROR", "SHARE", "QUOTA", "CONTROL", "GROUP"],
        [GPU, "nvml", "1.500", "s", "±", "0.010", "s", "100.0", "%", "100.0", "%", A],
        ["0000:42:00.0", "lease", "2.000", "s", "±", "0.000", "s", "-", "-", "vm/x"],
    ]
    assert f"would freeze 1 control group: {A}" in text
    assert "never frozen: /init.scope: process 1 is in it" in text
    assert "not measured: 0000:43:00.0: its driver ast does not tell who uses it" in text


def test_text_without_use() -> None:
    assert "No GPU was used" in drawn(Measurement(1.0, (), {}, {}, {}))


def test_names_cannot_drive_the_terminal() -> None:
    assert "\x1b" not in drawn(Measurement(1.0, (Usage("/a\x1b[2J", GPU, Source.NVML, 1, 0),), {}, {}, {}))


def test_json() -> None:
    document = measurement_document(FOUND)
    assert document["usages"][0] == {
        "cgroup": A,
        "gpu": GPU,
        "source": "nvml",
        "gpu_seconds": 1.5,
        "error_seconds": 0.01,
        "share": 1.0,
        "quota": 1.0,
    }
    assert document["usages"][1]["share"] is None
    assert document["would_freeze"] == [A]


def function(address: str, **facts: Any) -> Function:
    ids: dict[str, Any] = dict.fromkeys(
        ("vendor_id", "device_id", "subsystem_vendor_id", "subsystem_device_id"), "10de"
    )
    return Function(address=PciAddress(address), class_code="030200", **ids, **facts)


def test_gpus_by_source() -> None:
    found = gpus_of(
        [
            function("0000:01:00.0", driver="nvidia"),
            function("0000:02:00.0", driver="xe"),
            function("0000:03:00.0", driver="vfio-pci", owner="vm/x"),
            function("0000:04:00.0", driver="vfio-pci"),
            function("0000:05:00.0", driver="ast"),
            function("0000:06:00.0"),
        ],
        (),
    )
    assert (found.nvml, found.fdinfo, found.leases) == (
        ("0000:01:00.0",),
        ("0000:02:00.0",),
        {"0000:03:00.0": "vm/x"},
    )
    assert found.problems == {
        "0000:05:00.0": "its driver ast does not tell who uses it",
        "0000:06:00.0": "no driver has it",
    }


def test_only_gpus_that_were_asked_for() -> None:
    found = gpus_of([function("0000:01:00.0", driver="nvidia")], ("0000:09:00.0",))
    assert found.nvml == ()
    assert found.problems == {"0000:09:00.0": "this host has no such GPU"}
