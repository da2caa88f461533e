"""Registers what sharing sets with the core. May not hold logic."""

from vfioctl.core.registry import Parts
from vfioctl.sharing.allowing.intents import AllowIntent, DisallowIntent
from vfioctl.sharing.allowing.resources import (
    AllowNote,
    CgroupDevices,
    RefuseDevices,
    SetUnitDevices,
    UnitDeviceSettings,
)
from vfioctl.sharing.mps.actions import DaemonUnit, Limit, SetComputeMode
from vfioctl.sharing.mps.intents import MpsApplyIntent, MpsStartIntent, MpsStopIntent
from vfioctl.sharing.mps.resources import ComputeMode, Daemon, DaemonLimit, Environment

PARTS = Parts(
    resources=(
        *(CgroupDevices(), UnitDeviceSettings(), AllowNote()),
        *(Environment(), ComputeMode(), Daemon(), DaemonLimit()),
    ),
    actions=(RefuseDevices(), SetUnitDevices(), SetComputeMode(), DaemonUnit(), Limit()),
    intents=(AllowIntent, DisallowIntent, MpsStartIntent, MpsStopIntent, MpsApplyIntent),
)
