"""bind, unbind, apply, snapshot and hosts from the outside: asking, plan files, files written."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.unit.conftest import PROGRAM, Answer, Run, answered
from vfioctl.commands.apply import LARGEST
from vfioctl.console import changes
from vfioctl.host import Host
from vfioctl.kernel.lock import held
from vfioctl.kernel.simulated.host import Simulated

ROOT = Path(__file__).resolve().parents[3]
BIND = ("bind", "gpu0", "--simulate", "laptop")
COMPANION = "0000:0b:00.1"


def release(address: str) -> None:
    """What held a function of the simulated workstation has ended, so that the write to it returns."""
    kernel = Host.simulated("workstation").session.kernel
    assert isinstance(kernel, Simulated)
    kernel.release(address)


def at_a_terminal(answer: str, *words: str) -> tuple[int, str, str]:
    return answered([*PROGRAM, *words], answer)


class TestRecover:
    """A bind that died at its fifth write: all is bound but for power/control."""

    @pytest.fixture(autouse=True)
    def cut_short(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("VFIOCTL_FAULTS", "5:die")
        subprocess.run([*PROGRAM, *BIND, "--yes"], cwd=ROOT, capture_output=True, check=False)
        monkeypatch.delenv("VFIOCTL_FAULTS")
        assert json.loads(run("history --json --simulate laptop").out)["entries"][0]["state"] == "open"

    def test_a_dry_run_says_what_it_would_do_and_does_not(self, run: Run) -> None:
        answer = run("recover --dry-run --simulate laptop")
        assert answer.code == 0
        assert answer.out.startswith("Cut short: bind 0000:01:00.0")
        assert "goes back to the state before it" in answer.out
        assert "Steps" in answer.out
        assert "Nothing was changed" in answer.err
        (planned,) = json.loads(run("recover --dry-run --json --simulate laptop").out)["repairs"]
        assert (planned["result"], planned["entry"]["state"], planned["refused"]) == ("put back", "open", "")
        assert planned["steps"]
        (other,) = json.loads(run("recover --forward --dry-run --json --simulate laptop").out)["repairs"]
        assert other["result"] == "done"
        assert len(other["steps"]) < len(planned["steps"])
        assert json.loads(run("history --json --simulate laptop").out)["entries"][0]["state"] == "open"

    def test_goes_back_though_most_was_done(self, run: Run) -> None:
        assert run("recover --yes --simulate laptop").out.startswith("Put back: bind 0000:01:00.0")

    def test_asks_on_a_terminal(self, run: Run) -> None:
        code, out, shown = at_a_terminal("n\n", "recover", "--simulate", "laptop")
        assert (code, out) == (1, "")
        assert "Cut short: bind 0000:01:00.0" in shown
        assert json.loads(run("history --json --simulate laptop").out)["entries"][0]["state"] == "open"
        code, out, _ = at_a_terminal("y\n", "recover", "--simulate", "laptop")
        assert (code, out.startswith("Put back")) == (0, True)

    def test_of_what_was_complete_closes_it(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        run("recover --yes --simulate laptop")
        plan = json.loads(run("bind gpu0 --dry-run --json --simulate laptop").out)
        last = sum(step["action"] in ("write", "override", "persistence") for step in plan["steps"])
        monkeypatch.setenv("VFIOCTL_FAULTS", f"{last}:die")
        subprocess.run([*PROGRAM, *BIND, "--yes"], cwd=ROOT, capture_output=True, check=False)
        monkeypatch.delenv("VFIOCTL_FAULTS")
        assert "it is already complete" in run("recover --dry-run --simulate laptop").out
        assert run("recover --simulate laptop").out.startswith("Already complete, closed: bind 0000:01:00.0")
        assert json.loads(run("history --json --simulate laptop").out)["entries"][0]["state"] == "done"


class TestAsking:
    def test_yes(self) -> None:
        code, out, shown = at_a_terminal("y\n", *BIND)
        assert code == 0
        assert "Continue? [y/N]" in shown
        assert "Steps" in shown
        assert out.startswith("Done: bind 0000:01:00.0")

    @pytest.mark.parametrize("answer", ["n\n", "\n", "\x04"])
    def test_no(self, run: Run, answer: str) -> None:
        code, out, shown = at_a_terminal(answer, *BIND)
        assert (code, out) == (1, "")
        assert "not confirmed: nothing was changed" in shown
        assert run("history --simulate laptop").out == "No changes yet.\n"

    def test_ctrl_c(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        class Interrupted(io.StringIO):
            def isatty(self) -> bool:
                return True

            def readline(self, size: int | None = -1, /) -> str:  # type: ignore[override]
                del size
                raise KeyboardInterrupt

        monkeypatch.setattr(sys, "stdin", Interrupted())
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        answer = run(" ".join(BIND))
        assert (answer.code, answer.out) == (130, "")
        assert run("history --simulate laptop").out == "No changes yet.\n"

    def test_not_with_yes(self) -> None:
        code, _, shown = at_a_terminal("", *BIND, "--yes")
        assert code == 0
        assert "Continue?" not in shown

    def test_not_when_there_is_nothing_to_do(self, run: Run) -> None:
        assert run("bind gpu0 --simulate laptop").code == 0
        code, out, shown = at_a_terminal("", *BIND)
        assert (code, shown) == (0, "")
        assert out.startswith("Nothing to do")

    def test_not_without_a_terminal(self, run: Run) -> None:
        assert run(" ".join(BIND)).code == 0


class TestPlanFiles:
    @pytest.fixture
    def plan(self, run: Run, tmp_path: Path) -> Path:
        file = tmp_path / "plan.json"
        file.write_text(run("bind gpu0 --dry-run --json --simulate laptop").out)
        return file

    def test_run_later(self, run: Run, plan: Path) -> None:
        outcome = run(f"apply {plan} --simulate laptop --json").document
        assert outcome["result"] == "done"
        assert outcome["plan"] == json.loads(plan.read_text())

    def test_from_stdin(self, run: Run, plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(plan.read_bytes())))
        assert run("apply - --simulate laptop").code == 0

    def test_from_a_closed_stdin(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "stdin", None)
        assert run("apply - --simulate laptop").code == 2

    def test_once_only(self, run: Run, plan: Path) -> None:
        assert run(f"apply {plan} --simulate laptop").code == 0
        assert run(f"apply {plan} --simulate laptop --json").document["error"]["kind"] == "StalePlan"

    @pytest.mark.parametrize(
        ("damage", "said"),
        [
            (lambda text: text[:200], "EOF"),
            (lambda _: "", "it is empty"),
            (lambda _: "\n", "it is empty"),
            (lambda _: '{"error": {"message": "the reason"}}', "a failure: the reason"),
            (lambda _: '{"error": "odd"}', "id is missing"),
            (lambda _: "[]", "it is no object"),
            (lambda _: "{}", "id is missing"),
            (lambda text: text.replace("vfio-pci", "vfio-pcj"), "edited or cut short"),
            (lambda text: text.replace('"version": 2', '"version": 3'), "version 3"),
            (lambda text: text.replace('"version": 2', '"version": 2, "more": 1'), "more is not known"),
            (lambda text: text.replace("0000:01:00.0", "../../etc/pw"), "not a PCI address"),
            (lambda text: text + " " * LARGEST, "larger than"),
            (lambda _: "[" * 100_000, "recursion"),
            (lambda _: "\x00\x1b[2J", "no JSON"),
        ],
        ids=[
            "cut",
            "empty",
            "blank",
            "failure",
            "error",
            "list",
            "object",
            "edited",
            "version",
            "more",
            "path",
            "large",
            "deep",
            "binary",
        ],
    )
    def test_damaged(self, run: Run, plan: Path, damage: object, said: str) -> None:
        assert callable(damage)
        plan.write_text(damage(plan.read_text()))
        error = run(f"apply {plan} --simulate laptop --json").document["error"]
        assert (error["kind"], error["exit_code"]) == ("BadDocument", 2)
        assert said in error["message"]
        assert len(error["message"]) < 300
        assert run("history --simulate laptop --json").document == {"entries": []}

    @pytest.mark.parametrize("name", ["/", "/nonexistent/plan.json", "/dev/zero"])
    def test_not_files(self, run: Run, name: str) -> None:
        assert run(f"apply {name} --simulate laptop").code == 2


class TestDryRuns:
    def test_change_nothing(self, run: Run) -> None:
        before = run("inventory --json --all --simulate laptop").out
        answer = run("bind gpu0 --dry-run --simulate laptop")
        assert answer.err == "Nothing was changed: this is a dry run.\n"
        assert run("inventory --json --all --simulate laptop").out == before

    def test_say_when_there_is_nothing_to_do(self, run: Run) -> None:
        run("bind gpu0 --simulate laptop")
        answer = run("bind gpu0 --dry-run --simulate laptop")
        assert answer.out.startswith("Nothing to do")
        assert run("bind gpu0 --dry-run --json --simulate laptop").document["steps"] == []

    def test_of_several_alike(self, run: Run) -> None:
        assert run("bind 10de:2330 --dry-run --host hgx8").code == 2
        plan = run("bind 10de:2330 --every --dry-run --json --host hgx8").document
        assert len(plan["intent"]["devices"]) == 8

    def test_of_another_driver(self, run: Run) -> None:
        plan = run("unbind gpu1 --to nouveau --dry-run --json --simulate workstation").document
        assert plan["intent"]["driver"] == "nouveau"


class TestSnapshots:
    def test_read_back_alike(self, run: Run, tmp_path: Path) -> None:
        file = tmp_path / "mine.host"
        answer = run(f"snapshot --host laptop -o {file}")
        assert (answer.code, answer.out) == (0, "")
        assert run(f"inventory --json --all --host {file}").out == run("inventory --json --all --host laptop").out

    def test_to_stdout(self, run: Run) -> None:
        assert run("snapshot --host laptop").out.startswith("#vfioctl-host 1\n")

    def test_replace_nothing_unasked(self, run: Run, tmp_path: Path) -> None:
        file = tmp_path / "mine.host"
        file.write_text("precious")
        assert run(f"snapshot --host laptop -o {file}").code == 2
        assert file.read_text() == "precious"
        assert run(f"snapshot --host laptop --force -o {file}").code == 0
        assert file.read_text().startswith("#vfioctl-host 1\n")

    @pytest.mark.parametrize("name", ["/dev/null", "/"])
    def test_replace_no_device_or_directory(self, run: Run, name: str) -> None:
        assert run(f"snapshot --host laptop --force -o {name}").code == 2
        assert Path(name).exists()

    def test_leave_no_half_file(self, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(_number: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", fail)
        answer = run(f"snapshot --host laptop -o {tmp_path / 'mine.host'}")
        assert answer.code == 3
        assert "No space left on device" in answer.err
        assert not [file for file in tmp_path.iterdir() if file.name != "state"]

    def test_into_no_directory(self, run: Run, tmp_path: Path) -> None:
        assert run(f"snapshot --host laptop -o {tmp_path}/no/mine.host").code == 2

    def test_to_stdout_by_name(self, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        assert run("snapshot --host laptop -o -").out == run("snapshot --host laptop").out
        assert not (tmp_path / "-").exists()
        assert run("snapshot --host laptop -o", "").code == 2

    def test_name_what_was_not_read(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("vfioctl.host.Host.snapshot", lambda _host: ("text", ("/sys/a", "/sys/b")))
        answer = run("snapshot --host laptop")
        assert answer.out == "text\n"
        assert answer.err.splitlines()[:2] == ["not read: /sys/a", "not read: /sys/b"]

    def test_name_nothing_that_drives_the_terminal(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("vfioctl.host.Host.snapshot", lambda _host: ("text", ("/sys/\x1b[2J\r\n",)))
        assert run("snapshot --host laptop").err.splitlines()[0] == r"not read: /sys/\x1b[2J\r\n"


class TestHistoryAndHosts:
    def test_the_last_few(self, run: Run) -> None:
        for line in ("bind gpu0", "unbind gpu0", "bind gpu0"):
            run(f"{line} --simulate laptop")
        entries = run("history -n 2 --json --simulate laptop").document["entries"]
        assert [entry["id"] for entry in entries] == [3, 2]

    @pytest.mark.parametrize(("at", "text"), [(3, "'0' to /sys/bus/pci/devices/"), (6, "'vfio-pci' to /sys/bus/pci/")])
    def test_a_failure_is_told_whole(self, run: Run, monkeypatch: pytest.MonkeyPatch, at: int, text: str) -> None:
        monkeypatch.setenv("VFIOCTL_FAULTS", f"{at}:EINVAL")
        run("bind gpu1 --simulate workstation")
        assert f"writing {text}" in run("history --simulate workstation").out

    def test_the_progress_says_where_the_way_back_begins(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("VFIOCTL_FAULTS", "4:EBUSY")
        lines = run("bind gpu1 --simulate hgx8").err.splitlines()
        at = lines.index("failed at step 6, rolling back")
        assert lines[at - 1] == "[6/8] /sys/bus/pci/drivers/nvidia/unbind <- 0000:43:00.0"
        assert lines[at + 1] == "[1/4] /sys/bus/pci/devices/0000:43:00.0/driver_override <- (an empty line)"

    def test_a_wait_for_another_change_is_reported(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        run("bind gpu1 --simulate hgx8")
        (lock,) = Path(os.environ["XDG_STATE_HOME"]).rglob("*.db.lock")
        with ExitStack() as other:
            other.enter_context(held(lock, wait=0))
            # it ends when the command waits for it
            monkeypatch.setattr(changes, "working", lambda *_, **__: other.close())
            answer = run("unbind gpu1 --simulate hgx8")
        assert answer.code == 0
        first = "waiting for another vfioctl that is changing this host, for at most 10 s"
        assert answer.err.splitlines()[0] == first

    def test_a_write_that_hangs_is_not_rolled_back(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("VFIOCTL_FAULTS", "4:hang")
        assert "rolling back" not in run("bind gpu1 --simulate hgx8").err

    def test_reset(self, run: Run) -> None:
        run("bind gpu0 --simulate laptop")
        assert run("hosts --reset laptop").out == "laptop was restored to its initial state.\n"
        assert run("history --simulate laptop --json").document == {"entries": []}
        assert run("inventory --simulate laptop").out == run("inventory --host laptop").out

    def test_reset_of_nothing(self, run: Run) -> None:
        assert run("hosts --reset nowhere").code == 2
        assert run("hosts --reset laptop --json").document["name"] == "laptop"


class TestRecovery:
    def test_back_and_forward(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        for words, result in (("recover", "put back"), ("recover --forward", "done")):
            self.hangs(run, monkeypatch)
            assert run(f"{words} --simulate workstation").code == 7, "the write is under way"
            release(COMPANION)
            (outcome,) = run(f"{words} --simulate workstation --json").document["outcomes"]
            assert outcome["result"] == result

    def test_is_told(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        answer = self.hangs(run, monkeypatch)
        assert answer.err.splitlines()[-1] == "  next:     vfioctl recover --simulate workstation"
        waiting = run("recover --simulate workstation")
        assert waiting.err.startswith(f"vfioctl: {COMPANION} is still wedged: writing '0' to /sys/bus/pci/devices/")
        assert waiting.err.splitlines()[-1] == f"  next:     vfioctl holders {COMPANION} --simulate workstation"
        release(COMPANION)
        assert run("recover --simulate workstation").out.startswith("Put back: bind 0000:0b:00.0")

    def hangs(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> Answer:
        """A bind whose second write never returns: it is of the card's sound function."""
        monkeypatch.setenv("VFIOCTL_FAULTS", "2:hang")
        answer = run("bind gpu1 --simulate workstation")
        monkeypatch.delenv("VFIOCTL_FAULTS")
        assert answer.code == 7
        return answer


