"""Every listing, as text and as JSON, on every bundled host, against golden files.

After a change that is meant: pytest tests/unit/console/test_golden.py --renew-golden, and read the diff.
"""

from __future__ import annotations

import json
import sys
from itertools import count
from pathlib import Path

import pytest

from tests.hosts.machines import copy, original
from tests.unit.conftest import Golden, Run, timeless
from vfioctl.host import Host
from vfioctl.kernel.recorded.bundled import bundled_hosts
from vfioctl.kernel.recorded.tree import form

HOSTS = sorted(bundled_hosts())
WITH_VGPUS = ("a2", "l40s", "t4", "mi300x-vf", "xe", "mi300x")
ONE, TWO = "4e8c5df7-c4fa-4719-904f-5579cd5ac35f", "5e8c5df7-c4fa-4719-904f-5579cd5ac35f"
CHANGES = {
    "a2": (
        f"vgpu create A2-4C --uuid {ONE} --dry-run",
        f"vgpu create A2-4C --uuid {ONE} --persistent",
        "vgpu create A2-4C --count 2",
        f"vgpu create A2-4C --uuid {ONE}",
        "sriov off 08:00.0",
        f"vgpu remove {ONE} --dry-run",
        "vgpu remove 6d3f2c1a",
        f"vgpu remove {ONE} 6d3f2c1a --foreign",
        "vgpu remove 9d3f2c1a --foreign --dry-run",
        "history",
    ),
    "l40s": (
        "vgpu create L40S-12Q --count 2 --dry-run",
        "vgpu create L40S-12Q --count 2 --persistent --param frame_rate_limiter=0",
        "vgpu create L40S-12Q",
        f"vgpu create L40S-12Q --uuid {ONE}",
        "vgpu remove 41:00.6 --dry-run",
        "vgpu remove 41:00.6 41:00.7",
        "vgpu remove 41:00.4",
        "sriov off 41:00.0",
        "sriov off 41:00.0 --foreign",
        "vgpu remove 41:00.4 41:00.5 --foreign",
        "sriov off 41:00.0 --foreign --dry-run",
        "sriov off 41:00.0 --foreign",
        "sriov set 41:00.0 4",
        "sriov set 41:00.0 all --persistent",
    ),
    "t4": (
        f"vgpu create T4-4C --count 2 --uuid {ONE} --uuid {TWO} --param frame_rate_limiter=0 --dry-run",
        f"vgpu create T4-4C --count 2 --uuid {ONE} --uuid {TWO} --param frame_rate_limiter=0",
        "vgpu create T4-8Q",
        f"vgpu remove {ONE} --dry-run",
        f"vgpu remove {ONE} {TWO}",
    ),
    "mi300x-vf": ("sriov set 05:00.0 4", "sriov off 05:00.0", "vgpu create VF --parent 05:00.0"),
    "xe": (
        "sriov set 03:00.0 4",
        "sriov off 03:00.0 --foreign",
        "vgpu create VF",
        "vgpu remove 03:00.1",
        "sriov profile 03:00.0 vf1/exec_quantum_ms=10 pf/sched_priority=high --dry-run",
        "sriov profile 03:00.0 vf1/exec_quantum_ms=10 pf/sched_priority=high",
        "sriov profile 03:00.0 vf1/vram_quota=1",
    ),
    "laptop": (
        "sriov set 00:02.0 4 --persistent --dry-run",
        "sriov set 00:02.0 4 --persistent",
        "sriov set 00:02.0 4",
        "sriov set 00:02.0 2 --dry-run",
        "sriov set 00:02.0 2",
        "sriov set 00:02.0 8",
        "sriov off 00:02.0",
        "sriov off 00:02.0",
    ),
}
CLAIMS = (
    "claim list",
    "claim create --owner vm/web1 --gpus 2 --cpus 4 --hugepages 2GiB --dry-run",
    "claim create --owner vm/web1 --gpus 2 --cpus 4 --hugepages 2GiB --label team=ml --key web1 --ttl 2h --yes --quiet",
    "claim create --owner vm/web1 --gpus 2 --cpus 4 --hugepages 2GiB --label team=ml --key web1 --ttl 2h --dry-run",
    "claim create --owner pod/ml/train-0/main --device gpu5 --no-bind --explain",
    "claim create --owner vm/web2 --device gpu0 --dry-run",
    "claim list",
    "inventory",
    "inventory --tree",
    "claim show {claim}",
    "claim release {claim} --dry-run",
    "claim release {claim} --yes --quiet",
    "claim release {claim} --dry-run",
    "claim list --all",
    "claim show {claim}",
)
"""On one host; {claim} is the first of them."""
LISTINGS = {
    "inventory.txt": "inventory",
    "inventory.json": "inventory --json",
    "inventory-all.txt": "inventory --all",
    "tree.txt": "inventory --tree",
    "tree-all.txt": "inventory --tree --all",
}


