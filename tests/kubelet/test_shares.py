"""Parts of GPUs that stay with their host driver: gpu-manager's names, gpushare's, and others."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

from tests.hosts.generate import toolkit_file
from tests.hosts.machines import copy, original, reduced
from tests.kubelet.admission import Admission
from tests.kubelet.conftest import MakeNode
from tests.kubelet.kubelet import Kubelet
from tests.kubelet.node import FIRST, GRACE, NEAR, POLL, RELEASED_IN, SECOND, Node, eventually, resource
from tests.kubelet.pods import Container, NotStarted, Pod, Rejected, pod
from tests.kubelet.table import Place
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kubelet.allocating import pairs
from vfioctl.kubelet.allocating.parts import PartsAllocation
from vfioctl.kubelet.model.units import units_of

CORE, MEMORY, GPU_MEM = "tencent.com/vcuda-core", "tencent.com/vcuda-memory", "aliyun.com/gpu-mem"
PAIR = resource(CORE, "10de:2330") + resource(MEMORY, "10de:2330")
GIB = 4
"""Units of 256 MiB."""


@pytest.fixture
def pair(make_node: MakeNode) -> Node:
    node = make_node(reduced("hgx8", *NEAR), PAIR)
    node.start(CORE, MEMORY)
    return node


def part(name: str, cores: int, memory: int = 8 * GIB) -> Pod:
    return pod(name, app={CORE: cores, **({MEMORY: memory} if memory else {})})


def shares(node: Node) -> dict[str, list[tuple[str, int, int]]]:
    """The shares by owner: GPU, cores, memory."""
    known: dict[str, list[tuple[str, int, int]]] = {}
    for claim in node.claims():
        known.setdefault(claim.owner, []).extend((s.address, s.cores, s.memory) for s in claim.shares)
    return {owner: sorted(each) for owner, each in known.items()}


def until_known(node: Node, *owners: str) -> None:
    eventually(lambda: {*shares(node)} == {*owners}, "the pods are not known", log=node.log)


def test_each_gpu_has_a_hundred_cores_and_units_of_its_memory(pair: Node, kubelet: Kubelet) -> None:
    assert len(kubelet.healthy(CORE)) == 400
    assert len(kubelet.healthy(MEMORY)) == 4 * (81559 // 256)


def test_cores_and_memory_of_a_container_are_of_one_gpu(pair: Node, kubelet: Kubelet) -> None:
    holders = [part(f"p{number}", 40) for number in range(6)]
    for holder in holders:
        started = kubelet.run(holder)["app"]
        assert started.envs["NVIDIA_VISIBLE_DEVICES"] in {uuid_of(pair, gpu) for gpu in NEAR}
    until_known(pair, *(f"pod/default/p{number}/app" for number in range(6)))
    held = [share for each in shares(pair).values() for share in each]
    assert sorted(held) == sorted((gpu, 40, 8 << 30) for gpu in NEAR[:3] for _ in range(2))
    for holder in holders:
        kubelet.remove(holder)
    pair.until_free(seconds=RELEASED_IN)


def uuid_of(node: Node, gpu: str) -> str:
    nvml = node.host.inventory().by_address[gpu].nvml  # type: ignore[index]
    assert nvml
    assert nvml.uuid
    return nvml.uuid


def test_two_containers_of_one_pod_are_told_apart(pair: Node, kubelet: Kubelet) -> None:
    kubelet.run(pod("two", a={CORE: 30, MEMORY: 4}, b={CORE: 60, MEMORY: 8}))
    until_known(pair, "pod/default/two/a", "pod/default/two/b")
    assert {owner: [share[1:] for share in each] for owner, each in shares(pair).items()} == {
        "pod/default/two/a": [(30, 1 << 30)],
        "pod/default/two/b": [(60, 2 << 30)],
    }


def test_pods_of_equal_size_are_told_apart(pair: Node, kubelet: Kubelet) -> None:
    first, second = part("first", 50), part("second", 50)
    kubelet.run(first)
    kubelet.run(second)
    until_known(pair, "pod/default/first/app", "pod/default/second/app")
    kubelet.remove(first)
    until_known(pair, "pod/default/second/app")


@pytest.fixture
def named(make_node: MakeNode) -> Node:
    """The same where NVIDIA's container toolkit has named the GPUs."""
    tree = copy(reduced("hgx8", *NEAR))
    tree.put("/etc/cdi/nvidia.yaml", "\n".join(toolkit_file(8)))
    node = make_node(tree, PAIR)
    node.start(CORE, MEMORY)
    return node


