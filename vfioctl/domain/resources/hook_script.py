"""vfioctl's script in libvirt's directory of hooks. It is replaced as a whole."""

from __future__ import annotations

from typing import ClassVar

from vfioctl.core.change import Change
from vfioctl.core.resource import Description, WholeFile
from vfioctl.domain.model.hook import HOOK, SCRIPT, is_ours, is_script


class HookScript(WholeFile):
    """The text of the script; empty when there is none."""

    kind: ClassVar[str] = HOOK
    hint: ClassVar[str] = "another program writes the file too"
    survives_reboot: ClassVar[bool] = True
    why_written: ClassVar[str] = "so that libvirt calls vfioctl before a domain starts, and when it has ended"
    why_removed: ClassVar[str] = "as asked for"

    def validate(self, change: Change) -> None:
        """A plan file can name no other file, and write or replace no script of anybody else's."""
        if change.name != SCRIPT or change.subject != HOOK:
            raise ValueError(f"not the hook script: {change.name[:80]!r}")
        if change.during is not None or (change.after and not is_script(change.after)):
            raise ValueError("not the value of a hook: it is no script of vfioctl")
        if change.before and not is_ours(change.before):
            raise ValueError("not the value of a hook: what was there before is no script of vfioctl")

    def describe(self, change: Change) -> Description:
        return Description("libvirt's hook", _words(change.before), _words(change.after))


def _words(text: str) -> str:
    return "none" if not text else "vfioctl's" if is_script(text) else "vfioctl's, of another release"
