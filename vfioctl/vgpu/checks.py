"""The check after vGPUs or VFs have changed: a guest can open each vGPU."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from vfioctl.core.action import Context
from vfioctl.core.change import Plan
from vfioctl.core.registry import Check
from vfioctl.errors import VerifyError
from vfioctl.vgpu.model.kinds import CHECK, DEFINITION, VF_COUNTS, VGPUS, changes_vfs, creates, removes
from vfioctl.vgpu.model.report import left_in, report_of, report_of_defined, still_defined_in, type_names_in, vgpus_in
from vfioctl.vgpu.model.vgpu import OURS, Dialect, Left, Vgpu, Vgpus
from vfioctl.vgpu.probe.inventory import read_definitions, read_vgpus

_PAUSE = 0.05


class VgpusReady(Check):
    """Verifies that each created vGPU has a VFIO node for a guest to open. Its subjects are the cards."""

    kind: ClassVar[str] = CHECK

    def verify(self, context: Context, plan: Plan, subjects: Sequence[str]) -> Mapping[str, Any]:
        """Reports the created vGPUs or VFs, and the remaining capacity. Does not read wedged devices. Raises
        VerifyError when a node does not appear within `settle` seconds."""
        created = {change.subject for change in plan.changes if creates(change)}
        if not created and not plan.changes_of(*VF_COUNTS):
            removed = {change.subject for change in plan.changes if removes(change)}
            definitions, _ = read_definitions(context.kernel, removed)
            return report_of_defined({defined.uuid: defined.definition for defined in definitions})
        defined = {change.subject for change in plan.changes_of(DEFINITION)}
        names, until = type_names_in(plan), time.monotonic() + context.settle
        # during recovery the plan's own devices are still marked as wedged, but no write to them is pending
        suspects = set(context.wedged) - set(plan.subjects)
        while True:
            vgpus = read_vgpus(context.kernel, subjects, suspects=suspects, names=names, defined=defined)
            ready = {vgpu.id for vgpu in vgpus.instances if vgpu.vfio_group or vgpu.vfio_cdev}
            if created <= ready:
                return report_of(_affected(plan, subjects, vgpus, created), _left(plan, vgpus))
            if time.monotonic() >= until:
                raise VerifyError(
                    f"{', '.join(sorted(created - ready))} has no node below /dev/vfio that a guest could open",
                    hint="udev creates it, and the module vfio must be loaded: dmesg | tail",
                )
            time.sleep(_PAUSE)

    def describe(self, plan: Plan, subjects: Sequence[str]) -> Sequence[str]:
        lines = []
        if any(creates(change) for change in plan.changes):
            lines.append("every vGPU is there, of its type, with a node that a guest can open")
        if any(removes(change) for change in plan.changes):
            lines.append("no such vGPU is there, nor a hidden one that still takes its share")
        if plan.changes_of(*VF_COUNTS):
            lines.append("the links to the VFs are counted")
        return lines

    def conclude(self, subjects: Sequence[str], report: Mapping[str, Any]) -> Sequence[str]:
        """The created vGPUs, the remaining capacity, and what is left of removed ones, as lines of text."""
        from vfioctl.vgpu.render.listing import defined_lines, left_lines, vgpu_lines

        left, defined = left_in(report), still_defined_in(report)
        return [*vgpu_lines(vgpus_in(report)), *left_lines(left), *defined_lines(defined)]


def _affected(plan: Plan, cards: Sequence[str], vgpus: Vgpus, created: set[str]) -> tuple[Vgpu, ...]:
    """The created vGPUs, with vfioctl as owner; all VFs of the cards if their number has changed."""
    of_vfs = cards if any(changes_vfs(change) for change in plan.changes) else ()
    return tuple(
        replace(vgpu, owner=OURS)
        for vgpu in vgpus.instances
        if vgpu.id in created or (vgpu.dialect in (Dialect.SRIOV, Dialect.XE) and vgpu.card in of_vfs)
    )


def _left(plan: Plan, vgpus: Vgpus) -> tuple[Left, ...]:
    places = (change.after if creates(change) else change.before for change in plan.changes_of(*VGPUS))
    types = {place.rpartition("/")[2] for place in places}
    return tuple(
        Left(card=card.id, type=kind.id, profile=kind.profile, available=kind.available)
        for card in vgpus.cards
        for kind in card.types
        if kind.id in types
    )
