"""Every command on a host full of hostile text: the table of commands is walked, so a new one is covered or fails here.

As text, as JSON, as CSV and as a tree, as a dry run and in earnest, with its errors; in a pipe and on a terminal.
"""

from __future__ import annotations

import io
import json
import os
import pty
import random
import re
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.machines import copy, original
from tests.unit.conftest import FAILURES, ROOT, Answer, Run, running, until_closed
from tests.unit.console.test_hostile_text import HOSTILE, Spoiler, raw
from vfioctl.app import places
from vfioctl.console.lazy import built
from vfioctl.kernel.recorded.tree import Tree, form

ARGUMENTS = {
    "inventory": ("", "--all", "--ready", "--all --columns address,driver,name"),
    "show": ("gpu0", "gpu1", "\x1b[2J"),
    "rom": ("gpu0", "gpu1 -o {folder}/rom"),
    "bind": ("gpu0 --with-group --allow-boot-vga", "gpu1", "gpu0 --driver \x9b31m"),
    "unbind": ("gpu0 --with-group", "gpu1 --to \u202ex"),
    "reset": ("gpu0", "gpu1 --method \x1b[2J"),
    "vgpu types": ("", "gpu0", "--after \x1b[2J=1"),
    "vgpu list": ("", "gpu0"),
    "vgpu show": ("{vgpu}", "\u202ex"),
    "vgpu create": ("{type}", "{type} --on gpu0 --persistent", "\x9b31m"),
    "vgpu remove": ("{vgpu} --foreign", "\u202ex"),
    "vgpu restore": ("",),
    "sriov set": ("gpu0 2", "gpu1 2 --persistent", "\x1b[2J 1"),
    "sriov off": ("gpu0 --foreign", "gpu1"),
    "sriov profile": ("gpu0 \x1b[2J=1", "gpu1 preempt_timeout_us=1"),
    "place": ("--gpus 1", "--device gpu0 --cpus 2", "--gpus 1 --model \x1b[2J", "--device \u202ex", "--vgpu {type}"),
    "claim create": (
        "--owner vm/a --device gpu1",
        "--owner vm/a --gpus 1 --dry-run --key \x1b[2J",
        "--owner vm/\x1b[2J --gpus 1",
        "--owner vm/a --vgpu {type}",
    ),
    "claim list": ("", "--all"),
    "claim show": ("0000", "\x1b[2J"),
    "claim release": ("0000", "--stale --dry-run", "--stale", "\x1b[2J"),
    "claim renew": ("0000 --ttl 1h", "\x1b[2J --ttl never"),
    "claim transfer": ("0000 --to vm/b", "0000 --to \x9b31m"),
    "claim adopt": ("--owner user/\u202ex --device gpu0", "--owner user/a --device gpu1"),
    "reconcile": ("", "--fix"),
    "claim watch": (),  # it never ends
    "watch": (),  # nor does this
    "tui": ("", "--interval \x1b[2J"),
    "install": ("",),
    "uninstall": ("",),
    "persist list": ("",),
    "persist check": ("",),
    "persist remove": ("gpu0", "0000:01:00.0 \x1b[2J"),
    "persist import": ("", "\x1b[2J"),
    "persist restore": ("--dry-run", "--wait \x1b[2J"),
    "state show": ("", "--format yaml", "--format \x1b[2J"),
    "state assert": ("{state}", "{bad}", "{host}", "\x1b[2J"),
    "state apply": ("{state}", "{state} --partial", "{bad}", "\x1b[2J"),
    "cdi generate": ("--all", "--kind \x1b[2J", "--claim \u202ex"),
    "cdi list": ("",),
    "cdi validate": ("{host}", "\x1b[2J"),
    "oci inject": ("{folder} --claim 0000", "{folder} --claim \x1b[2J"),
    "kata check": ("", "--config {host}"),
    "kata config": ("", "--output {folder}/kata.toml"),
    "domain build": (
        "vm1 --gpus 1",
        "vm1 --device gpu0 --explain --policy preferred",
        "\x1b[2J --gpus 1",
        "a --claim \x1b[2J",
    ),
    "domain define": ("{xml} -c test:///default", "\x1b[2J", "{host}"),
    "domain undefine": ("test -c test:///default --foreign", "\x1b[2J -c test:///default", "a -c \x1b[2J"),
    "domain apply": ("{host}", "{xml} --prune -c test:///default", "\x1b[2J --wait-guest \x9b31m"),
    "domain start": ("test -c test:///default", "\x1b[2J -c test:///default", "a -c \x1b[2J"),
    "domain stop": ("test -c test:///default", "\x1b[2J -c test:///default --timeout \x9b31m", "a -c \x1b[2J"),
    "hook install": ("--command \x1b[2J", ""),
    "hook remove": ("",),
    "hook qemu": ("\x1b[2J prepare begin -", "a \x9b31m begin \x1b[2J"),
    "domain list": ("-c test:///default", "-c \x1b[2J"),
    "domain show": ("test -c test:///default", "\x1b[2J -c test:///default"),
    "domain edit": ("test -c test:///default --gpus 1 --replace", "\x1b[2J -c test:///default --device \x9b31m"),
    "domain diff": ("test -c test:///default", "\x1b[2J -c test:///default"),
    "domain verify": ("test -c test:///default", "\x1b[2J -c test:///default"),
    "domain check": ("{xml}", "{xml} --no-host", "{host}", "\x1b[2J", "{xml} --libvirt \x9b31m"),
    "kubelet serve": ("--config \x1b[2J",),  # it never ends either
    "kubelet status": ("",),
    "kubelet cordon": ("gpu0 --why \x1b[2J", "gpu0 gpu1 --wait 0s", "\x1b[2J", "gpu0 --wait \x9b31m"),
    "share serve": ("--once --for \x9b31m", "--config \x1b[2J", "--once --for 1s"),
    "share thaw": ("", "\x1b[2J"),
    "share plan": ("\x1b[2J", "gpu0 gpu1", "gpu0 \u202ex"),
    "kubelet uncordon": ("gpu0", "\u202ex"),
    "share extender serve": (
        "--listen \x1b[2J",
        "--api-server \x9b31m",
        "--token-file \u202ex",
        "--tls-cert-file {host} --tls-key-file {host} --api-server http://127.0.0.1:1",
    ),  # it never ends otherwise
    "share extender report": (
        "--dry-run",
        "--node \x1b[2J --once --api-server \x9b31m",
        "--client-cert-file \u202ex --once",
    ),
    "share allow": ("/a --device gpu0", "/\x1b[2J --device gpu0", "/a --device \x1b[2J"),
    "share disallow": ("/a", "\u202ex", "/../etc"),
    "share allowed": ("", "/a", "\x1b[2J"),
    "mps start": ("gpu0 --threads 40", "gpu1 --claim \x1b[2J", "\x1b[2J"),
    "mps stop": ("", "gpu0 --force", "\u202ex"),
    "mps apply": ("", "gpu0 --threads 40", "\x9b31m"),
    "mps status": ("", "gpu0", "\x1b[2J"),
    "mps env": ("1a2b3c4d --gpu gpu0 --threads 40", "\x1b[2J", "\x1b[2J --gpu gpu0 --threads 4"),
    "mps config": ("gpu0", "\x1b[2J"),
    "config check": ("",),
    "config show": ("",),
    "doctor": ("", "--all", "gpu0 gpu1", "\x1b[2J"),
    "report": ("--dry-run", "-o \x1b[2J/x", ""),
    "holders": ("gpu0", "gpu1", "\x1b[2J"),
    "history": ("",),
    "history show": ("1", "2", "\x1b[2J"),
    "history prune": ("--keep 1",),
    "snapshot": ("", "-o {folder}/snapshot"),
    "hosts": ("",),
    "hosts reboot": ("{host}", "\x1b[2J"),
    "man": ("", "bind", "\x1b[2J"),
    "apply": ("{plan}", "{host}", "\x1b[2J"),
    "recover": ("", "--forward"),
}
"""Of each command: arguments with which it says much, and with which it refuses something hostile."""
RESOURCES = """
[[kubelet.resources]]
name = "example.com/gpu"
[[kubelet.resources]]
name = "example.com/vf"
devices = "vf"
[[kubelet.resources]]
name = "example.com/mdev"
devices = "mdev"
[[kubelet.resources]]
name = "example.com/vgpu"
devices = "vgpu"
type = "L40S-12Q"
"""
"""A configuration that gives all devices to pods."""
CHANGING = ("bind", "unbind", "reset", "vgpu create", "vgpu remove", "sriov set", "sriov off", "apply", "recover")
ODD_HOSTS = [("busy", 0), ("l40s", 1), ("laptop", 2)]
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def commands() -> dict[str, set[str]]:
    """Every command and its options."""
    group = built(places())
    found: dict[str, Any] = {}
    for name in group.places:
        found |= _commands(name, group.load(name))
    return {name: {option for each in command.params for option in each.opts} for name, command in found.items()}


