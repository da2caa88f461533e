"""Every command with --json has a schema, and prints what its schema says; so do the golden files.

The fixture `run` compares what each command prints, here and in every other test.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from docs.documents import OUTPUTS
from docs.generate import PRINTED
from tests.hosts.machines import copy, original
from tests.schema import command_of, problems_of, schema_problems
from tests.unit.conftest import GOLDEN, Run
from tests.unit.domain.running import Process, host, libvirt
from vfioctl.app import places
from vfioctl.claims.api import ClaimsApi
from vfioctl.console.lazy import built
from vfioctl.kernel.recorded.tree import form
from vfioctl.overview.api import OverviewApi
from vfioctl.overview.model.event import EventSource, HostEvent
from vfioctl.sharing.api import SharingApi
from vfioctl.sharing.model.gpu_time import Measurement, Source, Usage

LINES = """
apply {folder}/plan.json
inventory
inventory gpu0 --all
show gpu0
bind gpu1 --dry-run
bind gpu1
reset gpu1
unbind gpu1
bind gpu1 --persistent
persist list
persist check
persist remove 0000:43:00.0
unbind gpu1
persist restore
state show
state assert {folder}/state.toml
state apply {folder}/state.toml --dry-run
state apply {folder}/state.toml
install
uninstall
place --gpus 1 --cpus 2
claim create --owner vm/a --gpus 1 --cpus 2 --hugepages 1GiB --ttl 1h --dry-run
claim create --owner vm/a --gpus 1 --cpus 2 --hugepages 1GiB --ttl 1h --label a=b --key k --explain
claim list
claim show {claim}
claim renew {claim} --ttl 2h
claim transfer {claim} --to vm/b
claim watch
watch
inventory
cdi generate --all --dry-run
cdi generate --all
cdi generate --all --output {folder}/cdi.json
cdi list
cdi validate {folder}/cdi.json
oci inject {folder}/bundle --claim {claim}
kata check
reconcile
claim release {claim} --dry-run
claim release {claim}
claim adopt --owner vm/ml1 --device gpu0
claim adopt --owner vm/ml1 --device gpu99
claim create --owner pod/a/b/c --cores 40 --gpu-memory 8GiB
share plan
share plan gpu0
share serve --once --for 1s
share thaw
holders gpu0
doctor gpu0
history
history show 1
history prune --keep 1 --dry-run
recover --dry-run
recover
kubelet status
kubelet cordon gpu1 --why loud
kubelet uncordon gpu1
mps start gpu1 --threads 40 --memory 8GiB --dry-run
mps start gpu1 --threads 40 --memory 8GiB
mps status
mps apply --threads 50
mps env 1a2b3c4d --gpu gpu1 --threads 40
mps config gpu1
mps stop
config check
config show
hosts
hosts --reset laptop
hosts reboot laptop
"""
VGPU_LINES = """
vgpu types
vgpu types --after A2-4C
vgpu list
vgpu create A2-4C --persistent --dry-run
vgpu create A2-4C --persistent
vgpu list
vgpu show 6d3f2c1a
vgpu restore --dry-run
vgpu restore
vgpu remove 6d3f2c1a --foreign --dry-run
"""
VF_LINES = """
sriov set 00:02.0 2 --dry-run
sriov set 00:02.0 2
sriov off 00:02.0
"""
SHARE_LINES = """
share allow /system.slice --device gpu2 --dry-run
share allow /system.slice --device gpu2
share allowed
share disallow /system.slice
"""
MORE_LINES = {"xe": "sriov profile 03:00.0 vf1/exec_quantum_ms=10", "workstation": "rom gpu1", "busy": SHARE_LINES}
IMPORT = "persist import"
DOMAIN_LINES = """
domain build ml2 --gpus 1 --cpus 2 --memory 2GiB
domain check {folder}/ml1.xml
domain define {folder}/ml1.xml --dry-run
domain define {folder}/ml1.xml
domain list
domain show ml1
domain diff ml1
domain edit ml1 --cpus 4 --dry-run
domain verify ml1
domain start ml1 --dry-run
domain start ml1
domain stop ml1 --dry-run
domain stop ml1
domain apply {folder}/fleet.yaml --dry-run
domain apply {folder}/fleet.yaml
domain undefine ml1
hook install --dry-run
hook remove --dry-run
"""
GOLDENS = {
    "bind": "bind",
    "doctor/hgx8": "doctor",
    "doctor/iommu-off": "doctor",
    "holders": "holders",
    "hosts": "hosts",
    "inventory": "inventory",
    "kata": "kata check",
    "kubelet/fresh": "kubelet status",
    "kubelet/in-use": "kubelet status",
    "kubelet/vgpus": "kubelet status",
    "kubelet/wedged": "kubelet status",
    "place": "place",
    "place-nic": "place",
    "place-none": "place",
    "persist/list": "persist list",
    "doctor/shared-group": "doctor",
    "reconcile": "reconcile",
    "state/apply": "state apply",
    "state/assert": "state assert",
    "state/refused": "state apply",
    "state/show": "state show",
    "show": "show",
    "verify": "domain verify",
    "vgpu-list": "vgpu list",
    "vgpu-show": "vgpu show",
    "vgpu-types": "vgpu types",
    "claims/list": "claim list",
    "sharing/list": "claim list",
    "sharing/list-whole": "claim list",
    "sharing/plan": "share plan",
    "sharing/plan-whole": "share plan",
    "sharing/show": "claim show",
    "sharing/show-whole": "claim show",
    "domains/list": "domain list",
    "unanswered/numbered": "show",
    "unanswered/unread": "show",
}
"""The command of each golden file."""
OF_SEVERAL = {"session": "bind", "vgpu-changes": "vgpu create"}
"""Golden files with the documents of several commands."""
PARTS = {"vgpu-after", "rom"}
"""Golden files with a part of a document."""


def leaves(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Each command that does something by itself."""
    parts = getattr(command, "commands", {})
    if not parts or command.invoke_without_command:
        yield name, command
    for part, inner in parts.items():
        yield from leaves(inner, f"{name} {part}")


