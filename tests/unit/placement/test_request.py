"""The canonical text of requests, by which an earlier release's claim is found again."""

from __future__ import annotations

import json

import pytest

from vfioctl.errors import BadSpec
from vfioctl.inventory.model.values import PciAddress
from vfioctl.placement.model.claims import Owner
from vfioctl.placement.model.request import ClaimRequest
from vfioctl.units import Uuid

GPU = PciAddress("0000:41:00.0")
MDEV = Uuid("4e8c5df7-c4fa-4719-904f-5579cd5ac35f")
OWNER = Owner("vm/a")
OF_0_2 = (
    '{"bind":true,"cpus":0,"devices":["0000:41:00.0"],"exact_cpus":[],"exact_hugepages":[],"gpus":0,"hugepages":0,'
    '"labels":{"a":"b"},"memory_min":0,"model":"","numa":"any","owner":"vm/a","realtime":false,"ttl":null,"vgpu":"",'
    '"vgpus":1,"virtual":false}'
)
"""What release 0.2 has written of the first of these requests."""


def test_a_request_without_what_is_new_has_the_text_of_before() -> None:
    assert ClaimRequest(owner=OWNER, devices=(GPU,), labels={"a": "b"}).canonical() == OF_0_2


def test_a_request_with_it_has_it() -> None:
    text = ClaimRequest(owner=OWNER, vgpu="nvidia-63", parent=str(GPU), uuids=(MDEV,)).canonical()
    assert (json.loads(text)["parent"], json.loads(text)["uuids"]) == (GPU, [MDEV])
    assert text != ClaimRequest(owner=OWNER, vgpu="nvidia-63").canonical()


@pytest.mark.parametrize(
    ("more", "names_all"),
    [
        ({"devices": (GPU,)}, True),
        ({}, False),
        ({"devices": (GPU,), "gpus": 1}, False),
        ({"devices": (GPU,), "cpus": 1}, False),
        ({"devices": (GPU,), "hugepages": 1 << 30}, False),
        ({"devices": (GPU,), "exact_cpus": (1,)}, False),
        ({"devices": (GPU,), "model": "H100"}, False),
        ({"vgpu": "nvidia-63", "parent": str(GPU)}, False),
    ],
)
def test_a_request_that_names_all_it_gets(more: dict[str, object], names_all: bool) -> None:
    assert ClaimRequest(owner=OWNER, **more).names_all is names_all  # type: ignore[arg-type]


def test_the_name_of_a_parent_is_bounded() -> None:
    with pytest.raises(BadSpec, match="longer than 255 characters"):
        ClaimRequest(owner=OWNER, vgpu="x", parent="p" * 256)
