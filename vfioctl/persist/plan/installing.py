"""Plans installing and removing what a boot, shells and man(1) need. May not do input or output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from vfioctl.core.change import Draft
from vfioctl.persist.model.installed import (
    ALL_LINKS,
    LINKS,
    ONLY_WITH,
    OPTIONAL_LINKS,
    InstallIntent,
    UninstallIntent,
    changes_of,
)


def plan_installed(
    intent: InstallIntent | UninstallIntent,
    now: Mapping[str, str],
    texts: Mapping[str, str],
    *,
    renewal: str = "",
    has_package: bool,
) -> Draft:
    """Plan files and links. `now`: their texts and targets. `texts`: those of this release. `renewal`: the command that
    renews the initramfs. `has_package`: whether a package of the system has installed them; then only copies that take
    precedence are removed."""
    installs = isinstance(intent, InstallIntent)
    wanted = (LINKS if has_package else texts) if installs else {}
    if has_package and not installs:  # the links are the package's
        now = {name: text for name, text in now.items() if name not in ALL_LINKS}
    changes = tuple(changes_of(now, wanted))
    notes = [*_notes(installs=installs, has_package=has_package, changes=bool(changes))]
    if renewal and any(change.name.startswith(tuple(ONLY_WITH)) for change in changes):
        notes.append(f"the initramfs changes when it is made again: {renewal}")
    if units := [change.name.rpartition("/")[2] for change in changes if change.name in OPTIONAL_LINKS]:
        notes.append(f"what runs goes on until it is stopped: systemctl stop {' '.join(units)}")
    return Draft(intent=intent, changes=changes, notes=tuple(notes))


def _notes(*, installs: bool, has_package: bool, changes: bool) -> Iterator[str]:
    if changes:
        yield "systemd reads units at the next boot, or after systemctl daemon-reload"
    if has_package and installs:
        yield "the package vfioctl of this system has installed the rule, the units, completions and manual pages"
    elif has_package:
        yield "the rest is of the package vfioctl of this system: apt-get removes it"
    if not installs:
        yield "what is persistent stays in /etc/vfioctl and /etc/udev: vfioctl persist list"
