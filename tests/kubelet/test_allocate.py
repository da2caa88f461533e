"""What an Allocate does, answers and leaves."""

from __future__ import annotations

import pytest

from tests.hosts.machines import original, reduced
from tests.kubelet.conftest import MakeNode
from tests.kubelet.endpoint import Refused
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
    eventually,
    one,
    resource,
)
from tests.kubelet.pods import Rejected, pod
from tests.kubelet.releases import Release
from vfioctl.claims.model.claim import ClaimState
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kubelet.model.device import PROVISIONAL
from vfioctl.placement.model.request import ClaimRequest

RTX = "nvidia.com/TU102_RTX2080"


def test_a_device_is_claimed_bound_and_answered(node: Node, kubelet: Kubelet) -> None:
    holder = one()
    kubelet.admit(holder)
    (device,) = kubelet.ids_of(holder)
    assert node.driver(device) == "vfio-pci"
    (claim,) = node.claims()
    assert (claim.state, claim.labels) == (ClaimState.HELD, {"kubelet": H100})
    assert claim.owner in (PROVISIONAL, "pod/default/one/app")  # as soon as the next list has come
    options = kubelet.start_container(holder, "app")
    nodes = ("/dev/vfio/vfio", node.vfio_node(device))
    assert options.devices == tuple((path, path, "rw") for path in nodes)


def test_kubevirt_gets_the_functions_by_position_without_companions(make_node: MakeNode, kubelet: Kubelet) -> None:
    node = make_node(original("workstation"), resource(RTX, "10de:1e04", consumer="kubevirt"))
    node.start(RTX)
    started = kubelet.run(pod("one", app={RTX: 1}))["app"]
    assert started.envs == {"PCI_RESOURCE_NVIDIA_COM_TU102_RTX2080": "0000:0b:00.0"}
    assert [path for path, _, _ in started.devices] == ["/dev/vfio/vfio", "/dev/vfio/12"]
    assert {node.driver(f"0000:0b:00.{number}") for number in range(4)} == {"vfio-pci"}


def test_positions_are_those_of_the_request(make_node: MakeNode, kubelet: Kubelet) -> None:
    node = make_node(reduced("hgx8", *NEAR), resource(H100, "10de:2330", consumer="kubevirt"))
    node.start(H100)
    started = kubelet.run(one(count=4))["app"]
    (asked,) = kubelet.asked("Allocate")
    assert started.envs == {"PCI_RESOURCE_NVIDIA_COM_GH100_H100": ",".join(asked.ids)}


@pytest.mark.parametrize("cdi", ["field", "annotation"])
def test_kata_gets_names_of_cdi_devices(make_node: MakeNode, kubelet: Kubelet, release: Release, cdi: str) -> None:
    node = make_node(reduced("hgx8", *NEAR), resource(H100, "10de:2330", consumer="kata", cdi=cdi))
    node.start(H100)
    holder = one()
    started = kubelet.run(holder)["app"]
    (device,) = kubelet.ids_of(holder)
    assert ":" not in device
    name = f"{H100}={device}"
    if cdi == "field":
        assert started.cdi == ((name,) if release.keeps_cdi else ())
    else:
        ((key, value),) = started.annotations.items()
        assert key.startswith("cdi.k8s.io/")
        assert value == name
    assert started.devices == ()  # a node here and by CDI would be the same device twice
    specs = [text for path, text in node.kernel.tree.files.items() if path.startswith("/var/run/cdi/")]
    assert any(device in text and H100 in text for text in specs)
    kubelet.remove(holder)
    node.until_free(seconds=RELEASED_IN)

    def specs_left() -> list[str]:
        files = node.kernel.tree.files.items()
        return [text for path, text in files if path.startswith("/var/run/cdi/") and device in text]

    eventually(lambda: not specs_left(), "the CDI file still has the device", log=node.log)


def test_a_refusal_names_the_holder_and_leaves_nothing(node: Node, kubelet: Kubelet) -> None:
    """The kubelet asks before it has heard that somebody else has the device."""
    before = node.drivers()
    endpoint = kubelet.state.endpoints[H100]
    node.host.claims.create(ClaimRequest(owner="vm/mine", devices=(PciAddress(FIRST),)))
    with pytest.raises(Refused) as refusal:
        endpoint.allocate([SECOND, FIRST])
    assert "vm/mine" in refusal.value.details
    assert "vfioctl " in refusal.value.details
    assert "\n" not in refusal.value.details
    assert [claim.owner for claim in node.claims()] == ["vm/mine"]
    assert node.driver(SECOND) == before[SECOND]
    kubelet.wait(lambda: kubelet.unhealthy(H100) == {FIRST})


def test_an_unknown_device_is_refused(node: Node, kubelet: Kubelet) -> None:
    with pytest.raises(Refused, match=r"InvalidArgument.*0000:ff:00\.0"):
        kubelet.state.endpoints[H100].allocate(["0000:ff:00.0"])
    assert node.claims() == ()


def test_a_kubelet_that_gives_a_device_twice_is_refused(node: Node, kubelet: Kubelet) -> None:
    holder = one()
    kubelet.run(holder)
    (device,) = kubelet.ids_of(holder)
    node.until_owned("pod/default/one/app")
    with node.opened(node.vfio_node(device)), pytest.raises(Refused) as refusal:
        kubelet.state.endpoints[H100].allocate([device], timeout=40)
    assert "qemu" in refusal.value.details
    assert node.owners() == {device: "pod/default/one/app"}


def test_a_kill_in_allocate_leaves_ledger_and_kernel_in_agreement(make_node: MakeNode, kubelet: Kubelet) -> None:
    node = make_node(reduced("hgx8", *NEAR), SERVER)
    before = node.drivers()
    for write in (1, 2, 3, 4):
        node.start_process(H100, faults=f"{write}:die")
        with pytest.raises(Rejected):
            kubelet.admit(one(f"one-{write}"))
        node.wait_for_death()
        node.start(H100)
        node.until_free(seconds=RELEASED_IN)
        kubelet.wait(lambda: kubelet.healthy(H100) == ALL)
        assert node.drivers() == before
        assert node.host.session.journal.unfinished() == ()
        node.stop()