def test_a_gpu_is_bound_although_nvml_is_unusable(run: Run, tmp_path: Path) -> None:
    """The dry run shows which step may fail and why; the result shows that it failed."""
    host, reason = tmp_path / "busy.host", "driver and library versions differ: reload the driver or reboot"
    text = (ROOT / "tests" / "hosts" / "busy.host").read_text()
    host.write_text(text.replace("\n#end", f"\nsim:nvml error = {reason}\n#end"))
    at = f"gpu3 --simulate {host}"
    shown = run(f"bind {at} --dry-run")
    assert "(may fail: NVML does not report the mode" in shown.out
    assert f"mode of 0000:04:00.0 is unknown ({reason})" in " ".join(shown.out.split())
    done = run(f"bind {at} --yes")
    assert done.code == 0
    assert f"- the persistence mode of 0000:04:00.0 cannot be set: {reason}" in " ".join(done.out.split())
    assert run(f"unbind {at} --yes").code == 0
    assert f"unknown: NVML: no facts from the NVIDIA driver: {reason}" in " ".join(
        run(f"inventory --simulate {host}").out.split()
    )


@pytest.mark.parametrize(
    ("driver", "reason"),
    [("nosuch", "no driver or module of that name matches"), ("amdgpu", "its aliases do not match the device")],
)
def test_a_driver_that_cannot_take_the_device_is_refused_with_the_reason(run: Run, driver: str, reason: str) -> None:
    answer = run(f"unbind 0b:00.0 --to {driver} --dry-run --host workstation")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.splitlines()[0].endswith(f": {reason}")
