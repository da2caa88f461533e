"""Registers the inventory with the core: the facts of functions and the check for holders. May not hold logic."""

from vfioctl.core.registry import Parts
from vfioctl.inventory.facts import FunctionFacts
from vfioctl.inventory.no_holders import Unheld, UnheldVfs, explain_stuck

PARTS = Parts(actions=(Unheld(), UnheldVfs()), facts=(FunctionFacts(),), explain_stuck=explain_stuck)
