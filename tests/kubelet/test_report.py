"""What a node reports to the scheduler extender: which GPUs it has, and which of them its pods really have."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.hosts.machines import reduced
from tests.kubelet.conftest import MakeNode
from tests.kubelet.kubelet import Kubelet
from tests.kubelet.node import FIRST, NEAR, PROGRAM, Node, eventually, resource
from tests.kubelet.pods import pod
from tests.kubelet.test_shares import GPU_MEM, PAIR, shares, until_known, uuid_of
from tests.unit.sharing.extender import api_server
from tests.unit.sharing.extender.api_server import ApiServer
from vfioctl.sharing.extender import reading
from vfioctl.sharing.extender.names import MEMORY, REPORT, Unit

REPORTS = ("share", "extender", "report", "--node", "gpu1")


@pytest.fixture
def api() -> Iterator[ApiServer]:
    api = ApiServer()
    document = api_server.node("gpu1", 4, 79)
    document["status"]["allocatable"] = {MEMORY: str(4 * 79)}  # of a device plugin that has no count of GPUs
    api.put("nodes", document)
    yield api
    api.close()


@pytest.fixture
def shared(make_node: MakeNode) -> Node:
    node = make_node(reduced("hgx8", *NEAR), resource(GPU_MEM, "10de:2330"))
    node.start(GPU_MEM)
    return node


def reported(api: ApiServer) -> reading.Node:
    """What the extender reads of the node."""
    node = reading.read_node(api.objects["nodes"]["/gpu1"], Unit.GIB)
    assert node
    assert node.problems == ()
    return node


def send(node: Node, api: ApiServer) -> reading.Node:
    sent = node.command(*REPORTS, "--once", "--api-server", api.url)
    assert sent.returncode == 0, sent.stderr
    return reported(api)


def test_the_extender_learns_which_gpu_each_container_has(shared: Node, kubelet: Kubelet, api: ApiServer) -> None:
    assert reported(api).sizes == ()
    kubelet.run(pod("first", app={GPU_MEM: 50}))
    kubelet.run(pod("second", app={GPU_MEM: 50}))
    kubelet.run(pod("two", a={GPU_MEM: 60}, b={GPU_MEM: 19}))
    owners = ("first/app", "second/app", "two/a", "two/b")
    until_known(shared, *(f"pod/default/{owner}" for owner in owners))
    node = send(shared, api)
    assert node.sizes == (79,) * 4
    assert node.ids == tuple(uuid_of(shared, gpu) for gpu in NEAR)
    held = {owner.removeprefix("pod/"): uuid_of(shared, each[0][0]) for owner, each in shares(shared).items()}
    assert {container: given.gpu for container, given in node.has.items()} == held
    minutes = (time.time_ns() - 10 * 60 * 10**9, time.time_ns())
    assert all(given.since and minutes[0] < given.since < minutes[1] for given in node.has.values())


def test_what_others_have_is_not_there_for_pods(shared: Node, kubelet: Kubelet, api: ApiServer) -> None:
    kubelet.run(pod("one", app={GPU_MEM: 70}))
    until_known(shared, "pod/default/one/app")
    gpu = shares(shared)["pod/default/one/app"][0][0]
    first, second = [other for other in NEAR if other != gpu][:2]
    of_user = ("claim", "create", "--owner", "user/ada", "--gpu-memory", "20GiB", "--device")
    assert shared.command(*of_user, first).returncode == 0
    assert shared.command("bind", second, "--yes").returncode == 0
    assert shared.command("kubelet", "cordon", gpu, "--no-wait").returncode == 0
    sizes = dict(zip(NEAR, send(shared, api).sizes, strict=True))
    assert (sizes[gpu], sizes[first], sizes[second]) == (70, 59, 0)


def test_parts_that_the_gpu_has_no_more_are_not_there_for_pods(
    make_node: MakeNode, kubelet: Kubelet, api: ApiServer
) -> None:
    """As where the unit has become larger."""
    node = make_node(reduced("hgx8", FIRST), resource(GPU_MEM, "10de:2330", unit="256MiB"))
    node.start(GPU_MEM)
    first, second = (pod(name, app={GPU_MEM: 60}) for name in ("first", "second"))
    kubelet.run(first)
    kubelet.run(second)
    until_known(node, "pod/default/first/app", "pod/default/second/app")
    kubelet.remove(first)
    until_known(node, "pod/default/second/app")
    node.stop()
    node.config.write_text(node.config.read_text().replace("256MiB", "1GiB"))
    assert send(node, api).sizes == (79,)


def test_a_change_is_told(shared: Node, kubelet: Kubelet, api: ApiServer) -> None:
    command = (*PROGRAM, "--simulate", str(shared.file), *REPORTS, "--api-server", api.url)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as service:
        eventually(lambda: reported(api).sizes == (79,) * 4, "nothing is reported")
        kubelet.run(pod("one", app={GPU_MEM: 8}))
        eventually(lambda: "default/one/app" in reported(api).has, "the container is not reported", seconds=30)
        assert api.count("PATCH", "/nodes/gpu1") < 5
        service.terminate()
        _, errors = service.communicate()
    assert (service.returncode, errors) == (0, "annotates node gpu1\n")


def test_dry_run_shows_the_annotation_and_sends_nothing(shared: Node, api: ApiServer) -> None:
    shown = shared.command(*REPORTS, "--dry-run")
    assert [gpu["memory"] for gpu in json.loads(shown.stdout)["gpus"]] == [79 << 30] * 4
    assert REPORT not in api.objects["nodes"]["/gpu1"]["metadata"]["annotations"]


def test_a_refusal_of_the_api_server_is_an_error(shared: Node, api: ApiServer) -> None:
    refused = shared.command("share", "extender", "report", "--node", "gpu2", "--once", "--api-server", api.url)
    assert refused.returncode != 0
    assert 'node gpu2 cannot be annotated: the API server answers 404: nodes "gpu2" not found' in refused.stderr


def test_a_host_without_the_resource_has_nothing_to_report(make_node: MakeNode) -> None:
    node = make_node(reduced("hgx8", *NEAR), PAIR)
    refused = node.command(*REPORTS, "--once", "--api-server", "http://127.0.0.1:1")
    assert refused.returncode == 2
    assert "has no resource aliyun.com/gpu-mem" in refused.stderr
