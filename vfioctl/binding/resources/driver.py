"""The driver that a function is bound to, with its `driver_override`, and the kernel module that the driver needs.

The order of the steps follows kernel commit 782a985d7af2: override first, so that no other driver can bind the device
between unbind and probe; then every unbind; then every probe. On unbind the override names the old driver, and is
restored only after that driver is bound."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

from vfioctl.binding.model.binding import KERNEL_CHOICE, Binding, same_driver
from vfioctl.core.change import Change, Phase, Step
from vfioctl.core.resource import Description, FileResource, Found
from vfioctl.errors import KernelRefused, Stuck
from vfioctl.inventory.api import drivers_of
from vfioctl.inventory.model.functions import is_vfio_driver
from vfioctl.kernel.lenient import names_in
from vfioctl.kernel.protocol import DRIVERS_PROBE, PCI_ADDRESS, PCI_DEVICES, PCI_DRIVERS, Kernel, Reader

MODULE, LOADED = "module", "loaded"
BINDING = "binding"
CLEAR = "\n"
"""The text that clears driver_override."""
_NO_OVERRIDE = ("(null)", "")
_DRIVER = re.compile(r"[^/\0-\x1f\x7f-\x9f]{1,100}")


class Module(FileResource):
    """A kernel module; `name` is the module's name. It stays loaded afterwards: rollback does not unload it."""

    kind: ClassVar[str] = MODULE
    path: ClassVar[str] = "[A-Za-z0-9][A-Za-z0-9_-]{0,63}"
    value: ClassVar[str] = LOADED
    may_block: ClassVar[bool] = False

    def read(self, reader: Reader, change: Change) -> str | None:
        """Return LOADED if the module has a directory in /sys/module; some built-in ones have none."""
        return LOADED if reader.has(f"/sys/module/{change.name.replace('-', '_')}") else None

    def steps(self, change: Change) -> Iterator[Step]:
        yield Step(phase=Phase.LOAD, action="load", target=change.name, why="its driver is not registered yet")

    def matches(self, change: Change, found: str | None) -> bool:
        """Always match: the binding shows whether the driver was loaded, as its module may have another name."""
        return True

    def restore(self, change: Change, found: Found) -> Change | None:
        return None

    def finish(self, change: Change, found: Found) -> Change | None:
        return change if found.of(change) is None else None

    def describe(self, change: Change) -> Description:
        return Description(f"module {change.name}", LOADED, LOADED)


def module_change(name: str, subject: str) -> Change:
    """Return the change that loads a module for a function."""
    return Change(kind=MODULE, name=name, subject=subject, before="", after=LOADED)


def driver_to_load(before: Binding, goal: Binding, registered: Iterable[str]) -> str | None:
    """Return the goal's driver if it is not registered; None if nothing needs to be loaded."""
    if goal.driver in (None, KERNEL_CHOICE) or before.meets(goal):
        return None
    return None if any(same_driver(goal.driver, name) for name in registered) else goal.driver


def modules_for(driver: str, available: Sequence[str]) -> list[str]:
    """Return the modules to load for a driver: the one with its name, otherwise the device's native modules."""
    natives = [name for name in available if not is_vfio_driver(name)]
    if is_vfio_driver(driver) or driver in natives or not natives:
        return [driver]
    return natives