def _commands(name: str, command: Any) -> dict[str, Any]:
    children = getattr(command, "commands", {})
    found = {name: command} if not children or getattr(command, "invoke_without_command", False) else {}
    for child, each in children.items():
        found |= _commands(f"{name} {child}", each)
    return found


COMMANDS = commands()


def test_every_command_has_arguments_here() -> None:
    assert set(COMMANDS) == set(ARGUMENTS)


class Hostile:
    """A hostile host in a file, with a hostile ledger, and what a command may name on it."""

    def __init__(self, folder: Path, host: str, seed: int) -> None:
        self.folder, self.file = folder, folder / f"{host}.host"
        self._spoiler, self._random = Spoiler(seed), random.Random(seed)
        self._clean, self._tree = original(host), self._told_names(copy(original(host)))
        self.restore()

    def _told_names(self, tree: Tree) -> Tree:
        """What a user's process, a library or a unit says is hostile throughout."""
        spoil = self._spoiler.text
        theirs = ("comm", "cmdline", "status", "cgroup", "name", "driver_override", "label", "mountinfo", "operstate")
        for path, text in [*tree.files.items()]:
            if path.endswith(theirs):
                tree.put(path, spoil(text))
        for subject, facts in tree.properties.items():
            if not subject.startswith("sim:"):  # the simulator's own notes
                tree.properties[subject] = {key: spoil(text) for key, text in facts.items()}
        return tree

    def restore(self, *, wholly: bool = False) -> None:
        """Write the host anew. `wholly`: names of drivers, devices and groups and all attributes may be hostile too."""
        tree = self._spoiler.spoiled(self._tree) if wholly else self._tree
        self.file.write_text(form(tree), encoding="utf-8")

    def write_domain(self) -> None:
        """Write a domain's XML with hostile text wherever XML takes it."""
        text = re.sub(r"[\x00-\x08\x0b-\x1f<>&'\"]", "", "".join(HOSTILE))
        hostdev = f"<hostdev type='{text}'><source/><alias name='{text}'/><address type='{text}'/></hostdev>"
        pin = f"<cputune><vcpupin vcpu='{text}' cpuset='{text}'/></cputune>"
        domain = (
            f"<domain type='{text}'><name>{text}/</name><vcpu>{text}</vcpu>{pin}<devices>{hostdev}</devices></domain>"
        )
        (self.folder / "domain.xml").write_text(domain, encoding="utf-8")

    def write_states(self, shown: str) -> None:
        """Write a document that differs from the host, and one with hostile keys and values."""
        (self.folder / "state.toml").write_text(shown.replace('"none"', '"vfio-pci"'), encoding="utf-8")
        bad = {"version": 1, **{text: text for text in HOSTILE}}
        (self.folder / "bad.yaml").write_text(json.dumps(bad), encoding="utf-8")

    def words(self, arguments: str) -> list[str]:
        vgpus = sorted(path.rpartition("/")[2] for path in self._clean.links if "/bus/mdev/devices/" in path)
        kinds = sorted(path.split("/")[-2] for path in self._clean.files if path.endswith("/available_instances"))
        known = {"folder": self.folder, "host": self.file}
        known |= {"plan": self.folder / "plan.json", "xml": self.folder / "domain.xml"}
        known |= {"state": self.folder / "state.toml", "bad": self.folder / "bad.yaml"}
        return arguments.format(vgpu=[*vgpus, "x"][0], type=[*kinds, "L40S-12Q"][-1], **known).split()

    def spoil_ledger(self) -> None:
        """Put hostile text into rows, inside the strings of their JSON, and the names of owners and users."""
        for ledger in self.folder.glob("*.ledger.db"):
            db = sqlite3.connect(ledger)
            tables = [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
            for table in tables:
                for column in [row[1] for row in db.execute(f"PRAGMA table_info({table})") if row[2] == "TEXT"]:
                    self._spoil_column(db, table, column)
            db.commit()
            db.close()

    def _spoil_column(self, db: sqlite3.Connection, table: str, column: str) -> None:
        for row, value in db.execute(f"SELECT rowid, {column} FROM {table}").fetchall():  # noqa: S608 - its own
            if isinstance(value, str):
                try:
                    db.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (self._spoiled(value), row))  # noqa: S608
                except sqlite3.DatabaseError:  # a value that the table does not take
                    continue

    def _spoiled(self, text: str) -> str:
        try:
            return json.dumps(self._value(json.loads(text)), ensure_ascii=False)
        except ValueError:
            return self._value(text) if self._random.random() < 0.5 else text

    def _value(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self._value(each) for key, each in value.items()}
        if isinstance(value, list):
            return [self._value(each) for each in value]
        spoil = isinstance(value, str) and self._random.random() < 0.2
        return value + self._random.choice(HOSTILE) if spoil else value


