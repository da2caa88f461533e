"""The changes of vGPUs. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vfioctl.errors import BadDocument, BadSpec, DeviceInUse, VfioctlError
from vfioctl.inventory.model.values import PciAddress, subject
from vfioctl.kernel.protocol import PCI_ADDRESS
from vfioctl.persist.model.intents import ImportIntent
from vfioctl.state.model.difference import Later, Refusal, Step
from vfioctl.state.model.document import HostState, Presence, VgpuGoal
from vfioctl.state.plan import compare
from vfioctl.state.plan.phases import CREATE, KEEP, REMOVE, VFS_OF, Found
from vfioctl.vgpu.model.intents import CreateVgpuIntent, RemoveVgpuIntent
from vfioctl.vgpu.model.vgpu import Vgpu, VgpuState

Part = Step | Refusal | Later


def changes_of(state: HostState, found: Found) -> Iterator[Part]:
    """Yield the changes of all vGPUs, and what cannot be changed."""
    created: dict[tuple[object, ...], list[VgpuGoal]] = {}
    kept: list[tuple[str, str]] = []
    for goal in state.vgpus:
        if goal.name not in found.differences:
            continue
        vgpu = compare.existing(goal, found.facts, found.places)
        if error := _refused(goal, vgpu, found):
            yield Refusal(name=goal.name, error=error)
        elif goal.state is Presence.ABSENT:
            if vgpu is not None:
                yield _removed(goal, vgpu)
        elif vgpu is not None and goal.at_boot:
            kept.append((goal.name, vgpu.id))
        elif vgpu is None and compare.parent_of(goal, found.places) is None:
            yield Later(name=goal.name, what=f"its parent {goal.parent} does not exist yet")
        elif vgpu is None:
            alike = (goal.parent, goal.type, tuple(goal.parameters.items()), goal.at_boot, goal.uuid is None)
            created.setdefault(alike, []).append(goal)
    yield from (_created(goals, found) for goals in created.values())
    if kept:
        yield _kept(kept)


def _refused(goal: VgpuGoal, vgpu: Vgpu | None, found: Found) -> VfioctlError | None:
    name = goal.name
    if compare.id_of(goal, found.places) in found.facts.damaged_vgpus and found.of(name, compare.AT_BOOT):
        why = found.facts.damaged_vgpus[compare.id_of(goal, found.places) or ""]
        return BadDocument(f"the definition of {name} cannot be used: {why}", hint="repair it, or remove it")
    if goal.state is Presence.ABSENT:
        if goal.at_boot:
            return BadSpec(f"{name} is to be absent now, and created at boot", hint='state = "present"')
        return None
    return _not_creatable(goal, found) if vgpu is None else _unchangeable(goal, vgpu, found)


def _unchangeable(goal: VgpuGoal, vgpu: Vgpu, found: Found) -> VfioctlError | None:
    """Why a vGPU that exists cannot become what it is to be: nothing of it is changed."""
    name = goal.name
    if vgpu.state is not VgpuState.LIVE:
        return DeviceInUse(f"{vgpu.id} is {vgpu.state}", hint="vfioctl vgpu show says more")
    changed = [d for d in found.differences[name].values() if d.setting != compare.AT_BOOT]
    if changed:
        words = ", ".join(f"{d.setting} is {d.found}, not {d.wanted}" for d in changed)
        return DeviceInUse(
            f"{vgpu.id} exists, and its {words}",
            hint="vfioctl changes no vGPU that a guest may have: remove it first",
            next_command=f"vfioctl vgpu remove {vgpu.id}",
        )
    return None


def _not_creatable(goal: VgpuGoal, found: Found) -> VfioctlError | None:
    parent = compare.parent_of(goal, found.places)
    if parent is not None and goal.uuid is None and not _is_vf(parent, found):
        return BadSpec(
            f"a vGPU on {parent} needs a uuid", hint="only those that are VFs are named by their parent alone"
        )
    return None


def _is_vf(name: str, found: Found) -> bool:
    function = found.facts.inventory.by_address.get(PciAddress(name)) if PCI_ADDRESS.fullmatch(name) else None
    return function is not None and function.is_vf


def _removed(goal: VgpuGoal, vgpu: Vgpu) -> Step:
    own = frozenset({vgpu.id})
    return Step(
        phase=REMOVE,
        intent=RemoveVgpuIntent(vgpus=(subject(vgpu.id),)),
        names=(goal.name,),
        own=own,
        changes=own | {vgpu.parent, vgpu.card, f"{VFS_OF}{vgpu.card}"},
        needs=own,
    )


def _kept(kept: Sequence[tuple[str, str]]) -> Step:
    """The change that has vGPUs which exist created at boot: their names in the document, and their ids."""
    names, ids = zip(*kept, strict=True)
    own: frozenset[str] = frozenset(ids)
    return Step(phase=KEEP, intent=ImportIntent(names=ids), names=names, own=own, changes=frozenset(), needs=own)


def _created(goals: list[VgpuGoal], found: Found) -> Step:
    goal = goals[0]
    parent = compare.parent_of(goal, found.places)
    assert parent is not None
    uuids = tuple(goal.uuid for goal in goals if goal.uuid)
    function = found.facts.inventory.by_address.get(PciAddress(parent)) if ":" in parent else None
    physical = {str(function.physfn)} if function and function.physfn else set()
    return Step(
        phase=CREATE,
        intent=CreateVgpuIntent(
            type=goal.type,
            parent=parent,
            count=len(goals),
            uuids=uuids,
            parameters=tuple(goal.parameters.items()),
            persistent=bool(goal.at_boot),
        ),
        names=tuple(goal.name for goal in goals),
        own=frozenset(uuids) or frozenset({parent}),
        changes=frozenset(),
        needs=frozenset({parent, *physical}),
    )