def commands_with_json() -> set[str]:
    group = built(places())
    found = (leaf for name in group.places for leaf in leaves(group.load(name), name))
    return {name for name, leaf in found if any("--json" in getattr(option, "opts", ()) for option in leaf.params)}


def test_every_command_with_json_has_a_schema() -> None:
    assert commands_with_json() == set(OUTPUTS)
    assert {name for names in OUTPUTS.values() for name in names} | {"error"} == set(PRINTED)


def test_every_command_is_run_below() -> None:
    several = "\n".join((LINES, VGPU_LINES, VF_LINES, DOMAIN_LINES, *MORE_LINES.values()))
    lines = [*several.splitlines(), IMPORT]
    assert {command_of(line.split()) for line in lines if line} == set(OUTPUTS)


class Commands:
    """Runs lines one after the other on one host. A command that fails prints an error, or its result as well."""

    def __init__(self, run: Run, host: str, folder: Path) -> None:
        self._run, self._host, self._folder, self.claim = run, host, folder, ""
        self.succeeded: set[str] = set()

    def __call__(self, lines: str) -> None:
        for line in lines.strip().splitlines():
            words = line.format(claim=self.claim, folder=self._folder).split()
            answer = self._run(" ".join([*words, "--json"]), *self._options(words))
            assert answer.out, line
            if not answer.out.startswith('{\n  "error"'):
                self.succeeded.add(command_of(words))
            if words[:2] == ["claim", "create"] and "--dry-run" not in words:
                self.claim = answer.document["id"]

    def _options(self, words: list[str]) -> list[str]:
        return [] if words[0] == "hosts" else ["--simulate", self._host]


