"""Every table at the widths that terminals have, and in a pipe."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hosts.machines import HOSTS as FOLDER
from tests.unit.conftest import Run

WIDTHS = (80, 120, 200)
USED = {
    "hgx8": (
        "claim create --owner pod/research/a-long-name-of-a-training-job-0/main --gpus 2 --cpus 8 --key job0",
        "claim create --owner vm/web1 --device gpu5 --key web1",
        "bind gpu7",
    ),
    "a2": ("vgpu create nvidia-754 --persistent", "claim create --owner vm/desk1 --vgpu nvidia-754"),
    "mi300x-vf": (),
    "busy": (),
    "laptop": ("bind gpu0",),
}
TABLES = (
    "inventory",
    "inventory --all",
    "inventory --tree",
    "vgpu types",
    "vgpu list",
    "claim list --all",
    "history",
    "holders gpu0",
    "place --gpus 1",
    "domain list -c test:///default",
    "hosts",
)


@pytest.fixture(params=USED)
def host(request: pytest.FixtureRequest, tmp_path: Path, run: Run) -> Path:
    """A host in use."""
    file = tmp_path / f"{request.param}.host"
    file.write_text((FOLDER / file.name).read_text())
    for line in USED[request.param]:
        assert run(f"{line} --yes --simulate {file}").code == 0, line
    return file


def header(text: str) -> set[str]:
    """The words in capitals of the first line in capitals, or of each line where a row has a line for each column."""
    lines = [line for line in text.splitlines() if line[:1].isalpha() and line == line.upper()]
    return {word for line in lines[:1] for word in line.split() if not word[-1].isdigit()}


@pytest.mark.parametrize("line", TABLES)
def test_a_table(host: Path, run: Run, terminal: Run, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    headers = []
    for columns in WIDTHS:
        monkeypatch.setenv("COLUMNS", str(columns))
        answer = terminal(f"{line} --simulate {host}")
        assert answer.code in (0, 4), answer.err
        wide = [each for each in answer.out.splitlines() if len(each) > columns]
        assert not [each for each in wide if len(each.split()) > 1], f"{columns} columns"  # a path stays whole
        headers.append(header(answer.out))
    assert headers[0] <= headers[1] <= headers[2]

    monkeypatch.setenv("COLUMNS", "80")
    piped = run(f"{line} --simulate {host}").out
    assert "\N{HORIZONTAL ELLIPSIS}" not in piped
    assert "\x1b" not in piped
    assert headers[2] <= header(piped)
