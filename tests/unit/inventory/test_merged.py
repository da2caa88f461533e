"""An inventory of which some functions were read again."""

from __future__ import annotations

from dataclasses import replace

from vfioctl.host import Host
from vfioctl.inventory.model.functions import ProbeWarning
from vfioctl.inventory.probe.inventory import merged


def test_what_was_warned_of_twice_is_said_once() -> None:
    inventory = Host.recorded("hgx8").inventory()
    gone, stays = (ProbeWarning(subject=subject, text="unreadable") for subject in ("0000:1b:00.0", "nvml"))
    last = replace(inventory, warnings=(gone, stays))
    fresh = replace(inventory, functions=inventory.gpus[:2], warnings=(replace(stays),))
    assert {gpu.address for gpu in fresh.functions} >= {"0000:1b:00.0"}
    assert merged(last, fresh).warnings == (stays,)
