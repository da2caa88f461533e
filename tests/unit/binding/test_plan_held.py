"""Which functions a plan takes from somebody: those that lose their driver, or are reset while they have one."""

from __future__ import annotations

import pytest

from vfioctl.binding.model.binding import Binding
from vfioctl.binding.plan.held import unbound_by
from vfioctl.binding.resources.driver import binding_change
from vfioctl.core.change import Change
from vfioctl.inventory.model.values import PciAddress

GPU, OTHER = PciAddress("0000:41:00.0"), PciAddress("0000:42:00.0")
NVIDIA, FREE, VFIO = Binding("nvidia"), Binding(None), Binding("vfio-pci", "vfio-pci")
RESET = Change(kind="reset", name=f"/sys/bus/pci/devices/{GPU}/reset", subject=GPU, before="", after=GPU)


@pytest.mark.parametrize(
    ("before", "after", "reset", "loses"),
    [
        (NVIDIA, VFIO, False, True),
        (NVIDIA, NVIDIA, False, False),
        (NVIDIA, NVIDIA, True, True),
        (FREE, VFIO, False, False),
        (FREE, FREE, True, False),
    ],
)
def test_functions_that_lose_their_driver(before: Binding, after: Binding, reset: bool, loses: bool) -> None:
    changes = (binding_change(GPU, before, after), *([RESET] if reset else []))
    assert unbound_by(changes) == ((GPU,) if loses else ())


def test_other_changes_take_nothing() -> None:
    power = Change(kind="power", name="x", subject=OTHER, before="auto", after="on")
    assert unbound_by((power, binding_change(GPU, NVIDIA, VFIO))) == (GPU,)
