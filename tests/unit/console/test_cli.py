"""The command line itself: the table of commands, which host, streams, exit codes, usage errors."""

from __future__ import annotations

import errno
import io
import os
import re
import shlex
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.hosts.machines import copy, original
from tests.unit.conftest import PROGRAM, Run, program_in
from vfioctl import sources
from vfioctl.app import main, places
from vfioctl.console.lazy import LazyGroup, built
from vfioctl.core.marks import Mark, MarkKind
from vfioctl.errors import KernelRefused, VfioctlError
from vfioctl.kernel.recorded.tree import form
from vfioctl.session import Session

ROOT = Path(__file__).resolve().parents[3]
COMMANDS = places()


def group() -> LazyGroup:
    return built(places())


def process(*words: str, **more: object) -> subprocess.CompletedProcess[str]:
    """A process of its own, where streams and modules matter."""
    return subprocess.run([*PROGRAM, *words], cwd=ROOT, text=True, check=False, **more)  # type: ignore[call-overload, no-any-return]


class TestTable:
    @pytest.mark.parametrize("name", COMMANDS)
    def test_says_what_the_command_says_of_itself(self, name: str) -> None:
        command = group().load(name)
        assert command.name == name
        assert (command.help or "").split("\n\n")[0] == COMMANDS[name].summary

    @pytest.mark.parametrize("name", COMMANDS)
    def test_every_command_takes_the_host_options(self, run: Run, name: str) -> None:
        answer = run(f"{name} --help")
        assert answer.code == 0
        for option in ("--root", "--host", "--simulate", "--ledger", "--verbose", "--log-level", "--quiet", "Examples"):
            assert option in answer.out
        shared = answer.out.partition("─ Host (")[2].partition("╰")[0]
        assert len(shared.splitlines()) - 1 == 7, "one line for each option that all commands have"
        assert "<bool>" not in answer.out

    def test_help_imports_no_command(self) -> None:
        program = "import sys; from vfioctl.app import main; main(['--help']); print(*sys.modules)"
        loaded = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
        modules = set(loaded.stdout.splitlines()[-1].split())
        assert not modules & {place.module for place in COMMANDS.values()}
        assert not modules & {"pydantic", "vfioctl.host", "vfioctl.session", "vfioctl.core.change"}

    @pytest.mark.parametrize("ledger", ["none", "in use"])
    @pytest.mark.parametrize(
        ("line", "unneeded"),
        [
            ("inventory --json --all", {"rich"}),
            ("inventory --format json gpu0 --log-level warning", {"rich"}),
            ("inventory --all", set()),
            ("inventory --tree", set()),
            ("inventory --driver nvidia --numa 0 --ready --format csv", set()),
            ("show gpu0", set()),
            ("show gpu0 --json", {"rich"}),
        ],
    )
    def test_a_listing_needs_no_pydantic(self, tmp_path: Path, line: str, unneeded: set[str], ledger: str) -> None:
        file = tmp_path / "ledger.db"
        if ledger == "in use":
            session = sources.recorded(Session, "hgx8", file)
            mark = Mark(address="0000:1b:00.0", kind=MarkKind.WEDGED, since="2026-01-01T00:00:00Z", why="it hangs")
            session.journal.mark([mark], boot_id=session.boot_id)
        words = [*line.split(), "--host", "hgx8", "--ledger", str(file)]
        program = f"import sys; from vfioctl.app import main; print(main({words!r}), *sys.modules)"
        done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
        code, *modules = done.stdout.splitlines()[-1].split()
        assert code == "0"
        assert not {"pydantic", "pydantic_core", *unneeded} & {*modules}
        assert ("sqlite3" in modules) == (ledger == "in use")

    @pytest.mark.parametrize(
        ("line", "begins"),
        [
            ("inventory --host laptop", "vfioctl.inventory.probe.scan:Scan"),
            ("inventory --host laptop --json --all", "vfioctl.inventory.probe.scan:Scan"),
            ("show gpu0 --host laptop", "vfioctl.inventory.probe.scan:Scan"),
            ("holders gpu0 --host busy", "vfioctl.inventory.probe.processes:Processes"),
            ("vgpu types --host l40s", "vfioctl.vgpu.probe.scan:VgpuScan"),
            ("vgpu list --host l40s --json", "vfioctl.vgpu.probe.scan:VgpuScan"),
        ],
    )
    def test_the_host_is_read_before_the_models_and_rich_are_imported(
        self, tmp_path: Path, line: str, begins: str
    ) -> None:
        ledger = tmp_path / "used.db"
        with sources.recorded(Session, "hgx8", ledger).store.transaction():
            pass
        module, _, name = begins.partition(":")
        program = (
            f"import sys, importlib\n"
            f"kind = importlib.import_module({module!r}).{name}\n"
            f"begin, seen = kind.__init__, []\n"
            f"def noting(*words, **more):\n"
            f"    seen.append(sorted({{'pydantic', 'rich'}} & set(sys.modules)))\n"
            f"    begin(*words, **more)\n"
            f"kind.__init__ = noting\n"
            f"from vfioctl.app import main\n"
            f"main({[*line.split(), '--ledger', str(ledger)]!r})\n"
            f"print(seen[0])\n"
        )
        done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "[]"

    def test_no_private_name_of_typer_is_used(self) -> None:
        private = re.compile(
            r"typer\._|typer\.\w+\._|from typer(\.\w+)* import .*\b_|"
            r"_click\b|_coercion\b|_runtime_param\b|PassThroughRuntimeParam|_protected_args|noqa: SLF001"
        )
        sources = [path for path in (ROOT / "vfioctl").rglob("*.py") if "typer" in path.read_text()]
        assert len(sources) > 10
        found = [
            f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
            for path in sources
            for number, line in enumerate(path.read_text().splitlines(), 1)
            if private.search(line)
        ]
        assert not found


