"""What a change of MPS sets: the daemon's environment, the GPU's compute mode, the daemon, its limits."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import ClassVar

from vfioctl.core.change import Change, Phase, Step
from vfioctl.core.resource import Description, FileResource, Found, WholeFile
from vfioctl.errors import HostError, Stuck
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel.mps import COMPUTE_MODES
from vfioctl.kernel.protocol import PCI_ADDRESS, Reader, Unanswered
from vfioctl.sharing.mps.actions import DaemonUnit, Limit, SetComputeMode
from vfioctl.sharing.mps.daemon import NAME, file_of, name_of, told_in
from vfioctl.sharing.mps.intents import ACTIVE, DAEMON, ENVIRONMENT, INACTIVE, LIMIT, MODE, SILENT, UNKNOWN
from vfioctl.sharing.mps.limits import read_limit
from vfioctl.sharing.mps.probe import state_of
from vfioctl.sharing.mps.share import MEMORY, THREADS
from vfioctl.units import exact_size

_LIMIT = re.compile(f"(?P<name>{NAME.pattern})/(?P<what>{THREADS}|{MEMORY})", re.ASCII)


class Environment(WholeFile):
    """The environment of a daemon's unit: what vfioctl has told it."""

    kind: ClassVar[str] = ENVIRONMENT
    why_written: ClassVar[str] = "the daemon sees one GPU, which is device 0 there"
    why_removed: ClassVar[str] = "the daemon is gone"

    def validate(self, change: Change) -> None:
        gpu, told = _gpu(change), told_in(change.after or change.before)
        if change.name not in {file_of(name) for name in (name_of(gpu), told.name if told else "")}:
            raise ValueError(f"not the environment of a daemon of {change.subject[:40]}: {change.name[:80]!r}")
        texts = [text for text in (change.before, change.after) if text]
        known = [told_in(text) for text in texts]
        if change.during or not all(told and told.gpu == gpu and told.file == change.name for told in known):
            raise ValueError("not the value of an MPS daemon's environment")

    def steps(self, change: Change) -> Iterator[Step]:
        for step in super().steps(change):
            yield step.model_copy(update={"phase": Phase.PREPARE if change.after else Phase.SETTLE})

    def describe(self, change: Change) -> Description:
        return Description(change.name, _limits(change.before), _limits(change.after))


class ComputeMode(FileResource):
    """The compute mode of an NVIDIA GPU, as NVML has it."""

    kind: ClassVar[str] = MODE
    hint: ClassVar[str] = "nvidia-smi -c, or another MPS daemon, sets it too"
    path: ClassVar[str] = "{}"
    value: ClassVar[str] = "|".join(COMPUTE_MODES)
    may_block: ClassVar[bool] = False
    fixed_start: ClassVar[bool] = True

    def validate(self, change: Change) -> None:
        super().validate(change)
        _gpu(change)

    def read(self, reader: Reader, change: Change) -> str | None:
        found = reader.nvml([change.name])()
        mode = None if isinstance(found, Unanswered) else found.get(change.name, {}).get("compute_mode")
        return mode if mode in COMPUTE_MODES else None

    def steps(self, change: Change) -> Iterator[Step]:
        if change.before != change.after:
            is_start = change.after == COMPUTE_MODES[-1]
            why = "only the MPS server uses the GPU" if is_start else "as it was before"
            phase = Phase.PREPARE if is_start else Phase.SETTLE
            yield self.write(change, change.after, phase=phase, why=why)

    def write(self, change: Change, value: str, *, phase: Phase | None = None, why: str = "") -> Step:
        return super().write(change, value, phase=phase, why=why).model_copy(update={"action": SetComputeMode.name})

    def restore(self, change: Change, found: Found) -> Change | None:
        """Set it again, also where NVML does not say what it is now."""
        if found.of(change) is None:
            return change.to(change.before, found=change.after, may_fail=True)
        return super().restore(change, found)

    def describe(self, change: Change) -> Description:
        return Description(f"{change.subject} compute mode", change.before or "unknown", change.after)


