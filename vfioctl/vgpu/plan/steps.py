"""The steps that make and remove vGPUs, in the one order that is safe. Pure.

What starts by itself at boot is forgotten before a vGPU is removed, and kept after one was made. VFs find no driver as
they come: autoprobe is off meanwhile (Documentation/PCI/pci-iov-howto.rst). A count of VFs becomes another by way of 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from vfioctl.core.change import Plan, Step, StepKind
from vfioctl.core.setting import VF_COUNTS, VGPU_KINDS, ZOMBIE, Setting, SettingKind
from vfioctl.inventory.model.values import Subject

PARENTS = "/sys/class/mdev_bus"
MDEVS = "/sys/bus/mdev/devices"
VFS = "VFs"
"""The value of a check that is about the VFs of a function, not about itself."""


def vgpu_steps(settings: Iterable[Setting]) -> Iterator[Step]:
    """The steps for those of the settings that are vGPUs, counts of VFs, or belong to these."""
    mine = [setting for setting in settings if setting.kind in VGPU_KINDS]
    going = {setting.address for setting in mine if setting.removes}
    yield from _checks(mine)
    yield from (_keep(s, "so that it does not come back at boot") for s in mine if _is_kept(s) and not s.after)
    yield from (_remove(s) for s in mine if s.removes and s.before != ZOMBIE)
    yield from _virtual_functions(mine)
    yield from (_make(s) for s in mine if s.makes)
    yield from (_write(s, s.after) for s in mine if _is_own(s) and s.before != s.after and s.address not in going)
    yield from (_keep(s, "so that it is made again at boot") for s in mine if _is_kept(s) and s.after)


def makes(plan: Plan, path: str, value: str) -> Setting | None:
    """The vGPU that a plan makes by that very write."""
    for setting in plan.settings:
        if setting.makes and (step := _make(setting)).target == path and step.value == value:
            return setting
    return None


def untouched(plan: Plan, reached: int) -> frozenset[Subject]:
    """The vGPUs that a walk of so many steps did not come to: what is there in their place is others' doing."""
    taken = plan.steps[:reached]
    return frozenset(
        setting.address
        for setting in plan.settings
        if (setting.makes and _make(setting) not in taken) or (setting.removes and _remove(setting) not in taken)
    )


def written(plan: Plan, reached: int) -> frozenset[tuple[SettingKind, str]]:
    """The counts of VFs, and values of profiles, whose last step a walk of so many steps came to."""
    last = {step.target: number for number, step in enumerate(plan.steps, start=1) if step.kind != StepKind.CHECK}
    kinds = (*VF_COUNTS, SettingKind.PROFILE)
    return frozenset(s.key for s in plan.settings if s.kind in kinds and last.get(s.name, reached + 1) <= reached)


def _is_kept(setting: Setting) -> bool:
    return setting.kind == SettingKind.KEPT and setting.before != setting.after


def _is_own(setting: Setting) -> bool:
    return setting.kind in (SettingKind.PARAMETER, SettingKind.PROFILE)


def _checks(mine: Sequence[Setting]) -> Iterator[Step]:
    if going := [setting.address for setting in mine if setting.removes and setting.before != ZOMBIE]:
        yield Step(kind=StepKind.CHECK, target=" ".join(going), why="what somebody holds is not removed")
    for setting in mine:
        if setting.kind == SettingKind.VF_COUNT and setting.before not in ("0", setting.after):
            why = "VFs that somebody holds do not go"
            yield Step(kind=StepKind.CHECK, target=setting.address, value=VFS, why=why)
        if setting.kind == SettingKind.NVIDIA_VFS:
            why = "sriov-manage takes the GPU from its driver for a moment"
            yield Step(kind=StepKind.CHECK, target=setting.address, why=why)


def _virtual_functions(mine: Sequence[Setting]) -> Iterator[Step]:
    probing = [setting for setting in mine if setting.kind == SettingKind.AUTOPROBE]
    counts = [setting for setting in mine if setting.kind == SettingKind.VF_COUNT and setting.before != setting.after]
    coming = any(count.after != "0" for count in counts)
    for setting in probing if coming else ():
        if setting.during is not None and setting.before != setting.during:
            yield _write(setting, setting.during, "so that the VFs find no driver by themselves")
    for count in counts:
        if count.before != "0":
            yield _write(count, "0", "all VFs go" if count.after == "0" else "another count goes by way of none")
        if count.after != "0":
            yield _write(count, count.after, "the VFs come")
    for setting in probing:
        if coming or setting.before != setting.after:
            yield _write(setting, setting.after, "as it was before")
    yield from _by_nvidia(mine)


def _by_nvidia(mine: Sequence[Setting]) -> Iterator[Step]:
    for setting in mine:
        if setting.kind == SettingKind.NVIDIA_VFS and setting.before != setting.after:
            on = "0" if setting.after == "0" else "1"
            why = "NVIDIA's sriov-manage: its driver takes no other way"
            yield Step(kind=StepKind.NVIDIA_VFS, target=setting.name, value=on, why=why, address=setting.address)


def _make(setting: Setting) -> Step:
    if setting.kind == SettingKind.VGPU_TYPE:
        return _write(setting, setting.after, "the vGPU is made")
    parent, _, kind = setting.after.partition("/")
    target = f"{PARENTS}/{parent}/mdev_supported_types/{kind}/create"
    return _step(target, setting.name, "the vGPU is made", setting.address)


def _remove(setting: Setting) -> Step:
    if setting.kind == SettingKind.VGPU_TYPE:
        return _write(setting, "0", "the vGPU goes")
    return _step(f"{MDEVS}/{setting.name}/remove", "1", "the vGPU goes", setting.address)


def _write(setting: Setting, value: str, why: str = "as asked for") -> Step:
    # an attribute takes no empty write: nothing would be called (kernfs_fop_write_iter)
    return _step(setting.name, value or " ", why, setting.address)


def _step(target: str, value: str, why: str, address: Subject) -> Step:
    return Step(kind=StepKind.WRITE, target=target, value=value, why=why, address=address)


def _keep(setting: Setting, why: str) -> Step:
    return Step(kind=StepKind.KEEP, target=setting.name, value=setting.after, why=why, address=setting.address)
