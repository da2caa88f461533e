"""The actions of the binding subsystem: modules, overrides, units, NVIDIA's modes and locks, ROMs. May not verify."""

from __future__ import annotations

import time
from typing import ClassVar

from vfioctl.core.action import Action, Context, Write
from vfioctl.core.change import Step
from vfioctl.errors import DeviceInUse
from vfioctl.kernel.lenient import text
from vfioctl.kernel.protocol import PCI_DRIVERS, Unanswered

_PAUSE = 0.2


class Load(Action):
    """Loads a kernel module and its dependencies."""

    name: ClassVar[str] = "load"

    def run(self, context: Context, step: Step) -> None:
        context.kernel.load(step.target)

    def timeout(self, context: Context, step: Step) -> float | None:
        return context.kernel.timeouts.load

    def describe(self, step: Step) -> str:
        return f"load the module {step.target}"

    def progress(self, step: Step) -> str:
        return f"load {step.target}"


class Override(Write):
    """Writes `driver_override`. A driver that is registered only now may have another spelling than in the plan."""

    name: ClassVar[str] = "override"

    def run(self, context: Context, step: Step) -> None:
        spellings = (step.value, *step.alternatives)
        registered = (name for name in spellings if context.kernel.has(f"{PCI_DRIVERS}/{name}"))
        context.kernel.write(step.target, next(registered, step.value) if step.alternatives else step.value)


class PersistenceMode(Action):
    """Sets the persistence mode of a GPU through NVML."""

    name: ClassVar[str] = "persistence"

    def run(self, context: Context, step: Step) -> None:
        context.kernel.persist(step.target, on=step.value == "1")

    def timeout(self, context: Context, step: Step) -> float | None:
        return context.kernel.timeouts.default

    def describe(self, step: Step) -> str:
        return f"persistence mode of {step.target} {'on' if step.value == '1' else 'off'}"


class Unit(Action):
    """Starts or stops a systemd unit."""

    name: ClassVar[str] = "service"

    def run(self, context: Context, step: Step) -> None:
        context.kernel.set_unit(step.target, active=step.value == "active")

    def timeout(self, context: Context, step: Step) -> float | None:
        return context.kernel.timeouts.of("unit")

    def describe(self, step: Step) -> str:
        return f"systemctl {self.progress(step)}"

    def progress(self, step: Step) -> str:
        return f"{'start' if step.value == 'active' else 'stop'} {step.target}"


class GrantedLock(Action):
    """Writes `unbindLock` until it reads 1: the driver accepts the write even if it does not grant the lock."""

    name: ClassVar[str] = "unbind lock"

    def run(self, context: Context, step: Step) -> None:
        """Take the lock. Raises DeviceInUse if the driver still counts users after `settle` seconds."""
        until = time.monotonic() + context.settle
        while True:
            context.kernel.write(step.target, step.value)
            ((_, answer),) = context.kernel.survey(text, [step.target])
            if answer == "1":
                return
            if time.monotonic() >= until:
                why = answer.reason if isinstance(answer, Unanswered) else "it still counts users of the GPU"
                raise DeviceInUse(
                    f"the nvidia driver did not grant unbindLock for {step.subject}: {why}",
                    hint="an open file that no process shows, or a kernel user such as nvidia_drm: see dmesg",
                )
            time.sleep(_PAUSE)

    def timeout(self, context: Context, step: Step) -> float | None:
        return context.settle

    def describe(self, step: Step) -> str:
        return f"{step.target} <- {step.value}"


class ReadRom(Action):
    """Enables a ROM, reads it, and disables it."""

    name: ClassVar[str] = "read rom"

    def run(self, context: Context, step: Step) -> None:
        context.data[step.target] = context.kernel.rom(step.subject)

    def describe(self, step: Step) -> str:
        return f"{step.target}: on, read, off"

    def progress(self, step: Step) -> str:
        return f"read {step.target}"
