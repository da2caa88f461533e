"""Builds the core's errors and their texts. May do nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vfioctl.core.change import Change, Key, Plan
from vfioctl.core.registry import Registry
from vfioctl.errors import Stuck, VerifyError, VfioctlError


def listed(plan: Plan) -> str:
    return ", ".join(plan.subjects)


def verify_error(registry: Registry, wrong: Sequence[Change], found: Mapping[Key, str | None]) -> VerifyError:
    """Return the error for resources that do not have their wanted values."""
    hints = dict.fromkeys(registry.resource(change).hint for change in wrong)
    return VerifyError(
        "; ".join(mismatch(registry, change, found[change.key]) for change in wrong),
        hint=next(iter(hints), ""),
        facts={
            "wanted": {f"{change.kind} {change.name}": change.after for change in wrong},
            "found": {f"{change.kind} {change.name}": found[change.key] for change in wrong},
        },
    )


def mismatch(registry: Registry, change: Change, found: str | None) -> str:
    """`0000:01:00.0 should be nouveau, and is vfio-pci`."""
    wanted = registry.resource(change).describe(change)
    if found is None:
        return f"{wanted.name} should be {wanted.after}, and is gone"
    now = registry.resource(change).describe(change.model_copy(update={"before": found})).before
    return f"{wanted.name} should be {wanted.after}, and is {now}"


def stuck(message: str, cause: VfioctlError, first: BaseException | None = None) -> Stuck:
    """What could not be finished, with what the kernel said of it and of what came before."""
    error = Stuck(
        message,
        hint=cause.hint,
        next_command="vfioctl recover",
        facts={**getattr(first, "facts", {}), "cause": cause.facts},
    )
    error.kernel_said = cause.kernel_said or getattr(first, "kernel_said", "")
    return error


def said(error: BaseException) -> str:
    return error.message if isinstance(error, VfioctlError) else "interrupted"
