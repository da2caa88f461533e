"""What `vfioctl install` puts in place: for the boot, for shells, and for man(1). May not do input or output."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar, Literal

from vfioctl.core.change import Change, Intent, Plan
from vfioctl.kernel.host_paths import (
    DRACUT,
    DRACUT_MODULE,
    INITRAMFS_TOOLS,
    PACKAGED_INITRAMFS_TOOLS,
    PACKAGED_RULES,
    PACKAGED_UNITS,
    PROGRAMS,
    SHARE,
    UDEV_RULES,
    UNITS,
    UPDATE_INITRAMFS,
)

FILE, LINK = "installed file", "enabled unit"
"""The kinds of resource."""
BOOT, DOCUMENTS = "boot", "documents"
"""The subjects of these changes, which are of no device: what a boot needs, and what a user reads or a shell."""
FILES: Mapping[str, str] = {
    f"{PROGRAMS}/vfioctl-early": "udev/vfioctl-early",
    f"{UDEV_RULES}/62-vfioctl-boot.rules": "udev/62-vfioctl-boot.rules",
    f"{UDEV_RULES}/99-vfioctl-access.rules": "udev/99-vfioctl-access.rules",
    f"{UNITS}/vfioctl-early.service": "systemd/vfioctl-early.service",
    f"{UNITS}/vfioctl-restore.service": "systemd/vfioctl-restore.service",
    f"{UNITS}/vfioctl-kubelet.service": "systemd/vfioctl-kubelet.service",
    f"{UNITS}/vfioctl-mps@.service": "systemd/vfioctl-mps@.service",
    f"{UNITS}/vfioctl-share.service": "systemd/vfioctl-share.service",
    f"{INITRAMFS_TOOLS}/hooks/vfioctl": "initramfs/initramfs-tools/hook",
    f"{INITRAMFS_TOOLS}/scripts/init-top/00-vfioctl": "initramfs/initramfs-tools/init-top",
    f"{INITRAMFS_TOOLS}/scripts/init-bottom/vfioctl": "initramfs/initramfs-tools/init-bottom",
    f"{DRACUT_MODULE}/module-setup.sh": "initramfs/dracut/module-setup.sh",
    f"{DRACUT_MODULE}/vfioctl-reserve.sh": "initramfs/dracut/vfioctl-reserve.sh",
    f"{DRACUT_MODULE}/vfioctl-release.sh": "initramfs/dracut/vfioctl-release.sh",
}
"""Each file, and which of the package it is. initramfs-tools runs scripts in the order of their names: udev is one."""
ONLY_WITH: Mapping[str, str] = {
    INITRAMFS_TOOLS: UPDATE_INITRAMFS,
    DRACUT_MODULE: DRACUT,
}
"""The directories of files for programs that a host may lack, and the program."""
LINKS: Mapping[str, str] = {
    f"{UNITS}/sysinit.target.wants/vfioctl-early.service": "../vfioctl-early.service",
    f"{UNITS}/multi-user.target.wants/vfioctl-restore.service": "../vfioctl-restore.service",
}
"""The links that enable units, and their targets."""
OPTIONAL_LINKS: Mapping[str, str] = {
    f"{UNITS}/multi-user.target.wants/vfioctl-kubelet.service": "../vfioctl-kubelet.service",
    f"{UNITS}/multi-user.target.wants/vfioctl-share.service": "../vfioctl-share.service",
}
"""Those that are for the administrator to make, with systemctl enable."""
ALL_LINKS: Mapping[str, str] = {**LINKS, **OPTIONAL_LINKS}
UNIT_NAMES = frozenset(link.rpartition("/")[2] for link in LINKS)
"""The units that a boot starts."""
OPTIONAL_UNIT_NAMES = frozenset(link.rpartition("/")[2] for link in OPTIONAL_LINKS)
"""The units that a boot starts if the administrator wants them."""
STARTED_UNIT_NAMES = frozenset({"vfioctl-mps@.service"})
"""The units that no boot starts: vfioctl does, for what they are named after."""
COMPLETIONS: Mapping[str, str] = {
    f"{SHARE}/bash-completion/completions/vfioctl": "bash",
    f"{SHARE}/zsh/site-functions/_vfioctl": "zsh",
    f"{SHARE}/fish/vendor_completions.d/vfioctl.fish": "fish",
}
"""The completion scripts, and the shell that reads each."""
PAGES = f"{SHARE}/man/man1"
"""Where man(1) finds the manual pages."""
PAGE = re.compile(r"vfioctl(-[a-z]{1,40})?\.1", re.ASCII)
"""The name of a manual page."""
IN_PACKAGE: Mapping[str, str] = {
    path: path.replace(UNITS, PACKAGED_UNITS)
    .replace(UDEV_RULES, PACKAGED_RULES)
    .replace(INITRAMFS_TOOLS, PACKAGED_INITRAMFS_TOOLS)
    for path in FILES
}
"""Where a package of the system has each of FILES. Files of the same name in /etc take precedence over them."""
MARK = f"{PACKAGED_UNITS}/vfioctl-restore.service"
"""A host that has this file has vfioctl's package."""


def is_installed(name: str) -> bool:
    """Return whether `vfioctl install` may write the file."""
    folder, _, file = name.rpartition("/")
    return name in FILES or name in COMPLETIONS or (folder == PAGES and PAGE.fullmatch(file) is not None)


def shown(name: str) -> str:
    """Return a file as a person calls it: a path, for the boot; else what it is."""
    if name in COMPLETIONS:
        return f"completion for {COMPLETIONS[name]}"
    folder, _, file = name.rpartition("/")
    return f"manual page {file.removesuffix('.1')}(1)" if folder == PAGES else name


def enables(link: str) -> frozenset[str]:
    """Return the targets by which a link enables its unit, whoever made it: `vfioctl install`, systemctl, a package."""
    unit = link.rpartition("/")[2]
    places = (UNITS, PACKAGED_UNITS, PACKAGED_UNITS.removeprefix("/usr"))
    return frozenset({ALL_LINKS[link], *(f"{place}/{unit}" for place in places)})


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
    """`install` may remove, too: copies of what a package has installed, and pages of commands that are no more."""
    return all(change.kind in (FILE, LINK) and (change.after == "" or not removes) for change in changes)


def changes_of(before: Mapping[str, str], wanted: Mapping[str, str]) -> list[Change]:
    """The changes of files and links. `before`: their texts and targets now. `wanted`: those of this release; none to
    remove them."""
    return [_change(name, now, wanted.get(name, "")) for name, now in before.items() if not _same(name, now, wanted)]


def _same(name: str, now: str, wanted: Mapping[str, str]) -> bool:
    return now == wanted.get(name, "") or (name in wanted and name in ALL_LINKS and now in enables(name))


def _change(name: str, before: str, after: str) -> Change:
    of_boot = name in FILES or name in ALL_LINKS
    return Change(
        kind=LINK if name in ALL_LINKS else FILE,
        name=name,
        subject=BOOT if of_boot else DOCUMENTS,
        before=before,
        after=after,
        may_fail=not of_boot,
    )
