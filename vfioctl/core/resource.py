"""Resources, which changes set: the `Resource` protocol, `FileResource` for a file with one value, and `WholeFile`.

Each kind of resource is one class, registered by its subsystem. Engine, executor, verify, rollback, recovery, journal
and renderer know this protocol and may not know a kind."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import ClassVar, NamedTuple, Protocol

from vfioctl.core.action import Context, ReplaceFile
from vfioctl.core.change import Change, Key, Phase, Step
from vfioctl.core.frozen import value_class
from vfioctl.errors import KernelRefused, VfioctlError
from vfioctl.kernel.protocol import Kernel, Reader


@value_class
class Found:
    """Current values by resource. None: unreadable, or the file does not exist."""

    values: Mapping[Key, str | None]
    written: frozenset[Key] = frozenset()
    """Resources whose last step was begun: the value read back may differ from the value written."""
    changes: Mapping[Key, Change] = field(default_factory=dict)
    """The changes that were read, because restoring one resource may depend on the change of another."""

    def of(self, change: Change) -> str | None:
        return self.values.get(change.key)


class Description(NamedTuple):
    """A change as text for a page: name, before, after, as in `0000:01:00.0 power/control`, `auto`, `on`."""

    name: str
    before: str
    after: str


class Resource(Protocol):
    """One kind of thing on the host that a change sets."""

    kind: ClassVar[str]
    hint: ClassVar[str]
    """Hint for the user if verification fails."""
    fixed_start: ClassVar[bool] = False
    """Whether a plan is stale if the value differs from the plan's `before`."""
    survives_reboot: ClassVar[bool] = False
    created: ClassVar[bool] = False
    """Whether changes create or remove the resource. Rollback leaves it alone if none of its steps was begun."""
    shared_place: ClassVar[bool] = False
    """Whether a foreign resource could take its place; the journal then records which steps were begun."""
    must_answer: ClassVar[bool] = False
    """Whether a read that never returns makes the change stuck; otherwise the value counts as unknown."""

    def validate(self, change: Change) -> None:
        """Raise ValueError unless the name and values are ones that a plan may hold: exact paths, exact values."""

    def lost(self, change: Change) -> str:
        """Return what a rollback cannot put back once all steps were begun, in words; empty if nothing."""
        return ""

    def blocking(self, change: Change) -> Iterable[str]:
        """Return the files whose read may block; a worker reads them before `read` is called."""

    def read(self, reader: Reader, change: Change) -> str | None:
        """Return the current value; None if it is unreadable or the file does not exist."""

    def steps(self, change: Change) -> Iterable[Step]:
        """Return the steps from `before` to `after`, each with its phase; none if nothing needs to be done."""

    def matches(self, change: Change, found: str | None) -> bool:
        """Return whether the value found equals the change's goal."""

    def shows_done(self, change: Change, found: str | None) -> bool:
        """Return whether the value found shows that the change was completed before an interruption."""
        return self.matches(change, found)

    def restore(self, change: Change, found: Found) -> Change | None:
        """Return the change from the value found back to `before`; None if rollback must leave the resource alone."""

    def finish(self, change: Change, found: Found) -> Change | None:
        """Return the change from the value found to `after`; None if it cannot or must not be completed any more."""

    def needs(self, kernel: Kernel, change: Change) -> Iterable[Change]:
        """Return changes of other resources that must come first on the host as it is now."""
        return ()

    def is_done_anyway(self, reader: Reader, change: Change, error: KernelRefused) -> bool:
        """Return whether the kernel refused a step because its effect is already there."""
        return False

    def explain(self, context: Context, change: Change, error: KernelRefused) -> VfioctlError | None:
        """Return a clearer error for a refused step; None if the errno says enough."""
        return None

    def describe(self, change: Change) -> Description:
        """Return the change as text."""


_SUBJECT = re.compile(r"[A-Za-z0-9][A-Za-z0-9:._-]{0,63}", re.ASCII)
"""Allowed device names: they become part of paths, so they may not contain `/`."""


class FileResource(Resource):
    """One file with one value. `path`: the pattern of its name, in which `{}` stands for the subject."""

    path: ClassVar[str] = r"[^\0-\x1f]+"
    value: ClassVar[str] = "[a-z0-9_ -]{0,64}"
    phase: ClassVar[Phase] = Phase.SET
    why: ClassVar[str] = "as asked for"
    hint: ClassVar[str] = "something else sets it too: a power daemon, a udev rule?"
    may_block: ClassVar[bool] = True
    """Whether a read of the file may block in a driver."""

    def validate(self, change: Change) -> None:
        if _SUBJECT.fullmatch(change.subject) is None:
            raise ValueError(f"not a device: {change.subject[:40]!r}")
        form = self.path.replace("{}", re.escape(change.subject))
        if re.fullmatch(form, change.name, re.ASCII) is None:
            raise ValueError(f"not the name of a {self.kind} of {change.subject[:40]}: {change.name[:80]!r}")
        values = (change.before, change.after, change.during or "")
        if not all(text == "" or re.fullmatch(self.value, text) for text in values):
            raise ValueError(f"not the value of a {self.kind}")

    def blocking(self, change: Change) -> Iterable[str]:
        return (change.name,) if self.may_block else ()

    def read(self, reader: Reader, change: Change) -> str | None:
        try:
            return reader.read(change.name).strip()
        except KernelRefused:
            return None

    def steps(self, change: Change) -> Iterator[Step]:
        if change.before != change.after:
            yield self.write(change, change.after)

    def write(self, change: Change, value: str, *, phase: Phase | None = None, why: str = "") -> Step:
        """Return the step that writes a value to the file."""
        return Step(
            phase=phase or self.phase,
            target=change.name,
            value=value or " ",  # an attribute takes no empty write: nothing would be called (kernfs_fop_write_iter)
            why=why or self.why,
            subject=change.subject,
            may_fail=change.may_fail,
        )

    def matches(self, change: Change, found: str | None) -> bool:
        return found is None or found == change.after

    def restore(self, change: Change, found: Found) -> Change | None:
        """Leave a value alone that someone else has set since."""
        now = found.of(change)
        return change.to(change.before, found=now) if now is not None and now in (change.after, change.during) else None

    def finish(self, change: Change, found: Found) -> Change | None:
        now = found.of(change)
        return None if now is None else change.model_copy(update={"before": now})

    def describe(self, change: Change) -> Description:
        _, of_subject, name = change.name.rpartition(f"/{change.subject}/")
        name_shown = f"{change.subject} {name}" if of_subject else change.name
        return Description(name_shown, change.before or "none", change.after or "none")


class WholeFile(FileResource):
    """A resource that is the text of one file; empty when there is no such file."""

    fixed_start: ClassVar[bool] = True
    may_block: ClassVar[bool] = False
    why_written: ClassVar[str]
    why_removed: ClassVar[str]

    def read(self, reader: Reader, change: Change) -> str | None:
        try:
            return reader.read(change.name) if reader.has(change.name) else ""
        except KernelRefused:
            return None

    def steps(self, change: Change) -> Iterator[Step]:
        if change.before == change.after:
            return
        phase, why = (Phase.PERSIST, self.why_written) if change.after else (Phase.FORGET, self.why_removed)
        action, target, value = ReplaceFile.name, change.name, change.after
        yield Step(phase=phase, action=action, target=target, value=value, why=why, subject=change.subject)

    def finish(self, change: Change, found: Found) -> Change | None:
        """A text that others wrote in the meantime is not changed."""
        return super().finish(change, found) if found.of(change) in (change.before, change.after) else None
