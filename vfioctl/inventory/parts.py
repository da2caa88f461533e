"""Registers the inventory with the core: the facts of functions and the check for holders. May not hold logic."""

from vfioctl.core.registry import Parts
from vfioctl.inventory.actions import NoHolders, NoHoldersOfVfs, explain_stuck
from vfioctl.inventory.probe.facts import FunctionFacts

PARTS = Parts(actions=(NoHolders(), NoHoldersOfVfs()), facts=(FunctionFacts(),), explain_stuck=explain_stuck)
