"""What is shown when the kubelet and the ledger do not agree."""

from __future__ import annotations

import time

import pytest

from tests.kubelet.kubelet import Kubelet
from tests.kubelet.node import (
    ALL,
    GRACE,
    H100,
    POLL,
    Node,
    eventually,
    one,
)
from tests.kubelet.pods import Rejected
from tests.kubelet.table import CHECKPOINT


def test_a_kubelet_without_its_checkpoint_gives_no_device_away_that_is_open(node: Node, kubelet: Kubelet) -> None:
    holder = one()
    kubelet.run(holder)
    (device,) = kubelet.ids_of(holder)
    node.until_owned("pod/default/one/app")
    with node.opened(node.vfio_node(device)):
        kubelet.restart(checkpoint=False)
        node.until_known(H100)
        time.sleep(GRACE + 3 * POLL)
        assert node.owners() == {device: "pod/default/one/app"}
        found = node.command("reconcile", "--json").stdout
        assert device in found or node.claims()[0].id in found
        with pytest.raises(Rejected):
            kubelet.admit(one("all", 4))
        assert node.owners()[device] == "pod/default/one/app"


def test_a_claim_that_only_the_ledger_has_lost_is_a_finding(node: Node, kubelet: Kubelet) -> None:
    """Somebody has released the claim of a pod that runs."""
    holder = one()
    kubelet.run(holder)
    (device,) = kubelet.ids_of(holder)
    node.until_owned("pod/default/one/app")
    node.host.claims.release(node.claims()[0].id)
    time.sleep(2 * POLL)
    assert node.claims() == ()  # no silent mend
    assert device in node.command("reconcile", "--json").stdout
    kubelet.start_container(holder, "app")  # a start makes it right, and says so
    node.until_owned("pod/default/one/app")


def test_a_checkpoint_that_is_damaged_harms_nobody(node: Node, kubelet: Kubelet) -> None:
    holder = one()
    kubelet.run(holder)
    node.until_owned("pod/default/one/app")
    (kubelet.plugins / CHECKPOINT).write_bytes(b"\xff{" * 1000)
    time.sleep(2 * POLL)
    assert node.owners()
    node.stop()
    kubelet.state.save()
    node.start(H100)


def test_the_status_shows_what_is_so(node: Node, kubelet: Kubelet) -> None:
    holder = one()
    kubelet.run(holder)
    (device,) = kubelet.ids_of(holder)
    node.until_owned("pod/default/one/app")
    eventually(lambda: node.status()["resources"][0]["registered"], "the registration is not known")
    document = node.status()
    assert document["service"]["pid"] == node.pid
    (shown,) = document["resources"]
    assert shown["name"] == H100
    owners = {row["id"]: row["owner"] for row in shown["devices"]}
    assert owners == {**dict.fromkeys(ALL), device: "pod/default/one/app"}
