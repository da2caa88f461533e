"""What `vfioctl install` puts in place for the boot. May not do input or output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from vfioctl.core.change import Change, Intent, Plan
from vfioctl.kernel.host_paths import PROGRAMS, UDEV_RULES, UNITS

FILE, LINK = "installed file", "enabled unit"
"""The kinds of resource."""
BOOT = "boot"
"""The subject of these changes: no device."""
FILES: Mapping[str, str] = {
    f"{PROGRAMS}/vfioctl-early": "udev/vfioctl-early",
    f"{UDEV_RULES}/62-vfioctl-boot.rules": "udev/62-vfioctl-boot.rules",
    f"{UDEV_RULES}/99-vfioctl-access.rules": "udev/99-vfioctl-access.rules",
    f"{UNITS}/vfioctl-early.service": "systemd/vfioctl-early.service",
    f"{UNITS}/vfioctl-restore.service": "systemd/vfioctl-restore.service",
}
"""Each file, and which of the package it is."""
LINKS: Mapping[str, str] = {
    f"{UNITS}/sysinit.target.wants/vfioctl-early.service": "../vfioctl-early.service",
    f"{UNITS}/multi-user.target.wants/vfioctl-restore.service": "../vfioctl-restore.service",
}
"""The links that enable units, and their targets, as `systemctl enable` makes them."""


class InstallIntent(Intent):
    """Install what restores devices at boot."""

    done: ClassVar[str] = "installed"

    verb: Literal["install"] = "install"

    def title(self) -> str:
        return self.verb

    def permits(self, plan: Plan) -> bool:
        return _installs(plan.changes, removes=False)

    def undone_by(self, plan: Plan) -> tuple[str, ...]:
        return ("vfioctl uninstall",)


class UninstallIntent(Intent):
    """Remove what `install` has put in place."""

    done: ClassVar[str] = "removed"

    verb: Literal["uninstall"] = "uninstall"

    def title(self) -> str:
        return self.verb

    def permits(self, plan: Plan) -> bool:
        return _installs(plan.changes, removes=True)

    def undone_by(self, plan: Plan) -> tuple[str, ...]:
        return ("vfioctl install",)


def _installs(changes: tuple[Change, ...], *, removes: bool) -> bool:
    return all(change.kind in (FILE, LINK) and (change.after == "") is removes for change in changes)


def changes_of(before: Mapping[str, str], wanted: Mapping[str, str]) -> list[Change]:
    """The changes of files and links. `before`: their texts and targets now. `wanted`: those of the package; none to
    remove them."""
    return [
        Change(kind=LINK if name in LINKS else FILE, name=name, subject=BOOT, before=now, after=wanted.get(name, ""))
        for name, now in before.items()
        if now != wanted.get(name, "")
    ]
