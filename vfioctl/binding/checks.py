"""Checks after functions were moved: their groups are viable, and the functions still answer. May not write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from vfioctl.console.words import listed
from vfioctl.core.action import Context
from vfioctl.core.change import Plan
from vfioctl.core.registry import Check
from vfioctl.errors import KernelRefused, Stuck, VerifyError

VIABLE, ANSWERS = "viable", "answers"
DEAD = "its configuration space reads as all ones: nothing answers on the bus"
SILENT = "reading its configuration space did not return"


class Viable(Check):
    """Verifies through VFIO that the groups are viable for a guest. The subjects are group numbers."""

    kind: ClassVar[str] = VIABLE

    def verify(self, context: Context, plan: Plan, subjects: Sequence[str]) -> Mapping[str, Any]:
        for group in subjects:
            if not self._is_viable(context, int(group)):
                raise VerifyError(
                    f"the kernel reports that IOMMU group {group} is not viable: a member still does its own DMA",
                    hint="show names the members and their drivers",
                    next_command=f"vfioctl show {plan.subjects[0]}",
                )
        return {}

    def _is_viable(self, context: Context, group: int) -> bool:
        try:
            return context.kernel.viable(group)
        except KernelRefused as error:
            if error.symbol == "ENOENT" and context.kernel.has("/dev/vfio/devices"):
                return True  # kernels with VFIO device nodes instead of group nodes do not report viability
            raise

    def describe(self, plan: Plan, subjects: Sequence[str]) -> Sequence[str]:
        return [f"the kernel reports group {group} as viable (/dev/vfio/{group})" for group in subjects]

    def conclude(self, subjects: Sequence[str], report: Mapping[str, Any]) -> Sequence[str]:
        noun, verb = ("groups", "are") if len(subjects) > 1 else ("group", "is")
        return [f"IOMMU {noun} {listed(subjects)} {verb} ready for a guest."]


class Answers(Check):
    """Verifies that the configuration space of the functions answers. A function that does not is marked as dead."""

    kind: ClassVar[str] = ANSWERS

    def verify(self, context: Context, plan: Plan, subjects: Sequence[str]) -> Mapping[str, Any]:
        """Do nothing: a dead device causes no rollback; `dead` reports it afterwards."""
        return {}

    def dead(self, context: Context, subjects: Sequence[str]) -> Mapping[str, str]:
        evidence = {address: self._evidence(context, address) for address in subjects}
        return {address: text for address, text in evidence.items() if text}

    def _evidence(self, context: Context, address: str) -> str:
        try:
            is_dead = set(context.kernel.config(address)) == {0xFF}  # all bytes: the ids of a live VF read as ones
        except KernelRefused:
            return ""  # unreadable does not mean dead
        except Stuck:
            return SILENT
        return DEAD if is_dead else ""

    def describe(self, plan: Plan, subjects: Sequence[str]) -> Sequence[str]:
        return ["its configuration space answers"] if plan.changes_of("reset") else []
