"""What a cgroup may open, as resources: vfioctl's program on it, the settings of its unit, and the note about them."""

from __future__ import annotations

import errno as errnos
import re
from collections.abc import Iterator, Sequence
from typing import ClassVar

from vfioctl.core.action import Action, Context
from vfioctl.core.change import Change, Phase, Step
from vfioctl.core.resource import Description, FileResource, WholeFile
from vfioctl.errors import HostError, KernelRefused
from vfioctl.kernel.device_lists import DeviceProgram, is_unit
from vfioctl.kernel.device_program import MOST, is_own, ordered
from vfioctl.kernel.protocol import Reader
from vfioctl.sharing.allowing.values import (
    NOTE,
    PROGRAM,
    UNIT,
    is_cgroup,
    note_file,
    note_in,
    setting_in,
    setting_of,
    subject_of,
)

_POLICY = re.compile("auto|closed|strict")
_ENTRY = re.compile(r"(?:/dev/|char-|block-|/run/)[^\x00-\x1f\x7f ]{0,255}(?: [rwm]{1,3})?")
_MOST_ENTRIES = 4096
UNREAD = "unread"
"""Instead of numbers: vfioctl's program is there, and the kernel shows other instructions than were loaded, as it does
with net.core.bpf_jit_harden=2."""


class RefuseDevices(Action):
    """Attaches vfioctl's program to a cgroup, or detaches it when the step refuses nothing."""

    name: ClassVar[str] = "refuse-devices"

    def run(self, context: Context, step: Step) -> None:
        context.kernel.refuse_devices(step.target.removeprefix("cgroup:"), _numbers(step.value))

    def describe(self, step: Step) -> str:
        cgroup, numbers = step.target.removeprefix("cgroup:"), step.value.strip()
        return (
            f"attach a program to {cgroup} that refuses {numbers}"
            if numbers
            else f"detach vfioctl's program from {cgroup}"
        )


class SetUnitDevices(Action):
    """Sets what systemd lets a unit open, until the next boot."""

    name: ClassVar[str] = "unit-devices"

    def run(self, context: Context, step: Step) -> None:
        setting = setting_in(step.value)
        context.kernel.set_unit_devices(step.target, setting.policy, setting.entries)

    def describe(self, step: Step) -> str:
        setting = setting_in(step.value)
        allow = " ".join(f"DeviceAllow='{entry}'" for entry in setting.entries) or "DeviceAllow="
        return f"systemctl set-property --runtime {step.target} DevicePolicy={setting.policy} {allow}"

    def progress(self, step: Step) -> str:
        return f"set what {step.target} may open"

    def timeout(self, context: Context, step: Step) -> float | None:
        return context.kernel.timeouts.of("unit")


class CgroupDevices(FileResource):
    """The numbers that vfioctl's program on a cgroup refuses; empty without one. Programs of others do not count."""

    kind: ClassVar[str] = PROGRAM
    hint: ClassVar[str] = "another vfioctl, or whoever manages the cgroup, has changed its programs"
    may_block: ClassVar[bool] = False
    fixed_start: ClassVar[bool] = True
    phase: ClassVar[Phase] = Phase.SETTLE

    def validate(self, change: Change) -> None:
        if not is_cgroup(change.name) or change.subject != subject_of(change.name):
            raise ValueError(f"not a cgroup: {change.name[:80]!r}")
        for text in (change.before if change.before != UNREAD else "", change.after):
            if change.during or not _is_ordered(text):
                raise ValueError("not the value of a list of refused devices")

    def read(self, reader: Reader, change: Change) -> str | None:
        return refused_on(reader, change.name)

    def write(self, change: Change, value: str, *, phase: Phase | None = None, why: str = "") -> Step:
        step = super().write(change, value, phase=phase, why=why or _why(value))
        return step.model_copy(update={"action": RefuseDevices.name, "target": change.subject})

    def matches(self, change: Change, found: str | None) -> bool:
        return (found or "") == change.after or (found == UNREAD and bool(change.after))

    def is_done_anyway(self, reader: Reader, change: Change, error: KernelRefused) -> bool:
        """A cgroup that is gone has no program."""
        return not change.after and error.errno == errnos.ENOENT

    def describe(self, change: Change) -> Description:
        return Description(change.name, _words(change.before), _words(change.after))


