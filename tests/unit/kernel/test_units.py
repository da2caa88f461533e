"""systemd units, asked and told through a systemctl that is a script."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from vfioctl import environment
from vfioctl.errors import HostError, Stuck
from vfioctl.kernel.captured.host import Captured
from vfioctl.kernel.live import units
from vfioctl.kernel.live.host import Live
from vfioctl.kernel.timeouts import Timeouts

ALIASED = """\
Names=gdm.service display-manager.service
LoadState=loaded
ActiveState=active

Names=nvidia-persistenced.service
LoadState=loaded
ActiveState=failed

Names=nope.service
LoadState=not-found
ActiveState=inactive

Names=masked.service
LoadState=masked
ActiveState=inactive
"""

Systemctl = Callable[[str], None]


@pytest.fixture
def systemctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Systemctl:
    """Makes systemctl that script; each call is a line of `asked`."""

    def be(script: str) -> None:
        note = f'echo "$LC_ALL $*" >> {tmp_path}/asked; if read -r line; then echo "stdin: $line" >&2; exit 9; fi'
        (tmp_path / "systemctl").write_text(f"#!/bin/sh\n{note}\n{script}\n")
        (tmp_path / "systemctl").chmod(0o755)

    monkeypatch.setitem(environment.OF_COMMANDS, "PATH", str(tmp_path))
    return be


def asked(folder: Path) -> list[str]:
    lines = (folder / "asked").read_text().splitlines()
    return [line.removeprefix("C --no-pager --no-ask-password ") for line in lines]


class TestNames:
    @pytest.mark.parametrize(
        "name",
        [
            "nvidia-persistenced.service",
            "dcgm@0.service",
            "display-manager.service",
            "a.socket",
            "graphical.target",
            "x\\x2dy.service",
            "nvidia_gpu.timer",
        ],
    )
    def test_that_systemd_has(self, name: str) -> None:
        assert units.is_unit(name)

    @pytest.mark.parametrize(
        "name",
        [
            "",
            "--now",
            "-.mount",
            "ssh",
            "a b.service",
            "a.service\n",
            "a.service b.service",
            "*.service",
            "../a.service",
            "é.service",
            "a.scope",
            "a\\b.service",
            "a" * 250 + ".service",
            ".service",
            "a.service\0",
        ],
    )
    def test_that_are_refused(self, name: str, systemctl: Systemctl, tmp_path: Path) -> None:
        systemctl("")
        assert not units.is_unit(name)
        assert units.states([name]) == {}
        code, said = units.set_active(name, active=True)
        assert code
        assert "not the name of a unit" in said
        assert not (tmp_path / "asked").exists()


class TestStates:
    NAMES = ("display-manager.service", "nvidia-persistenced.service", "nope.service", "masked.service")

    def test_are_systemds_own_words_by_the_name_that_was_asked(self, systemctl: Systemctl, tmp_path: Path) -> None:
        systemctl(f"printf '%s\\n' '{ALIASED}'")
        assert units.states(self.NAMES) == {
            "display-manager.service": "active",
            "nvidia-persistenced.service": "failed",
            "masked.service": "inactive",
        }
        assert asked(tmp_path) == [f"show --property=Names,LoadState,ActiveState -- {' '.join(self.NAMES)}"]

    @pytest.mark.parametrize(
        "script", ["echo 'System has not been booted' >&2; exit 1", "printf 'x\\n\\n=\\377\\n'", "exit 3", ""]
    )
    def test_are_none_where_systemd_does_not_run(self, systemctl: Systemctl, script: str) -> None:
        systemctl(script)
        assert units.states(self.NAMES) == {}

    @pytest.mark.usefixtures("systemctl")
    def test_are_none_where_there_is_no_systemctl(self) -> None:
        assert units.states(self.NAMES) == {}
        assert Live().unit_states(self.NAMES) == {}

    def test_are_none_when_systemd_does_not_answer(self, systemctl: Systemctl, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(units, "_TIMEOUT", 0.2)
        systemctl("exec /bin/sleep 5")
        assert units.states(self.NAMES) == {}

    def test_of_nothing_ask_nothing(self, systemctl: Systemctl, tmp_path: Path) -> None:
        systemctl("")
        assert units.states([]) == {}
        assert not (tmp_path / "asked").exists()

    def test_of_a_captured_directory_are_unknown(self, systemctl: Systemctl, tmp_path: Path) -> None:
        systemctl(f"printf '%s\\n' '{ALIASED}'")
        assert Captured(str(tmp_path)).unit_states(self.NAMES) == {}


@pytest.mark.alone  # workers have the script as systemctl only where they are forked by a process with one thread
class TestStartingAndStopping:
    NAME = "nvidia-persistenced.service"

    def test_forgets_failures_before_a_start(self, systemctl: Systemctl, tmp_path: Path) -> None:
        systemctl('if [ "$3" = reset-failed ]; then echo "not loaded" >&2; exit 1; fi')
        Live().set_unit(self.NAME, active=True)
        assert asked(tmp_path) == [f"reset-failed -- {self.NAME}", f"start -- {self.NAME}"]

    def test_stops(self, systemctl: Systemctl, tmp_path: Path) -> None:
        systemctl("")
        Live().set_unit(self.NAME, active=False)
        assert asked(tmp_path) == [f"stop -- {self.NAME}"]

    def test_refused_says_what_systemctl_said(self, systemctl: Systemctl) -> None:
        systemctl("echo 'Failed to stop: Access denied' >&2; exit 4")
        assert units.set_active(self.NAME, active=False) == (4, "Failed to stop: Access denied")
        with pytest.raises(HostError, match=r"stopping nvidia-persistenced\.service failed") as caught:
            Live().set_unit(self.NAME, active=False)
        assert caught.value.kernel_said == "Failed to stop: Access denied"

    def test_refused_without_a_word_says_the_code(self, systemctl: Systemctl) -> None:
        systemctl("exit 3")
        with pytest.raises(HostError) as caught:
            Live().set_unit(self.NAME, active=True)
        assert caught.value.kernel_said == "systemctl ended with 3"

    @pytest.mark.usefixtures("systemctl")
    def test_without_systemctl_says_so(self) -> None:
        with pytest.raises(HostError) as caught:
            Live().set_unit(self.NAME, active=True)
        assert caught.value.kernel_said == "systemctl: No such file or directory"

    def test_that_does_not_return_is_stuck(self, systemctl: Systemctl) -> None:
        systemctl("exec /bin/sleep 3")
        with pytest.raises(Stuck, match=r"stopping nvidia-persistenced\.service did not return in 0\.3 s") as caught:
            Live(timeouts=Timeouts(steps={"unit": 0.3})).set_unit(self.NAME, active=False)
        assert self.NAME in caught.value.hint
        assert caught.value.facts["pid"]

    @pytest.mark.alone
    def test_whose_process_is_killed_is_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(units, "systemctl", lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
        with pytest.raises(HostError, match="killed"):
            Live().set_unit(self.NAME, active=False)

    def test_of_what_cannot_be_changed_is_refused(self, systemctl: Systemctl, tmp_path: Path) -> None:
        systemctl("")
        for kernel in (Captured(str(tmp_path)), Live(read_only=True)):
            with pytest.raises(HostError, match="read-only"):
                kernel.set_unit(self.NAME, active=False)
            with pytest.raises(HostError, match="read-only"):
                kernel.persist("0000:0a:00.0", on=True)
        assert not (tmp_path / "asked").exists()
