"""What the kubelet, the service and the node forget when they start again, and what not."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from tests.hosts.machines import reduced
from tests.kubelet.conftest import MakeNode
from tests.kubelet.kubelet import Kubelet
from tests.kubelet.node import (
    ALL,
    GRACE,
    H100,
    NEAR,
    POLL,
    RELEASED_IN,
    SERVER,
    Node,
    eventually,
    one,
)
from tests.kubelet.pods import NotStarted, Phase, Rejected, pod


def test_a_kubelet_that_starts_again_is_registered_with_again(node: Node, kubelet: Kubelet) -> None:
    holder = one()
    kubelet.run(holder)
    node.until_owned("pod/default/one/app")
    (claim,) = node.claims()
    for _ in range(2):
        kubelet.restart()
        kubelet.wait(lambda: kubelet.healthy(H100) == ALL)
    assert len(kubelet.asked("Allocate")) == 1
    time.sleep(GRACE + 2 * POLL)
    assert [(known.id, known.owner) for known in node.claims()] == [(claim.id, "pod/default/one/app")]
    kubelet.run(one("two", 3))


def test_a_kubelet_that_is_down_for_long_is_found_at_once(node: Node, kubelet: Kubelet) -> None:
    kubelet.stop()
    time.sleep(6)
    kubelet.start()
    kubelet.wait(lambda: kubelet.healthy(H100) == ALL, 3)


def test_pods_of_a_kubelet_that_was_down_for_long_are_known_at_once(node: Node, kubelet: Kubelet) -> None:
    kubelet.stop()
    time.sleep(12)  # gRPC waits longer before each attempt to connect, up to two minutes
    kubelet.start()
    node.until_known(H100)
    kubelet.run(one())
    eventually(lambda: [*node.owners().values()] == ["pod/default/one/app"], "its pod is not known", 5, log=node.log)


def test_a_pod_keeps_its_device_until_the_api_server_answers(node: Node, kubelet: Kubelet) -> None:
    """A kubelet without an API server lists no pods but static ones; the others run all the same."""
    holder = one()
    kubelet.run(holder)
    (device,) = kubelet.ids_of(holder)
    node.until_owned("pod/default/one/app")
    with node.opened(node.vfio_node(device)):
        kubelet.stop()
        kubelet.start(api_server=False)
        node.until_known(H100)
        time.sleep(GRACE + 3 * POLL)
        assert node.owners() == {device: "pod/default/one/app"}
        kubelet.api_answers()
        time.sleep(2 * POLL)
        assert node.owners() == {device: "pod/default/one/app"}


def test_a_pod_that_holds_nothing_open_keeps_its_device_until_the_api_server_answers(
    node: Node, kubelet: Kubelet
) -> None:
    """As above, for a VM that has not started yet, or a container that opens its device later."""
    holder = one()
    kubelet.run(holder)
    (device,) = kubelet.ids_of(holder)
    node.until_owned("pod/default/one/app")
    kubelet.stop()
    kubelet.start(api_server=False)
    node.until_known(H100)
    time.sleep(GRACE + 8 * POLL + 2)
    assert node.owners() == {device: "pod/default/one/app"}
    assert node.driver(device) == "vfio-pci"


def test_a_pod_that_comes_again_after_a_kubelet_ended_in_its_allocate(node: Node, kubelet: Kubelet) -> None:
    node.stop()
    node.start(H100, faults="1:slow=2")
    holder = one()
    outcome: list[Exception] = []

    def admit() -> None:
        try:
            kubelet.admit(holder)
        except Exception as error:  # noqa: BLE001 - compared below
            outcome.append(error)

    admitting = threading.Thread(target=admit)
    admitting.start()
    eventually(lambda: kubelet.asked("Allocate"), "no Allocate")
    time.sleep(0.3)
    kubelet.stop()
    admitting.join(10)
    kubelet.start(api_server=False)
    kubelet.wait(lambda: bool(kubelet.healthy(H100)))
    kubelet.api_answers()
    assert kubelet.life(holder).phase is Phase.RUNNING
    kubelet.start_container(holder, "app")
    node.until_owned("pod/default/one/app")
    eventually(lambda: len(node.claims()) == 1, "the claim of the first Allocate is left", RELEASED_IN, log=node.log)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_plugin_that_starts_again_has_the_same_claims(
    make_node: MakeNode, kubelet: Kubelet, number: signal.Signals
) -> None:
    node = make_node(reduced("hgx8", *NEAR), SERVER)
    node.start_process(H100)
    holder = one(count=2)
    kubelet.run(holder)
    node.until_owned("pod/default/one/app", 2)
    (claim,) = node.claims()
    code = node.stop(number)
    kubelet.wait(lambda: kubelet.unhealthy(H100) == ALL)
    if number is signal.SIGTERM:
        assert code == 0
        assert not [file for file in kubelet.plugins.iterdir() if file.name.startswith("vfioctl")]
    with pytest.raises(NotStarted):
        kubelet.start_container(holder, "app")
    node.start(H100)
    kubelet.wait(lambda: kubelet.healthy(H100) == ALL)
    kubelet.start_container(holder, "app")
    time.sleep(GRACE + 2 * POLL)
    assert [(known.id, known.owner) for known in node.claims()] == [(claim.id, "pod/default/one/app")]


def test_a_pod_that_is_removed_while_the_plugin_is_down_gives_its_device_back(node: Node, kubelet: Kubelet) -> None:
    holder = one()
    kubelet.run(holder)
    node.until_owned("pod/default/one/app")
    node.kill()
    kubelet.remove(holder)
    node.start(H100)
    node.until_free(seconds=RELEASED_IN)
    assert {node.driver(device) for device in NEAR} == {"nvidia"}


def test_a_stop_lets_a_call_finish(node: Node, kubelet: Kubelet) -> None:
    node.stop()
    node.start(H100, faults="1:slow=1.5")
    holder, outcome = one(), list[str]()

    def admit() -> None:
        try:
            kubelet.admit(holder)
            outcome.append("admitted")
        except Rejected as rejected:
            outcome.append(str(rejected))

    admitting = threading.Thread(target=admit)
    admitting.start()
    eventually(lambda: kubelet.asked("Allocate"), "no Allocate")
    time.sleep(0.5)
    assert node.stop() == 0
    admitting.join(10)
    assert outcome == ["admitted"]


def test_after_a_reboot_a_pod_has_its_device_again(node: Node, kubelet: Kubelet) -> None:
    holder, fixed = one(), pod("fixed", static=True, app={H100: 1})
    kubelet.run(holder)
    kubelet.run(fixed)
    node.until_owned("pod/default/one/app")
    node.until_owned("pod/default/fixed/app")
    (device,) = kubelet.ids_of(holder)
    node.reboot()
    assert node.driver(device) == "nvidia"
    kubelet.start(api_server=False)
    node.start(H100)
    kubelet.wait(lambda: device in kubelet.healthy(H100))
    kubelet.api_answers()
    assert kubelet.life(holder).phase is Phase.RUNNING
    kubelet.start_container(holder, "app")
    assert node.driver(device) == "vfio-pci"
    assert len(kubelet.asked("Allocate")) == 2
    time.sleep(GRACE + 2 * POLL)
    assert node.owners()[device] == "pod/default/one/app"
    kubelet.remove(holder)
    kubelet.remove(fixed)
    node.until_free(seconds=RELEASED_IN)
    assert {node.driver(device) for device in NEAR} == {"nvidia"}


def test_a_pod_that_is_gone_after_a_reboot_keeps_nothing(node: Node, kubelet: Kubelet) -> None:
    holder = one()
    kubelet.run(holder)
    node.until_owned("pod/default/one/app")
    node.reboot()
    kubelet.remove(holder)
    node.start()
    kubelet.start()
    node.until_known(H100)
    node.until_free(seconds=RELEASED_IN)
    assert {node.driver(device) for device in NEAR} == {"nvidia"}
