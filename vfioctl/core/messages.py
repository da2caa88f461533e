"""How the engine says what went wrong. May do nothing but make errors."""

from __future__ import annotations

from collections.abc import Mapping

from vfioctl.binding.plan.steps import Bindings
from vfioctl.core.change import Binding, Fact, Plan
from vfioctl.errors import Stuck, VerifyError, VfioctlError
from vfioctl.inventory.model.values import PciAddress


def listed(plan: Plan) -> str:
    return ", ".join(plan.subjects)


def verify_error(wrong: Bindings, found: Mapping[PciAddress, Fact]) -> VerifyError:
    def text(binding: Binding | None) -> str:
        if binding is None:
            return "gone"
        override = f", override {binding.driver_override}" if binding.driver_override else ""
        return f"{binding.driver or 'no driver'}{override}"

    parts = [
        f"{address} should be on {text(goal)} and is on {text(found[address].binding if address in found else None)}"
        for address, goal in wrong.items()
    ]
    return VerifyError(
        "; ".join(parts),
        hint="the kernel log says why the driver did not take it: dmesg | tail",
        facts={
            "wanted": {address: goal.model_dump() for address, goal in wrong.items()},
            "found": {a: found[a].binding.model_dump() if a in found else None for a in wrong},
        },
    )


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
