"""An exception while looking at one function, card or definition costs that one, with its reason; never a listing."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.machines import copy, original
from tests.probing import read_inventory
from tests.unit.conftest import Run
from vfioctl.errors import BadDocument
from vfioctl.host import Host
from vfioctl.inventory.model.functions import Function
from vfioctl.inventory.probe import inventory, scan
from vfioctl.inventory.probe.inventory import function_of
from vfioctl.inventory.probe.pci import read_everything
from vfioctl.kernel.host_paths import DEFINITIONS
from vfioctl.kernel.protocol import Reader
from vfioctl.kernel.recorded.host import Recorded
from vfioctl.kernel.recorded.tree import form
from vfioctl.vgpu.probe import inventory as vgpus
from vfioctl.vgpu.probe.inventory import read_definitions, read_vgpus
from vfioctl.vgpu.probe.scan import READERS

ONE = "0000:0a:00.0"
PARENT, SOUND, ODD = "0000:3b:00.0", "11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222"
ERRORS = [
    RecursionError("too deep"),
    MemoryError(),
    OverflowError("too large"),
    UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    ValueError("odd"),
    KeyError("none"),
    TypeError("odd"),
]

by_error = pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)


@by_error
def test_a_function_whose_files_cannot_be_understood_costs_itself(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def failing(kernel: Reader, address: str) -> dict[str, Any]:
        if address == ONE:
            raise error
        return read_everything(kernel, address)

    sound = read_inventory(Recorded(original("workstation"), ""))
    monkeypatch.setattr(scan, "read_everything", failing)
    found = read_inventory(Recorded(original("workstation"), ""))
    assert set(sound.by_address) - set(found.by_address) == {ONE}
    assert any(warning.subject == ONE and warning.text for warning in found.warnings)


@by_error
def test_a_function_whose_values_cannot_be_computed_costs_itself(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def failing(facts: dict[str, Any]) -> Function:
        if facts["address"] == ONE:
            raise error
        return function_of(facts)

    monkeypatch.setattr(inventory, "function_of", failing)
    found = read_inventory(Recorded(original("workstation"), ""))
    assert ONE not in found.by_address
    assert len(found.by_address) > 3
    assert any(warning.subject == ONE and warning.text for warning in found.warnings)


@by_error
@pytest.mark.parametrize("where", ["reading", "computing"])
def test_a_card_that_cannot_be_understood_costs_itself(
    monkeypatch: pytest.MonkeyPatch, error: Exception, where: str
) -> None:
    def failing(*_: object) -> None:
        raise error

    if where == "reading":
        for reader in READERS:
            monkeypatch.setattr(reader, "read", failing)
    else:
        monkeypatch.setattr(vgpus, "counted", failing)
    found = read_vgpus(Recorded(original("t4"), ""))
    assert found.cards == ()
    assert [warning.subject for warning in found.warnings] == [PARENT]
    assert type(error).__name__ in found.warnings[0].text


@pytest.mark.parametrize(
    "text",
    [
        "[" * 20_000,
        '{"a":' * 10_000,
        f'{{"mdev_type": "nvidia-1", "attrs": {"[" * 5000}{"]" * 5000}}}',
        '{"mdev_type": "\\ud800"}',
        '{"mdev_type": "nvidia-1", "start": "\\udfff"}',
        '{"mdev_type": "nvidia-1", "attrs": [{"\\ud800": "x"}]}',
        '{"mdev_type": "nvidia-1", "attrs": [{"x": "\\ud800"}]}',
        f'{{"mdev_type": "nvidia-1", "start": {"9" * 5000}}}',
        '{"mdev_type": 1e999}',
        "",
        "\0",
        "null",
    ],
)
def test_a_definition_that_is_odd_costs_itself(run: Run, tmp_path: Path, text: str) -> None:
    tree = copy(original("t4"))
    tree.put(f"{DEFINITIONS}/{PARENT}/{SOUND}", '{"mdev_type": "nvidia-222", "start": "auto"}')
    tree.put(f"{DEFINITIONS}/{PARENT}/{ODD}", text)
    found, problems = read_definitions(Recorded(tree, ""))
    assert [defined.uuid for defined in found] == [SOUND]
    assert [path for path, reason in problems if reason] == [f"{DEFINITIONS}/{PARENT}/{ODD}"]
    (tmp_path / "t4.host").write_text(form(tree), encoding="utf-8")
    for line in ("vgpu list", "vgpu list --json", "vgpu restore --dry-run", f"bind {PARENT} --dry-run"):
        answer = run(line, "--host", str(tmp_path / "t4.host"))
        assert "Traceback" not in answer.err
        if line == "vgpu list":
            assert SOUND[:8] in answer.out
            assert ODD in answer.out


@pytest.mark.parametrize(
    "text",
    [
        '{"error": {"message": "\\ud800"}}',
        '{"plans": [{"id": "\\ud800", "steps": []}]}',
        '{"id": "\\ud800", "steps": [], "version": 2}',
        f'{{"plans": [{"[" * 900}{"]" * 900}]}}',
        f'{{"plans": {"[" * 20_000}',
        f'{{"version": {"9" * 5000}, "steps": []}}',
    ],
)
def test_a_plan_that_is_odd_is_refused(run: Run, tmp_path: Path, text: str) -> None:
    (tmp_path / "plan.json").write_text(text)
    for option in ((), ("--json",)):
        answer = run("apply --simulate laptop", str(tmp_path / "plan.json"), *option)
        assert answer.code == 2
        assert "Traceback" not in answer.err
        answer.out.encode()
        answer.err.encode()


def test_plans_that_are_nested_to_the_limit_are_refused() -> None:
    host = Host.recorded("laptop")
    for depth in range(100, 1100, 50):
        with suppress(BadDocument):
            assert host.read_plans(json.dumps({"plans": [1]}).replace("1", "[" * depth + "]" * depth)) is None
