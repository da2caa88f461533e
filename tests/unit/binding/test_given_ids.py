"""Which functions ids= of vfio-pci takes, and where it is given."""

from __future__ import annotations

import pytest

from vfioctl.binding.model.given_ids import ids_in, ids_in_modprobe, ids_on_command_line
from vfioctl.inventory.model.functions import Function
from vfioctl.inventory.model.values import PciAddress

AUDIO = Function(
    address=PciAddress("0000:41:00.1"),
    vendor_id="10de",
    device_id="22ba",
    subsystem_vendor_id="1043",
    subsystem_device_id="88e2",
    class_code="040300",
)


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("10de:22ba", True),
        ("10DE:22BA", True),
        ("0x10de:0x22ba", True),
        ("10de:22bb", False),
        ("10de", False),
        ("10de:22ba:", False),
        ("10de:22ba:x", False),
        ("10de:22ba:1043", True),
        ("10de:22ba:1043:88e2", True),
        ("10de:22ba:1043:1", False),
        ("10de:22ba:ffffffff:88e2", True),
        ("10de:ffffffff", True),
        ("10de:ffff", False),
        ("ffffffff:ffffffff:ffffffff:ffffffff:040300:ffffff", True),
        ("ffffffff:ffffffff:ffffffff:ffffffff:030000:ffffff", False),
        ("ffffffff:ffffffff:ffffffff:ffffffff:04ff00:ff0000", True),
        ("10de:22ba:1043:88e2:030000", True),
        ("1:1,10de:22ba", True),
        ("", False),
    ],
)
def test_which_functions_ids_take(text: str, *, fits: bool) -> None:
    assert any(known.fits(AUDIO) for known in ids_in(text)) is fits


def test_only_ids_of_one_model_have_a_model() -> None:
    assert [known.model for known in ids_in("10de:1,10de:ffffffff")] == [("10de", "0001"), None]


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("quiet vfio-pci.ids=1:2,3:4 ro", ["1:2,3:4"]),
        ("vfio_pci.ids=1:2 vfio-pci.ids=3:4", ["1:2", "3:4"]),
        ('vfio-pci.ids="1:2"', ["1:2"]),
        ("xvfio-pci.ids=1:2 vfio-pci.ids= vfio-pci.ids", []),
    ],
)
def test_ids_on_the_command_line(text: str, ids: list[str]) -> None:
    assert list(ids_on_command_line(text)) == ids


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("options vfio-pci ids=1:2,3:4 disable_vga=1", ["1:2,3:4"]),
        ("  options\tvfio_pci disable_vga=1 ids=1:2", ["1:2"]),
        ('options vfio-pci ids="1:2,3:4"', ["1:2,3:4"]),
        ("options vfio-pci \\\nids=1:2", ["1:2"]),
        ("# options vfio-pci ids=1:2\noptions vfio ids=1:2\nsoftdep vfio-pci ids=1:2\noptions", []),
    ],
)
def test_ids_in_modprobe(text: str, ids: list[str]) -> None:
    assert list(ids_in_modprobe(text)) == ids
