"""Registers CDI files with the core. May not hold logic."""

from vfioctl.containers.cdi.intent import CdiIntent
from vfioctl.containers.cdi.resource import CdiFile
from vfioctl.core.registry import Parts

PARTS = Parts(resources=(CdiFile(),), intents=(CdiIntent,))
