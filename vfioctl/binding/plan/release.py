"""What a driver needs to let go of a device, and the device to stay well: settings to change and to put back. Pure.

nvidia: persistence mode off, then `unbindLock`, which the driver grants only while nobody uses the GPU. Display
drivers: the text console and the firmware's framebuffer are taken off them. Every device on vfio-pci is kept awake:
from D3cold some never come back.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from vfioctl.binding.model.circumstances import Circumstances
from vfioctl.binding.plan.settings import RELEASED
from vfioctl.core.change import Intent
from vfioctl.core.setting import Reading, Setting, SettingKind
from vfioctl.inventory.model.functions import Function
from vfioctl.inventory.model.holders import Holder
from vfioctl.inventory.model.values import PciAddress

GPU_SERVICES = (
    "nvidia-persistenced.service",
    "nvidia-powerd.service",
    "nvidia-dcgm.service",
    "dcgm.service",
    "nvidia-dcgm-exporter.service",
    "dcgm-exporter.service",
)
"""Services that hold GPUs only to look after them: what `--stop-services` may stop. Display managers never are."""

_PERSISTENCED = GPU_SERVICES[0]
_DISPLAY_MANAGER = re.compile(r"(display-manager|gdm|gdm3|sddm|lightdm|lxdm|xdm|slim|greetd|ly|emptty)(@.*)?\.service")
"""With one of these end the sessions that it began."""

Values = Mapping[tuple[SettingKind, str], str | None]


def to_release(
    leaving: Iterable[PciAddress], circumstances: Circumstances, *, from_vfio: Iterable[PciAddress] = ()
) -> tuple[Setting, ...]:
    """What to set before and while those functions go to VFIO. What cannot be read is left alone.

    Those that come from another VFIO driver are only kept awake once more.
    """
    moving, awake = set(leaving), set(from_vfio)
    return tuple(
        Setting(kind=r.kind, name=r.name, address=r.address, before=_before(r), after=RELEASED[r.kind])
        for r in circumstances.readings
        if r.kind in RELEASED
        and _concerns(r)
        and r.address in (moving | awake if r.kind == SettingKind.POWER else moving)
    )


def _before(reading: Reading) -> str:
    if reading.kind == SettingKind.LOCK:
        return "0"
    return reading.value if reading.value is not None else "unknown"


def _concerns(reading: Reading) -> bool:
    if reading.kind == SettingKind.PERSISTENCE:
        return reading.value != "0"  # unknown counts as on
    if reading.kind == SettingKind.LOCK:
        return reading.value != "1"
    if reading.kind == SettingKind.POWER:
        return reading.value is not None
    if reading.kind == SettingKind.SERVICE:
        return reading.value == "active"
    return reading.value not in (None, RELEASED[reading.kind])


def to_put_back(
    recorded: Iterable[Setting], now: Values, written: Collection[tuple[SettingKind, str]] = ()
) -> tuple[Setting, ...]:
    """From what is now to what was; a value that somebody else has set since is left to them.

    `written`: those that were just set, and of which the host may have made something else: fewer VFs than asked for.
    """
    return tuple(_put_back(tuple(recorded), now, written))


def _put_back(
    recorded: Sequence[Setting], now: Values, written: Collection[tuple[SettingKind, str]]
) -> Iterator[Setting]:
    made_again = {setting.address for setting in recorded if setting.removes and now.get(setting.key) == setting.after}
    for setting in recorded:
        found = now.get(setting.key)
        if setting.before == "unknown":
            continue
        if setting.kind == SettingKind.PARAMETER and setting.address in made_again:
            found = setting.after  # its file is not there yet
        if setting.kind == SettingKind.PERSISTENCE:
            found = setting.after  # NVML does not see a GPU that is not its own
        if setting.kind == SettingKind.POWER:
            if found is not None:  # each driver, and many a udev rule, sets it as it binds
                yield setting.back_from(found)
        elif found is not None and (setting.key in written or found in (setting.after, setting.during)):
            yield setting.back_from(found)


def to_finish(planned: Iterable[Setting], now: Values) -> tuple[Setting, ...]:
    """From what is now to what was planned; the lock is only for a driver that still has the GPU."""
    known = ((setting, now.get(setting.key)) for setting in planned)
    return tuple(
        setting.model_copy(update={"before": found if found is not None else setting.before})
        for setting, found in known
        if (found is not None or setting.kind == SettingKind.PERSISTENCE or _comes_with_a_vgpu(setting))
        and not (setting.kind == SettingKind.KEPT and found not in (setting.before, setting.after))  # others' by now
    )


def _comes_with_a_vgpu(setting: Setting) -> bool:
    """Its file is not there yet, because the vGPU is not."""
    return setting.kind == SettingKind.PARAMETER and setting.after != ""


def excused(holder: Holder, settings: Iterable[Setting], intent: Intent) -> bool:
    """Whether the plan itself makes the holder let go: it is asked again before anything is unbound."""
    stopped = {setting.name for setting in settings if setting.kind == SettingKind.SERVICE}
    if holder.unit in stopped:
        return True
    persistence = {setting.address for setting in settings if setting.kind == SettingKind.PERSISTENCE}
    if holder.unit == _PERSISTENCED and holder.address in persistence:
        return True  # it closes the GPU when its persistence mode goes off
    return holder.in_session and any(_DISPLAY_MANAGER.match(unit) for unit in stopped & set(intent.stop_services))


def warnings(going: Iterable[Function], settings: Iterable[Setting], circumstances: Circumstances) -> Iterator[str]:
    """What a reader should know before those functions go to a guest."""
    settings = tuple(settings)
    for function in going:
        dark = [s.name for s in settings if s.address == function.address and s.kind in _SHOWING]
        if function.boot_vga or dark:
            boot = "the boot messages and " if function.boot_vga else ""
            with_what = f" ({', '.join(_short(name) for name in dark)})" if dark else ""
            yield f"{function.address} goes dark: it shows {boot}the text console{with_what}"
        named = function.reset_methods or "reset_method" in function.unknown
        if function.is_gpu and not named and function.address not in circumstances.can_be_reset:
            yield f"{function.address} cannot be reset: what one guest leaves in it, the next one finds"
        if any(s.before == "unknown" and s.address == function.address for s in settings):
            yield f"the persistence mode of {function.address} is unknown: it goes off, and is not put back"
        asleep = function.power_state == "D3cold"
        if asleep and circumstances.idle_devices_sleep is not False:
            yield (
                f"{function.address} is in D3cold now; vfio-pci would let it sleep again (disable_idle_d3=N), so "
                "power/control is set to on"
            )


def idle_services(intent: Intent, settings: Iterable[Setting]) -> Iterator[str]:
    """Services that were named, and that hold nothing here."""
    stopped = {setting.name for setting in settings if setting.kind == SettingKind.SERVICE}
    for unit in intent.stop_services:
        if unit not in stopped and unit not in GPU_SERVICES:
            yield f"{unit} is not stopped: it holds none of these, does not run, or is no unit here"


_SHOWING = (SettingKind.CONSOLE, SettingKind.FRAMEBUFFER)


def _short(name: str) -> str:
    return name.removeprefix("/sys/class/vtconsole/").removesuffix("/bind")
