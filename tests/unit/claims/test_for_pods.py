"""The devices of a claim that go from one container to the next: nobody has them open, and no quota counts twice."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.hosts.machines import FOUR_GPUS, copy, machine, original, put_process, reduced
from vfioctl.claims.model.claim import Claim
from vfioctl.errors import Cancelled, DeviceInUse, NoCapacity
from vfioctl.host import Host
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel.recorded.tree import Tree
from vfioctl.placement.model.claims import Owner
from vfioctl.placement.model.request import ClaimRequest
from vfioctl.units import Uuid

GPU = PciAddress(FOUR_GPUS[0])
POD, OTHER = Owner("pod/default/web/main"), Owner("pod/default/job/main")


@pytest.fixture
def tree() -> Tree:
    return copy(reduced("hgx8", *FOUR_GPUS))


@pytest.fixture
def host(tree: Tree, fast_folder: Path) -> Host:
    return machine(tree, fast_folder / "ledger.db")


@pytest.fixture
def claim(host: Host) -> Claim:
    return host.claims.create(ClaimRequest(owner=POD, devices=(GPU,))).claim


def open_it(host: Host, tree: Tree, pid: int = 4711) -> None:
    group = host.inventory().by_address[GPU].iommu_group
    put_process(tree, pid, f"/dev/vfio/{group}", name="qemu-system-x86")


class TestATransfer:
    @pytest.fixture(autouse=True)
    def limited(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        config = tmp_path / "config.toml"
        config.write_text('[claims.quotas]\n"pod/default/job/main" = 0\n', encoding="utf-8")
        monkeypatch.setenv("VFIOCTL_CONFIG", str(config))

    def test_to_an_owner_over_its_quota_is_refused(self, host: Host, claim: Claim) -> None:
        with pytest.raises(NoCapacity, match="over the quota"):
            host.claims.transfer(claim.id, OTHER)
        assert host.claims.claim(claim.id).owner == POD

    def test_to_the_pod_that_has_the_device_already_is_not(self, host: Host, claim: Claim) -> None:
        assert host.claims.transfer(claim.id, OTHER, within_quota=False).claim.owner == OTHER
        assert host.claims.claim(claim.id).owner == OTHER


class TestADeviceThatIsOpen:
    def test_by_nobody_is_given_on(self, host: Host, claim: Claim) -> None:
        host.claims.refuse_in_use(claim)

    def test_is_refused_with_its_holder(self, host: Host, tree: Tree, claim: Claim) -> None:
        open_it(host, tree)
        with pytest.raises(DeviceInUse, match="qemu-system-x86"):
            host.claims.refuse_in_use(claim)

    def test_is_waited_for(self, host: Host, tree: Tree, claim: Claim, monkeypatch: pytest.MonkeyPatch) -> None:
        open_it(host, tree)
        real = time.sleep

        def closed(seconds: float) -> None:
            tree.remove("/proc/4711")
            real(min(seconds, 0.01))

        monkeypatch.setattr(time, "sleep", closed)
        host.claims.refuse_in_use(claim, wait=30.0)

    def test_is_not_waited_for_longer_than_asked(self, host: Host, tree: Tree, claim: Claim) -> None:
        open_it(host, tree)
        with pytest.raises(DeviceInUse):
            host.claims.refuse_in_use(claim, wait=0.2)

    def test_can_be_given_up(self, host: Host, tree: Tree, claim: Claim) -> None:
        open_it(host, tree)
        with pytest.raises(Cancelled):
            host.claims.refuse_in_use(claim, wait=60.0, cancel=lambda: True)


class TestAVgpuOnAParent:
    """With the UUID that the request names: the kubelet has been told of it before it exists."""

    UUID = Uuid("4e8c5df7-c4fa-4719-904f-5579cd5ac35f")

    def test_is_created_there(self, fast_folder: Path) -> None:
        host = machine(copy(original("a2")), fast_folder / "ledger.db")
        request = ClaimRequest(owner=POD, vgpu="A2-4C", parent="0000:08:00.7", uuids=(self.UUID,))
        claim = host.claims.create(request).claim
        assert [(device.subject, device.address) for device in claim.devices] == [(self.UUID, "0000:08:00.7")]
        host.claims.release(claim.id)
        assert self.UUID not in {vgpu.id for vgpu in host.vgpu.vgpus().instances}

    def test_is_not_created_elsewhere_if_there_is_no_room(self, fast_folder: Path) -> None:
        host = machine(copy(original("a2")), fast_folder / "ledger.db")
        request = ClaimRequest(owner=POD, vgpu="A2-4C", parent="0000:08:00.4", uuids=(self.UUID,))
        with pytest.raises(NoCapacity):
            host.claims.create(request)
