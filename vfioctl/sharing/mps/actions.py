"""The actions of MPS: set the compute mode, start and stop a daemon, tell it a limit. May not verify."""

from __future__ import annotations

import time
from typing import ClassVar

from vfioctl.core.action import Action, Context
from vfioctl.core.change import Step
from vfioctl.errors import DeviceInUse, HostError
from vfioctl.sharing.mps.daemon import unit_of
from vfioctl.sharing.mps.intents import ACTIVE, MpsStopIntent
from vfioctl.sharing.mps.limits import set_limit
from vfioctl.sharing.mps.probe import answers
from vfioctl.sharing.mps.reading import read_clients

_PAUSE = 0.1


class SetComputeMode(Action):
    """Sets the compute mode of a GPU through NVML."""

    name: ClassVar[str] = "compute mode"

    def run(self, context: Context, step: Step) -> None:
        context.kernel.set_compute_mode(step.target, step.value)

    def timeout(self, context: Context, step: Step) -> float | None:
        return context.kernel.timeouts.default

    def describe(self, step: Step) -> str:
        return f"compute mode of {step.target} <- {step.value}"


class DaemonUnit(Action):
    """Starts the unit of a daemon and waits for its answer, or stops it."""

    name: ClassVar[str] = "mps daemon"

    def run(self, context: Context, step: Step) -> None:
        """Start or stop. Raises HostError, also for a daemon that does not answer in `settle` seconds; Stuck;
        DeviceInUse for one that has got clients since its end was planned."""
        is_start = step.value == ACTIVE
        if not is_start and isinstance(context.intent, MpsStopIntent) and not context.intent.force:
            self._refuse_clients(context, step.target)
        context.kernel.set_unit(unit_of(step.target), active=is_start)
        until = time.monotonic() + context.settle
        while is_start and not answers(context.kernel, step.target):
            if time.monotonic() >= until:
                raise HostError(
                    f"the MPS daemon {step.target} was started, and does not answer",
                    hint=f"journalctl -u {unit_of(step.target)} says why",
                )
            time.sleep(_PAUSE)

    @staticmethod
    def _refuse_clients(context: Context, name: str) -> None:
        clients = read_clients(context.kernel, name)
        if clients or clients is None:
            who = f"processes {', '.join(map(str, clients[:8]))}" if clients else "that cannot be listed"
            raise DeviceInUse(
                f"the MPS daemon {name} has got clients: {who}",
                hint="they lose the GPU with it: end them first, or --force",
                next_command="vfioctl mps status",
            )

    def timeout(self, context: Context, step: Step) -> float | None:
        return context.kernel.timeouts.of("unit") + context.settle

    def describe(self, step: Step) -> str:
        return f"systemctl {self.progress(step)}"

    def progress(self, step: Step) -> str:
        return f"{'start' if step.value == ACTIVE else 'stop'} {unit_of(step.target)}"


class Limit(Action):
    """Tells a daemon a limit, by its commands."""

    name: ClassVar[str] = "mps limit"

    def run(self, context: Context, step: Step) -> None:
        name, _, what = step.target.partition("/")
        set_limit(context.kernel, name, what, int(step.value))

    def describe(self, step: Step) -> str:
        return f"MPS limit {step.target} <- {step.value}"