WITHOUT_END = {"tui", "watch"}
"""Commands that a person ends; see tests/unit/tui/test_terminal.py for `tui`."""


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in WITHOUT_END])
def test_examples_in_the_help_work(name: str, tmp_path: Path) -> None:
    lines = (group().load(name).epilog or "").splitlines()[1:]
    (tmp_path / "bin").mkdir()
    program_in(tmp_path / "bin")
    script = "\n".join(("set -eu -o pipefail", *lines))
    environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, f"{script}\n{done.stderr}"
    assert lines


@pytest.mark.parametrize("line", [line.strip() for line in (group().load("watch").epilog or "").splitlines()[1:]])
def test_examples_of_watch_go_on_until_they_are_stopped(line: str, tmp_path: Path) -> None:
    program_in(tmp_path)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "XDG_STATE_HOME": str(tmp_path / "state")}
    script = f"set -o pipefail; timeout --preserve-status --signal TERM 3 {line}"
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (143, "")


class TestWhichHost:
    def test_before_and_after_the_command(self, run: Run) -> None:
        after, before = run("inventory --host laptop"), run("--host laptop inventory")
        assert after == before
        assert "RTX 3050 Ti" in after.out

    def test_the_later_word_counts(self, run: Run) -> None:
        assert run("--host hgx8 inventory --host laptop") == run("inventory --host laptop")

    def test_from_the_environment(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("VFIOCTL_HOST", "laptop")
        assert run("inventory") == run("inventory --host laptop")

    def test_the_command_line_before_the_environment(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("VFIOCTL_SIMULATE", "hgx8")
        assert run("inventory --host laptop").code == 0

    @pytest.mark.parametrize("line", ["--root / inventory --host laptop", "inventory --simulate laptop --host laptop"])
    def test_one_at_a_time(self, run: Run, line: str) -> None:
        answer = run(line)
        assert answer.code == 2
        assert "exclude each other" in answer.err

    def test_one_at_a_time_in_the_environment(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("VFIOCTL_SIMULATE", "hgx8")
        monkeypatch.setenv("VFIOCTL_HOST", "hgx8")
        assert "VFIOCTL_HOST and VFIOCTL_SIMULATE exclude each other" in run("inventory").err

    def test_an_empty_name_is_none(self, run: Run) -> None:
        assert run("inventory --host", "").code == 2

    def test_a_captured_directory(self, run: Run, tmp_path: Path) -> None:
        assert run(f"inventory --root {tmp_path}").code == 2
        (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
        answer = run(f"inventory --root {tmp_path}")
        assert answer.code == 0
        assert answer.out.startswith("no GPU among 0 functions\n")

    def test_a_ledger_of_ones_own(self, run: Run, tmp_path: Path) -> None:
        ledger = tmp_path / "mine.db"
        assert run(f"bind gpu0 --simulate laptop --ledger {ledger}").code == 0
        assert len(run(f"history --simulate laptop --json --ledger {ledger}").document["entries"]) == 1
        assert run("history --simulate laptop --json").document == {"entries": []}

    def test_a_command_to_run_next_is_for_the_same_host(self, run: Run) -> None:
        assert run("show gpu9 --host laptop").err.splitlines()[-1] == "  next:     vfioctl inventory --host laptop"


class TestUsage:
    @pytest.mark.parametrize(
        ("line", "said"),
        [
            ("bnd", "Did you mean 'bind'"),
            ("bind", "Missing argument"),
            ("inventory --nope", "No such option"),
            ("inventory more", "not a PCI address"),
            ("hosts more", "No such command"),
            ("history -n nine", "'-n': it is not a whole number"),
            ("history -n 0", "'-n': it must be at least 1"),
            ("vgpu create x --count 70000", "'--count': it must be at most 65535"),
            ("bind gpu0 --stop-service ../x --simulate hgx8", "not a unit's name: '../x'"),
            ("bind gpu0 --driver a/b --simulate hgx8", "ls /sys/bus/pci/drivers"),
            ("inventory --format xml", "'--format': 'xml' is not one of"),
            ("inventory --host /usr", "--root reads a captured directory"),
            ("inventory --host hgx8 --ledger /usr", "--ledger /usr is a directory"),
            ("inventory --tree --json", "exclude each other"),
        ],
    )
    def test_is_told_with_code_2(self, run: Run, line: str, said: str) -> None:
        answer = run(line)
        assert answer.code == 2
        assert said in answer.out + answer.err
        as_json = run(f"{line} --json" if "--json" not in line else line)
        assert as_json.document["error"]["exit_code"] == 2

    def test_names_the_help_to_read(self, run: Run) -> None:
        assert run("bind --json").document["error"]["next_command"] == "vfioctl bind --help"

    def test_nothing_asked_shows_the_help(self, run: Run) -> None:
        answer = run("")
        assert answer.code == 2
        assert "Usage: vfioctl" in answer.out

    @pytest.mark.parametrize("group", ["vgpu", "sriov"])
    def test_a_group_alone_shows_its_help(self, run: Run, group: str) -> None:
        answer = run(group)
        assert (answer.code, answer.err) == (2, "")
        assert f"Usage: vfioctl {group}" in answer.out
        assert run(f"{group} --simulate a2 --json").document["error"]["exit_code"] == 2

    def test_choices_are_named(self, run: Run) -> None:
        answer = run("vgpu create A2-4C --placement anywhere --simulate a2")
        assert (answer.code, answer.out) == (2, "")
        assert "'binpack', 'spread', 'numa'" in answer.err
        assert "<binpack|spread|numa>" in run("vgpu create --help").out

    def test_version(self, run: Run) -> None:
        answer = run("--version")
        assert (answer.code, answer.err) == (0, "")
        assert re.fullmatch(r"vfioctl \d+\.\d+\.\d+\S*\n", answer.out)

    def test_version_among_other_words(self, run: Run) -> None:
        assert run("--version inventory") == run("--host laptop --version") == run("--version")

    def test_version_alone_needs_no_parser(self) -> None:
        program = "import sys; from vfioctl.app import main; main(['--version']); print('typer' in sys.modules)"
        done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "False"

    def test_words_after_a_double_dash_are_devices(self, run: Run) -> None:
        answer = run("bind --host laptop -- --json")
        assert answer.out == ""
        assert "not a PCI address: '--json'" in answer.err


class TestStreams:
    def test_a_reader_that_has_seen_enough(self) -> None:
        read, write = os.pipe()
        os.close(read)
        with os.fdopen(write, "w") as gone:
            done = process("inventory", "--host", "hgx8", stdout=gone, stderr=subprocess.PIPE)
        assert (done.returncode, done.stderr) == (141, "")

    @pytest.mark.parametrize("words", ["inventory --host laptop", "hosts --json", "--version", "--help"])
    def test_a_full_disk(self, words: str) -> None:
        with Path("/dev/full").open("w") as full:
            done = process(*words.split(), stdout=full, stderr=subprocess.PIPE)
        assert done.returncode == 3
        assert done.stderr.splitlines() == [
            "vfioctl: the results could not be written to stdout",
            "  kernel:   No space left on device",
        ]

    def test_a_closed_stdout_is_told_before_anything_is_done(self, tmp_path: Path) -> None:
        line = f"{shlex.join([*PROGRAM, 'bind', 'gpu0', '--simulate', 'laptop'])} >&-"
        done = subprocess.run(["sh", "-c", line], cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False)
        assert done.returncode == 3
        assert "stdout is closed" in done.stderr
        assert not (tmp_path / "state").exists()

    @pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full"])
    def test_a_lost_stderr_stops_nothing_and_spoils_nothing(self, redirection: str) -> None:
        line = f"{shlex.join([*PROGRAM, 'bind', 'gpu0', '--simulate', 'laptop', '--json'])} {redirection}"
        done = subprocess.run(["sh", "-c", line], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
        assert done.returncode == 0
        assert done.stdout.startswith("{")
        assert done.stdout.endswith("}\n")

    @pytest.mark.parametrize("force", [{}, {"FORCE_COLOR": "1"}])
    def test_no_line_is_cut_in_a_pipe(self, force: dict[str, str]) -> None:
        environment = {**os.environ, "COLUMNS": "40", **force}
        done = process("inventory", "--host", "laptop", capture_output=True, env=environment)
        assert ("\x1b" in done.stdout) is bool(force)
        assert "GA107M [GeForce RTX 3050 Ti Mobile]" in done.stdout

    def test_an_encoding_that_lacks_characters(self) -> None:
        environment = {**os.environ, "PYTHONIOENCODING": "ascii", "COLUMNS": "60"}
        done = process("inventory", "--host", "workstation", "--tree", capture_output=True, env=environment)
        assert (done.returncode, done.stderr) == (0, "")
        assert "-- group 12" in done.stdout

    def test_results_alone_are_on_stdout(self, run: Run) -> None:
        answer = run("bind gpu0 --simulate laptop --json")
        assert answer.document["result"] == "done"
        first, *_ = (line for line in answer.err.splitlines() if not line.startswith("note: "))
        assert first.startswith("[1/")


class TestQuiet:
    def test_leaves_results_and_errors(self, run: Run) -> None:
        answer = run("bind gpu1 -q --simulate workstation")
        assert (answer.code, answer.err) == (0, "")
        assert answer.out.startswith("Done: bind")
        refused = run("bind gpu9 --quiet --simulate workstation")
        assert (refused.code, refused.out) == (2, "")
        assert "hint:" in refused.err

    def test_leaves_out_notes(self, run: Run) -> None:
        noted, quiet = (run(f"{word} inventory --host laptop").out for word in ("", "-q"))
        assert (
            noted
            == f"{quiet}\n- 0000:00:02.0 shows the boot messages and the console: to bind it takes --allow-boot-vga.\n"
        )
        assert run("-q bind gpu0 --dry-run --simulate laptop").err == ""
        assert run("-q inventory --ready --host laptop") == (0, "", "")

    def test_is_over_with_the_command(self, run: Run) -> None:
        run("-q hosts")
        assert run("bind gpu0 --dry-run --simulate laptop").err == "Nothing was changed: this is a dry run.\n"

    def test_does_not_stop_the_log(self, run: Run) -> None:
        assert "info: " in run("-q -v bind gpu1 --yes --simulate workstation").err


class TestFailures:
    def test_are_told_in_order(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("VFIOCTL_FAULTS", "6:EINVAL")
        answer = run("bind gpu1 --simulate workstation")
        assert (answer.code, answer.out) == (5, "")
        told = [line.split(":")[0].strip() for line in answer.err.splitlines() if not line.startswith("[")]
        assert told == ["note", "failed at step 8, rolling back", "vfioctl", "kernel", "restored", "hint"]

    @pytest.mark.parametrize(("line", "every"), [("show", False), ("reset", False), ("bind", True), ("holders", True)])
    def test_name_no_option_that_the_command_lacks(self, run: Run, line: str, every: bool) -> None:
        answer = run(f"{line} 10de:2330 --simulate hgx8")
        assert answer.code == 2
        assert ("--every" in answer.err) is every

    def test_are_one_object_as_json(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("VFIOCTL_FAULTS", "3:EBUSY")
        error = run("bind gpu1 --simulate workstation --json").document["error"]
        assert list(error) == [
            "kind",
            "exit_code",
            "message",
            "kernel_said",
            "restored",
            "hint",
            "next_command",
            "facts",
        ]
        assert (error["kind"], error["exit_code"]) == ("KernelRefused", 5)
        assert error["kernel_said"] == "EBUSY: Device or resource busy"

    def test_control_characters_do_not_reach_the_terminal(self, run: Run) -> None:
        assert "\x1b" not in run("inventory --host", "\x1b[2J.host").err

    def test_ctrl_c(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("vfioctl.inventory.api.InventoryApi.inventory", _interrupt)
        answer = run("inventory --host laptop")
        assert (answer.code, answer.out, answer.err) == (130, "", "vfioctl: interrupted\n")
        assert run("inventory --host laptop --json").document["error"]["exit_code"] == 130

    def test_ctrl_c_in_a_change_says_that_it_was_taken_back(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("vfioctl.kernel.simulated.host.Simulated.load", _interrupt)
        answer = run("bind gpu1 --simulate workstation")
        assert answer.code == 130
        assert "vfioctl: interrupted: 0000:0b:00.0, " in answer.err
        assert answer.err.endswith(" put back as before\n")

    def test_bugs_keep_their_traceback(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("vfioctl.inventory.api.InventoryApi.inventory", _stumble)
        with pytest.raises(OSError, match="a bug"):
            run("inventory --host laptop")

    @pytest.mark.parametrize("error", [VfioctlError("m"), KernelRefused("/sys/x", errno.EIO)])
    def test_have_the_exit_code_of_their_class(
        self, run: Run, monkeypatch: pytest.MonkeyPatch, error: VfioctlError
    ) -> None:
        def fail(_host: object) -> None:
            raise error

        monkeypatch.setattr("vfioctl.inventory.api.InventoryApi.inventory", fail)
        assert run("inventory --host laptop").code == error.exit_code


class TestCompletion:
    def complete(self, words: str, **more: str) -> str:
        environment = {**os.environ, "_VFIOCTL_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": words, **more}
        return process(capture_output=True, env=environment).stdout

    def test_of_commands(self) -> None:
        assert '"recover"' in self.complete("vfioctl rec")

    def test_of_devices_on_the_host_in_question(self) -> None:
        told = self.complete("vfioctl bind --host laptop ")
        assert '"gpu0"' in told
        assert '"gpu1"' in told
        assert '"gpu2"' not in told

    def test_of_hosts(self) -> None:
        assert '"workstation"' in self.complete("vfioctl inventory --simulate work")

    def test_of_filters_and_columns(self) -> None:
        assert '"vfio-pci"' in self.complete("vfioctl inventory --host laptop --driver v")
        assert '"1"' in self.complete("vfioctl inventory --host hgx8 --numa ")
        assert '"gpu,driver"' in self.complete("vfioctl inventory --host laptop --columns gpu,d")
        assert '"csv"' in self.complete("vfioctl inventory --format c")

    def test_of_choices(self) -> None:
        assert '"spread"' in self.complete("vfioctl vgpu create --placement s")
        assert '"debug"' in self.complete("vfioctl inventory --log-level d")

    def test_of_vgpus_and_types(self) -> None:
        assert '"A2-4C"' in self.complete("vfioctl vgpu create --simulate a2 A2-4")
        assert "6d3f2c1a-0b4e" in self.complete("vfioctl vgpu remove --simulate a2 6d")

    def test_of_addresses_once_begun(self) -> None:
        assert "RTX 3050" in self.complete("vfioctl bind --host laptop 0")

    def test_is_silent_when_the_host_is_not_there(self) -> None:
        assert self.complete("vfioctl bind --host nowhere ") == "_files\n"


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _stumble(*_: object) -> None:
    raise OSError(errno.ENOENT, "a bug", "/there")


def test_streams_of_odd_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    """An embedder's stdout need not have a file number."""

    class Full(io.StringIO):
        def write(self, _text: str) -> int:
            raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(sys, "stdout", Full())
    assert main(["--version"]) == 3


def test_a_ledger_in_a_directory_that_is_not_there_is_refused(run: Run, tmp_path: Path) -> None:
    for line in ("inventory", "bind gpu0"):
        answer = run(f"{line} --simulate laptop --ledger {tmp_path}/none/ledger.db")
        assert answer.code == 2
        assert f"there is no directory {tmp_path}/none" in answer.err
    assert not (tmp_path / "none").exists()


def test_a_plan_without_a_name_is_refused(run: Run) -> None:
    answer = run("apply --simulate laptop", "")
    assert (answer.code, answer.out) == (2, "")
    assert "the name of the plan file is empty" in answer.err


LISTINGS = ("inventory", "inventory --tree", "show gpu0", "holders gpu0", "vgpu list", "vgpu types")


class TestWithoutItsLedger:
    """A listing is never lost with the ledger; a change of a host whose ledger is unusable is refused."""

    @pytest.fixture
    def ledger(self, run: Run, tmp_path: Path) -> Path:
        file = tmp_path / "ledger.db"
        assert run(f"bind gpu1 --simulate hgx8 --ledger {file}").code == 0
        return file

    def spoil(self, ledger: Path, how: str) -> str:
        """What is then said of it."""
        if how == "newer":
            with closing(sqlite3.connect(ledger)) as db:
                db.execute("PRAGMA user_version = 99")
            return "a newer vfioctl wrote the ledger"
        ledger.write_bytes(b"x" * 5000)
        return "is damaged"

    @pytest.mark.parametrize("how", ["newer", "damaged"])
    @pytest.mark.parametrize("line", LISTINGS)
    def test_a_listing_says_so_and_goes_on(self, run: Run, ledger: Path, line: str, how: str) -> None:
        whole, said = run(f"{line} --simulate hgx8 --ledger {ledger}"), self.spoil(ledger, how)
        answer = run(f"{line} --simulate hgx8 --ledger {ledger}")
        assert answer.code == whole.code == 0
        assert said in " ".join((answer.out + answer.err).split())
        assert answer.out.startswith(whole.out.rstrip("\n"))

    def test_a_boot_id_that_cannot_be_read_costs_no_listing(self, run: Run, ledger: Path, tmp_path: Path) -> None:
        tree = copy(original("hgx8"))
        tree.remove("/proc/sys/kernel/random/boot_id")
        (tmp_path / "odd.host").write_text(form(tree))
        for line in LISTINGS:
            answer = run(f"{line} --host {tmp_path / 'odd.host'} --ledger {ledger}")
            assert answer.code == 0, line
            assert "boot_id" in answer.out + answer.err, line

    def test_no_dry_run_needs_a_boot_id(self, run: Run, tmp_path: Path) -> None:
        tree = copy(original("hgx8"))
        tree.remove("/proc/sys/kernel/random/boot_id")
        (tmp_path / "odd.host").write_text(form(tree))
        for line in ("bind gpu1", "unbind gpu1", "vgpu restore"):
            assert run(f"{line} --dry-run --host {tmp_path / 'odd.host'}").code == 0, line

    def test_a_newer_one_is_not_to_be_set_aside(self, run: Run, ledger: Path) -> None:
        self.spoil(ledger, "newer")
        for line in ("unbind gpu1", "bind gpu2", "history", "recover"):
            answer = run(f"{line} --simulate hgx8 --ledger {ledger}")
            assert answer.code == 3, line
            assert "upgrade vfioctl" in answer.err
            assert "set it aside" not in answer.err
        assert run(f"history --json --simulate hgx8 --ledger {ledger}").document["error"]["kind"] == "StoreNewer"
