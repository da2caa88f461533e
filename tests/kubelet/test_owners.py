"""Which pod a claim belongs to, and when it ends."""

from __future__ import annotations

import time

import pytest

from tests.hosts.machines import original
from tests.kubelet.conftest import MakeNode
from tests.kubelet.kubelet import Kubelet
from tests.kubelet.node import (
    ALL,
    GRACE,
    H100,
    NEAR,
    POLL,
    RELEASED_IN,
    Node,
    one,
    resource,
)
from tests.kubelet.pods import Container, NotStarted, Pod, Rejected, pod
from vfioctl.kernel.protocol import PCI_DEVICES


def test_a_claim_gets_the_name_of_its_pod(node: Node, kubelet: Kubelet) -> None:
    kubelet.run(pod("train", "team", app={H100: 2}))
    assert len(node.until_owned("pod/team/train/app", 2)) == 2


def test_each_container_has_its_claim(node: Node, kubelet: Kubelet) -> None:
    both = Pod("both", [Container("a", {H100: 1}), Container("b", {H100: 2})])
    kubelet.run(both)
    node.until_owned("pod/default/both/a", 1)
    node.until_owned("pod/default/both/b", 2)
    assert len(node.claims()) == 2


def test_the_name_comes_with_the_next_list_where_no_start_was_asked_for(node: Node, kubelet: Kubelet) -> None:
    kubelet.admit(one())
    node.until_owned("pod/default/one/app")


def test_a_removed_pod_gives_its_devices_back(node: Node, kubelet: Kubelet) -> None:
    before = node.drivers()
    holder = one(count=4)
    kubelet.run(holder)
    node.until_owned("pod/default/one/app", 4)
    assert {node.driver(device) for device in NEAR} == {"vfio-pci"}
    kubelet.remove(holder)
    node.until_free(seconds=RELEASED_IN)
    assert node.drivers() == before
    kubelet.wait(lambda: kubelet.healthy(H100) == ALL)


def test_a_pod_that_has_ended_gives_its_devices_back(node: Node, kubelet: Kubelet) -> None:
    holder = one()
    kubelet.run(holder)
    node.until_owned("pod/default/one/app")
    kubelet.finish(holder)
    node.until_free(seconds=RELEASED_IN)


def test_a_device_that_is_open_is_released_when_it_is_closed(node: Node, kubelet: Kubelet) -> None:
    holder = one()
    kubelet.run(holder)
    (device,) = kubelet.ids_of(holder)
    with node.opened(node.vfio_node(device)):
        kubelet.remove(holder)
        time.sleep(3 * POLL + GRACE)
        assert node.owners()
        assert node.driver(device) == "vfio-pci"
    node.until_free(seconds=RELEASED_IN)
    assert node.driver(device) == "nvidia"


def test_a_pod_that_is_rejected_after_its_allocate_keeps_nothing(node: Node, kubelet: Kubelet) -> None:
    refused = Pod("one", [Container("app", {H100: 2}), Container("beside", {}, refused="not enough cpus")])
    with pytest.raises(Rejected, match="not enough cpus"):
        kubelet.admit(refused)
    assert len(node.claims()) == 1
    node.until_free(seconds=RELEASED_IN)
    assert {node.driver(device) for device in NEAR} == {"nvidia"}


def test_a_device_of_a_rejected_pod_is_given_to_the_next_at_once(node: Node, kubelet: Kubelet) -> None:
    refused = Pod("one", [Container("app", {H100: 4}), Container("beside", {}, refused="not enough cpus")])
    with pytest.raises(Rejected):
        kubelet.admit(refused)
    kubelet.run(one("two", 4))
    node.until_owned("pod/default/two/app", 4)
    time.sleep(2 * POLL + GRACE)
    assert len(node.until_owned("pod/default/two/app", 4)) == 4
    assert {node.driver(device) for device in NEAR} == {"vfio-pci"}


def test_a_container_that_starts_again_keeps_its_claim(node: Node, kubelet: Kubelet) -> None:
    holder = one()
    first = kubelet.run(holder)["app"]
    node.until_owned("pod/default/one/app")
    (claim,) = node.claims()
    assert kubelet.start_container(holder, "app") == first
    time.sleep(2 * POLL)
    assert [known.id for known in node.claims()] == [claim.id]
    assert len(kubelet.asked("Allocate")) == 1


def unbind(node: Node, device: str) -> None:
    """By hand, behind the back of everybody."""
    kernel = node.kernel
    kernel.write(f"{PCI_DEVICES}/{device}/driver_override", "\n")
    kernel.write("/sys/bus/pci/drivers/vfio-pci/unbind", device)
    kernel.write("/sys/bus/pci/drivers_probe", device)
    assert node.driver(device) == "nvidia"


def test_a_start_verifies_that_the_device_is_bound(node: Node, kubelet: Kubelet) -> None:
    holder = one()
    kubelet.run(holder)
    (device,) = kubelet.ids_of(holder)
    node.until_owned("pod/default/one/app")
    unbind(node, device)
    kubelet.start_container(holder, "app")
    assert node.driver(device) == "vfio-pci"


def test_a_start_fails_when_the_device_cannot_be_had(make_node: MakeNode, kubelet: Kubelet) -> None:
    node = make_node(original("busy"), resource(H100, "0000:04:00.0"))
    node.start(H100)
    holder = one()
    kubelet.run(holder)
    node.until_owned("pod/default/one/app")
    unbind(node, "0000:04:00.0")
    with node.opened("/dev/nvidia2", name="python3"), pytest.raises(NotStarted, match="python3"):
        kubelet.start_container(holder, "app")
    kubelet.start_container(holder, "app")


def test_an_init_container_and_its_pod_have_one_claim_after_the_other(node: Node, kubelet: Kubelet) -> None:
    both = Pod("both", [Container("app", {H100: 1}), Container("before", {H100: 1}, init=True)])
    kubelet.admit(both)
    (device,) = kubelet.ids_of(both)
    kubelet.start_container(both, "before")
    time.sleep(GRACE + 3 * POLL)  # a long init container, which List does not show
    assert node.driver(device) == "vfio-pci"
    kubelet.start_container(both, "app")
    node.until_owned("pod/default/both/app")
    assert len(node.claims()) == 1


def test_a_pod_with_an_init_container_only_keeps_its_device_while_it_is_open(node: Node, kubelet: Kubelet) -> None:
    only = Pod("only", [Container("before", {H100: 1}, init=True), Container("app")])
    kubelet.admit(only)
    (device,) = kubelet.ids_of(only)
    kubelet.start_container(only, "before")
    with node.opened(node.vfio_node(device)):
        time.sleep(GRACE + 3 * POLL)
        assert node.driver(device) == "vfio-pci"
    kubelet.remove(only)
    node.until_free(seconds=RELEASED_IN)


def test_a_static_pod_has_its_claim(node: Node, kubelet: Kubelet) -> None:
    fixed = pod("fixed-node1", "kube-system", static=True, app={H100: 1})
    kubelet.run(fixed)
    node.until_owned("pod/kube-system/fixed-node1/app")
    kubelet.restart()
    node.until_known(H100)
    time.sleep(GRACE + 2 * POLL)
    node.until_owned("pod/kube-system/fixed-node1/app")
