"""Registers CDI files with the core. May not hold logic."""

from vfioctl.containers.cdi.intent import CdiFile, CdiIntent
from vfioctl.core.registry import Parts

PARTS = Parts(resources=(CdiFile(),), intents=(CdiIntent,))
