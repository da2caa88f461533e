"""A kernel module that a driver needs. It stays loaded afterwards: rollback does not unload it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

from vfioctl.binding.model.binding import KERNEL_CHOICE, Binding, same_driver
from vfioctl.core.change import Change, Phase, Step
from vfioctl.core.resource import Description, FileResource, Found
from vfioctl.inventory.api import drivers_of
from vfioctl.inventory.model.functions import is_vfio_driver
from vfioctl.kernel.lenient import names_in
from vfioctl.kernel.protocol import PCI_DRIVERS, Reader

if TYPE_CHECKING:
    from vfioctl.kernel.protocol import Kernel

MODULE, LOADED = "module", "loaded"


class Module(FileResource):
    """A kernel module; `name` is the module's name."""

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


def module_changes(kernel: Kernel, change: Change) -> Iterable[Change]:
    """Return the modules to load before a change of a binding, on the host as it is now."""
    before, goal = Binding.parse(change.before), Binding.parse(change.after)
    driver = driver_to_load(before, goal, names_in(kernel, PCI_DRIVERS))
    if driver is None:
        return ()
    names = modules_for(driver, drivers_of(kernel, change.subject))
    return [module_change(name, change.subject) for name in names]


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
