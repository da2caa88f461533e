"""How the service registers, and what it sends of its devices."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

import pytest

from tests.hosts.machines import original, reduced
from tests.kubelet.conftest import MakeNode
from tests.kubelet.kubelet import Kubelet
from tests.kubelet.listing import allocatable
from tests.kubelet.node import (
    ALL,
    FIRST,
    FOURTH,
    H100,
    NEAR,
    POLL,
    SECOND,
    SERVER,
    THIRD,
    Node,
    eventually,
    one,
    resource,
)
from tests.kubelet.state import State

RTX = "nvidia.com/TU102_RTX2080"
DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def test_both_kinds_of_kubelet_get_the_same_options(node: Node, kubelet: Kubelet) -> None:
    assert kubelet.state.endpoints[H100].options == kubelet.registrations.requests[0].options
    assert kubelet.state.endpoints[H100].options.pre_start_required
    assert kubelet.state.endpoints[H100].options.get_preferred_allocation_available


def test_each_resource_has_a_socket_of_one_process(make_node: MakeNode, kubelet: Kubelet) -> None:
    two = resource("nvidia.com/near", FIRST, SECOND) + resource("nvidia.com/far", THIRD)
    node = make_node(reduced("hgx8", *NEAR), two)
    node.start("nvidia.com/near", "nvidia.com/far")
    assert kubelet.healthy("nvidia.com/near") == {FIRST, SECOND}
    assert kubelet.healthy("nvidia.com/far") == {THIRD}
    assert len({request.endpoint for request in kubelet.registrations.requests}) == 2
    assert len([file for file in kubelet.plugins.iterdir() if file.is_socket()]) == 3


def test_the_service_waits_for_a_kubelet(make_node: MakeNode, kubelet: Kubelet) -> None:
    kubelet.stop()
    kubelet.socket.unlink()
    node = make_node(reduced("hgx8", *NEAR), SERVER)
    node.start()
    eventually(lambda: any(kubelet.plugins.glob("vfioctl-*")), "no socket of the plugin", log=node.log)
    kubelet.start()
    kubelet.wait(lambda: kubelet.healthy(H100) == ALL)


def test_the_service_waits_for_the_directory_of_a_kubelet(make_node: MakeNode, kubelet: Kubelet) -> None:
    kubelet.stop()
    for file in kubelet.plugins.iterdir():
        file.unlink()
    kubelet.plugins.rmdir()
    node = make_node(reduced("hgx8", *NEAR), SERVER)
    node.start()
    time.sleep(1.0)
    kubelet.plugins.mkdir(exist_ok=True)
    kubelet.start()
    kubelet.wait(lambda: kubelet.healthy(H100) == ALL, 15)


def test_devices_that_the_kubelet_does_not_count_are_a_problem_the_second_time(
    node: Node, kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    before: list[str] = []

    def problem() -> str:
        return str(node.status()["resources"][0]["problem"])

    def nothing_after_the_first(state: State) -> Sequence[object]:
        # an answer from before the kubelet had the first list would be without devices, too
        before.append(problem())
        return allocatable(state) if len(before) == 1 else []

    assert not problem()
    with monkeypatch.context() as patch:
        patch.setattr("tests.kubelet.kubelet.allocatable", nothing_after_the_first)
        if not kubelet.state.release.has_get:  # it cannot be asked
            time.sleep(13 * POLL)
            assert (before, problem()) == ([], "")
            return
        eventually(lambda: len(before) > 3, "the kubelet was not asked", 30, log=node.log)
    assert before[:3] == ["", "", ""], "it may not have had the first list of devices yet"
    assert "does not count" in before[3]
    eventually(lambda: not problem(), "the problem stays", 30, log=node.log)


def test_a_list_is_sent_on_change_only(node: Node, kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch) -> None:
    lists: list[object] = []
    update = kubelet.state.table.update

    def counted(name: str, devices: Sequence[object]) -> None:
        lists.append(devices)
        update(name, devices)  # type: ignore[arg-type] # handed on

    monkeypatch.setattr(kubelet.state.table, "update", counted)
    time.sleep(2.5 * POLL)
    assert lists == []
    node.host.kubelet.cordon([FIRST])
    kubelet.wait(lambda: kubelet.unhealthy(H100) == {FIRST})
    assert len(lists) == 1


def test_ids_are_addresses_that_a_reboot_does_not_change(node: Node, kubelet: Kubelet) -> None:
    before = kubelet.healthy(H100)
    assert before == ALL
    assert all(len(device) <= 63 for device in before)
    labels = [device["label"] for device in node.status()["resources"][0]["devices"]]
    assert len({*labels}) == len(ALL)
    assert all(DNS_LABEL.fullmatch(label) for label in labels)
    node.reboot()
    node.start()
    kubelet.start()
    node.until_known(H100)
    kubelet.wait(lambda: kubelet.healthy(H100) == before)


def test_a_numa_node_is_sent_where_it_is_known(node: Node, kubelet: Kubelet) -> None:
    nodes = {device: kubelet.state.table.nodes_of(H100, device) for device in NEAR}
    assert nodes == {FIRST: [0], SECOND: [0], THIRD: [1], FOURTH: [1]}


def test_an_unknown_numa_node_sends_no_topology(make_node: MakeNode, kubelet: Kubelet) -> None:
    node = make_node(original("workstation"), resource(RTX, "10de:1e04"))
    node.start(RTX)
    assert kubelet.healthy(RTX) == {"0000:0b:00.0"}
    assert kubelet.state.table.nodes_of(RTX, "0000:0b:00.0") == []


def test_devices_of_one_numa_node_are_preferred(node: Node, kubelet: Kubelet) -> None:
    both = one(count=2)
    kubelet.run(both)
    assert kubelet.ids_of(both) in ({FIRST, SECOND}, {THIRD, FOURTH})


def test_what_must_be_included_is_preferred(node: Node, kubelet: Kubelet) -> None:
    endpoint = kubelet.state.endpoints[H100]
    assert {*endpoint.prefer(NEAR, [FOURTH], 2)} == {THIRD, FOURTH}
    assert {*endpoint.prefer([FIRST, FOURTH], [FIRST], 2)} == {FIRST, FOURTH}
    assert {*endpoint.prefer([*NEAR, "0000:ff:00.0"], [], 4)} == ALL