@pytest.fixture(params=ODD_HOSTS, ids=lambda param: param[0])
def hostile(request: pytest.FixtureRequest, fast_folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> Hostile:
    """With a plan and a ledger of changes made while the host's own names were sound, and resources for pods."""
    found = Hostile(fast_folder, *request.param)
    (fast_folder / "config.toml").write_text(RESOURCES, encoding="utf-8")
    monkeypatch.setenv("VFIOCTL_CONFIG", str(fast_folder / "config.toml"))
    plan = run(f"bind gpu0 --with-group --allow-boot-vga --force-holders --dry-run --json --simulate {found.file}").out
    (fast_folder / "plan.json").write_text(plan, encoding="utf-8")
    found.write_domain()
    found.write_states(run(f"state show --simulate {found.file}").out)
    for line in ("vgpu create {type} --persistent", "bind gpu1 --force-holders", "unbind gpu1", "sriov set gpu0 1"):
        run("", *found.words(line), "--yes", "--simulate", str(found.file))
    return found


def lines(name: str) -> Iterator[str]:
    """The command with each set of arguments, in each form that it has."""
    options = COMMANDS[name]
    forms = ("--json", "--format csv", "--format json", "--tree", "--tree --json", "--no-header", "--columns all")
    for arguments in ARGUMENTS[name]:
        ways = ["--dry-run", "--dry-run --json", "--yes --json", "--yes"] if "--dry-run" in options else [""]
        ways += [way for way in forms if way.split()[0] in options and "--dry-run" not in options]
        yield from (f"{name} {arguments} {way}".strip() for way in ways)


def check(answer: Answer, line: str) -> None:
    assert not raw(answer.out), line
    assert not raw(answer.err), line
    assert answer.code in {0, *FAILURES}, line
    assert "Traceback" not in answer.err, line
    if "json" in line and answer.out:
        json.loads(answer.out)


@pytest.mark.parametrize("wholly", [False, True], ids=["told", "wholly"])
def test_no_command_writes_what_a_terminal_obeys(
    run: Run, terminal: Run, hostile: Hostile, wholly: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"<domain><name>a\xc2\x9b31m</name></domain>")))
    hostile.restore(wholly=wholly)
    hostile.spoil_ledger()
    for name in COMMANDS:
        for line in lines(name):
            words = [*hostile.words(line), "--simulate", str(hostile.file)]
            check(run("", *words), line)
            if "json" not in line:
                check(terminal("", *words), line)
            if name in CHANGING and "--yes" in line:
                hostile.restore(wholly=wholly)


@pytest.mark.parametrize(
    "line", ["inventory --all --tree", "show gpu0", "holders gpu0", "history", "bind gpu0 --dry-run"]
)
def test_of_a_real_terminal(tmp_path: Path, line: str) -> None:
    """One that knows colours: but for those, all is printable."""
    host = Hostile(tmp_path, "busy", 5)
    host.restore(wholly=True)
    code, shown = on_a_terminal(*line.split(), "--host", str(host.file))
    assert code in {0, *FAILURES}
    assert shown
    assert not raw(COLOURS.sub("", shown).replace("\r\n", "\n")), line


def on_a_terminal(*words: str) -> tuple[int, str]:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
    program = [sys.executable, "-c", "from vfioctl.app import console; console()", *words]
    with running(program, cwd=ROOT, env=environment, stdin=theirs, stdout=theirs, stderr=theirs) as child:
        os.close(theirs)
        shown = until_closed(ours)
        code = child.wait()
    os.close(ours)
    return code, shown.decode()
