"""Which functions a plan takes from somebody: those that lose their driver, or are reset while they have one."""

from __future__ import annotations

import pytest

from tests.hosts.machines import function, inventory_of
from vfioctl.binding.model.binding import Binding
from vfioctl.binding.model.conditions import Circumstances
from vfioctl.binding.model.intents import BindIntent
from vfioctl.binding.plan.preconditions import refuse_held, unbound_by
from vfioctl.binding.resources.driver import binding_change
from vfioctl.core.change import Change, Draft
from vfioctl.errors import DeviceInUse
from vfioctl.inventory.model.holders import Holder, HolderKind, Holders
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


def held(*, force: bool, leaving: PciAddress, stopped: bool = False) -> tuple[str, ...]:
    """The notes of a plan that takes a function, where a service's process holds GPU."""
    stop = Change(kind="service", name="x.service", subject=GPU, before="active", after="inactive")
    draft = Draft(
        BindIntent(devices=(leaving,), force_holders=force),
        changes=(binding_change(leaving, NVIDIA, VFIO), *([stop] if stopped else [])),
    )
    holder = Holder(address=GPU, kind=HolderKind.PROCESS, pid=7, name="x", unit="x.service")
    known = Circumstances(holders=Holders(devices=(GPU, OTHER), holders=(holder,)))
    return refuse_held(inventory_of(function(GPU), function(OTHER)), draft, known, ("x.service",)).notes


def test_who_holds_a_function_that_is_taken_refuses() -> None:
    with pytest.raises(DeviceInUse):
        held(force=False, leaving=GPU)


def test_the_plan_says_whose_function_is_taken_by_force() -> None:
    (note,) = held(force=True, leaving=GPU)
    assert note.startswith(f"{GPU} is held by x (process 7")


@pytest.mark.parametrize("force", [True, False])
def test_who_holds_nothing_that_is_taken_is_no_news(force: bool) -> None:
    assert held(force=force, leaving=OTHER) == ()


@pytest.mark.parametrize("force", [True, False])
def test_who_is_stopped_is_no_news(force: bool) -> None:
    assert held(force=force, leaving=GPU, stopped=True) == ()
