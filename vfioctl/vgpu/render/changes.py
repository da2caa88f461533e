"""Changes of vGPUs and VFs on a page: what was asked for, what proves it, what came of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from shlex import quote

from rich.text import Text

from vfioctl.console import words
from vfioctl.console.columns import Column, Layout
from vfioctl.core.change import Outcome, Plan, Result, Verb, VgpuRequest
from vfioctl.core.setting import VF_COUNTS, Setting, SettingKind
from vfioctl.vgpu.model.vgpu import Dialect, Vgpu
from vfioctl.vgpu.render.listing import count_words

_WIDE = 1000
_FOUND = (Column(""), Column(""), Column("", optional=True), Column("", optional=True), Column(""))


def asked_line(plan: Plan, wish: VgpuRequest) -> str:
    """`vgpu create 2 of A2-4C`, `sriov set 0000:42:00.0 4`, in the words of the command."""
    intent = plan.intent
    options = (
        ("--persistent", wish.persistent),
        ("--foreign", wish.foreign),
        ("--force-holders", intent.force_holders),
    )
    return words.plain(" ".join([*_asked(plan, wish), *(option for option, given in options if given)]))


def _asked(plan: Plan, wish: VgpuRequest) -> Iterator[str]:
    verb = plan.intent.verb
    if verb == Verb.SRIOV:
        yield from ("sriov off", *plan.intent.devices) if wish.vfs == 0 else (verb, *plan.intent.devices, str(wish.vfs))
        return
    yield verb
    if verb == Verb.REMOVE:
        yield words.listed(wish.instances)
        return
    yield from plan.intent.devices
    if verb == Verb.CREATE:
        yield f"{wish.count} of {wish.type}" if wish.count > 1 else wish.type or ""
        if wish.parent or wish.numa is not None:
            yield f"on {wish.parent or f'NUMA node {wish.numa}'}"
        if wish.parameters:
            yield "with"
    yield from (f"{name}={value}" for name, value in wish.parameters)


def settings_lines(settings: Iterable[Setting]) -> Iterator[Text]:
    """What becomes what: a line for each, or a paragraph for each vGPU that several things of change."""
    changing = [setting for setting in settings if setting.before != setting.after]
    several = any(s.address == t.address for s, t in pairwise(changing))
    rows = [_row(setting, alone=not several) for setting in changing]
    lines = Layout((Column(""),) * 4, rows, _WIDE).flowing(rows)
    above = None
    for setting, line in zip(changing, lines, strict=True):
        if several and setting.address != above:
            yield Text(setting.address if ":" in setting.address else f"mdev {setting.address}")
        above = setting.address
        yield line


def _row(setting: Setting, *, alone: bool) -> tuple[str, str, str, str]:
    before, after = setting.before or "none", setting.after or "none"
    if setting.kind == SettingKind.KEPT:
        before, after = ("written" if text else "none" for text in (setting.before, setting.after))
    return _name(setting, alone=alone), words.plain(before), "->", words.plain(after)


def _name(setting: Setting, *, alone: bool) -> str:
    if setting.kind == SettingKind.MDEV:
        return f"mdev {setting.address}" if alone else "  vGPU"
    own = setting.name.partition(f"/{setting.address}/")[2]
    if setting.kind in (SettingKind.KEPT, SettingKind.NVIDIA_VFS):
        own = setting.kind
    if setting.kind == SettingKind.KEPT and alone:
        return f"{setting.kind} of {setting.address}"
    return f"{setting.address} {own}" if alone else f"  {own}"


def proof_lines(plan: Plan) -> Iterator[Text]:
    """What is looked at again."""
    kinds = {setting.kind for setting in plan.settings}
    if any(setting.makes for setting in plan.settings):
        yield Text("every vGPU is there, of its type, with a node that a guest can open")
    if any(setting.removes for setting in plan.settings):
        yield Text("no such vGPU is there, nor a hidden one that still takes its share")
    if kinds & {*VF_COUNTS}:
        yield Text("the links to the VFs are counted")
    if kinds & {SettingKind.PARAMETER, SettingKind.PROFILE, SettingKind.KEPT}:
        yield Text("what was written reads as it was written")
    yield Text("if not, the host is put back as it was")


def undo_lines(plan: Plan) -> Iterator[str]:
    """The commands that undo it."""
    kept = {setting.address: setting for setting in plan.settings if setting.kind == SettingKind.KEPT}
    own = {s.address: s for s in plan.settings if s.name.endswith("/vgpu_params")}
    if made := [str(setting.address) for setting in plan.settings if setting.makes]:
        yield f"vfioctl vgpu remove {' '.join(made)}"
    for setting in plan.settings:
        definition = kept.get(setting.address)
        persistent = " --persistent" if definition and definition.before else ""
        if setting.removes:
            yield f"{_made_again(setting, own.get(setting.address))}{persistent}"
        elif setting.kind in VF_COUNTS and setting.before != setting.after:
            back = f"set {setting.address} {setting.before}{persistent}"
            yield f"vfioctl sriov {back if setting.before != '0' else f'off {setting.address}'}"
        elif setting.kind == SettingKind.PROFILE:
            scope, _, name = setting.name.partition("/sriov_admin/")[2].partition("/profile/")
            yield f"vfioctl sriov profile {setting.address} {scope}/{name}={setting.before}"
    if all(setting.kind == SettingKind.KEPT or setting.before == setting.after for setting in plan.settings):
        yield from (f"writing {each.name} again" if each.before else f"rm {each.name}" for each in kept.values())


def _made_again(setting: Setting, parameter: Setting | None) -> str:
    if setting.kind == SettingKind.MDEV:
        parent, _, kind = setting.before.partition("/")
        line = f"vfioctl vgpu create {kind} --parent {parent} --uuid {setting.name}"
    else:
        line = f"vfioctl vgpu create {setting.before} --parent {setting.address}"
    if parameter is None or not parameter.before:
        return line
    own = parameter.name.partition(f"/{setting.address}/")[2]
    return f"{line} --param {quote(f'{own}={parameter.before}')}"


def outcome_lines(outcome: Outcome) -> Iterator[Text]:
    """What there is now, and what there is room for."""
    settings = outcome.plan.settings
    rows = [_found(vgpu) for vgpu in outcome.vgpus]
    yield from Layout(_FOUND, rows, _WIDE).flowing(rows)
    if outcome.result == Result.DONE:
        yield from (Text(f"{setting.address} is gone") for setting in settings if setting.removes)
        if not rows:  # VFs that are no vGPUs yet are not among them
            counts = ((s.address, s.after) for s in settings if s.kind in VF_COUNTS)
            yield from (Text(f"{pf} has {'no' if count == '0' else count} VFs") for pf, count in counts)
        yield from settings_lines(s for s in settings if s.kind == SettingKind.PROFILE)
        yield from (_kept(setting) for setting in settings if setting.kind == SettingKind.KEPT)
    for left in outcome.left:
        room = "no room for more" if left.available.at_most == 0 else f"room for {count_words(left.available)} more"
        yield Text(words.plain(f"{left.card} has {room} of {left.profile or left.type}"))


def _kept(setting: Setting) -> Text:
    return Text(f"kept in {setting.name}" if setting.after else f"{setting.name} is gone")


def _found(vgpu: Vgpu) -> tuple[str, str, str, str, str]:
    group = "" if vgpu.iommu_group is None else f"group {vgpu.iommu_group}"
    node = vgpu.vfio_cdev or vgpu.vfio_group or ""
    if not node and vgpu.dialect in (Dialect.SRIOV, Dialect.XE):
        node = words.plain(vgpu.driver or "no driver")
    if node == vgpu.vfio_group:
        group = ""  # its node is named after it
    return (vgpu.id, words.plain(vgpu.profile or vgpu.type), vgpu.parent if vgpu.parent != vgpu.id else "", group, node)