class Daemon(FileResource):
    """A control daemon, by its name: active, inactive, or silent: active without an answer."""

    kind: ClassVar[str] = DAEMON
    hint: ClassVar[str] = "journalctl -u 'vfioctl-mps@*' says why it ended"
    path: ClassVar[str] = NAME.pattern
    value: ClassVar[str] = f"{ACTIVE}|{INACTIVE}|{SILENT}"
    may_block: ClassVar[bool] = False
    fixed_start: ClassVar[bool] = True

    def validate(self, change: Change) -> None:
        super().validate(change)
        gpu = _gpu(change)
        if not change.name.startswith("claim-") and change.name != name_of(gpu):
            raise ValueError(f"not the daemon of {change.subject[:40]}: {change.name[:80]!r}")

    def read(self, reader: Reader, change: Change) -> str | None:
        state = state_of(reader, change.name)
        return None if state == UNKNOWN else state

    def steps(self, change: Change) -> Iterator[Step]:
        if change.before == change.after:
            return
        if change.after == INACTIVE or change.before == SILENT:
            why = "no client uses it any more" if change.after == INACTIVE else "it does not answer"
            yield self.write(change, INACTIVE, phase=Phase.REMOVE, why=why)
        if change.after == ACTIVE:
            yield self.write(change, ACTIVE, phase=Phase.CREATE, why="its clients use the GPU at the same time")

    def write(self, change: Change, value: str, *, phase: Phase | None = None, why: str = "") -> Step:
        step = super().write(change, value, phase=phase, why=why)
        return step.model_copy(update={"action": DaemonUnit.name, "subject": ""})  # a hanging unit wedges no device

    def matches(self, change: Change, found: str | None) -> bool:
        return found == change.after

    def restore(self, change: Change, found: Found) -> Change | None:
        """End a daemon that does not answer, too, and one of which systemd does not say whether it runs. One that did
        not answer before is started: nothing makes it silent again."""
        now = found.of(change) or change.after
        if change.before == SILENT:
            return None if now in (SILENT, ACTIVE) else change.to(ACTIVE, found=now, may_fail=True)
        return None if now == change.before else change.to(change.before, found=now)

    def describe(self, change: Change) -> Description:
        return Description(f"MPS daemon {change.name}", change.before or INACTIVE, change.after)


class DaemonLimit(FileResource):
    """One limit that a daemon has for its clients. It ends with the daemon. Empty: it cannot be read, or has none."""

    kind: ClassVar[str] = LIMIT
    hint: ClassVar[str] = "the daemon accepts some limits without an error, and ignores them"
    value: ClassVar[str] = "[0-9]{1,15}|differs"
    may_block: ClassVar[bool] = False

    def validate(self, change: Change) -> None:
        gpu, match = _gpu(change), _LIMIT.fullmatch(change.name)
        if match is None or not (match["name"].startswith("claim-") or match["name"] == name_of(gpu)):
            raise ValueError(f"not a limit of the daemon of {change.subject[:40]}: {change.name[:80]!r}")
        values = (change.before, change.after, change.during or "")
        if not all(text == "" or re.fullmatch(self.value, text) for text in values):
            raise ValueError(f"not the value of a {self.kind}")

    def read(self, reader: Reader, change: Change) -> str | None:
        name, _, what = change.name.partition("/")
        try:
            return read_limit(reader, name, what)
        except (HostError, Stuck):
            return None

    def steps(self, change: Change) -> Iterator[Step]:
        if change.before != change.after and change.after:
            step = self.write(change, change.after, phase=Phase.SET, why="for each client that starts from now on")
            yield step.model_copy(update={"action": Limit.name, "subject": ""})

    def matches(self, change: Change, found: str | None) -> bool:
        return (found or "") == change.after

    def restore(self, change: Change, found: Found) -> Change | None:
        """Set a limit again, also of a daemon that is started again. One that there was not before ends with it."""
        now = found.of(change) or ""
        return change.to(change.before, found=now) if change.before.isdecimal() and now != change.before else None

    def finish(self, change: Change, found: Found) -> Change | None:
        return change.model_copy(update={"before": found.of(change) or ""})

    def describe(self, change: Change) -> Description:
        _, _, what = change.name.partition("/")
        return Description(f"MPS limit {change.name}", _amount(what, change.before), _amount(what, change.after))


def _gpu(change: Change) -> PciAddress:
    """Raise ValueError unless the change is of a PCI function."""
    if not PCI_ADDRESS.fullmatch(change.subject):
        raise ValueError(f"not a function: {change.subject[:40]!r}")
    return PciAddress(change.subject)


def _amount(what: str, value: str) -> str:
    if not value.isdecimal():
        return value or "none"
    return f"{value} %" if what == THREADS else exact_size(int(value))


def _limits(text: str) -> str:
    told = told_in(text)
    return told.limits.words if told else "none"
