"""The names of devices for the kubelet, for CDI and for DNS, each of which stands for one device."""

from __future__ import annotations

import re

import pytest
from hypothesis import given

from tests.unit.kubelet.values import GPU, MDEV, WEB, addresses, device, resource, subjects
from vfioctl.claims.model.cdi import subject_called
from vfioctl.errors import BadSpec
from vfioctl.inventory.model.values import PciAddress, Subject, subject
from vfioctl.kubelet.model.device import PROVISIONAL, Pod, device_id, dns_label
from vfioctl.kubelet.model.settings import Consumer
from vfioctl.placement.model.claims import Owner

RFC_1123 = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
"""A DNS label, as Kubernetes checks it (apimachinery, validation.IsDNS1123Label)."""
LONGEST = 63


def subject_labelled(label: str) -> Subject:
    """The device that a DNS label stands for."""
    kind, _, name = label.partition("-")
    return subject(name) if kind == "mdev" else PciAddress(re.sub("^(.+)-(..)-(..)-(.)$", r"\1:\2:\3.\4", name))


@given(subjects)
def test_an_id_has_at_most_63_characters_and_stands_for_one_device(found: Subject) -> None:
    plain, kata = (device_id(found, resource(consumer=consumer)) for consumer in (Consumer.KUBEVIRT, Consumer.KATA))
    assert max(len(plain), len(kata)) <= LONGEST
    assert subject(plain) == found
    assert subject_called(kata) == found


@given(subjects)
def test_a_label_is_a_dns_label_and_stands_for_one_device(found: Subject) -> None:
    label = dns_label(found)
    assert RFC_1123.fullmatch(label)
    assert subject_labelled(label) == found


@given(addresses, addresses)
def test_two_devices_have_two_names(one: PciAddress, other: PciAddress) -> None:
    names = [{device_id(found, resource(consumer="kata")), dns_label(found)} for found in (one, other)]
    assert (names[0] == names[1]) == (one == other)


def test_names_as_they_are_written() -> None:
    assert device_id(GPU, resource()) == device_id(GPU, resource(consumer=Consumer.KUBEVIRT)) == "0000:41:00.0"
    assert device_id(GPU, resource(consumer=Consumer.KATA)) == "0000-41-00.0"
    assert device_id(MDEV, resource(consumer=Consumer.KATA)) == str(MDEV)
    assert [device(GPU).label, device(MDEV).label] == ["pci-0000-41-00-0", f"mdev-{MDEV}"]
    assert dns_label(PciAddress("10000:01:00.0")) == "pci-10000-01-00-0"


def test_a_container_of_a_pod_is_an_owner() -> None:
    assert WEB.owner == "pod/default/web/main"


@pytest.mark.parametrize("name", ["", "a b", "x/y", "\x1b[2J", "a" * 300])
def test_names_that_no_pod_has_are_no_owner(name: str) -> None:
    with pytest.raises(BadSpec):
        Pod("default", name, "main").owner  # noqa: B018 - it is refused


def test_no_pod_is_called_as_the_unknown_one() -> None:
    """Names in Kubernetes are RFC 1123 labels and subdomains."""
    assert Owner("pod/_/_/_") == PROVISIONAL
    assert not any(RFC_1123.fullmatch(part) for part in PROVISIONAL.split("/")[1:])
