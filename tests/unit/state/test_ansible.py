"""The playbook in the how-to, as it stands there: run by Ansible where it is installed, and interpreted everywhere.

The interpreter knows what the playbook uses, and no more: two modules, `register`, and expressions of `changed_when`
and `failed_when` in which Jinja2 and Python differ by one filter."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import yaml

from tests.unit.conftest import ROOT, program_in

PAGE = ROOT / "docs/how-to/describe-a-host.md"
HOST = "gpu1"
ANSIBLE = shutil.which("ansible-playbook", path=os.environ.get("VFIOCTL_TEST_ANSIBLE") or None)
"""VFIOCTL_TEST_ANSIBLE: a directory with Ansible's programs, if they are not on PATH."""


class Recap(NamedTuple):
    """How a run ended."""

    changed: int
    failed: int
    out: str


Play = Callable[[], Recap]


def playbook() -> str:
    (text,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return str(text)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A directory with the playbook, the state of its host, and the command that it runs."""
    (tmp_path / "bin").mkdir()
    program_in(tmp_path / "bin")
    (tmp_path / "site.yml").write_text(playbook(), encoding="utf-8")
    shown = subprocess.run([tmp_path / "bin/vfioctl", "state", "show"], capture_output=True, text=True, check=True)
    (tmp_path / f"{HOST}.toml").write_text(shown.stdout.replace('"nvidia"', '"vfio-pci"', 2), encoding="utf-8")
    return tmp_path


@pytest.fixture(params=["interpreted", "ansible"])
def play(site: Path, request: pytest.FixtureRequest) -> Play:
    if request.param == "interpreted":
        return lambda: Interpreter(site).run()
    if ANSIBLE is None:
        pytest.skip("ansible-core is not installed: the playbook is only interpreted")
    return lambda: by_ansible(site, ANSIBLE)


def environment(site: Path) -> dict[str, str]:
    return {**os.environ, "PATH": f"{site / 'bin'}:{os.environ['PATH']}"}


def by_ansible(site: Path, program: str) -> Recap:
    variables = {
        "state_file": str(site / "state.toml"),
        "ansible_become": False,
        "ansible_python_interpreter": sys.executable,
    }
    (site / "hosts").write_text(f"[gpu_hosts]\n{HOST}\n")
    words = [program, "-i", str(site / "hosts"), "-c", "local", "-e", json.dumps(variables), "site.yml"]
    homes = {"ANSIBLE_HOME": str(site / "ansible"), "ANSIBLE_LOCAL_TEMP": str(site / "tmp"), "ANSIBLE_NOCOLOR": "1"}
    done = subprocess.run(
        words, cwd=site, env={**environment(site), **homes}, capture_output=True, text=True, check=False, timeout=120
    )
    counts = re.search(rf"^{HOST}\s+:.*changed=(\d+).*failed=(\d+)", done.stdout, re.MULTILINE)
    assert counts, done.stdout + done.stderr
    return Recap(int(counts[1]), int(counts[2]), done.stdout)


class Interpreter:
    """Runs the one play of a playbook on this machine."""

    def __init__(self, site: Path) -> None:
        self._site = site
        (self._play,) = yaml.safe_load((site / "site.yml").read_text())
        self._variables = {**self._play["vars"], "inventory_hostname": HOST, "state_file": str(site / "state.toml")}
        self._results: dict[str, SimpleNamespace] = {}

    def run(self) -> Recap:
        changed, said = 0, ""
        for task in self._play["tasks"]:
            result = self._task(task)
            said += getattr(result, "stdout", "")
            if result.failed:
                return Recap(changed, 1, said)
            changed += result.changed
        return Recap(changed, 0, said)

    def _task(self, task: Mapping[str, Any]) -> SimpleNamespace:
        known = {"name", "register", "changed_when", "failed_when", "ansible.builtin.copy", "ansible.builtin.command"}
        assert task.keys() <= known, "this interpreter does not know it"
        if "ansible.builtin.copy" in task:
            return self._copy(task["ansible.builtin.copy"])
        words = shlex.split(self._filled(task["ansible.builtin.command"]))
        done = subprocess.run(
            words, cwd=self._site, env=environment(self._site), capture_output=True, text=True, check=False, timeout=120
        )
        result = SimpleNamespace(rc=done.returncode, stdout=done.stdout)
        self._results[task["register"]] = result
        result.changed = self._told(task["changed_when"])
        result.failed = self._told(task["failed_when"]) if "failed_when" in task else result.rc != 0
        return result

    def _copy(self, options: Mapping[str, str]) -> SimpleNamespace:
        source, target = self._site / self._filled(options["src"]), Path(self._filled(options["dest"]))
        changed = not target.exists() or target.read_bytes() != source.read_bytes()
        target.write_bytes(source.read_bytes())
        target.chmod(int(options["mode"], 8))
        return SimpleNamespace(changed=changed, failed=False)

    def _filled(self, text: str) -> str:
        return re.sub(r"\{\{ (\w+) \}\}", lambda match: str(self._variables[match[1]]), text)

    def _told(self, expression: str | bool) -> bool:
        if isinstance(expression, bool):
            return expression
        python = re.sub(r"\((\w+\.stdout) \| from_json\)", r"from_json(\1)", expression)
        assert "|" not in python, "this interpreter knows one filter"
        names = {**self._results, "from_json": from_json, "__builtins__": {}}
        return bool(eval(python, names))  # noqa: S307 - an expression of our own documentation


def from_json(text: str) -> Any:
    return json.loads(text, object_hook=lambda table: SimpleNamespace(**table))


def test_the_second_run_changes_nothing(play: Play, site: Path) -> None:
    first = play()
    assert (first.changed, first.failed) == (2, 0), first.out
    assert (site / "state.toml").read_text() == (site / f"{HOST}.toml").read_text()
    again = play()
    assert (again.changed, again.failed) == (0, 0), again.out


def test_what_someone_has_changed_is_put_right(play: Play, site: Path) -> None:
    play()
    subprocess.run([site / "bin/vfioctl", "unbind", "gpu0", "--yes"], capture_output=True, check=True)
    again = play()
    assert (again.changed, again.failed) == (1, 0), again.out


def test_a_host_that_cannot_be_so_fails_and_stays(play: Play, site: Path) -> None:
    state = site / f"{HOST}.toml"
    state.write_text(state.read_text().replace('device = "2330"', 'device = "9999"', 1))
    before = subprocess.run([site / "bin/vfioctl", "state", "show"], capture_output=True, check=True).stdout
    done = play()
    assert (done.changed, done.failed) == (1, 1), done.out
    assert "no such device is on this host" in done.out
    assert subprocess.run([site / "bin/vfioctl", "state", "show"], capture_output=True, check=True).stdout == before