def last_gpu(name: str) -> str:
    """The GPU that a host is for; the first is often its console."""
    return f"gpu{len(Host.recorded(name).inventory().numbered_gpus) - 1}"


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("file", LISTINGS)
def test_inventory(run: Run, terminal: Run, golden: Golden, host: str, file: str) -> None:
    answer = (run if file.endswith(".json") else terminal)(f"--host {host} {LISTINGS[file]}")
    assert (answer.code, answer.err) == (0, "")
    golden(f"{host}/{file}", answer.out)


@pytest.mark.parametrize(
    ("file", "line", "code"),
    [
        *((name, line, 0) for name, line in LISTINGS.items()),
        ("list.txt", "inventory --columns address,gpu,group,driver,guest,name", 0),
        ("inventory.csv", "inventory --all --format csv --columns address,gpu,group,numa,driver,name", 0),
        ("filtered.txt", "inventory --driver nvidia", 0),
        ("show.txt", "show 0b:00.0", 0),
        ("holders.txt", "holders 0b:00.0", 0),
        ("unread.json", "show 0b:00.1 --json", 3),
        ("numbered.json", "show gpu2 --json", 3),
        ("bind.json", "bind 0b:00.0 --dry-run --json", 3),
        ("place.json", "place --device 0b:00.1 --json", 3),
    ],
)
def test_functions_that_never_answer(
    run: Run, terminal: Run, golden: Golden, tmp_path: Path, file: str, line: str, code: int
) -> None:
    """Two functions of the host do not answer: one beside a GPU, and one alone in its group."""
    tree = copy(original("workstation"))
    for address in ("0000:0b:00.1", "0000:01:00.0"):
        tree.properties.setdefault(f"sim:{address}", {})["unanswered"] = "1"
    (tmp_path / "host").write_text(form(tree))
    answer = (terminal if file.endswith(".txt") else run)(f"--simulate {tmp_path}/host {line}")
    assert answer.code == code, answer.err
    golden(f"unanswered/{file}", (answer.out + timeless(answer.err)).replace(str(tmp_path), "DIR"))


