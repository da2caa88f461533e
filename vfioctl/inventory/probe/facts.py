"""A few functions again, as plans speak of them: for the stale check, the proof and the way back. Reads only."""

from __future__ import annotations

from collections.abc import Iterable

from vfioctl.core.change import Binding, Fact
from vfioctl.errors import Stuck
from vfioctl.inventory.model.functions import Function
from vfioctl.inventory.model.values import PciAddress
from vfioctl.inventory.probe.pci import Facts
from vfioctl.inventory.probe.readers import read_again
from vfioctl.kernel.protocol import Reader, Unanswered

TIMEOUT = 10.0
"""Seconds: a driver that is still starting holds its device's lock, the NVIDIA one for more than three."""


def read_facts(kernel: Reader, addresses: Iterable[PciAddress]) -> dict[PciAddress, Fact]:
    """What is true of each now; one that has gone from the bus is left out. Raises Stuck when one does not answer."""
    found = {}
    for text, facts in kernel.survey(read_again, addresses, timeout=TIMEOUT):
        if isinstance(facts, Unanswered):
            raise Stuck(
                f"{text} does not answer: {facts.reason}",
                hint="a write to it is still under way in the kernel; when it has ended, or after a reboot, recover",
                next_command="vfioctl recover",
            )
        if facts:
            found[PciAddress(text)] = _fact(facts)
    return found


def _fact(facts: Facts) -> Fact:
    facts.pop("modalias")
    function = Function.model_validate(facts)
    return Fact(
        address=function.address,
        identity=function.identity,
        iommu_group=function.iommu_group,
        binding=Binding(driver=function.driver, driver_override=function.driver_override),
    )
