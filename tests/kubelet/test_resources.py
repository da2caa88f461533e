"""Which devices a resource has, and which of them a pod may get."""

from __future__ import annotations

import threading
import time

import pytest

from tests.hosts.machines import effects_of, original, reduced
from tests.kubelet.conftest import MakeNode
from tests.kubelet.kubelet import Kubelet
from tests.kubelet.node import (
    ALL,
    FIRST,
    H100,
    NEAR,
    RELEASED_IN,
    SECOND,
    SERVER,
    Node,
    one,
    resource,
)
from tests.kubelet.pods import Rejected, pod
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel.protocol import PCI_DEVICES
from vfioctl.placement.model.request import ClaimRequest

RTX4090 = "nvidia.com/AD102_RTX4090"
T4 = "nvidia.com/GRID_T4-4Q"
MI300X = "amd.com/MI300X_VF"


def test_vfs_are_a_resource(make_node: MakeNode, kubelet: Kubelet) -> None:
    node = make_node(original("mi300x-vf"), resource(MI300X, "1002:74b5", devices="vf"))
    node.start(MI300X)
    assert len(kubelet.healthy(MI300X)) == 8
    two = pod("two", app={MI300X: 2})
    kubelet.run(two)
    assert {*node.until_owned("pod/default/two/app", 2)} == kubelet.ids_of(two)


def test_mdevs_that_exist_are_a_resource(make_node: MakeNode, kubelet: Kubelet) -> None:
    node = make_node(original("a2"), resource("nvidia.com/A2-4C", devices="mdev", consumer="kubevirt"))
    node.start("nvidia.com/A2-4C")
    uuids = {"6d3f2c1a-0b4e-4f6d-8a7c-5e9b1f2a3c4d", "8d3f2c1a-0b4e-4f6d-8a7c-5e9b1f2a3c4d"}
    assert kubelet.healthy("nvidia.com/A2-4C") == uuids
    started = kubelet.run(pod("one", app={"nvidia.com/A2-4C": 1}))["app"]
    assert started.envs["MDEV_PCI_RESOURCE_NVIDIA_COM_A2-4C"] in uuids


def test_vgpus_are_created_for_a_pod_and_removed_after_it(make_node: MakeNode, kubelet: Kubelet) -> None:
    node = make_node(original("t4"), resource(T4, devices="vgpu", type="T4-4Q", consumer="kubevirt"))
    node.start(T4)
    known = kubelet.healthy(T4)
    assert len(known) == 4
    two = pod("two", app={T4: 2})
    started = kubelet.run(two)["app"]
    uuids = started.envs["MDEV_PCI_RESOURCE_NVIDIA_COM_GRID_T4-4Q"].split(",")
    assert {*uuids} == kubelet.ids_of(two) < known
    there = {str(vgpu.id) for vgpu in node.host.vgpu.vgpus().instances}
    assert {*uuids} <= there
    kubelet.wait(lambda: kubelet.healthy(T4) == known)  # the same ones, whether they exist or not
    kubelet.remove(two)
    node.until_free(seconds=RELEASED_IN)
    assert node.host.vgpu.vgpus().instances == ()
    kubelet.wait(lambda: kubelet.healthy(T4) == known)


def test_a_type_that_is_gone_costs_its_resource_only(make_node: MakeNode, kubelet: Kubelet) -> None:
    node = make_node(
        original("t4"), resource(T4, devices="vgpu", type="T4-99X") + resource("nvidia.com/T4", "10de:1eb8")
    )
    node.start("nvidia.com/T4")
    problems = {shown["name"]: shown["problem"] for shown in node.status()["resources"]}
    assert "T4-99X" in problems[T4]
    assert not problems["nvidia.com/T4"]


def test_what_somebody_else_has_claimed_is_unhealthy(node: Node, kubelet: Kubelet) -> None:
    claim = node.host.claims.create(ClaimRequest(owner="vm/mine", devices=(PciAddress(FIRST),))).claim
    kubelet.wait(lambda: kubelet.unhealthy(H100) == {FIRST})
    assert "vm/mine" in node.reason(FIRST)
    assert kubelet.healthy(H100) == ALL - {FIRST}
    node.host.claims.release(claim.id)
    kubelet.wait(lambda: kubelet.healthy(H100) == ALL)


def test_what_a_program_of_the_host_has_open_is_unhealthy(make_node: MakeNode, kubelet: Kubelet) -> None:
    node = make_node(original("busy"), resource(RTX4090, "10de:2684"))
    node.start(RTX4090)
    assert kubelet.healthy(RTX4090) == {"0000:04:00.0"}
    assert "tritonserver" in node.reason("0000:01:00.0")
    time.sleep(1)  # the service hears of events by now
    with node.opened("/dev/nvidia2", name="python3"):
        kubelet.wait(lambda: "0000:04:00.0" in kubelet.unhealthy(RTX4090))
        assert "python3" in node.reason("0000:04:00.0")
    kubelet.wait(lambda: kubelet.healthy(RTX4090) == {"0000:04:00.0"})