@pytest.mark.parametrize("host", HOSTS)
def test_wide_inventory(terminal: Run, golden: Golden, host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    golden(f"{host}/inventory-160.txt", terminal(f"--host {host} inventory").out)


@pytest.mark.parametrize("host", ["laptop", "a2"])
def test_on_a_narrow_terminal(terminal: Run, golden: Golden, host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "45")
    told = ""
    for line in ("inventory", "inventory --all", "vgpu types", "vgpu list"):
        told += f"$ vfioctl {line}\n{terminal(f'{line} --host {host}').out}\n"
    assert max(map(len, told.splitlines())) <= 45
    golden(f"{host}/narrow.txt", told)


@pytest.mark.parametrize("host", HOSTS)
def test_show(run: Run, terminal: Run, golden: Golden, host: str) -> None:
    golden(f"{host}/show.txt", terminal(f"show {last_gpu(host)} --host {host}").out)
    golden(f"{host}/show.json", run(f"show {last_gpu(host)} --host {host} --json").out)


@pytest.mark.parametrize("host", HOSTS)
def test_dry_run(run: Run, terminal: Run, golden: Golden, host: str) -> None:
    """The plan, or why there is none."""
    line = f"bind {last_gpu(host)} --dry-run --host {host} --with-group --allow-boot-vga"
    text, document = terminal(line), run(f"{line} --json")
    golden(f"{host}/bind.txt", text.out + text.err)
    golden(f"{host}/bind.json", document.out)
    assert text.code == document.code


@pytest.mark.parametrize("host", HOSTS)
def test_refusals(run: Run, golden: Golden, host: str) -> None:
    """What bind says of each GPU when nothing is granted."""
    inventory = Host.recorded(host).inventory()
    told = [run(f"bind {gpu.address} --dry-run --host {host}") for gpu in inventory.gpus]
    golden(f"{host}/refusals.txt", "".join(f"exit {answer.code}\n{answer.err}" for answer in told if answer.code))


def test_a_session(terminal: Run, golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    told = ""
    monkeypatch.setattr(sys, "argv", ["vfioctl", "bind", "gpu1"])
    for line in (
        "bind gpu1",
        "bind gpu1",
        "history",
        "unbind gpu1",
        "unbind gpu1",
        "history",
        "recover",
        "history show 1",
    ):
        answer = terminal(f"{line} --simulate workstation")
        told += f"$ vfioctl {line}\n{answer.err}{answer.out}"
        assert answer.code == 0
    golden("session.txt", timeless(told))


def test_a_session_in_json(run: Run, golden: Golden) -> None:
    lines = ("bind gpu0", "bind gpu0", "unbind gpu0", "recover", "history", "history show 1", "history prune --keep 1")
    answers = [run(f"{line} --json --simulate laptop") for line in lines]
    assert [answer.code for answer in answers] == [0] * len(lines)
    golden("session.json", timeless(json.dumps([answer.document for answer in answers], indent=2) + "\n"))


def test_holders(run: Run, terminal: Run, golden: Golden) -> None:
    """Of every GPU of a host in use, and of the disk that it runs from."""
    told = ""
    for line in (*(f"holders gpu{number}" for number in range(5)), "holders 0a:00.0", "holders gpu0 gpu3"):
        answer = terminal(f"{line} --host busy")
        assert (answer.code, answer.err) == (0, "")
        told += f"$ vfioctl {line}\n{answer.out}"
    golden("busy/holders.txt", told)
    golden("busy/holders.json", run("holders gpu0 gpu1 gpu2 gpu4 --host busy --json").out)


def test_holders_of_a_host_without_recorded_processes(run: Run) -> None:
    assert "the capture has no processes" in run("holders gpu0 --host hgx8").out


@pytest.mark.parametrize("host", WITH_VGPUS)
def test_vgpus(run: Run, terminal: Run, golden: Golden, host: str) -> None:
    golden(f"{host}/vgpu-types.txt", terminal(f"vgpu types --host {host}").out)
    golden(f"{host}/vgpu-types.json", json.dumps(run(f"vgpu types --host {host} --json").document, indent=1) + "\n")
    golden(f"{host}/vgpu-list.txt", terminal(f"vgpu list --host {host}").out)
    golden(f"{host}/vgpu-list.json", json.dumps(run(f"vgpu list --host {host} --json").document, indent=1) + "\n")


def test_a_vgpu(run: Run, terminal: Run, golden: Golden) -> None:
    told = ""
    for host, vgpu_ in (("a2", "6d3f2c1a"), ("a2", "9d3f2c1a"), ("l40s", "41:00.5"), ("xe", "03:00.1")):
        answer = terminal(f"vgpu show {vgpu_} --host {host}")
        assert (answer.code, answer.err) == (0, "")
        told += f"$ vfioctl vgpu show {vgpu_} --host {host}\n{answer.out}"
    golden("vgpu-show.txt", told)
    golden("vgpu-show.json", json.dumps(run("vgpu show 6d3f2c1a --host a2 --json").document, indent=1) + "\n")


def test_what_would_remain(run: Run, terminal: Run, golden: Golden) -> None:
    told = ""
    for line in ("--host t4 --after T4-4C=2", "--host a2 --after A2-4Q", "--host laptop --after VF=4"):
        told += f"$ vfioctl vgpu types {line}\n{terminal(f'vgpu types {line}').out}"
    golden("vgpu-after.txt", told)
    document = run("vgpu types --host t4 --after T4-4C=2 --json").document
    golden("vgpu-after.json", json.dumps(document["after"], indent=1) + "\n")


@pytest.mark.parametrize("host", WITH_VGPUS)
def test_no_line_about_vgpus_is_wider_than_the_terminal(terminal: Run, host: str) -> None:
    told = [terminal(f"vgpu {verb} --host {host}").out for verb in ("types", "list")]
    assert [line for text in told for line in text.splitlines() if len(line) > 80] == []


@pytest.mark.parametrize("host", CHANGES)
def test_changes_of_vgpus(terminal: Run, golden: Golden, host: str) -> None:
    """Plans, outcomes and refusals, one after the other on one host."""
    told = ""
    for line in CHANGES[host]:
        answer = terminal(f"{line} --simulate {host}")
        told += f"$ vfioctl {line}\n{answer.err}{answer.out}[exit code {answer.code}]\n\n"
    golden(f"{host}/vgpu-changes.txt", timeless(told))


@pytest.mark.parametrize("host", CHANGES)
def test_changes_of_vgpus_in_json(run: Run, golden: Golden, host: str) -> None:
    documents = [run(f"{line} --json --simulate {host}").document for line in CHANGES[host]]
    golden(f"{host}/vgpu-changes.json", timeless(json.dumps(documents, indent=1) + "\n"))


@pytest.mark.parametrize("columns", ["80", "160"])
def test_claims(run: Run, terminal: Run, golden: Golden, columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    numbers = count(1)
    monkeypatch.setattr("vfioctl.claims.ledger.ledger._unused_id", lambda _: f"1a2b3c{next(numbers):02x}")
    told, wide = "", 0
    for line in CLAIMS:
        answer = terminal(f"{line.format(claim='1a2b3c01')} --simulate hgx8")
        told += f"$ vfioctl {line.format(claim='1a2b3c01')}\n{answer.err}{answer.out}[exit code {answer.code}]\n\n"
        if line.startswith("claim list"):
            wide = max(wide, *map(len, answer.out.splitlines()))
    golden(f"claims/session{'' if columns == '80' else f'-{columns}'}.txt", timeless(told))
    assert wide <= int(columns)
    document = run("claim list --all --json --simulate hgx8").document
    golden("claims/list.json", timeless(json.dumps(document, indent=1) + "\n"))
    document = run("inventory gpu4 gpu5 --json --simulate hgx8").document
    golden("claims/inventory.json", json.dumps(document, indent=1) + "\n")


def test_hosts(run: Run, terminal: Run, golden: Golden) -> None:
    golden("hosts.txt", terminal("hosts").out)
    golden("hosts.json", run("hosts --json").out)


@pytest.mark.parametrize("host", HOSTS)
def test_all_adds_the_functions_and_nothing_else(run: Run, host: str) -> None:
    some, every = run(f"inventory --host {host} --json").document, run(f"inventory --host {host} --json --all").document
    assert some["functions"] is None
    assert [gpu for gpu in some["gpus"] if gpu not in every["functions"]] == []
    assert {**every, "functions": None} == some


@pytest.mark.parametrize("host", HOSTS)
def test_no_line_is_wider_than_the_terminal(terminal: Run, host: str) -> None:
    """Paths and commands may be: half a path is of no use."""
    told = [terminal(f"inventory{form} --host {host}").out for form in ("", " --all", " --tree")]
    assert [line for text in told for line in text.splitlines() if len(line) > 80] == []


def test_history_on_a_narrow_terminal(terminal: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "45")
    for line in ("bind gpu0", "unbind gpu0"):
        assert terminal(f"{line} --simulate laptop").code == 0
    text = terminal("history --simulate laptop").out
    assert [line.split()[-1] for line in text.splitlines() if line.startswith("STATE")] == ["done", "done"]
    assert max(map(len, text.splitlines())) <= 45


NAMES = {"laptop": "GA107M [GeForce RTX 3050 Ti Mobile]", "busy": "NVIDIA GeForce RTX 4090"}


@pytest.mark.parametrize("host", NAMES)
@pytest.mark.parametrize("columns", ["30", "80"])
def test_what_is_no_terminal_gets_every_name_whole(
    run: Run, host: str, columns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)  # an exported one is of the terminal, not of the pipe
    for line in ("inventory", "inventory --all", "inventory --tree", "show gpu0"):
        text = run(f"{line} --host {host}").out
        assert NAMES[host] in text
        assert "\N{HORIZONTAL ELLIPSIS}" not in text
        assert line == "show gpu0" or "64-BIT BARS" in text or "--tree" in line


@pytest.mark.parametrize("host", HOSTS)
def test_what_is_no_terminal_gets_each_note_in_one_line(run: Run, terminal: Run, host: str) -> None:
    for line in ("inventory", "inventory --all", "vgpu types", "vgpu list", "show gpu0", "holders gpu0"):
        piped, drawn = (each(f"{line} --host {host}").out for each in (run, terminal))
        notes = [part for part in piped.splitlines() if part.startswith("- ")]
        assert len(notes) == sum(part.startswith("- ") for part in drawn.splitlines())
        for note in notes:
            assert note[:60].rstrip() in drawn


def test_what_is_no_terminal_gets_each_step_in_one_line(run: Run) -> None:
    text = run("bind gpu1 --dry-run --host workstation").out
    assert "/driver_override <- vfio-pci" in text
    assert not [line for line in text.splitlines() if line.lstrip().startswith("<-")]
