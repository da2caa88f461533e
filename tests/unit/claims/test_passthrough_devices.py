"""Which devices a domain hands to its guest: the same as libvirt reads."""

from __future__ import annotations

import pytest

from vfioctl.claims.model.passthrough_devices import devices_in, managed_devices_of
from vfioctl.domain.document.xml import parse

UUID = "4E8C5DF7-c4fa-4719-904f-5579cd5ac35f"


def handed(devices: str) -> list[str]:
    return devices_in(f"<domain><devices>{devices}</devices></domain>")


@pytest.mark.parametrize(
    ("address", "device"),
    [
        ("domain='0x0000' bus='0x43' slot='0x00' function='0x0'", "0000:43:00.0"),
        ("domain='0' bus='67' slot='0' function='0'", "0000:43:00.0"),  # decimal: libvirt reads base 0
        ("bus='0103' slot='010' function='1'", "0000:43:08.1"),  # octal
        ("domain='65536' bus='0x01' slot='31' function='7'", "10000:01:1f.7"),
        ("bus='0x43'", "0000:43:00.0"),
        ("type='pci' bus='0x43' slot='0'", "0000:43:00.0"),
    ],
)
@pytest.mark.parametrize("mode", ["", "mode='subsystem'"])
def test_an_address_is_read_as_libvirt_does(address: str, device: str, mode: str) -> None:
    assert handed(f"<hostdev {mode} type='pci'><source><address {address}/></source></hostdev>") == [device]
    assert handed(f"<interface type='hostdev'><source><address {address}/></source></interface>") == [device]


@pytest.mark.parametrize(
    "device",
    [
        "<hostdev type='pci'><source><address bus='1b' slot='0'/></source></hostdev>",  # libvirt refuses it
        "<hostdev type='pci'><source><address bus='08' slot='0'/></source></hostdev>",
        "<hostdev type='usb'><source><address bus='1' device='2'/></source></hostdev>",
        "<hostdev type='scsi'><source><address bus='0' target='0' unit='0'/></source></hostdev>",
        "<hostdev mode='capabilities' type='misc'><source><address bus='0x43'/></source></hostdev>",
        "<interface type='network'><source><address bus='0x43'/></source></interface>",
        "<interface type='hostdev'><source><address type='usb' bus='1' device='2'/></source></interface>",
        "<disk type='nvme'><source><address bus='0x43'/></source></disk>",
    ],
)
def test_what_is_no_device_of_vfio(device: str) -> None:
    assert handed(device) == []


def test_an_mdev_needs_no_mode() -> None:
    assert handed(f"<hostdev type='mdev'><source><address uuid='{UUID}'/></source></hostdev>") == [UUID.lower()]


def test_managed_ones() -> None:
    devices = "<hostdev type='pci' managed='yes'><source><address bus='67' slot='0'/></source></hostdev>"
    others = devices.replace("67", "68").replace("yes", "no")
    root = parse(f"<domain><devices>{devices}{others}</devices></domain>").root
    assert managed_devices_of(root) == ["0000:43:00.0"]