def test_without_bind_only_what_is_on_vfio_is_healthy(make_node: MakeNode, kubelet: Kubelet) -> None:
    node = make_node(reduced("hgx8", *NEAR), resource(H100, "10de:2330", bind=False))
    node.host.apply(node.host.binding.plan_bind([SECOND]))
    node.start(H100)
    assert kubelet.healthy(H100) == {SECOND}
    assert "nvidia" in node.reason(FIRST)
    kubelet.run(one())
    kubelet.remove(kubelet.state.lives[next(iter(kubelet.state.lives))].pod)
    node.until_free(seconds=RELEASED_IN)
    assert node.driver(SECOND) == "vfio-pci"  # as it was


def test_a_function_that_vanishes_is_not_given_any_more(node: Node, kubelet: Kubelet) -> None:
    time.sleep(1)  # the service hears of events by now
    with node.changed() as tree:
        home = tree.resolve(f"{PCI_DEVICES}/{FIRST}")
        for path in [path for path in tree.links if tree.resolve(path).startswith(home)]:
            tree.remove(path)
        tree.remove(home)
    kubelet.wait(lambda: FIRST not in kubelet.healthy(H100))
    assert kubelet.healthy(H100) == ALL - {FIRST}


def test_a_pod_whose_function_vanishes_keeps_an_unhealthy_device(node: Node, kubelet: Kubelet) -> None:
    holder = one(count=4)
    kubelet.run(holder)
    node.until_owned("pod/default/one/app", 4)
    with node.changed() as tree:
        home = tree.resolve(f"{PCI_DEVICES}/{FIRST}")
        for path in [path for path in tree.links if tree.resolve(path).startswith(home)]:
            tree.remove(path)
        tree.remove(home)
    kubelet.wait(lambda: kubelet.unhealthy(H100) == {FIRST})
    assert "gone" in node.reason(FIRST)


def test_a_write_that_never_returns_costs_one_call_and_its_device(make_node: MakeNode, kubelet: Kubelet) -> None:
    """The kernel hangs in the unbinding of the first device; the others are given all the same."""
    node = make_node(reduced("hgx8", *NEAR), SERVER, allocate_timeout="3s")
    node.start(H100, faults=f"{hanging_write(node)}:hang")
    began = time.monotonic()
    with pytest.raises(Rejected) as refusal:
        kubelet.run(one())
    assert time.monotonic() - began < 10
    assert "rpc error" in refusal.value.why
    kubelet.wait(lambda: len(kubelet.unhealthy(H100)) == 1)
    (wedged,) = kubelet.unhealthy(H100)
    assert "wedged" in node.reason(wedged)
    three = one("three", 3)
    kubelet.run(three)
    assert kubelet.ids_of(three) == ALL - {wedged}


def hanging_write(node: Node) -> int:
    """The number of the write that unbinds the device, in a change that binds one."""
    plan = node.host.binding.plan_bind([FIRST])
    actions = [step.target for step in effects_of(plan)]
    return next(number for number, target in enumerate(actions, 1) if target.endswith("/unbind"))


def test_a_cordoned_device_is_given_to_no_pod(node: Node, kubelet: Kubelet) -> None:
    node.host.kubelet.cordon([FIRST])
    kubelet.wait(lambda: kubelet.unhealthy(H100) == {FIRST})
    assert "cordon" in node.reason(FIRST)
    three = one("three", 3)
    kubelet.run(three)
    assert FIRST not in kubelet.ids_of(three)
    assert node.host.kubelet.uncordon([FIRST])
    kubelet.wait(lambda: kubelet.healthy(H100) == ALL)


def test_cordon_waits_for_the_end_of_the_pod(node: Node, kubelet: Kubelet) -> None:
    holder = one(count=4)
    kubelet.run(holder)
    node.until_owned("pod/default/one/app", 4)
    assert node.command("kubelet", "cordon", FIRST, "--wait", "1s").returncode != 0
    done: list[int] = []
    waiting = threading.Thread(
        target=lambda: done.append(node.command("kubelet", "cordon", FIRST, "--wait", "60s").returncode)
    )
    waiting.start()
    time.sleep(1)
    kubelet.remove(holder)
    waiting.join(RELEASED_IN + 10)
    assert done == [0]
    node.until_free(seconds=RELEASED_IN)
    assert node.driver(FIRST) == "nvidia"
    node.host.apply(node.host.binding.plan_bind([FIRST]))  # it is the administrator's