def test_hundreds_of_cores_are_whole_gpus(named: Node, kubelet: Kubelet) -> None:
    node = named
    holder = part("whole", 200, 0)
    started = kubelet.run(holder)["app"]
    until_known(node, "pod/default/whole/app")
    held = shares(node)["pod/default/whole/app"]
    assert [cores for _, cores, _ in held] == [100, 100]
    uuids = {uuid_of(node, gpu) for gpu, _, _ in held}
    if started.cdi:  # not before Kubernetes 1.28
        assert started.envs["NVIDIA_VISIBLE_DEVICES"] == "void"
        assert {*started.cdi} == {f"nvidia.com/gpu={uuid}" for uuid in uuids}
    gpus = {gpu for gpu, _, _ in held}
    eventually(lambda: not any(f"{gpu}/300" in kubelet.healthy(MEMORY) for gpu in gpus), "memory of whole GPUs is free")


def test_a_part_of_several_gpus_is_refused(pair: Node, kubelet: Kubelet) -> None:
    with pytest.raises(Rejected, match="150 cores would be a part of several GPUs"):
        kubelet.admit(part("odd", 150, 0))
    assert pair.claims() == ()


def test_parts_that_no_gpu_has_are_refused_and_leave_nothing(pair: Node, kubelet: Kubelet) -> None:
    for number in range(4):
        kubelet.run(part(f"p{number}", 60, 4))
    with pytest.raises(Rejected, match="no GPU can give a share of 80 cores"):
        kubelet.admit(part("large", 80, 4))
    assert len(pair.claims()) == 4


def test_what_is_claimed_beside_the_kubelet_is_unhealthy(pair: Node, kubelet: Kubelet) -> None:
    assert pair.command("claim", "create", "--owner", "pod/a/b/c", "--cores", "40", "--device", FIRST).returncode == 0
    eventually(lambda: len(kubelet.healthy(CORE)) == 360, "its cores are healthy")
    assert pair.command("bind", SECOND, "--yes").returncode == 0
    eventually(lambda: len(kubelet.healthy(CORE)) == 260, "its cores are healthy")
    assert "for guests" in pair.reason(f"{SECOND}/0")


def test_a_plugin_that_starts_again_keeps_the_shares(make_node: MakeNode, kubelet: Kubelet) -> None:
    node = make_node(reduced("hgx8", *NEAR), resource(GPU_MEM))
    node.start(GPU_MEM)
    kubelet.run(pod("one", app={GPU_MEM: 24}))
    until_known(node, "pod/default/one/app")
    before = shares(node)
    assert before["pod/default/one/app"][0][2] == 24 << 30
    node.stop()
    node.start(GPU_MEM)
    assert shares(node) == before


def test_a_container_that_asks_for_one_of_a_pair_does_not_start(pair: Node, kubelet: Kubelet) -> None:
    half = part("half", 40, 0)
    kubelet.admit(half)
    with pytest.raises(NotStarted, match=f"asks for {CORE} without {MEMORY}"):
        kubelet.start_container(half, "app")
    until_known(pair, "pod/default/half/app")
    (problem,) = (each["problem"] for each in pair.status()["resources"] if each["name"] == CORE)
    assert problem == f"pod/default/half/app cannot start: it asks for {CORE} without {MEMORY}"


def test_one_that_asks_for_one_of_a_pair_is_not_mixed_up_with_later_ones(
    pair: Node, kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pairs, "_SECONDS", 1.0)
    for number in range(4):  # the kubelet asks for cores or memory first, as it happens
        kubelet.admit(part(f"half{number}", 10, 0))
        time.sleep(1.0)
        with pytest.raises(Rejected, match="no GPU can give a share"):
            kubelet.admit(part(f"large{number}", 20, 400))
        kubelet.run(part(f"whole{number}", 20))
    halves = {f"pod/default/half{number}/app": [(10, 0)] for number in range(4)}
    wholes = {f"pod/default/whole{number}/app": [(20, 8 << 30)] for number in range(4)}
    until_known(pair, *halves, *wholes)
    held = {owner: [share[1:] for share in each] for owner, each in shares(pair).items()}
    assert held == halves | wholes


