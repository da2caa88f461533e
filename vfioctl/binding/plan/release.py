"""Plans the settings that let a driver release a device, and their restoration. May not do input or output.

nvidia: persistence mode off, then `unbindLock`, which the driver grants only while nobody uses the GPU. Display
drivers: the text console and the firmware's framebuffer are detached. Every device on vfio-pci is kept out of D3cold,
because some devices never wake from it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from vfioctl.binding.model.conditions import GPU_SERVICES, Circumstances
from vfioctl.binding.resources.released import (
    UNKNOWN,
    D3Cold,
    Framebuffer,
    Persistence,
    Power,
    ReleasedFile,
    Service,
    UnbindLock,
    VtConsole,
)
from vfioctl.core.change import Change
from vfioctl.inventory.model.functions import Function
from vfioctl.inventory.model.holders import Holder
from vfioctl.inventory.model.values import PciAddress

_PERSISTENCED = GPU_SERVICES[0]
_DISPLAY_MANAGER = re.compile(r"(display-manager|gdm|gdm3|sddm|lightdm|lxdm|xdm|slim|greetd|ly|emptty)(@.*)?\.service")
"""Stopping one of these ends the sessions that it started."""
_SETTINGS: Mapping[str, ReleasedFile] = {
    file.kind: file for file in (Power(), D3Cold(), VtConsole(), Framebuffer(), UnbindLock(), Persistence(), Service())
}
"""What is set for a device that is bound to VFIO."""


def to_release(
    leaving: Iterable[PciAddress], circumstances: Circumstances, *, from_vfio: Iterable[PciAddress] = ()
) -> tuple[Change, ...]:
    """Return the settings to change for VFIO, but for unreadable ones. `from_vfio`: only power is written again."""
    moving, awake = set(leaving), set(from_vfio)
    settings = []
    for reading in circumstances.readings:
        setting = _SETTINGS.get(reading.kind)
        concerned = moving | awake if setting and setting.after_each_bind else moving
        if setting and reading.address in concerned and setting.is_to_release(reading.value):
            settings.append(
                Change(
                    kind=reading.kind,
                    name=reading.name,
                    subject=reading.address,
                    before=setting.recorded(reading.value),
                    after=setting.released,
                    may_fail=setting.optional_if_unknown and reading.value is None,
                )
            )
    return tuple(settings)


def excused_by(changes: Iterable[Change], stop_services: Iterable[str] = ()) -> Callable[[Holder], bool]:
    """Return a test whether the changes make a holder release its device. A check before the unbinding verifies it."""
    changes = tuple(changes)
    stopped = {change.name for change in changes if change.kind == "service"}
    persistence = {change.subject for change in changes if change.kind == "persistence"}
    display_managers = {unit for unit in stopped & set(stop_services) if _DISPLAY_MANAGER.match(unit)}

    def excused(holder: Holder) -> bool:
        # nvidia-persistenced closes a GPU when its persistence mode goes off
        closes = holder.unit == _PERSISTENCED and holder.address in persistence
        return holder.unit in stopped or closes or (holder.in_session and bool(display_managers))

    return excused


def warnings(going: Iterable[Function], changes: Iterable[Change], circumstances: Circumstances) -> Iterator[str]:
    """Yield warnings for the user about handing these functions to a guest."""
    changes = tuple(changes)
    for function in going:
        dark = [c.name for c in changes if c.subject == function.address and c.kind in ("console", "framebuffer")]
        if function.boot_vga or dark:
            boot = "the boot messages and " if function.boot_vga else ""
            with_what = f" ({', '.join(_short(name) for name in dark)})" if dark else ""
            yield f"{function.address} goes dark: it shows {boot}the text console{with_what}"
        by = function.reset_methods or function.reset_unnamed or "reset_method" in function.unknown
        if function.is_gpu and not by:
            yield f"{function.address} cannot be reset: what one guest leaves in it, the next one finds"
        if any(c.before == UNKNOWN and c.subject == function.address for c in changes):
            why = f" ({reason})" if (reason := function.unknown.get("nvml")) else ""
            yield f"the persistence mode of {function.address} is unknown{why}: unbind does not put it back"
        if function.power_state == "D3cold" and circumstances.idle_devices_sleep is not False:
            again = "vfio-pci would let it sleep again (disable_idle_d3=N), so power/control is set to on"
            yield f"{function.address} is in D3cold now; {again}"


def idle_services(stop_services: Iterable[str], changes: Iterable[Change]) -> Iterator[str]:
    """Yield notes about named services that are not stopped."""
    stopped = {change.name for change in changes if change.kind == "service"}
    for unit in stop_services:
        if unit not in stopped and unit not in GPU_SERVICES:
            yield f"{unit} is not stopped: it holds none of these, does not run, or is no unit here"


def _short(name: str) -> str:
    return name.removeprefix("/sys/class/vtconsole/").removesuffix("/bind")
