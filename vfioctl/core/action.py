"""Actions, which take the steps of a plan: the `Action` protocol, its `Context`, and the actions that write files."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from vfioctl.core.change import Intent, Step
from vfioctl.kernel.protocol import Kernel


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

    def timeout(self, context: Context, step: Step) -> float | None:
        """Return the seconds after which the step is given up; None if it has no limit, or none that is known."""
        return None


class Write(Action):
    """Writes a value to a kernel file once."""

    name: ClassVar[str] = "write"

    def run(self, context: Context, step: Step) -> None:
        context.kernel.write(step.target, step.value)

    def timeout(self, context: Context, step: Step) -> float | None:
        return context.kernel.timeouts.of(step.target)

    def describe(self, step: Step) -> str:
        return f"{step.target} <- {step.value.strip() or '(an empty line)'}"


class ReplaceLink(Action):
    """Replaces a symbolic link, or removes it when the step has no value."""

    name: ClassVar[str] = "link"

    def run(self, context: Context, step: Step) -> None:
        context.kernel.replace_link(step.target, step.value or None)

    def describe(self, step: Step) -> str:
        return f"link {step.target} -> {step.value}" if step.value else f"remove {step.target}"


class ReplaceFile(Action):
    """Replaces a file as a whole, or removes it when the step has no value."""

    name: ClassVar[str] = "file"

    def run(self, context: Context, step: Step) -> None:
        context.kernel.replace_file(step.target, step.value or None)

    def describe(self, step: Step) -> str:
        return f"{'write' if step.value else 'remove'} {step.target}"
