"""Which reservations refuse a plan."""

import pytest

from vfioctl.core.reservations import Reservation, refuse_reserved
from vfioctl.errors import ClaimConflict
from vfioctl.host import Host

GPU = "0000:01:00.0"


def reservation(subject: str, *, whole: bool) -> Reservation:
    return Reservation(subject, "claim 1a2b3c4d", "vm/a", whole, "vfioctl claim release 1a2b3c4d")


@pytest.mark.parametrize("whole", [True, False])
def test_a_device_that_would_be_changed_is_refused_when_only_a_part_of_it_is_reserved_too(*, whole: bool) -> None:
    plan = Host.recorded("workstation").binding.plan_bind([GPU])
    assert GPU in plan.subjects
    reserved = reservation(GPU, whole=whole)
    with pytest.raises(ClaimConflict, match="belongs to claim 1a2b3c4d of vm/a"):
        refuse_reserved(plan, [reserved])
    refuse_reserved(plan, [reserved], acting_for=reserved.by)


def test_a_device_that_the_plan_only_relies_on_is_refused_as_a_whole_only() -> None:
    plan = Host.recorded("workstation").binding.plan_bind([GPU])
    relied = "0000:02:00.0"
    plan = plan.model_copy(update={"facts": (*plan.facts, plan.facts[0].model_copy(update={"subject": relied}))})
    with pytest.raises(ClaimConflict):
        refuse_reserved(plan, [reservation(relied, whole=True)])
    refuse_reserved(plan, [reservation(relied, whole=False)])