def test_a_whole_gpu_is_not_taken_from_its_container_for_the_next_one(named: Node, kubelet: Kubelet) -> None:
    """The kubelet may ask for memory first, and does not say for which container."""
    for number in range(3):
        kubelet.admit(part(f"whole{number}", 100, 0))
        before = {claim.id for claim in named.claims() if claim.shares[0].is_whole}
        with suppress(NotStarted, Rejected):
            kubelet.run(part(f"near{number}", 20))
        assert {claim.id for claim in named.claims() if claim.shares[0].is_whole} == before


def test_parts_of_a_gpu_that_is_cordoned_meanwhile_are_not_given(
    pair: Node, kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = PartsAllocation._made

    def cordoned(self: PartsAllocation, *arguments: Any) -> Any:
        claim = made(self, *arguments)
        pair.host.kubelet.cordon([claim.shares[0].address])
        return claim

    monkeypatch.setattr(PartsAllocation, "_made", cordoned)
    with pytest.raises(Rejected, match="is not given to pods: cordoned"):
        kubelet.admit(part("one", 40))
    assert pair.claims() == ()


def test_parts_of_a_pod_are_not_taken_while_the_kubelet_is_silent(
    make_node: MakeNode, kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = make_node(reduced("hgx8", FIRST), resource(GPU_MEM))
    node.start(GPU_MEM)
    with pytest.raises(Rejected):
        kubelet.admit(pod("rejected", a={GPU_MEM: 40}, b={GPU_MEM: 60}))
    kubelet.run(pod("small", app={GPU_MEM: 10}))
    until_known(node, "pod/default/small/app")
    with monkeypatch.context() as patch:
        patch.setattr("vfioctl.kubelet.serving.service.ask_once", lambda *_: None)
        with pytest.raises(Rejected, match="the kubelet does not tell"):
            kubelet.run(pod("large", app={GPU_MEM: 30}))
    assert [claim.owner for claim in node.claims()] == ["pod/default/small/app"]


def test_hundred_cores_with_memory_are_one_whole_gpu(named: Node, kubelet: Kubelet) -> None:
    for number in range(4):
        kubelet.run(part(f"p{number}", 100))
    until_known(named, *(f"pod/default/p{number}/app" for number in range(4)))
    held = sorted(share for each in shares(named).values() for share in each)
    assert [(gpu, cores) for gpu, cores, _ in held] == [(gpu, 100) for gpu in NEAR]
    assert not kubelet.healthy(CORE) - {name for claim in named.claims() for _, name in units_of(claim)}


@pytest.mark.parametrize("seconds", [0, 2 * POLL], ids=["at once", "after a List between both resources"])
@pytest.mark.parametrize(("before", "app"), [(40, 20), (20, 40), (30, 30)])
def test_an_init_container_and_its_pod_share_a_claim(
    pair: Node, kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch, before: int, app: int, seconds: float
) -> None:
    allocate = Admission._ask_allocate

    def slowly(self: Admission, place: Place, ids: Sequence[str]) -> None:
        allocate(self, place, ids)
        time.sleep(seconds)

    monkeypatch.setattr(Admission, "_ask_allocate", slowly)
    kubelet.run(part("other", 30))
    first = Container("before", {CORE: before, MEMORY: 8}, init=True)
    both = Pod("both", [Container("app", {CORE: app, MEMORY: 4}), first])
    kubelet.admit(both)
    told = kubelet.start_container(both, "before").envs["NVIDIA_VISIBLE_DEVICES"]
    time.sleep(GRACE + 3 * POLL)  # a long init container, which List does not show
    assert len(pair.claims()) == 2
    assert kubelet.start_container(both, "app").envs["NVIDIA_VISIBLE_DEVICES"] == told
    until_known(pair, "pod/default/other/app", "pod/default/both/app")
    ((gpu, cores, memory),) = shares(pair)["pod/default/both/app"]
    assert (uuid_of(pair, gpu), cores, memory) == (told, max(before, app), 8 << 28)
    kubelet.remove(both)
    until_known(pair, "pod/default/other/app")


def test_an_init_container_alone_keeps_its_share_while_its_pod_is_there(pair: Node, kubelet: Kubelet) -> None:
    only = Pod("only", [Container("before", {CORE: 40, MEMORY: 8}, init=True), Container("app")])
    kubelet.admit(only)
    time.sleep(GRACE + 3 * POLL)  # its image is pulled
    kubelet.start_container(only, "before")
    kubelet.remove(only)
    pair.until_free(seconds=RELEASED_IN)


@pytest.mark.parametrize("known", [True, False], ids=["its pod is known", "at once"])
def test_what_a_rejected_pod_had_is_shared_among_later_ones(make_node: MakeNode, kubelet: Kubelet, known: bool) -> None:
    node = make_node(reduced("hgx8", FIRST), resource(GPU_MEM))
    node.start(GPU_MEM)
    with pytest.raises(Rejected):
        kubelet.admit(pod("rejected", a={GPU_MEM: 40}, b={GPU_MEM: 60}))
    assert [claim.shares[0].memory for claim in node.claims()] == [40 << 30]
    small, large = pod("small", app={GPU_MEM: 10}), pod("large", app={GPU_MEM: 30})
    kubelet.run(small)
    if known:
        until_known(node, "pod/default/small/app")
    kubelet.run(large)
    until_known(node, "pod/default/small/app", "pod/default/large/app")
    time.sleep(GRACE + 3 * POLL)
    held = {owner: sum(share[2] for share in each) >> 30 for owner, each in shares(node).items()}
    assert held["pod/default/small/app"] >= 10
    assert held["pod/default/large/app"] == 30
    for each in (small, large):
        kubelet.start_container(each, "app")


def test_shares_are_of_the_numa_node_that_the_kubelet_chose(pair: Node, kubelet: Kubelet) -> None:
    for number in (1, 0):
        near = Container("app", {CORE: 30, MEMORY: 8}, numa_node=number)
        kubelet.run(Pod(f"near{number}", [near]))
    until_known(pair, "pod/default/near0/app", "pod/default/near1/app")
    ((first, *_),), ((second, *_),) = (shares(pair)[f"pod/default/near{number}/app"] for number in (0, 1))
    by_address = pair.host.inventory().by_address
    assert [by_address[PciAddress(gpu)].numa_node for gpu in (first, second)] == [0, 1]


def test_the_share_of_a_pod_that_was_made_anew_is_given_back(make_node: MakeNode, kubelet: Kubelet) -> None:
    node = make_node(reduced("hgx8", *NEAR), resource(GPU_MEM))
    node.start(GPU_MEM)
    old, new = pod("web-0", app={GPU_MEM: 60}), pod("web-0", app={GPU_MEM: 60})
    kubelet.run(old)
    until_known(node, "pod/default/web-0/app")
    ((before, *_),) = shares(node)["pod/default/web-0/app"]
    kubelet.admit(new)
    kubelet.remove(old)
    kubelet.start_container(new, "app")
    eventually(
        lambda: (
            [gpu for gpu, *_ in shares(node).get("pod/default/web-0/app", ())] not in ([], [before])
            and len(node.claims()) == 1
        ),
        "the old share stays",
        log=node.log,
    )


def test_shares_stay_until_the_api_server_answers(pair: Node, kubelet: Kubelet) -> None:
    one = part("one", 40)
    kubelet.run(one)
    until_known(pair, "pod/default/one/app")
    kubelet.stop()
    kubelet.start(api_server=False)
    time.sleep(2 * GRACE + 3 * POLL)
    assert {*shares(pair)} == {"pod/default/one/app"}
    kubelet.restart()
    pair.until_known(CORE)
    kubelet.remove(one)
    pair.until_free(seconds=2 * RELEASED_IN)


def test_gpus_that_no_toolkit_names_are_given_to_nobody(make_node: MakeNode) -> None:
    node = make_node(original("mi300x"), resource(CORE) + resource(MEMORY))
    (parts,) = (each["devices"] for each in node.status()["resources"] if each["name"] == CORE)
    reasons = {part["reason"] for part in parts}
    assert reasons == {"it has 2 VFs", "its UUID is not known, by which NVIDIA's container toolkit names it"}


def test_a_boot_display_is_shared_only_if_it_is_named(make_node: MakeNode, kubelet: Kubelet) -> None:
    tree = copy(reduced("hgx8", FIRST))
    tree.put(f"{tree.resolve(f'/sys/bus/pci/devices/{FIRST}')}/boot_vga", "1")
    node = make_node(tree, resource(GPU_MEM, FIRST))
    node.start(GPU_MEM)
    kubelet.run(pod("one", app={GPU_MEM: 8}))
    assert [claim.shares[0].address for claim in node.claims()] == [FIRST]


def test_a_share_without_a_claim_does_not_start_again(pair: Node, kubelet: Kubelet) -> None:
    holder = part("one", 40)
    kubelet.run(holder)
    until_known(pair, "pod/default/one/app")
    kubelet.start_container(holder, "app")
    pair.host.claims.release(pair.claims()[0].id)
    with pytest.raises(NotStarted, match="delete its pod"):
        kubelet.start_container(holder, "app")


@pytest.fixture
def alone(make_node: MakeNode) -> Node:
    """A node whose only shared GPU has an MPS daemon."""
    node = make_node(reduced("hgx8", *NEAR), resource(GPU_MEM, FIRST))
    assert node.command("mps", "start", FIRST, "--yes").returncode == 0
    return node


def test_a_container_of_a_gpu_with_mps_has_the_limits_of_its_share(alone: Node, kubelet: Kubelet) -> None:
    alone.start(GPU_MEM)
    told = kubelet.run(pod("one", app={GPU_MEM: 8}))["app"].envs
    assert told["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=8192M"
    assert told["CUDA_MPS_PIPE_DIRECTORY"].startswith("/run/vfioctl/mps/")


def test_without_a_daemon_there_are_no_limits(pair: Node, kubelet: Kubelet) -> None:
    assert not [name for name in kubelet.run(part("one", 40))["app"].envs if name.startswith("CUDA_MPS")]


def test_a_daemon_that_died_costs_the_pod_and_leaves_no_claim(alone: Node, kubelet: Kubelet) -> None:
    alone.start(GPU_MEM)
    with alone.changed() as tree:
        (unit,) = (name for name in tree.properties if name.startswith("unit:vfioctl-mps@"))
        tree.properties[unit]["state"] = "failed"
    with pytest.raises(Rejected, match=r"the MPS daemon of .* has died"):
        kubelet.admit(pod("one", app={GPU_MEM: 8}))
    assert alone.claims() == ()


def test_a_container_does_not_start_again_without_its_daemon(alone: Node, kubelet: Kubelet) -> None:
    alone.start(GPU_MEM)
    holder = pod("one", app={GPU_MEM: 8})
    kubelet.run(holder)
    with alone.changed() as tree:
        (unit,) = (name for name in tree.properties if name.startswith("unit:vfioctl-mps@"))
        tree.properties[unit]["state"] = "failed"
    with pytest.raises(NotStarted, match=r"the MPS daemon of .* has died"):
        kubelet.start_container(holder, "app")


def test_a_gpu_whose_daemon_is_for_one_claim_gives_no_other_parts(make_node: MakeNode, kubelet: Kubelet) -> None:
    node = make_node(reduced("hgx8", *NEAR), PAIR)
    made = node.command("claim", "create", "--owner", "pod/a/b/c", "--cores", "40", "--device", FIRST, "--json")
    claim = json.loads(made.stdout)["id"]
    assert node.command("mps", "start", FIRST, "--claim", claim, "--yes").returncode == 0
    node.start(CORE, MEMORY)
    assert len(kubelet.healthy(CORE)) == 300
    assert f"for claim {claim}" in node.reason(f"{FIRST}/0")
