"""The steps that make settings: those before the devices move, and those after. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from vfioctl.core.change import Step, StepKind
from vfioctl.core.setting import Setting, SettingKind
from vfioctl.inventory.model.values import PciAddress

PLATFORM_DRIVERS = "/sys/bus/platform/drivers"

# In this order when a device is let go of, in the other when it comes back: a service is the last to find it there.
_ORDER = (
    SettingKind.SERVICE,
    SettingKind.PERSISTENCE,
    SettingKind.CONSOLE,
    SettingKind.FRAMEBUFFER,
    SettingKind.RESET_METHOD,
    SettingKind.D3COLD,
    SettingKind.POWER,
)
RELEASED = {
    SettingKind.POWER: "on",
    SettingKind.D3COLD: "0",
    SettingKind.CONSOLE: "0",
    SettingKind.FRAMEBUFFER: "",
    SettingKind.LOCK: "1",
    SettingKind.PERSISTENCE: "0",
    SettingKind.SERVICE: "inactive",
}
"""What each kind is set to for a device that goes to VFIO."""
_WHY = {
    SettingKind.SERVICE: ("it holds the GPU", "as it was before"),
    SettingKind.PERSISTENCE: ("persistence mode would keep the GPU open", "persistence mode as it was before"),
    SettingKind.CONSOLE: ("the text console leaves the framebuffers", "the text console as it was before"),
    SettingKind.FRAMEBUFFER: ("the firmware's framebuffer lets go of it", "the firmware's framebuffer as before"),
    SettingKind.RESET_METHOD: ("the kernel tries this method alone", "the methods as they were before"),
    SettingKind.D3COLD: ("from D3cold some devices never wake", "as it was before"),
    SettingKind.POWER: ("vfio-pci would let it sleep while it is idle", "as it was before"),
}


def early(settings: Iterable[Setting]) -> Iterator[Step]:
    """Before anything moves. A value that holds only during the change comes here too."""
    by_kind = sorted((s for s in settings if s.kind in _ORDER), key=lambda s: _ORDER.index(s.kind))
    for setting in by_kind:
        value = setting.during if setting.during is not None else setting.after
        if setting.during is not None or _releases(setting):
            yield _step(setting, value, _WHY[setting.kind][0])


def locks(settings: Iterable[Setting]) -> Iterator[Step]:
    """The last thing before the unbinding: NVIDIA's driver then lets nobody in any more."""
    for setting in settings:
        if setting.kind == SettingKind.LOCK:
            taken = setting.after == "1"
            yield _step(setting, setting.after, "granted only while nobody uses the GPU" if taken else "open again")


def late(settings: Iterable[Setting], to_vfio: Collection[PciAddress] = ()) -> Iterator[Step]:
    """When everything is in its place. A console that does not come back must not take the GPU away again.

    What goes to VFIO must be kept awake there, or has not gone.
    """
    by_kind = sorted((s for s in settings if s.kind in _ORDER), key=lambda s: -_ORDER.index(s.kind))
    for setting in by_kind:
        if setting.during is not None or not _releases(setting):
            first, again = _WHY[setting.kind]
            kept_awake = setting.kind == SettingKind.POWER and setting.after == "on" and setting.address in to_vfio
            step = _step(setting, setting.after, first if kept_awake else again)
            yield step.model_copy(update={"may_fail": not kept_awake})


def _releases(setting: Setting) -> bool:
    """Whether it comes before anything moves; `power/control` is only kept once vfio-pci is there."""
    return setting.kind != SettingKind.POWER and RELEASED.get(setting.kind) == setting.after


def _step(setting: Setting, value: str, why: str) -> Step:
    kind, target, written = StepKind.WRITE, setting.name, value
    if setting.kind == SettingKind.SERVICE:
        kind = StepKind.SERVICE
    elif setting.kind == SettingKind.PERSISTENCE:
        kind = StepKind.PERSISTENCE
    elif setting.kind == SettingKind.FRAMEBUFFER:
        target = f"{PLATFORM_DRIVERS}/{value or setting.before}/{'bind' if value else 'unbind'}"
        written = setting.name
    return Step(kind=kind, target=target, value=written, why=why, address=setting.address)
