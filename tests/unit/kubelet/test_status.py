"""`vfioctl kubelet status` on simulated hosts, what the service tells of itself, and how `serve` refuses to start."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.hosts.machines import FOUR_GPUS, copy, original, reduced
from tests.unit.conftest import Answer, Golden, Run, timeless
from tests.unit.kubelet.values import WEB
from vfioctl.core.marks import Mark, MarkKind
from vfioctl.host import Host
from vfioctl.kernel.recorded.tree import Tree, form
from vfioctl.kubelet.model.device import LABEL, Listing, Pod
from vfioctl.kubelet.model.status import Failure, Registration, Running, running_in
from vfioctl.kubelet.reading.running import read_running
from vfioctl.kubelet.serving import pods

NAME, OTHER = "nvidia.com/GH100_H100", "nvidia.com/H100_HELD"
GPU0, GPU1, GPU2, GPU3 = FOUR_GPUS
WHOLE = f"""
[[kubelet.resources]]
name = "{NAME}"
match = ["10de:2330"]
consumer = "kubevirt"
"""
NOTHING_BOUND = f"""
[[kubelet.resources]]
name = "{OTHER}"
match = ["{GPU3}"]
consumer = "kata"
bind = false
"""
VGPUS = """
[[kubelet.resources]]
name = "nvidia.com/A2-4C"
devices = "vgpu"
type = "A2-4C"

[[kubelet.resources]]
name = "nvidia.com/A2-MDEV"
devices = "mdev"

[[kubelet.resources]]
name = "nvidia.com/A9"
devices = "vgpu"
type = "A9-1Q"
"""
SINCE = "2026-01-01T10:20:30.000+00:00"


class Node:
    """A simulated node in a file, with a configuration, and where the service tells of itself."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.file = folder, folder / "node.host"
        (folder / "run").mkdir()
        self.configure(WHOLE)
        monkeypatch.setenv("VFIOCTL_CONFIG", str(folder / "config.toml"))

    def configure(self, resources: str, **settings: str) -> None:
        values = {"run": str(self.folder / "run"), "pod_resources": str(self.folder / "pods.sock"), **settings}
        lines = "".join(f'{name} = "{value}"\n' for name, value in values.items())
        (self.folder / "config.toml").write_text(f"[kubelet]\n{lines}{resources}")

    def put(self, tree: Tree) -> None:
        self.file.write_text(form(tree))

    def tell(self, **more: object) -> None:
        running = Running(pid=os.getpid(), since=SINCE, ledger=str(self.host.session.ledger), **more)  # type: ignore[arg-type]
        (self.folder / "run/kubelet.json").write_text(running.text)

    @property
    def host(self) -> Host:
        return Host.simulated(str(self.file))