class DriverBinding(FileResource):
    """The binding of a function; `Binding` defines its text form."""

    kind: ClassVar[str] = BINDING
    hint: ClassVar[str] = "the kernel log says why the driver did not take it: dmesg | tail"
    must_answer: ClassVar[bool] = True

    def validate(self, change: Change) -> None:
        if change.name != change.subject or not PCI_ADDRESS.fullmatch(change.name):
            raise ValueError(f"not a function: {change.name[:40]!r}")
        for text in (change.before, change.after):
            binding = Binding.parse(text)
            names = [*filter(None, (binding.driver, binding.driver_override)), *binding.spellings]
            if binding.text != text or not all(map(_DRIVER.fullmatch, names)):
                raise ValueError(f"not a binding: {text[:80]!r}")

    def blocking(self, change: Change) -> Iterable[str]:
        return (_override_of(change),)  # read under the device's lock (driver_override_show)

    def read(self, reader: Reader, change: Change) -> str | None:
        home = f"{PCI_DEVICES}/{change.name}"
        try:
            override: str | None = reader.read(_override_of(change))
        except KernelRefused:
            if not reader.has(home):
                return None
            override = None
        try:
            driver: str | None = reader.link(f"{home}/driver").rpartition("/")[2]
        except KernelRefused:
            driver = None
        return Binding(driver, None if override in _NO_OVERRIDE else override).text

    def steps(self, change: Change) -> Iterator[Step]:
        before, after = Binding.parse(change.before), Binding.parse(change.after)
        if before.settled(after):
            return
        override = before.driver_override
        if before.moves(after):  # until the device is probed, the override names its driver
            override = after.driver_override if after.driver in (None, KERNEL_CHOICE) else after.driver
            yield from _overrides(change, before.driver_override, after, override, Phase.AIM)
            yield from _moving(change, before, after)
        yield from _overrides(change, override, after, after.driver_override, Phase.CLEAR)

    def matches(self, change: Change, found: str | None) -> bool:
        return found is not None and Binding.parse(found).meets(Binding.parse(change.after))

    def shows_done(self, change: Change, found: str | None) -> bool:
        """Return false also while the kernel has not chosen a driver: it may not have been asked yet."""
        return found is not None and Binding.parse(found).settled(Binding.parse(change.after))

    def restore(self, change: Change, found: Found) -> Change | None:
        return change.to(change.before, found=_current(change, found))

    def finish(self, change: Change, found: Found) -> Change | None:
        return change.to(change.after, found=_current(change, found))

    def needs(self, kernel: Kernel, change: Change) -> Iterable[Change]:
        before, goal = Binding.parse(change.before), Binding.parse(change.after)
        driver = driver_to_load(before, goal, names_in(kernel, PCI_DRIVERS))
        names = modules_for(driver, drivers_of(kernel, change.subject)) if driver else ()
        return [module_change(name, change.subject) for name in names]

    def describe(self, change: Change) -> Description:
        before, after = (text.replace(KERNEL_CHOICE, "the kernel's choice") for text in (change.before, change.after))
        return Description(change.name, before, after)


def binding_change(address: str, before: Binding, after: Binding) -> Change:
    """Return the change of one function's binding."""
    return Change(kind=BINDING, name=address, subject=address, before=before.text, after=after.text)


def _moving(change: Change, before: Binding, after: Binding) -> Iterator[Step]:
    address = change.subject
    if before.driver:
        yield Step(phase=Phase.CHECK, action="unheld", target=address, why="a device in use is not taken")
        file, why = f"{PCI_DRIVERS}/{before.driver}/unbind", f"{before.driver} releases it"
        yield Step(phase=Phase.UNBIND, target=file, value=address, why=why, subject=address)
    if after.driver:
        whom = "the kernel chooses a driver" if after.driver == KERNEL_CHOICE else f"{after.driver} takes it"
        yield Step(phase=Phase.PROBE, target=DRIVERS_PROBE, value=address, why=whom, subject=address)


def _overrides(change: Change, now: str | None, after: Binding, name: str | None, phase: Phase) -> Iterator[Step]:
    if same_driver(now, name):
        return
    why = "so that no other driver can take it" if phase == Phase.AIM else "as it was before"
    yield Step(
        phase=phase,
        action="override",
        target=_override_of(change),
        value=name or CLEAR,
        alternatives=after.spellings if name == after.driver else (),
        why=why if name else "no override any more",
        subject=change.subject,
    )


def _override_of(change: Change) -> str:
    return f"{PCI_DEVICES}/{change.name}/driver_override"


def _current(change: Change, found: Found) -> str:
    now = found.of(change)
    if now is None:
        raise Stuck(f"{change.name} has gone from the PCI bus", hint="rescan the bus, then recover")
    return now