class UnitDeviceSettings(FileResource):
    """DevicePolicy and DeviceAllow of a unit."""

    kind: ClassVar[str] = UNIT
    hint: ClassVar[str] = "somebody else sets them too: systemctl show -p DevicePolicy -p DeviceAllow"
    may_block: ClassVar[bool] = False
    fixed_start: ClassVar[bool] = True
    phase: ClassVar[Phase] = Phase.SETTLE
    why: ClassVar[str] = "systemd owns this cgroup"

    def validate(self, change: Change) -> None:
        if not is_unit(change.name) or change.subject.rpartition("/")[2] != change.name or change.during:
            raise ValueError(f"not a unit with a cgroup: {change.name[:80]!r}")
        for text in (change.before, change.after):
            setting = setting_in(text)
            plain = all(_ENTRY.fullmatch(entry) for entry in setting.entries)
            if not (_POLICY.fullmatch(setting.policy) and plain and len(setting.entries) <= _MOST_ENTRIES):
                raise ValueError("not the value of what a unit may open")

    def read(self, reader: Reader, change: Change) -> str | None:
        cgroup = change.subject.removeprefix("cgroup:")
        try:
            devices = reader.unit_devices(cgroup)
        except HostError:
            return None
        return setting_of(devices).text if devices else None

    def write(self, change: Change, value: str, *, phase: Phase | None = None, why: str = "") -> Step:
        return super().write(change, value, phase=phase, why=why).model_copy(update={"action": SetUnitDevices.name})

    def matches(self, change: Change, found: str | None) -> bool:
        return found == change.after

    def describe(self, change: Change) -> Description:
        return Description(change.name, _listed(change.before), _listed(change.after))


class AllowNote(WholeFile):
    """The note about a unit: what vfioctl has set for it, and what it had before."""

    kind: ClassVar[str] = NOTE
    why_written: ClassVar[str] = "so that disallow can put it back"
    why_removed: ClassVar[str] = "nothing is left to put back"

    def validate(self, change: Change) -> None:
        unit = change.name.rpartition("/")[2]
        if not is_unit(unit) or change.name != note_file(unit) or change.subject.rpartition("/")[2] != unit:
            raise ValueError(f"not the note about a unit: {change.name[:80]!r}")
        if change.during or (change.after and note_in(change.after) is None):
            raise ValueError("not what a unit could open")

    def steps(self, change: Change) -> Iterator[Step]:
        for step in super().steps(change):  # there is a note whenever the unit is restricted
            yield step.model_copy(update={"phase": Phase.PREPARE if change.after else Phase.PERSIST})

    def describe(self, change: Change) -> Description:
        return Description(change.name, "noted" if change.before else "none", "noted" if change.after else "none")


def refused_on(reader: Reader, cgroup: str) -> str | None:
    """Return the numbers that vfioctl's programs on a cgroup refuse, as a text, or UNREAD; None if it is not known."""
    try:
        return refused_in(reader.device_programs(cgroup))
    except (KernelRefused, HostError):
        return None


def refused_in(programs: Sequence[DeviceProgram]) -> str:
    """Return the numbers that those of vfioctl's refuse, as a text, or UNREAD."""
    own = [program for program in programs if is_own(program)]
    if any(program.refused is None for program in own):
        return UNREAD
    return ", ".join(ordered({number for program in own for number in program.refused or ()}))


def _is_ordered(text: str) -> bool:
    """Return whether these are numbers that a program can refuse, in its order."""
    numbers = _numbers(text)
    try:
        return ", ".join(ordered(numbers)) == text and len(numbers) <= MOST
    except ValueError:
        return False


def _numbers(text: str) -> list[str]:
    return [number for number in text.strip().split(", ") if number]


def _why(value: str) -> str:
    return "these are nodes of other GPUs" if value else "nothing is refused any more"


def _words(text: str) -> str:
    if text == UNREAD:
        return "refuses what cannot be read"
    return f"refuses {text}" if text else "refuses nothing"


def _listed(text: str) -> str:
    setting = setting_in(text)
    return f"{setting.policy}, {len(setting.entries)} entries" if setting.restricts else "everything"