@pytest.fixture
def node(fast_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    made = Node(fast_folder, monkeypatch)  # whose path is short enough for sockets
    made.put(copy(reduced("hgx8", *FOUR_GPUS)))
    numbers = count(1)
    monkeypatch.setattr("vfioctl.claims.ledger.ledger._unused_id", lambda _: f"1a2b3c{next(numbers):02x}")
    monkeypatch.setattr("vfioctl.kubelet.api.now", lambda: SINCE)
    return made


def give(run: Run, node: Node, gpu: str, owner: str, *, resource: str = NAME) -> None:
    label = f"--label {LABEL}={resource}" if resource else ""
    assert run(f"claim create --owner {owner} --device {gpu} {label} --simulate {node.file}").code == 0


def in_use(run: Run, node: Node) -> None:
    """A pod has one, a pod that is not known yet another, a VM the third, and the fourth is cordoned."""
    node.configure(WHOLE + NOTHING_BOUND)
    give(run, node, GPU0, WEB.owner)
    give(run, node, GPU1, "pod/_/_/_")
    give(run, node, GPU2, "vm/web", resource="")
    run("kubelet cordon", GPU3, "--why", "the fan is loud", "--simulate", str(node.file))


def wedged(_: Run, node: Node) -> None:
    """One GPU is wedged and one dead; the service runs, and tells of failures."""
    host = node.host
    marks = [
        Mark(address=GPU0, kind=MarkKind.WEDGED, since=SINCE, why="the write to unbind never returned"),
        Mark(address=GPU1, kind=MarkKind.DEAD, since=SINCE, why="it does not answer"),
    ]
    host.session.journal.mark(marks, boot_id=host.session.boot_id)
    node.configure(WHOLE + NOTHING_BOUND)
    node.tell(
        registrations=(
            Registration(NAME, registered=True, since=SINCE),
            Registration(OTHER, since=SINCE, problem="UNAVAILABLE: the kubelet does not answer"),
        ),
        failures=(
            Failure(SINCE, NAME, "Allocate", f"{GPU2} is held by train (process 4711); on the node: vfioctl holders"),
            Failure(SINCE, "", "PodResources", "DEADLINE_EXCEEDED: Deadline Exceeded"),
        ),
        pods_problem="there is no /var/lib/kubelet/pod-resources/kubelet.sock",
    )


def with_vgpus(_: Run, node: Node) -> None:
    node.put(copy(original("a2")))
    node.configure(VGPUS)


STATES = {"fresh": lambda *_: None, "in-use": in_use, "wedged": wedged, "vgpus": with_vgpus}


class TestStatus:
    @pytest.mark.parametrize("state", STATES)
    def test_as_text_and_json(
        self, run: Run, terminal: Run, golden: Golden, node: Node, state: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        STATES[state](run, node)
        for columns in ("80", "60"):
            monkeypatch.setenv("COLUMNS", columns)
            answer = terminal(f"kubelet status --simulate {node.file}")
            assert (answer.code, answer.err) == (0, "")
            assert max(map(len, answer.out.splitlines())) <= int(columns)
            golden(f"kubelet/{state}{'' if columns == '80' else '-60'}.txt", timeless(answer.out))
        document = run(f"kubelet status --json --simulate {node.file}").document
        text = json.dumps(document, indent=1).replace(str(node.folder), "/node")
        golden(f"kubelet/{state}.json", timeless(f"{text}\n"))

    def test_without_resources_says_so(self, run: Run, node: Node) -> None:
        node.configure("")
        answer = run(f"kubelet status --simulate {node.file}")
        assert (answer.code, answer.out) == (
            0,
            "The configuration names no resource for the kubelet: add a table [[kubelet.resources]].\n",
        )
        assert run(f"kubelet status --json --simulate {node.file}").document["resources"] == []

    def test_with_a_wrong_configuration_is_refused(self, run: Run, node: Node) -> None:
        node.configure(WHOLE, poll="0s")
        answer = run(f"kubelet status --simulate {node.file}")
        assert (answer.code, answer.out) == (2, "")
        assert "kubelet.poll is wrong: a duration from 1s to 1h is needed" in answer.err

    def test_of_another_configuration(self, run: Run, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        (node.folder / "other.toml").write_text(NOTHING_BOUND)
        monkeypatch.setenv("VFIOCTL_CONFIG", str(node.folder / "config.toml"))
        monkeypatch.chdir(node.folder)
        document = run(f"kubelet status --config other.toml --json --simulate {node.file}").document
        assert [resource["name"] for resource in document["resources"]] == [OTHER]
        assert os.environ["VFIOCTL_CONFIG"] == str(node.folder / "other.toml")

    def test_of_a_configuration_that_is_not_there_is_refused(self, run: Run, node: Node) -> None:
        answer = run(f"kubelet status --config {node.folder}/none.toml --simulate {node.file}")
        assert answer.code == 2
        assert "none.toml: there is no such file" in answer.err

    def test_of_a_recorded_host(self, run: Run, node: Node) -> None:
        document = run(f"kubelet status --json --host {node.file}").document
        assert len(document["resources"][0]["devices"]) == 4

    def test_of_a_damaged_ledger_is_refused(self, run: Run, node: Node) -> None:
        Path(f"{node.file}.ledger.db").write_bytes(b"no database" * 100)
        answer = run(f"kubelet status --simulate {node.file}")
        assert answer.code == 3
        assert "ledger" in answer.err

    def test_completion_offers_all_devices(self, node: Node) -> None:
        from vfioctl.kubelet.api import suggest_devices

        session = node.host.session
        assert suggest_devices(session, "") == [(gpu, NAME) for gpu in FOUR_GPUS]
        node.configure(WHOLE, poll="x")
        assert suggest_devices(session, "") == []


class TestWhatTheServiceTells:
    RUNNING = Running(
        pid=os.getpid(),
        ledger="/var/lib/vfioctl/ledger.db",
        since=SINCE,
        registrations=(Registration("a.b/c", registered=True, since=SINCE),),
        failures=(Failure(SINCE, "", "x", "y"),),
    )

    def test_comes_back_as_it_was(self) -> None:
        assert running_in(self.RUNNING.text) == self.RUNNING

    @pytest.mark.parametrize(
        "text",
        [
            *("", "{", "[]", "null", '"x"', "{}", '{"pid": 1}', "[" * 1000),
            '{"pid": 1, "since": "", "registrations": 5, "failures": []}',
            '{"pid": 1, "since": "", "registrations": [], "failures": [[]]}',
            '{"pid": 1, "since": "", "registrations": [{"x": 1}], "failures": []}',
            '{"pid": "x/../..", "since": 1, "registrations": [], "failures": []}',
        ],
        ids=lambda text: text[:20],
    )
    def test_that_is_not_understood_is_nothing(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "kubelet.json").write_text(text)
        assert read_running(str(tmp_path), tmp_path / "ledger.db") is None

    def test_of_a_service_that_has_ended_is_nothing(self, tmp_path: Path) -> None:
        ledger = tmp_path / "ledger.db"
        (tmp_path / "kubelet.json").write_text(self.RUNNING._replace(pid=4_194_305, ledger=str(ledger)).text)
        assert read_running(str(tmp_path), ledger) is None

    def test_of_another_ledger_is_nothing(self, tmp_path: Path) -> None:
        (tmp_path / "kubelet.json").write_text(self.RUNNING._replace(ledger="/other.db").text)
        assert read_running(str(tmp_path), tmp_path / "ledger.db") is None

    def test_in_no_regular_file_is_nothing(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "kubelet.json")
        assert read_running(str(tmp_path), tmp_path / "ledger.db") is None


class TestServe:
    @pytest.fixture(autouse=True)
    def handlers(self) -> Iterator[None]:
        """Whatever ends it, the signals are the caller's again."""
        before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
        yield
        assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before

    def refused(self, run: Run, node: Node) -> Answer:
        answer = run(f"kubelet serve --simulate {node.file}")
        assert answer.out == ""
        assert not (node.folder / "run/kubelet.json").exists()
        return answer

    def test_without_resources_is_refused(self, run: Run, node: Node) -> None:
        node.configure("")
        answer = self.refused(run, node)
        assert answer.code == 2
        assert "the configuration names no resource for the kubelet" in answer.err
        assert "[[kubelet.resources]]" in answer.err

    def test_of_a_wrong_configuration_is_refused(self, run: Run, node: Node) -> None:
        node.configure(WHOLE, listen="nowhere")
        assert self.refused(run, node).code == 2

    @pytest.mark.parametrize(
        ("library", "package"),
        [("grpclib", "grpclib"), ("google.protobuf", "protobuf"), ("prometheus_client", "prometheus-client")],
    )
    def test_without_a_library_says_how_to_get_it(
        self, run: Run, node: Node, library: str, package: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        without = ("vfioctl.kubelet.serving", "vfioctl.kubelet.proto", f"{library}.")
        for name in [name for name in sys.modules if name.startswith(without)]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, library, None)
        answer = self.refused(run, node)
        assert answer.code == 3
        assert f"{package} is not installed" in answer.err
        assert "pip install 'vfioctl[kubelet]'" in answer.err

    def test_of_a_busy_address_is_refused(self, run: Run, node: Node) -> None:
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            listen = f"127.0.0.1:{other.getsockname()[1]}"
            node.configure(WHOLE, listen=listen, plugins=str(node.folder / "plugins"))
            answer = self.refused(run, node)
        assert answer.code == 3
        assert f"cannot listen on {listen}: Address already in use" in answer.err
        assert "listen in [kubelet] of the configuration names another address" in answer.err

    def test_of_a_recorded_host_is_refused(self, run: Run, node: Node) -> None:
        answer = run(f"kubelet serve --host {node.file}")
        assert (answer.code, answer.out) == (3, "")


class TestReconcile:
    @pytest.fixture
    def sock(self, node: Node) -> Iterator[Path]:
        with socket.socket(socket.AF_UNIX) as kubelet:
            kubelet.bind(str(node.folder / "pods.sock"))
            yield node.folder / "pods.sock"

    @pytest.mark.usefixtures("sock")
    def test_finds_where_the_kubelet_and_the_ledger_differ(
        self, run: Run, node: Node, golden: Golden, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        give(run, node, GPU0, WEB.owner)
        give(run, node, GPU1, "pod/default/gone/main")
        listed = {(NAME, GPU0): (Pod("default", "other", "main"),), (NAME, GPU2): (WEB,)}
        monkeypatch.setattr(pods, "ask_once", lambda *_: Listing(listed))
        answer = run(f"reconcile --simulate {node.file}")
        golden("kubelet/reconcile.txt", timeless(answer.out + answer.err).replace(str(node.file), "node.host"))
        assert answer.code == 4
        found = run(f"reconcile --json --simulate {node.file}").document["differences"]
        assert {(one["kind"], one["device"] or one["claim"]) for one in found} == {
            ("kubelet", "1a2b3c01"),
            ("kubelet", "1a2b3c02"),
            ("kubelet", GPU2),
        }
        assert run(f"reconcile --fix --json --simulate {node.file}").document["fixed"] == []

    @pytest.mark.usefixtures("sock")
    def test_finds_nothing_where_they_agree(self, run: Run, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        give(run, node, GPU0, WEB.owner)
        monkeypatch.setattr(pods, "ask_once", lambda *_: Listing({(NAME, GPU0): (WEB,)}))
        assert run(f"reconcile --simulate {node.file}").code == 0

    @pytest.mark.usefixtures("sock")
    def test_of_a_kubelet_that_does_not_answer_finds_nothing(
        self, run: Run, node: Node, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        give(run, node, GPU0, WEB.owner)
        monkeypatch.setattr(pods, "ask_once", lambda *_: None)
        assert run(f"reconcile --simulate {node.file}").code == 0

    def test_without_a_kubelet_asks_nobody(self, run: Run, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        give(run, node, GPU0, WEB.owner)
        monkeypatch.setitem(sys.modules, "vfioctl.kubelet.serving.pods", None)
        assert run(f"reconcile --simulate {node.file}").code == 0