def test_what_import_prints(run: Run, fast_folder: Path) -> None:
    file = fast_folder / "x.host"
    tree = copy(original("hgx8"))
    tree.put("/etc/driverctl.d/pci-0000:43:00.0", "vfio-pci")
    file.write_text(form(tree), encoding="utf-8")
    commands = Commands(run, str(file), fast_folder)
    commands(f"bind 43:00.0\n{IMPORT}")
    assert IMPORT in commands.succeeded


@pytest.fixture
def folder(tmp_path: Path, run: Run) -> Path:
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle/config.json").write_text('{"ociVersion": "1.0.2", "linux": {}}')
    (tmp_path / "plan.json").write_text(run("bind gpu2 --dry-run --json --simulate hgx8").out)
    (tmp_path / "state.toml").write_text(run("state show --simulate hgx8").out.replace('"nvidia"', '"vfio-pci"', 1))
    return tmp_path


def test_what_each_command_prints(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClaimsApi, "watch", lambda self: self.events(self.claims()[0])[:1])
    happened = HostEvent("2026-11-26T18:00:00.000+00:00", EventSource.KERNEL, "bind", "0000:1b:00.0")
    monkeypatch.setattr(OverviewApi, "watch", lambda *_, **__: [happened])
    usage = Usage("/a", "0000:1b:00.0", Source.NVML, 0.5, 0.1)
    monkeypatch.setattr(
        SharingApi,
        "measure",
        lambda *_: Measurement(1.0, (usage,), {"/a": 2}, {"gpu": "x"}, {"/b": "y"}, memory={("/a", "0000:1b:00.0"): 1}),
    )
    monkeypatch.setattr(SharingApi, "thaw", lambda _: ["/a"])
    commands = Commands(run, "hgx8", folder)
    commands(LINES)
    assert commands.succeeded == {command_of(line.split()) for line in LINES.splitlines() if line}


@pytest.mark.parametrize(("host", "lines"), [("a2", VGPU_LINES), ("laptop", VF_LINES), *MORE_LINES.items()])
def test_what_commands_of_other_hosts_print(run: Run, tmp_path: Path, host: str, lines: str) -> None:
    commands = Commands(run, host, tmp_path)
    commands(lines)
    assert commands.succeeded == {command_of(line.split()) for line in lines.splitlines() if line}


def test_what_commands_for_domains_print(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("libvirt")
    monkeypatch.setenv("VFIOCTL_CONNECT", "test:///default")
    (folder / "ml1.xml").write_text(run("domain build ml1 --gpus 1 --cpus 2 --memory 2GiB --simulate hgx8").out)
    domain = {"name": "a", "gpus": 1, "cpus": 2, "memory": "2GiB", "disks": ["/images/a.qcow2"]}
    (folder / "fleet.yaml").write_text(json.dumps({"fleet": "ml", "domains": [domain]}))
    commands = Commands(run, "hgx8", folder)
    commands(DOMAIN_LINES)
    (folder / "verify.host").write_text(form(host(Process())))
    monkeypatch.setenv("VFIOCTL_CONNECT", libvirt(folder))
    verify = Commands(run, str(folder / "verify.host"), folder)
    verify("domain verify ml1 --no-guest")
    commands.succeeded |= verify.succeeded
    assert commands.succeeded == {command_of(line.split()) for line in DOMAIN_LINES.splitlines() if line}


@pytest.mark.parametrize("file", sorted(GOLDEN.rglob("*.json")), ids=lambda file: str(file.relative_to(GOLDEN)))
def test_golden_files(file: Path) -> None:
    name = str(file.relative_to(GOLDEN).with_suffix(""))
    document = json.loads(file.read_text())
    if file.stem in OF_SEVERAL:
        names = sorted(PRINTED)
        assert all(any(not schema_problems(part, name) for name in names) for part in document)
    elif file.stem not in PARTS:
        assert problems_of(document, GOLDENS[name] if name in GOLDENS else GOLDENS[file.stem]) == []
