"""Files beside those of devices: what `vfioctl install` puts in place, and driverctl's, which are only removed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import ClassVar

from vfioctl.core.action import ReplaceLink
from vfioctl.core.change import Change, Phase, Step
from vfioctl.core.resource import Description, WholeFile
from vfioctl.kernel.lenient import target_of
from vfioctl.kernel.protocol import PCI_ADDRESS, Reader
from vfioctl.persist.model.installed import ALL_LINKS, BOOT, DOCUMENTS, FILE, FILES, LINK, enables, is_installed, shown
from vfioctl.persist.model.intents import DRIVERCTL_OVERRIDE
from vfioctl.persist.packaged import packaged


class DriverctlOverride(WholeFile):
    """The driver that driverctl gives a device at boot."""

    kind: ClassVar[str] = DRIVERCTL_OVERRIDE
    survives_reboot: ClassVar[bool] = True
    why_written: ClassVar[str] = "as it was"
    why_removed: ClassVar[str] = "so that one program only decides about the device"

    def validate(self, change: Change) -> None:
        form = rf"/etc/driverctl\.d/(pci-)?{re.escape(change.subject)}"
        if not PCI_ADDRESS.fullmatch(change.subject) or not re.fullmatch(form, change.name, re.ASCII):
            raise ValueError(f"not driverctl's file for {change.subject[:40]}: {change.name[:80]!r}")
        if change.after or change.during or not re.fullmatch("[a-z0-9_-]{0,64}", change.before, re.ASCII):
            raise ValueError("not the value of a driverctl override: a driver's name can be removed, and none written")

    def describe(self, change: Change) -> Description:
        return Description(f"driverctl override of {change.subject}", change.before or "none", change.after or "none")


class InstalledFile(WholeFile):
    """A file that a boot runs or reads (a rule, a unit, the script that runs first), a completion or a manual page."""

    kind: ClassVar[str] = FILE
    value: ClassVar[str] = r"[ -~\t\n]{0,65536}"
    survives_reboot: ClassVar[bool] = True
    why_written: ClassVar[str] = "so that a boot binds and restores what is persistent"
    why_removed: ClassVar[str] = "as asked for"

    def validate(self, change: Change) -> None:
        """Accept any text before, and after only the text that comes with this vfioctl: root runs it."""
        if not is_installed(change.name) or change.subject != (BOOT if change.name in FILES else DOCUMENTS):
            raise ValueError(f"not the name of an installed file: {change.name[:80]!r}")
        if not re.fullmatch(self.value, change.before) or change.during:
            raise ValueError("not the value of an installed file")
        if change.after and change.after != packaged().get(change.name):
            raise ValueError("not the value of an installed file: it comes with another release")

    def steps(self, change: Change) -> Iterator[Step]:
        for step in super().steps(change):
            why = step.why if change.name in FILES or not change.after else _WHY_DOCUMENTS
            yield step.model_copy(update={"may_fail": change.may_fail, "why": why})

    def describe(self, change: Change) -> Description:
        return Description(shown(change.name), _words(change.name, change.before), _words(change.name, change.after))


_WHY_DOCUMENTS = "so that shells complete words, and man(1) finds the pages"


def _words(name: str, text: str) -> str:
    return "none" if not text else "installed" if text == packaged().get(name) else "another text"


class EnabledUnit(WholeFile):
    """The link that has systemd start a unit at boot; empty when there is none."""

    kind: ClassVar[str] = LINK
    survives_reboot: ClassVar[bool] = True
    why_written: ClassVar[str] = "so that systemd starts it at boot"
    why_removed: ClassVar[str] = "so that systemd does not start it"

    def validate(self, change: Change) -> None:
        if change.name not in ALL_LINKS or change.subject != BOOT:
            raise ValueError(f"not the name of an enabled unit: {change.name[:80]!r}")
        if change.during or change.before not in ("", *enables(change.name)):
            raise ValueError("not the value of an enabled unit")
        if change.after not in ("", ALL_LINKS[change.name]):
            raise ValueError("not the value of an enabled unit")

    def read(self, reader: Reader, change: Change) -> str | None:
        return target_of(reader, change.name)

    def steps(self, change: Change) -> Iterator[Step]:
        for step in super().steps(change):
            phase = Phase.PERSIST if change.after else Phase.FORGET
            yield step.model_copy(update={"action": ReplaceLink.name, "phase": phase})

    def describe(self, change: Change) -> Description:
        before, after = ("at boot" if text else "not started" for text in (change.before, change.after))
        return Description(change.name.rpartition("/")[2], before, after)
