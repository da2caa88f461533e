"""`vfioctl state show`, `assert` and `apply` as they are typed."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from tests.hosts.machines import HOSTS, NAMES
from tests.unit.conftest import Golden, Run
from vfioctl.host import Host
from vfioctl.state.files.read import state_in

GPU = "0000:43:00.0"
ALL_IS_WELL = "Nothing to change: the host is as the document says.\n"
RECORDED = sorted((HOSTS / "recorded").glob("*.host"))


@pytest.fixture
def file(run: Run, tmp_path: Path) -> Path:
    """A document in which one GPU of hgx8 is on VFIO, also at boot."""
    before, gpu = run("state show --simulate hgx8").out.split(f'address = "{GPU}"')
    gpu = gpu.replace('"nvidia"', '"vfio-pci"', 1).replace('"none"', '"vfio-pci"', 1)
    (tmp_path / "state.toml").write_text(f'{before}address = "{GPU}"{gpu}')
    return tmp_path / "state.toml"


@pytest.fixture
def wrong(run: Run, tmp_path: Path) -> Path:
    """A document that workstation cannot be made: each entry has a reason of its own."""
    text = run("state show --simulate workstation").out
    text = text.replace('driver = "nvidia"', 'driver = "vfio-pci"').replace('"73df"', '"9999"')
    (tmp_path / "wrong.toml").write_text(text)
    return tmp_path / "wrong.toml"


def copied(folder: Path) -> Path:
    (folder / "x.host").write_text((HOSTS / "hgx8.host").read_text())
    return folder / "x.host"


class TestShow:
    @pytest.mark.parametrize(("options", "ending"), [("", "toml"), ("--format yaml", "yaml"), ("--json", "json")])
    def test_goldens(self, run: Run, golden: Golden, options: str, ending: str) -> None:
        answer = run(f"state show {options} --simulate workstation")
        assert (answer.code, answer.err) == (0, "")
        golden(f"state/show.{ending}", answer.out)

    def test_of_vgpus(self, run: Run, golden: Golden) -> None:
        golden("state/show-vgpus.toml", run("state show --simulate l40s").out)

    @pytest.mark.parametrize("name", NAMES)
    def test_applied_to_the_same_host_changes_nothing(self, run: Run, tmp_path: Path, name: str) -> None:
        for options, file in (("", "x.toml"), ("--format yaml", "x.yaml"), ("--json", "x.json")):
            (tmp_path / file).write_text(run(f"state show {options} --simulate {name}").out)
            assert run(f"state assert {tmp_path / file} --simulate {name}").code == 0
            answer = run(f"state apply {tmp_path / file} --simulate {name}")
            assert (answer.code, answer.out, answer.err) == (0, ALL_IS_WELL, "")
            assert not run(f"state apply {tmp_path / file} --json --simulate {name}").document["changed"]

    @pytest.mark.parametrize("recording", RECORDED, ids=lambda path: path.stem)
    def test_of_a_real_machine(self, run: Run, tmp_path: Path, recording: Path) -> None:
        text = run(f"state show --host {recording}").out
        (tmp_path / "x.toml").write_text(text)
        assert run(f"state assert {tmp_path / 'x.toml'} --host {recording}").code == 0
        assert run(f"state apply {tmp_path / 'x.toml'} --host {recording}").out == ALL_IS_WELL

    def test_says_what_it_leaves_out(self, run: Run, tmp_path: Path) -> None:
        run(f"bind {GPU} --persistent --yes --simulate {copied(tmp_path)}")
        file = tmp_path / "x.host"
        file.write_text(file.read_text().replace("version = 1", "version = 9"))
        answer = run(f"state show --simulate {file}")
        assert answer.code == 0
        assert answer.err.startswith(f"vfioctl: what vfioctl restores of {GPU} at boot is left out: damaged: ")


class TestAssert:
    def test_of_a_host_that_fits(self, run: Run, file: Path) -> None:
        assert run(f"state apply {file} --yes --simulate hgx8").code == 0
        answer = run(f"state assert {file} --simulate hgx8")
        assert (answer.code, answer.out) == (0, "The host is as the document says.\n")

    def test_lists_the_differences_and_exits_with_6(self, run: Run, terminal: Run, file: Path, golden: Golden) -> None:
        answer = terminal(f"state assert {file} --simulate hgx8")
        assert answer.code == 6
        golden("state/assert.txt", (answer.out + answer.err).replace(str(file), "state.toml"))
        answer = run(f"state assert {file} --json --simulate hgx8")
        assert (answer.code, answer.err) == (6, "")
        golden("state/assert.json", answer.out)

    def test_changes_nothing_and_works_on_what_cannot_be_changed(self, run: Run, file: Path) -> None:
        assert run(f"state assert {file} --host hgx8").code == 6

    def test_of_a_device_that_is_not_there(self, run: Run, file: Path) -> None:
        answer = run(f"state assert {file} --json --host workstation")
        assert answer.code == 6
        assert {d["setting"] for d in answer.document["differences"]} == {"device"}

    def test_of_a_file_that_cannot_be_used(self, run: Run, tmp_path: Path) -> None:
        (tmp_path / "x.toml").write_text('version = 1\n[[devices]]\naddress = "1b:00.0"\ndrivr = "x"')
        answer = run(f"state assert {tmp_path / 'x.toml'} --simulate hgx8")
        assert answer.code == 2
        assert f"{tmp_path / 'x.toml'}: devices.0.drivr is not known" in answer.err
        assert "vfioctl state show writes such a document" in answer.err


class TestApply:
    def test_a_dry_run(self, terminal: Run, file: Path, golden: Golden) -> None:
        answer = terminal(f"state apply {file} --dry-run --simulate hgx8")
        assert (answer.code, answer.err) == (0, "Nothing was changed: this is a dry run.\n")
        golden("state/dry-run.txt", answer.out)

    def test_a_dry_run_names_what_comes_later(self, terminal: Run, run: Run, tmp_path: Path, golden: Golden) -> None:
        file, pf = tmp_path / "x.toml", "0000:00:02.0"
        vf = f'[[devices]]\naddress = "0000:00:02.1"\ndriver = "vfio-pci"\nvf = {{ of = "{pf}", number = 0 }}\n'
        file.write_text(run("state show --simulate laptop").out.replace("vfs = 0", "vfs = 2") + vf)
        answer = terminal(f"state apply {file} --dry-run --simulate laptop")
        assert answer.code == 0
        golden("state/later.txt", answer.out)
        answer = run(f"state apply {file} --dry-run --json --simulate laptop")
        assert [later["name"] for later in answer.document["later"]] == ["0000:00:02.1"]
        assert run(f"state apply {file} --yes --simulate laptop").code == 0

    def test_a_dry_run_can_be_saved_and_applied(self, run: Run, file: Path, tmp_path: Path) -> None:
        answer = run(f"state apply {file} --dry-run --json --simulate hgx8")
        assert (answer.code, answer.document["changed"]) == (0, True)
        (tmp_path / "plans.json").write_text(answer.out)
        assert run(f"apply {tmp_path / 'plans.json'} --yes --simulate hgx8").code == 0
        assert run(f"state assert {file} --simulate hgx8").code == 0

    def test_then_again(self, run: Run, file: Path, golden: Golden) -> None:
        answer = run(f"state apply {file} --yes --json --simulate hgx8")
        assert answer.code == 0
        (outcome,) = answer.document["outcomes"]
        assert (answer.document["changed"], outcome["result"]) == (True, "done")
        again = run(f"state apply {file} --yes --json --simulate hgx8")
        assert (again.code, again.err) == (0, "")
        golden("state/apply.json", again.out)
        assert run(f"state apply {file} --simulate hgx8").out == ALL_IS_WELL

    def test_the_refusals(self, terminal: Run, run: Run, wrong: Path, golden: Golden) -> None:
        answer = terminal(f"state apply {wrong} --yes --simulate workstation")
        assert (answer.code, answer.out) == (4, "")
        golden("state/refused.txt", answer.out + answer.err)
        answer = run(f"state apply {wrong} --dry-run --json --simulate workstation")
        assert answer.code == 4
        golden("state/refused.json", answer.out)
        answer = run(f"state apply {wrong} --yes --json --simulate workstation")
        assert (answer.code, answer.document["error"]["exit_code"]) == (4, 4)
        assert len(answer.document["error"]["facts"]["refused"]) > 1

    def test_partial(self, run: Run, wrong: Path) -> None:
        answer = run(f"state apply {wrong} --yes --partial --json --simulate workstation")
        assert answer.code == 4
        assert answer.document["changed"] is bool(answer.document["outcomes"])
        assert answer.document["refused"]
        assert run(f"state apply {wrong} --yes --partial --simulate workstation").code == 4

    def test_from_stdin(self, run: Run, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(file.read_bytes())))
        assert run("state apply - --yes --simulate hgx8").code == 0
        assert run(f"state assert {file} --simulate hgx8").code == 0

    def test_of_a_host_that_cannot_be_changed(self, run: Run, file: Path) -> None:
        assert run(f"state apply {file} --yes --host hgx8").code == 3
        assert run(f"state apply {file} --dry-run --host hgx8").code == 0


def test_json_and_toml_say_the_same(run: Run) -> None:
    toml = run("state show --simulate a2").out
    assert json.loads(run("state show --json --simulate a2").out) == state_in(toml.encode(), "-").model_dump(
        mode="json"
    )
    assert Host.recorded("a2").state.present()[0] == state_in(toml.encode(), "-")
