"""The permissions of a device node, and the note that keeps them when udev handles the node again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import ClassVar

from vfioctl.access.model.record import FILE, FORM, NODE, NOTE, PERMISSIONS, node_of, record_in, subject_of
from vfioctl.core.action import Action, Context
from vfioctl.core.change import Change, Phase, Step
from vfioctl.core.resource import Description, FileResource, WholeFile
from vfioctl.kernel.lenient import permissions_of
from vfioctl.kernel.protocol import Reader


class SetPermissions(Action):
    """Sets owner, group and mode of a device node."""

    name: ClassVar[str] = "permissions"

    def run(self, context: Context, step: Step) -> None:
        context.kernel.set_permissions(step.target, step.value)

    def describe(self, step: Step) -> str:
        return f"permissions of {step.target} <- {_words(step.value)}"


class NodePermissions(FileResource):
    """Owner, group and mode of a device node; empty when there is no such node."""

    kind: ClassVar[str] = PERMISSIONS
    hint: ClassVar[str] = "a udev rule or another program sets them too"
    may_block: ClassVar[bool] = False
    phase: ClassVar[Phase] = Phase.SETTLE
    why: ClassVar[str] = "as the claims say who may open it"

    def validate(self, change: Change) -> None:
        if NODE.fullmatch(change.name) is None or change.subject != subject_of(change.name):
            raise ValueError(f"not the node of a device on VFIO: {change.name[:80]!r}")
        if change.during or not all(text == "" or re.fullmatch(FORM, text) for text in (change.before, change.after)):
            raise ValueError("not the value of a node's permissions")

    def read(self, reader: Reader, change: Change) -> str | None:
        return permissions_of(reader, change.name)

    def write(self, change: Change, value: str, *, phase: Phase | None = None, why: str = "") -> Step:
        return super().write(change, value, phase=phase, why=why).model_copy(update={"action": SetPermissions.name})

    def describe(self, change: Change) -> Description:
        return Description(change.name, _words(change.before), _words(change.after))


class AccessFile(WholeFile):
    """The note about a node: who may open it."""

    kind: ClassVar[str] = NOTE
    why_written: ClassVar[str] = "so that udev keeps them"
    why_removed: ClassVar[str] = "so that udev sets them no more"

    def validate(self, change: Change) -> None:
        match = FILE.fullmatch(change.name)
        if match is None or change.subject != subject_of(node_of(match[1])):
            raise ValueError(f"not the note about a device node: {change.name[:80]!r}")
        if change.during or (change.after and record_in(change.after) is None) or len(change.before) > 4096:
            raise ValueError("not who may open a device node")

    def steps(self, change: Change) -> Iterator[Step]:
        for step in super().steps(change):
            yield step.model_copy(update={"phase": Phase.SETTLE if change.after else Phase.FORGET})

    def describe(self, change: Change) -> Description:
        return Description(change.name, "noted" if change.before else "none", "noted" if change.after else "none")


def _words(permissions: str) -> str:
    """`uid 1000, gid 0, mode 600`."""
    uid, _, rest = permissions.partition(":")
    gid, _, mode = rest.partition(":")
    return f"uid {uid}, gid {gid}, mode {mode}" if mode else "none"
