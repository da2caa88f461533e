"""A real kubelet gives parts of GPUs to static pods. The GPUs are a simulated host's: NVIDIA's driver is not here. A
container is given no device node of a share, only what it needs to know. The tests are one story."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.kubelet.node import NAME, STATE, Node
from tests.lab.kubelet.plugin import Plugin

CORE, MEMORY = "tencent.com/vcuda-core", "tencent.com/vcuda-memory"
GPU = "0000:1b:00.0"
HOST = Path(__file__).resolve().parents[2] / "hosts/hgx8.host"
SAYS = "echo on $NVIDIA_VISIBLE_DEVICES; while true; do sleep 1; done"
GIB = 4
"""Units of 256 MiB."""


@pytest.fixture(scope="module")
def shares(plugin: Plugin, node: Node, results: Path) -> Iterator[Plugin]:
    """The service with the GPUs of another host, in place of the one with this host's devices."""
    assert plugin.end() == 0
    host = Path(shutil.copy(HOST, STATE))
    made = Plugin(node, results, {CORE: GPU, MEMORY: GPU}, host)
    made.start()
    yield made
    made.end()
    plugin.start()


def shown(shares: Plugin) -> dict[str, tuple[int, int]]:
    """The cores of each owner, and the GiB of memory."""
    return {claim["owner"]: _amount(claim["shares"]) for claim in shares.claims()}


def _amount(each: list[dict[str, Any]]) -> tuple[int, int]:
    return sum(share["cores"] for share in each), sum(share["memory"] for share in each) >> 30


def owner(name: str) -> str:
    return f"pod/default/{name}-{NAME}/main"


def test_parts_are_counted(shares: Plugin, node: Node) -> None:
    shares.wait_until(lambda: all(map(node.registrations, (CORE, MEMORY))), "both resources are registered")
    resources = {one["name"]: one for one in shares.document("kubelet", "status")["resources"]}
    assert {name: len(one["devices"]) for name, one in resources.items()} == {CORE: 100, MEMORY: 81559 // 256}


def test_a_container_is_told_its_gpu(shares: Plugin, node: Node) -> None:
    node.add_pod("half", {CORE: 40, MEMORY: 8 * GIB}, SAYS)
    node.wait_for_pod("half", "Running")
    shares.wait_until(lambda: shown(shares) == {owner("half"): (40, 8)}, "the claim is its pod's")
    ((share,),) = (claim["shares"] for claim in shares.claims())
    node.within(lambda: f"on {share['uuid']}" in node.said("half"), "the container says its GPU")


def test_a_part_of_several_gpus_is_refused_and_leaves_nothing(shares: Plugin, node: Node) -> None:
    node.add_pod("odd", {CORE: 60, MEMORY: 80 * GIB}, SAYS)
    status = node.wait_for_pod("odd", "Failed")
    assert status["reason"] == "UnexpectedAdmissionError", status
    node.remove_pod("odd")
    shares.wait_until(lambda: shown(shares) == {owner("half"): (40, 8)}, "nothing is left of it")


def test_an_init_container_and_its_pod_share_a_claim(shares: Plugin, node: Node) -> None:
    """The kubelet asks for parts of the init container's again, while its list does not show that one."""
    node.add_pod("later", {CORE: 20, MEMORY: 4 * GIB}, SAYS, init={CORE: 50, MEMORY: 2 * GIB})
    node.wait_for_pod("later", "Running")
    both = {owner("half"): (40, 8), owner("later"): (50, 4)}
    shares.wait_until(lambda: shown(shares) == both, "it has the larger of both")


def test_pods_that_are_removed_give_their_shares_back(shares: Plugin, node: Node) -> None:
    node.remove_pod("half")
    shares.wait_until(lambda: shown(shares) == {owner("later"): (50, 4)}, "the first share is over")
    node.remove_pod("later")
    shares.wait_until(lambda: shares.claims() == [], "both are over")
    assert shares.document("reconcile")["differences"] == []
