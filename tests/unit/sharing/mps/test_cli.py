"""`vfioctl mps` as a user calls it, on simulated hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hosts.machines import FOUR_GPUS, copy, reduced
from tests.unit.conftest import Golden, Run
from vfioctl.kernel.recorded.tree import form

GPU = FOUR_GPUS[0]


@pytest.fixture
def on(tmp_path: Path) -> str:
    file = tmp_path / "hgx8.host"
    file.write_text(form(copy(reduced("hgx8", *FOUR_GPUS))))
    return f"--simulate {file}"


def spoil(on: str, before: str, after: str) -> None:
    """Something happens on the host behind vfioctl's back."""
    file = Path(on.removeprefix("--simulate "))
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))


def test_nothing_is_shown_where_no_daemon_is(run: Run, on: str) -> None:
    answer = run(f"mps status {on}")
    assert (answer.code, answer.out) == (0, "No MPS daemon was started. vfioctl mps start GPU starts one.\n")
    assert run(f"mps apply {on}").code == 0


def test_a_daemon_from_start_to_stop(run: Run, on: str, golden: Golden) -> None:
    planned = run(f"mps start gpu0 --threads 40 --memory 8GiB --dry-run {on}")
    assert planned.code == 0
    golden("mps/start.txt", planned.out.replace(on, "--simulate HOST"))
    assert run(f"mps start gpu0 --threads 40 --memory 8GiB --yes {on}").code == 0
    shown = run(f"mps status {on}")
    assert shown.code == 0
    golden("mps/status.txt", shown.out)
    assert run(f"mps stop gpu0 --yes {on}").code == 0
    assert "No MPS daemon" in run(f"mps status {on}").out


def test_differences_are_shown_and_end_with_4(run: Run, on: str, golden: Golden) -> None:
    assert run(f"mps start gpu0 --threads 40 --yes {on}").code == 0
    spoil(on, "sim:mps:0000-1b-00.0 threads = 40", "sim:mps:0000-1b-00.0 threads = 90")
    spoil(on, f"nvml:{GPU} compute_mode = Exclusive_Process", f"nvml:{GPU} compute_mode = Default")
    shown = run(f"mps status {on}")
    assert shown.code == 4
    golden("mps/drift.txt", shown.out.replace(on, "--simulate HOST"))
    assert "2 differences between MPS and what it was told" in shown.err
    assert run(f"mps apply --yes {on}").code == 0
    assert run(f"mps status {on}").code == 0


@pytest.mark.parametrize("as_json", ["", "--json"])
def test_one_that_cannot_be_corrected_costs_no_other(run: Run, on: str, as_json: str) -> None:
    for gpu in ("gpu0", "gpu1"):
        assert run(f"mps start {gpu} --threads 40 --yes {on}").code == 0
    spoil(on, f"nvml:{GPU} mig_mode = 0", f"nvml:{GPU} mig_mode = 1")
    spoil(on, "sim:mps:0000-43-00.0 threads = 40", "sim:mps:0000-43-00.0 threads = 90")
    applied = run(f"mps apply --yes {as_json} {on}")
    assert applied.code == 4
    assert f"the MPS daemon of {GPU} is left as it is" in applied.err
    assert run(f"mps status gpu1 {on}").code == 0
    assert run(f"mps apply gpu0 --yes {on}").code == 3


def test_a_daemon_that_died_is_named_with_the_next_command(run: Run, on: str) -> None:
    assert run(f"mps start gpu0 --yes {on}").code == 0
    spoil(
        on,
        "unit:vfioctl-mps@0000-1b-00.0.service state = active",
        "unit:vfioctl-mps@0000-1b-00.0.service state = failed",
    )
    shown = run(f"mps status {on}")
    assert shown.code == 4
    assert "dead" in shown.out
    assert f"-> vfioctl mps apply {GPU} {on}" in shown.out
    assert run(f"mps apply {GPU} --yes {on}").code == 0
    assert run(f"mps status {on}").code == 0


def test_what_a_client_needs(run: Run, on: str, golden: Golden) -> None:
    shown = run(f"mps env 1a2b3c4d --gpu gpu0 --threads 40 --memory 8GiB --priority 1 {on}")
    assert shown.code == 0
    golden("mps/env.txt", shown.out)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("mps env 1a2b3c4d", "no claim '1a2b3c4d'"),
        ("mps env 1a2b3c4d --threads 4", "need --gpu"),
        ("mps env 1a2b3c4d --gpu gpu0", "needs --threads"),
        ("mps env x --gpu gpu0 --threads 4", "not the id of a claim"),
        ("mps start gpu0 --threads 0", "1 to 100 percent"),
        ("mps start gpu0 --memory 8", "not a size"),
        ("mps start gpu9", "gpu9"),
        ("mps stop gpu1", "has no MPS daemon"),
    ],
)
def test_wrong_requests(run: Run, on: str, line: str, words: str) -> None:
    answer = run(f"{line} {on}")
    assert answer.code == 2
    assert words in answer.err
    assert "Traceback" not in answer.err


def test_the_configuration_of_v3(run: Run, on: str) -> None:
    assert run(f"mps config gpu0 {on}").out == 'schema_version = "1.0"\n'
