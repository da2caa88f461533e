"""A real kubelet gives real devices to static pods through `vfioctl kubelet serve`. The tests are one story: each
begins where the last one ended."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from tests.lab.inside import pci
from tests.lab.inside.holder import group_is_viable
from tests.lab.inside.topology import Topology
from tests.lab.kubelet.node import NAME, PLUGINS, Node
from tests.lab.kubelet.plugin import BUSY, CARD, FAR, Plugin

RESOURCES = (CARD, FAR, BUSY)
OWNER = f"pod/default/card-{NAME}/main"
HOLD = "import sys, time; node = open(sys.argv[1], 'r+b', buffering=0); print('open', flush=True); time.sleep(3600)"


@pytest.fixture(scope="module")
def native(lab: Topology) -> dict[str, str | None]:
    """The drivers of the card at boot."""
    return drivers(lab)


def drivers(lab: Topology) -> dict[str, str | None]:
    return {function: pci.driver_of(function) for function in lab.card}


def opens_the_group(lab: Topology) -> str:
    """A command that opens the node of the card's group, and keeps it open until its container is ended."""
    node = f"/dev/vfio/{pci.group_of(lab.display)}"
    return f"exec 3<>{node} 4<>/dev/vfio/vfio && echo opened; while true; do sleep 1; done"


@pytest.fixture
def holder(lab: Topology) -> Iterator["subprocess.Popen[str]"]:
    """A process that has the far display open."""
    (card,) = (pci.DEVICES / lab.far_display / "drm").glob("card*")
    command = [sys.executable, "-S", "-E", "-c", HOLD, f"/dev/dri/{card.name}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "open\n"
        yield process
        process.kill()


def test_resources_are_registered(plugin: Plugin, node: Node, native: dict[str, str | None]) -> None:
    plugin.wait_until(lambda: all(map(node.registrations, RESOURCES)), "all resources are registered")
    status = plugin.document("kubelet", "status")
    assert [(found["name"], found["registered"]) for found in status["resources"]] == [
        (name, True) for name in RESOURCES
    ]
    assert (plugin.reason(CARD), plugin.reason(FAR)) == ("", "")
    assert native == dict(zip(native, ("bochs-drm", "snd_hda_intel"), strict=True))


def test_devices_that_the_host_uses_are_not_given(plugin: Plugin, node: Node) -> None:
    """The card has the NIC with the node's address."""
    assert plugin.reason(BUSY), "it has a reason"
    node.add_pod("busy", {BUSY: 1}, "sleep 1000")
    status = node.wait_for_pod("busy", "Failed")
    assert status["reason"] == "UnexpectedAdmissionError"
    assert "Available: 0" in status["message"], status
    assert node.allocations(BUSY) == 0
    node.remove_pod("busy")


def test_a_refusal_reaches_the_user(plugin: Plugin, node: Node, lab: Topology, holder: "subprocess.Popen[str]") -> None:
    node.add_pod("far", {FAR: 1}, "sleep 1000")
    status = node.wait_for_pod("far", "Failed")
    assert status["reason"] == "UnexpectedAdmissionError"
    assert f"process {holder.pid}" in status["message"], status
    assert "on the node: vfioctl" in status["message"], status
    assert plugin.claims() == []
    assert pci.driver_of(lab.far_display) == "bochs-drm"
    node.remove_pod("far")


def test_a_pod_gets_the_card(plugin: Plugin, node: Node, lab: Topology) -> None:
    node.add_pod("card", {CARD: 1}, opens_the_group(lab))
    node.wait_for_pod("card", "Running")
    node.within(lambda: "opened" in node.said("card"), "the container has opened the node")
    assert drivers(lab) == dict.fromkeys(lab.card, "vfio-pci")
    plugin.wait_until(lambda: plugin.owners() == [OWNER], "the claim is its pod's")
    assert node.allocations(CARD) == 1
    with pytest.raises(OSError, match="busy"):
        group_is_viable(pci.group_of(lab.display))


def test_a_cordoned_device_goes_to_no_pod(plugin: Plugin, node: Node, lab: Topology) -> None:
    """The kubelet refuses by itself then: it knows that the device is unhealthy."""
    asked = node.allocations(FAR)
    assert plugin.command("kubelet", "cordon", lab.far_display, "--why", "its fan").returncode == 0
    plugin.wait_until_unhealthy(FAR)
    assert "its fan" in plugin.reason(FAR)
    node.add_pod("again", {FAR: 1}, "sleep 1000")
    assert "Available: 0" in node.wait_for_pod("again", "Failed")["message"]
    assert node.allocations(FAR) == asked
    node.remove_pod("again")
    assert plugin.command("kubelet", "uncordon", lab.far_display).returncode == 0


def registering(node: Node) -> Callable[[], bool]:
    """Return whether all resources were registered since: more than once where a busy kubelet answered late."""
    before = {name: node.registrations(name) for name in RESOURCES}
    return lambda: all(node.registrations(name) > count for name, count in before.items())


def test_the_kubelet_restarts(plugin: Plugin, node: Node, lab: Topology) -> None:
    before, claims = node.pod("card"), plugin.claims()
    node.stop_kubelet()
    node.start_kubelet()
    plugin.wait_until(lambda: all(map(node.registrations, RESOURCES)), "all are registered again")
    status = node.wait_for_pod("card", "Running")
    assert status["containerStatuses"][0]["containerID"] == before["containerStatuses"][0]["containerID"]
    assert plugin.claims() == claims
    assert node.allocations(CARD) == 0
    assert drivers(lab) == dict.fromkeys(lab.card, "vfio-pci")


def test_the_plugin_restarts(plugin: Plugin, node: Node, lab: Topology) -> None:
    claims = plugin.claims()
    assert plugin.end() == 0
    assert not list(PLUGINS.glob("vfioctl-*"))
    assert plugin.claims() == claims
    registered_again = registering(node)
    plugin.start()
    plugin.wait_until(registered_again, "all are registered again")
    assert plugin.claims() == claims
    assert node.pod("card")["phase"] == "Running"
    assert drivers(lab) == dict.fromkeys(lab.card, "vfio-pci")


def test_a_pod_is_removed(plugin: Plugin, node: Node, lab: Topology, native: dict[str, str | None]) -> None:
    node.remove_pod("card")
    plugin.wait_until(lambda: drivers(lab) == native, "the card is on its drivers again")
    plugin.wait_until(lambda: plugin.claims() == [], "the claim is over")
    assert pci.attribute(lab.display, "driver_override") == pci.NO_OVERRIDE
    assert plugin.reason(CARD) == ""


def test_killed_in_allocate(plugin: Plugin, node: Node, lab: Topology, native: dict[str, str | None]) -> None:
    """The plugin is killed as soon as a function of the card has left its driver."""
    node.add_pod("killed", {CARD: 1}, opens_the_group(lab))
    until = time.monotonic() + 120
    while drivers(lab) == native:
        assert time.monotonic() < until
    assert plugin.end(signal.SIGKILL) == -signal.SIGKILL
    status = node.wait_for_pod("killed", "Failed")
    assert status["reason"] == "UnexpectedAdmissionError"
    node.remove_pod("killed")
    registered_again = registering(node)
    plugin.start()
    plugin.wait_until(registered_again, "all are registered again")
    plugin.wait_until(lambda: plugin.claims() == [], "the claim without a pod is over")
    assert drivers(lab) == native
    assert plugin.document("reconcile")["differences"] == []
    assert plugin.reason(CARD) == ""
