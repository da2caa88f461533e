"""Actions, which take the steps of a plan: the `Action` protocol, its `Context`, and the actions that write files."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, runtime_checkable

from vfioctl.core.change import Intent, Step
from vfioctl.kernel.protocol import Kernel


class Progress(Protocol):
    """Progress callback (step, index from 1, total), called before each step."""

    def __call__(self, step: Step, number: int, total: int, /) -> None: ...


@runtime_checkable
class TellsRollback(Progress, Protocol):
    """A progress callback that is also called before the steps of a rollback."""

    def rolling_back(self, failed: int | None, error: BaseException) -> None:
        """`failed`: the step that failed, from 1; None if none did: the verification failed, or an interrupt came."""


@dataclass
class Context:
    """State shared by the steps of one run. `settle`: timeout in seconds for a device to be released or to appear."""

    kernel: Kernel
    intent: Intent
    settle: float
    wedged: Collection[str] = ()
    """Wedged devices: a write to them never returned, so they are not read either."""
    steps: Sequence[Step] = ()
    data: dict[str, bytes] = field(default_factory=dict)
    """Bytes that steps have read, by the target of the step."""
    said: str = ""
    """The last output of an external tool whose exit code does not report failure."""
    seen: dict[str, object] = field(default_factory=dict)
    """Results that an action leaves for later actions of the same run."""


class Action(Protocol):
    """One way to take a step. Each action derives from it."""

    name: ClassVar[str]
    merges: ClassVar[bool] = False
    """Whether adjacent steps that differ only in their target are merged into one step with all targets."""

    def run(self, context: Context, step: Step) -> None:
        """Take the step. Raises VfioctlError."""

    def describe(self, step: Step) -> str:
        """Return the step as text for the plan's page."""

    def progress(self, step: Step) -> str:
        """Return the step as text for a progress line."""
        return self.describe(step)


class Write(Action):
    """Writes a value to a kernel file once."""

    name: ClassVar[str] = "write"

    def run(self, context: Context, step: Step) -> None:
        context.kernel.write(step.target, step.value)

    def describe(self, step: Step) -> str:
        return f"{step.target} <- {step.value.strip() or '(an empty line)'}"


class ReplaceFile(Action):
    """Replaces a file as a whole, or removes it when the step has no value."""

    name: ClassVar[str] = "file"

    def run(self, context: Context, step: Step) -> None:
        context.kernel.replace_file(step.target, step.value or None)

    def describe(self, step: Step) -> str:
        return f"{'write' if step.value else 'remove'} {step.target}"
