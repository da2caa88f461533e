"""From the bindings there are to the bindings wanted: the writes, in the one order that is safe. Pure.

The order is the kernel's own advice (commit 782a985d7af2): override first, so that nothing else can
take the device between unbind and probe; then every unbind; then every probe. On the way back the
override is aimed at the driver wanted, not cleared, until that driver has the device.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from vfioctl.binding.plan.settings import early, late, locks
from vfioctl.core.change import KERNEL_CHOICE, Binding, Intent, Plan, Step, StepKind, Verb, same_driver
from vfioctl.core.setting import VF_COUNTS, VGPU_KINDS, Setting, SettingKind
from vfioctl.inventory.model.functions import is_vfio_driver
from vfioctl.inventory.model.values import PciAddress
from vfioctl.vgpu.plan.steps import vgpu_steps

DEVICES = "/sys/bus/pci/devices"
DRIVERS = "/sys/bus/pci/drivers"
PROBE = "/sys/bus/pci/drivers_probe"
CLEAR = "\n"
_ADDRESS = r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"
_BUS_RESET = re.compile(rf"{DEVICES}/{_ADDRESS}/reset_subordinate", re.ASCII)
_MODULE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", re.ASCII)

_OF_A_VGPU = frozenset({SettingKind.MDEV, SettingKind.VGPU_TYPE, SettingKind.PARAMETER, SettingKind.KEPT})
KINDS: Mapping[Verb, frozenset[SettingKind]] = {
    Verb.CREATE: _OF_A_VGPU,
    Verb.REMOVE: _OF_A_VGPU,
    Verb.SRIOV: frozenset({*VF_COUNTS, SettingKind.AUTOPROBE, SettingKind.KEPT}),
    Verb.PROFILE: frozenset({SettingKind.PROFILE}),
}
"""What a change of vGPUs may set."""
Bindings = Mapping[PciAddress, Binding]


def steps(
    now: Bindings,
    goal: Bindings,
    modules: tuple[str, ...] = (),
    *,
    settings: tuple[Setting, ...] = (),
    reset: str | None = None,
) -> tuple[Step, ...]:
    """The steps that turn `now` into `goal`, loading `modules` first; none when there is nothing to do.

    `settings` are made before the devices move, or put back after; `reset` is a file to write 1 to. Before a device
    loses its driver, or is reset, it is asked once more who holds it.
    """
    changing = {a: goal[a] for a in goal if not now[a].settled(goal[a])}
    settings = tuple(setting for setting in settings if not setting.idle and _can_be_made(setting, now, goal))
    if not changing and not settings and not reset:
        return ()
    moving = {a: wanted for a, wanted in changing.items() if _moves(now[a], wanted)}
    aimed = {a: _aim(wanted) for a, wanted in moving.items()}
    leaving = tuple(a for a in moving if now[a].driver)
    touched = tuple(a for a in now if now[a].driver) if reset else leaving
    return (
        *map(_load, modules),
        *early(settings),
        *((_check(touched),) if touched else ()),
        *_overrides(now, aimed, "so that no other driver can take it"),
        *locks(settings),
        *(_unbind(a, now[a].driver or "") for a in leaving),
        *((_reset(reset, touched or tuple(now)),) if reset else ()),
        *(_probe(a, wanted) for a, wanted in moving.items() if wanted.driver),
        *_overrides(
            {a: Binding(driver=None, driver_override=aimed.get(a, now[a].driver_override)) for a in changing},
            {a: wanted.driver_override for a, wanted in changing.items()},
            "as it was before",
        ),
        *vgpu_steps(settings),
        *late(settings, handed_over(goal)),
    )


def _can_be_made(setting: Setting, now: Bindings, goal: Bindings) -> bool:
    """NVML knows only the GPUs that nvidia has: before they move, or when they are back."""
    if setting.kind != SettingKind.PERSISTENCE or (gpu := PciAddress(setting.name)) not in goal:
        return True
    return now[gpu].driver == "nvidia" if setting.after == "0" else goal[gpu].driver in ("nvidia", KERNEL_CHOICE)


def handed_over(goal: Bindings) -> tuple[PciAddress, ...]:
    """Those that are for a VFIO driver."""
    return tuple(address for address, wanted in goal.items() if wanted.driver and is_vfio_driver(wanted.driver))


def follows(plan: Plan) -> bool:
    """Whether a plan's steps are those that its changes take, and the changes begin at its facts.

    It resets nothing unless that was asked for, stops no service but those named, sets nothing of other functions. One
    that is about vGPUs moves no function.
    """
    about_vgpus = plan.intent.vgpu_request is not None
    if about_vgpus and not _vgpus_what_was_asked(plan):
        return False
    before = {change.address: change.before for change in plan.changes}
    after = {change.address: change.after for change in plan.changes}
    known = {fact.address: fact.binding for fact in plan.facts}
    modules = tuple(step.target for step in plan.steps if step.kind == StepKind.LOAD)
    made = steps(before, after, modules, settings=plan.settings, reset=plan.reset)
    return (
        all(known.get(address) == binding for address, binding in before.items())
        and all(_MODULE.fullmatch(module) for module in modules)
        and _resets_what_was_asked(plan)
        and all((setting.kind in VGPU_KINDS) == about_vgpus for setting in plan.settings)
        and (not (plan.changes or modules) if about_vgpus else all(s.address in known for s in plan.settings))
        and all(_is_granted(setting, plan.intent) for setting in plan.settings)
        and [_effect(step) for step in plan.steps] == [_effect(step) for step in made]
    )


def _vgpus_what_was_asked(plan: Plan) -> bool:
    """Each verb has kinds of its own; only what is named is removed, and nothing is removed to make something."""
    wish, kinds = plan.intent.vgpu_request, {setting.kind for setting in plan.settings}
    going = {setting.address for setting in plan.settings if setting.removes}
    allowed = going <= {*(wish.instances if wish else ())} if plan.intent.verb == Verb.REMOVE else not going
    if any(setting.makes for setting in plan.settings):
        allowed = allowed and plan.intent.verb == Verb.CREATE
    return allowed and kinds <= KINDS.get(plan.intent.verb, frozenset())


def _resets_what_was_asked(plan: Plan) -> bool:
    if plan.intent.verb != Verb.RESET or plan.reset is None:
        return plan.intent.verb != Verb.RESET and plan.reset is None
    own = {f"{DEVICES}/{address}/reset" for address in plan.intent.devices}
    return plan.reset in own or _BUS_RESET.fullmatch(plan.reset) is not None


def _is_granted(setting: Setting, intent: Intent) -> bool:
    stops = setting.kind == SettingKind.SERVICE and "inactive" in (setting.after, setting.during)
    return not stops or setting.name in intent.stop_services


def _effect(step: Step) -> tuple[str, str, str, bool]:
    return step.kind, step.target, step.value, step.may_fail


def _check(addresses: Iterable[PciAddress]) -> Step:
    return Step(kind=StepKind.CHECK, target=" ".join(addresses), why="what somebody holds is not taken")


def _reset(path: str, hit: Sequence[PciAddress]) -> Step:
    return Step(kind=StepKind.WRITE, target=path, value="1", why="the kernel resets it", address=next(iter(hit), None))


def _moves(now: Binding, wanted: Binding) -> bool:
    if wanted.driver == KERNEL_CHOICE:
        return now.driver is None or is_vfio_driver(now.driver)
    return not same_driver(now.driver, wanted.driver)


def _aim(wanted: Binding) -> str | None:
    """What the override names while the device moves."""
    if wanted.driver in (None, KERNEL_CHOICE):
        return wanted.driver_override
    return wanted.driver


def _overrides(now: Bindings, names: Mapping[PciAddress, str | None], why: str) -> Iterator[Step]:
    for address, name in names.items():
        if not same_driver(now[address].driver_override, name):
            yield Step(
                kind=StepKind.WRITE,
                target=f"{DEVICES}/{address}/driver_override",
                value=name or CLEAR,
                why=why if name else "no override any more",
                address=address,
            )


def _load(module: str) -> Step:
    return Step(kind=StepKind.LOAD, target=module, value="", why="its driver is not registered yet")


def _unbind(address: PciAddress, driver: str) -> Step:
    target = f"{DRIVERS}/{driver}/unbind"
    return Step(kind=StepKind.WRITE, target=target, value=address, why=f"{driver} lets go of it", address=address)


def _probe(address: PciAddress, wanted: Binding) -> Step:
    whom = "the kernel chooses a driver" if wanted.driver == KERNEL_CHOICE else f"{wanted.driver} takes it"
    return Step(kind=StepKind.WRITE, target=PROBE, value=address, why=whom, address=address)
