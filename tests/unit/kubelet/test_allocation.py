"""Which claim a container gets: its own, or one that is over, never one that another container has."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.hosts.machines import FOUR_GPUS, copy, machine, original, reduced
from vfioctl.claims.ledger.ledger import Moment
from vfioctl.claims.lifecycle.liveness import moment_of
from vfioctl.claims.model.claim import Claim, ClaimState
from vfioctl.errors import ClaimConflict, ConflictError, VfioctlError
from vfioctl.host import Host
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kubelet.allocating.allocation import Allocation
from vfioctl.kubelet.allocating.deadline import Deadline
from vfioctl.kubelet.allocating.following import Following
from vfioctl.kubelet.allocating.handovers import count_of
from vfioctl.kubelet.model.device import PROVISIONAL, Device, Listing, Pod
from vfioctl.kubelet.reading.look import Look

GPU, OTHER = PciAddress(FOUR_GPUS[0]), PciAddress(FOUR_GPUS[1])
ALL, ONE = "nvidia.com/all", "nvidia.com/one"
CONFIG = f"""
[kubelet]
[[kubelet.resources]]
name = "{ALL}"
[[kubelet.resources]]
name = "{ONE}"
match = ["{GPU}"]
"""
WEB = Pod("default", "web", "main")


class Node:
    """A host, and what its resources have."""

    def __init__(self, host: Host) -> None:
        self.host, self.settings = host, host.kubelet.settings

    def devices(self, resource: str, *subjects: str) -> list[Device]:
        settings = self.settings.resource(resource)
        assert settings
        found = {device.subject: device for device in Look(self.host.session, self.settings).resource(settings).devices}
        return [found[subject] for subject in subjects]  # type: ignore[index]

    def allocate(self, resource: str, devices: Sequence[Device]) -> Claim:
        settings = self.settings.resource(resource)
        assert settings
        Allocation(self.host.session).allocate(settings, [devices], Deadline(2))
        return self.host.claims.labelled("kubelet")[-1]

    def ready(self, resource: str, devices: Sequence[Device]) -> None:
        settings = self.settings.resource(resource)
        assert settings
        Allocation(self.host.session).ready(settings, [devices], Deadline(2))


@pytest.fixture
def node(fast_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    file = tmp_path / "config.toml"
    file.write_text(CONFIG, encoding="utf-8")
    monkeypatch.setenv("VFIOCTL_CONFIG", str(file))
    return Node(machine(copy(reduced("hgx8", *FOUR_GPUS)), fast_folder / "ledger.db"))


def listing(**pods: Pod) -> Listing:
    return Listing({(ALL, str(GPU)): tuple(pods.values())} if pods else {})


def never(resource: str, what: str, error: VfioctlError) -> None:
    pytest.fail(f"{what} of {resource}: {error}")


def no_list() -> None:
    pytest.fail("the devices are sent again, though no checkpoint has the claim")


def follow(node: Node, *lists: Listing) -> list[tuple[str, int]]:
    following = Following(node.host.session, node.settings, no_list)
    following._poll = following._grace = following._calm = 0.0
    over: list[tuple[str, int]] = []
    for told in lists:
        over += [(found.claim.id, found.given) for found in following.follow(lambda told=told: told, never)]  # type: ignore[misc]
    return over


class TestADeviceOfTwoResources:
    def test_stays_with_the_pod_that_has_it(self, node: Node) -> None:
        claim = node.allocate(ALL, node.devices(ALL, GPU))
        with pytest.raises(ClaimConflict, match=f"belongs to claim {claim.id} .*, as {ALL}"):
            node.allocate(ONE, node.devices(ONE, GPU))
        with pytest.raises(ClaimConflict):
            node.ready(ONE, node.devices(ONE, GPU))
        assert node.host.claims.claim(claim.id).state is ClaimState.HELD

    def test_is_free_for_both_afterwards(self, node: Node) -> None:
        claim = node.allocate(ALL, node.devices(ALL, GPU))
        assert Allocation(node.host.session).release(claim, count_of(claim.id))
        assert node.allocate(ONE, node.devices(ONE, GPU)).labels["kubelet"] == ONE


class TestATakeover:
    def test_of_the_same_devices_keeps_the_claim(self, node: Node) -> None:
        claim = node.allocate(ALL, node.devices(ALL, GPU))
        node.host.claims.transfer(claim.id, WEB.owner)
        again = node.allocate(ALL, node.devices(ALL, GPU))
        assert (again.id, again.owner) == (claim.id, PROVISIONAL)

    def test_of_some_of_them_makes_a_new_one(self, node: Node) -> None:
        before = node.allocate(ALL, node.devices(ALL, GPU, OTHER))
        after = node.allocate(ALL, node.devices(ALL, OTHER))
        assert node.host.claims.claim(before.id).state is ClaimState.RELEASED
        assert [device.subject for device in after.devices if device.asked] == [OTHER]
        assert node.host.inventory().by_address[GPU].driver == "nvidia"

    def test_is_not_undone_by_a_release_that_was_decided_before(self, node: Node) -> None:
        claim = node.allocate(ALL, node.devices(ALL, GPU))
        (over, count), *_ = follow(node, listing(), listing())
        assert over == claim.id
        node.allocate(ALL, node.devices(ALL, GPU))
        assert not Allocation(node.host.session).release(claim, count)
        assert node.host.claims.claim(claim.id).state is ClaimState.HELD

    def test_lets_the_time_without_a_pod_begin_again(self, node: Node) -> None:
        node.allocate(ALL, node.devices(ALL, GPU))
        following = Following(node.host.session, node.settings, no_list)
        following._calm, following._grace = 0.0, 0.3
        assert not following.follow(listing, never)
        node.allocate(ALL, node.devices(ALL, GPU))
        assert not following.follow(listing, never)
        assert len(following._absences._since) == 1


class TestAClaim:
    def test_that_was_given_to_a_vm_is_left_alone(self, node: Node) -> None:
        claim = node.allocate(ALL, node.devices(ALL, GPU))
        node.host.claims.transfer(claim.id, "vm/alpha")
        assert follow(node, listing(), listing()) == []
        with pytest.raises(ConflictError, match="vm/alpha"):
            node.allocate(ALL, node.devices(ALL, GPU))
        assert node.host.claims.claim(claim.id).owner == "vm/alpha"

    def test_whose_release_died_before_a_change_is_held_again(self, node: Node) -> None:
        claim = node.allocate(ALL, node.devices(ALL, GPU))
        moment = moment_of(node.host.session)
        dead = Moment(moment.now, moment.boot_id, moment.caller.model_copy(update={"pid": 2**22 + 1}))
        node.host.claims.ledger.move(claim.id, ClaimState.RELEASING, dead)
        (found,) = Following(node.host.session, node.settings, no_list).interrupted()
        assert node.host.claims.finish(found).state is ClaimState.HELD
        assert node.allocate(ALL, node.devices(ALL, GPU)).id == claim.id

    def test_that_the_checkpoint_alone_has_makes_the_kubelet_write_a_new_one(self, node: Node, tmp_path: Path) -> None:
        claim = node.allocate(ALL, node.devices(ALL, GPU))
        node.host.claims.transfer(claim.id, WEB.owner)
        settings = replace(node.settings, plugins=str(tmp_path))
        checkpoint = tmp_path / "kubelet_internal_checkpoint"
        held = {"ResourceName": ALL, "DeviceIDs": {"0": [str(GPU)]}}
        checkpoint.write_text(json.dumps({"Data": {"PodDeviceEntries": [held]}}))

        def write_anew() -> None:
            checkpoint.write_text(json.dumps({"Data": {"PodDeviceEntries": None}}))

        following = Following(node.host.session, settings, write_anew)
        following._poll = 0.0
        told = [following.follow(listing, never) for _ in range(2)]
        assert [[over.claim.id for over in each] for each in told] == [[], [claim.id]]

    def test_of_no_pod_yet_is_under_no_quota(self, node: Node, tmp_path: Path) -> None:
        with (tmp_path / "config.toml").open("a", encoding="utf-8") as file:
            file.write('[claims.quotas]\n"pod/*" = 1\n')
        for gpu in FOUR_GPUS[:3]:
            node.allocate(ALL, node.devices(ALL, gpu))
        assert len(node.host.claims.claims()) == 3


def test_a_cordon_of_the_gpu_keeps_its_vfs_from_pods(
    fast_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f'[[kubelet.resources]]\nname = "{ALL}"\ndevices = "vf"\n', encoding="utf-8")
    monkeypatch.setenv("VFIOCTL_CONFIG", str(file))
    node = Node(machine(copy(original("mi300x-vf")), fast_folder / "ledger.db"))
    resource = node.settings.resource(ALL)
    assert resource
    devices = Look(node.host.session, node.settings).resource(resource).devices
    virtual = next(device for device in devices if device.is_healthy)
    node.host.kubelet.cordon([virtual.under[0]], wait=0)
    with pytest.raises(ConflictError, match="cordoned"):
        node.allocate(ALL, [virtual])


def test_a_vgpu_that_was_just_removed_is_created_again(
    fast_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f'[[kubelet.resources]]\nname = "{ALL}"\ndevices = "vgpu"\ntype = "nvidia-222"\n', encoding="utf-8")
    monkeypatch.setenv("VFIOCTL_CONFIG", str(file))
    node = Node(machine(copy(original("t4")), fast_folder / "ledger.db"))
    resource = node.settings.resource(ALL)
    assert resource
    first = next(d for d in Look(node.host.session, node.settings).resource(resource).devices if d.is_healthy)
    claim = node.allocate(ALL, [first])
    (seen,) = (d for d in Look(node.host.session, node.settings).resource(resource).devices if d.id == first.id)
    assert Allocation(node.host.session).release(claim, count_of(claim.id))
    assert node.allocate(ALL, [seen]).id != claim.id
