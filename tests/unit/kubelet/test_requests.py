"""Which claims the devices of a container need."""

from __future__ import annotations

import pytest

from tests.unit.kubelet.values import GPU, MDEV, NAME, OTHER, device, resource
from vfioctl.kubelet.allocating.requests import wanted
from vfioctl.kubelet.model.device import PROVISIONAL, Birth
from vfioctl.placement.model.request import ClaimRequest
from vfioctl.units import Uuid

BIRTH = Birth("nvidia-63", str(GPU))
SECOND = Uuid("00000000-0000-4000-8000-000000000001")


def test_devices_that_exist_are_one_claim_in_the_order_of_addresses() -> None:
    (want,) = wanted(resource(), [device(OTHER), device(GPU)])
    assert want.request == ClaimRequest(owner=PROVISIONAL, devices=(GPU, OTHER), labels={"kubelet": NAME})
    assert want.request.bind
    assert want.subjects == (GPU, OTHER)


@pytest.mark.parametrize("bind", [True, False])
def test_a_resource_says_whether_they_are_bound(bind: bool) -> None:
    (want,) = wanted(resource(bind=bind), [device()])
    assert want.request.bind is bind


def test_a_vgpu_that_is_created_is_a_claim_of_its_own() -> None:
    first, second = wanted(resource(), [device(MDEV, birth=BIRTH), device(SECOND, birth=BIRTH)])
    assert first.request == ClaimRequest(
        owner=PROVISIONAL, vgpu="nvidia-63", parent=str(GPU), uuids=(MDEV,), labels={"kubelet": NAME}
    )
    assert (first.subjects, second.subjects) == ((MDEV,), (SECOND,))
    assert first.key != second.key


def test_a_vf_that_gets_a_type_has_no_uuid() -> None:
    (want,) = wanted(resource(), [device(OTHER, birth=Birth("1145", str(OTHER)))])
    assert (want.request.uuids, want.request.parent, want.request.vgpus) == ((), str(OTHER), 1)


def test_existing_and_created_ones_are_apart() -> None:
    existing, created = wanted(resource(), [device(MDEV, birth=BIRTH), device(SECOND)])
    assert (existing.request.devices, created.request.devices) == ((SECOND,), ())


def test_the_same_devices_have_the_same_key_in_any_order() -> None:
    keys = {wanted(resource(), order)[0].key for order in ([device(GPU), device(OTHER)], [device(OTHER), device(GPU)])}
    assert len(keys) == 1
    assert wanted(resource("a.b/c"), [device(GPU), device(OTHER)])[0].key not in keys
    assert wanted(resource(), [device(GPU)])[0].key not in keys


def test_no_devices_are_no_claim() -> None:
    assert wanted(resource(), []) == ()
