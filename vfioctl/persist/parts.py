"""Registers the persist subsystem with the core. May not hold logic."""

from vfioctl.core.registry import Parts
from vfioctl.persist.model.installed import InstallIntent, UninstallIntent
from vfioctl.persist.model.intents import ForgetIntent, ImportIntent
from vfioctl.persist.resources import DriverctlOverride, EnabledUnit, InstalledFile

PARTS = Parts(
    resources=(DriverctlOverride(), InstalledFile(), EnabledUnit()),
    intents=(ForgetIntent, ImportIntent, InstallIntent, UninstallIntent),
)
