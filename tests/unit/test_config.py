"""The settings of a machine's vfioctl: what is understood, and what is refused with the place named."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hosts.machines import unhurried
from tests.unit.conftest import Run
from tests.users import as_nobody, as_root
from vfioctl import config, sources
from vfioctl.config import read_config
from vfioctl.console.changes import tell_unfinished
from vfioctl.errors import BadSpec
from vfioctl.host import Host
from vfioctl.kernel.live.host import Live
from vfioctl.kernel.timeouts import Timeouts
from vfioctl.session import Session

DEFAULT = Timeouts()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


def read_timeouts(file: Path | None = None) -> Timeouts:
    found = read_config(file)
    if found.problem:
        raise found.problem
    return found.timeouts


def refused(file: Path, why: str) -> BadSpec:
    with pytest.raises(BadSpec, match=why) as caught:
        read_timeouts(file)
    assert str(file) in caught.value.message
    return caught.value


class TestTimeouts:
    def test_are_those_of_the_file(self, file: Path) -> None:
        file.write_text("[timeouts]\ndefault = '5s'\nload = '7.5s'\nunbind = '1m30s'\nunit = '1s'\n")
        found = read_timeouts(file)
        assert found == Timeouts(default=5.0, load=7.5, steps={"unbind": 90.0, "unit": 1.0})
        assert found.of("/sys/bus/pci/drivers/nvidia/unbind") == 90.0
        assert found.of("/sys/bus/pci/drivers_probe") == 5.0

    @pytest.mark.parametrize("text", ["", "[timeouts]\n", "# nothing\n"])
    def test_are_as_by_default_where_it_is_silent(self, file: Path, text: str) -> None:
        file.write_text(text)
        assert read_timeouts(file) == DEFAULT

    def test_of_one_step_leave_the_others(self, file: Path) -> None:
        file.write_text("[timeouts]\nreset = '1s'\n")
        assert read_timeouts(file) == DEFAULT._replace(steps={"reset": 1.0})

    @pytest.mark.parametrize(
        "seconds", ["0", "5", "7.5", "true", '"5"', '"0s"', '"3600.1s"', '"-1s"', "inf", "[1]", "{a = 1}", "1e999"]
    )
    @pytest.mark.parametrize("name", ["default", "load", "unbind"])
    def test_that_are_no_seconds_are_refused(self, file: Path, name: str, seconds: str) -> None:
        file.write_text(f"[timeouts]\n{name} = {seconds}\n")
        assert f"timeouts.{name} must be a duration with a unit" in refused(file, 'at most "1h"').message

    @pytest.mark.parametrize("seconds", ["3600", "0.001", "1"])
    def test_may_be_an_hour(self, file: Path, seconds: str) -> None:
        file.write_text(f"[timeouts]\ndefault = '{seconds}s'\n")
        assert read_timeouts(file).default == float(seconds)

    @unhurried
    @given(st.text(max_size=60))
    def test_whatever_the_file_holds_it_is_read_or_refused(self, text: str) -> None:
        with tempfile.NamedTemporaryFile() as place:
            place.write(text.encode("utf-8", "surrogatepass"))
            place.flush()
            with suppress(BadSpec):
                assert read_timeouts(Path(place.name)).default > 0


class TestTheFile:
    @pytest.mark.parametrize("text", ["[timeouts", "a = ", "default: 5"])
    def test_that_is_no_toml_is_refused(self, file: Path, text: str) -> None:
        file.write_text(text)
        refused(file, "is not TOML")

    def test_that_is_not_utf_8_is_refused(self, file: Path) -> None:
        file.write_bytes(b"# \xff\n")
        refused(file, "is not TOML")

    def test_that_is_a_folder_is_refused(self, tmp_path: Path) -> None:
        refused(tmp_path, "cannot be read")

    def test_with_unknown_tables_is_refused_and_they_are_named(self, file: Path) -> None:
        file.write_text("[timeout]\ndefault = 5\n[other]\n")
        assert "the tables are [timeouts], [holders], [claims], [domain]" in refused(file, "other is no table").hint

    def test_with_a_timeout_of_nothing_is_refused_and_those_there_are_named(self, file: Path) -> None:
        file.write_text("[timeouts]\nunbnd = 5\n")
        assert "unbind, unbindLock" in refused(file, "timeouts.unbnd is no timeout").hint

    def test_whose_timeouts_are_no_table_is_refused(self, file: Path) -> None:
        file.write_text("timeouts = 5\n")
        refused(file, "must be a table")

    def test_that_was_asked_for_must_be_there(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        refused(file, "cannot be read: No such file")
        monkeypatch.setenv("VFIOCTL_CONFIG", str(file))
        with pytest.raises(BadSpec, match="cannot be read"):
            read_timeouts()

    def test_costs_a_listing_nothing_and_a_change_everything(
        self, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file.write_text("timeouts = 5\n")
        monkeypatch.setenv("VFIOCTL_CONFIG", str(file))
        session = sources.live(Session, file.with_name("ledger.db"))
        tell_unfinished(session)
        assert "must be a table: [timeouts]: the default timeouts are used" in capsys.readouterr().err
        with pytest.raises(BadSpec, match="must be a table"):
            session.engine.plan_recovery(forward=False)

    def test_in_etc_need_not_be_there(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(config, "CONFIG", file)
        monkeypatch.delenv("VFIOCTL_CONFIG", raising=False)
        assert read_timeouts() == DEFAULT
        file.write_text("[timeouts]\nload = '1s'\n")
        assert read_timeouts().load == 1.0
        monkeypatch.setenv("VFIOCTL_CONFIG", "")
        assert read_timeouts().load == 1.0, "an empty variable names none"

    @as_root
    def test_in_a_directory_of_roots_own_are_not_for_others(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(config, "CONFIG", file)
        monkeypatch.delenv("VFIOCTL_CONFIG", raising=False)
        file.write_text("[timeouts]\nload = '1s'\n")
        file.parent.chmod(0o700)
        assert read_timeouts().load == 1.0
        assert as_nobody(lambda: read_timeouts().load) == DEFAULT.load

    def test_may_be_nowhere(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("VFIOCTL_CONFIG", "/dev/null")
        assert read_timeouts() == DEFAULT


def test_this_machine_has_them(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("[timeouts]\nunbind = '2s'\n")
    monkeypatch.setenv("VFIOCTL_CONFIG", str(file))
    kernel = Host.live().session.kernel
    assert isinstance(kernel, Live)
    assert kernel._timeouts.of("/x/unbind") == 2.0


def test_a_mistake_in_it_is_told_by_every_command_of_this_machine_and_of_no_other(
    run: Run, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It costs no listing, and every change."""
    file.write_text("[timeouts]\ndefault = 0\n")
    monkeypatch.setenv("VFIOCTL_CONFIG", str(file))
    listing, change = run("inventory"), run("recover")
    assert (listing.code, change.code, change.out) == (0, 2, "")
    assert listing.out
    for answer in (listing, change):
        assert answer.err.startswith(f"vfioctl: {file}:2: timeouts.default must be a duration with a unit")
    assert run("inventory --host laptop").err == ""
