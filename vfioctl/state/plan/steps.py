"""Turns differences into changes in an order: each is an intent of the subsystem that makes it. Pure.

First vGPUs are removed and devices return to their own drivers, then VFs are counted, devices bound and vGPUs created;
last is what only concerns the next boot. A change that finds something different once another one has been made is not
planned before that: it comes later."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from vfioctl.errors import DeviceMissing, VfioctlError
from vfioctl.persist.model.intents import ForgetIntent
from vfioctl.state.model.difference import Difference, Later, Refusal, Step, Steps
from vfioctl.state.model.document import DeviceState, HostState
from vfioctl.state.model.facts import HostFacts
from vfioctl.state.plan import compare, devices, vgpus
from vfioctl.state.plan.phases import FORGET, Found
from vfioctl.state.plan.places import Places


def steps_of(state: HostState, facts: HostFacts, places: Places, differences: Sequence[Difference]) -> Steps:
    """The changes that settle the differences; those that depend on an earlier one are `later`."""
    found = Found(facts, places, _by_name(differences))
    made: list[Step] = []
    refused: list[Refusal] = []
    waiting: list[Later] = []
    for part in (*devices.changes_of(state, found), *vgpus.changes_of(state, found), *_forgotten(state, found)):
        if isinstance(part, Step):
            made.append(part)
        elif isinstance(part, Refusal):
            refused.append(part)
        else:
            waiting.append(part)
    made.sort(key=lambda step: step.phase)
    now, later = _ordered(made)
    missing = [_missing(device, found, made) for device in state.devices if found.of(device.address, compare.DEVICE)]
    return Steps(
        steps=tuple(now),
        refused=(*(m for m in missing if isinstance(m, Refusal)), *_first_of_each(refused)),
        later=(*later, *(m for m in missing if isinstance(m, Later)), *waiting),
    )


def _by_name(differences: Iterable[Difference]) -> Mapping[str, Mapping[str, Difference]]:
    by_name: dict[str, dict[str, Difference]] = {}
    for difference in differences:
        by_name.setdefault(difference.name, {})[difference.setting] = difference
    return by_name


def _first_of_each(refused: Iterable[Refusal]) -> Iterator[Refusal]:
    seen: set[tuple[str, str]] = set()
    for refusal in refused:
        if (key := (refusal.name, refusal.error.message)) not in seen:
            seen.add(key)
            yield refusal


def _ordered(made: Sequence[Step]) -> tuple[list[Step], list[Later]]:
    now: list[Step] = []
    later: list[Later] = []
    for number, step in enumerate(made):
        before = made[:number]
        if any((e.phase == step.phase and e.own & step.own) or (e.changes & step.needs) for e in before):
            later += (Later(name=name, what=step.intent.title()) for name in step.names)
        else:
            now.append(step)
    return now, later


def _missing(device: DeviceState, found: Found, made: Iterable[Step]) -> Refusal | Later:
    """A device that is not there: a VF that another change creates, or one that nothing can be done about."""
    place = found.places[device.address]
    if device.vf is not None:
        pf = found.places[device.vf.of].address
        if any(pf in step.own and _counts(step) for step in made):
            return Later(name=device.address, what=f"VF {device.vf.number} of {pf} does not exist yet")
    error: VfioctlError = DeviceMissing(
        f"{device.address}: {place.why}", hint="nothing is changed in its place: correct its entry, or remove it"
    )
    return Refusal(name=device.address, error=error)


def _counts(step: Step) -> bool:
    return step.intent.verb == "sriov set"


def _forgotten(state: HostState, found: Found) -> Iterator[Step]:
    """What is no longer to be restored at boot, and changes in no other way."""
    names = dict(found.forgotten(state))
    if names:
        intent = ForgetIntent(names=tuple(names.values()))
        subjects: frozenset[str] = frozenset(names.values())
        yield Step(
            phase=FORGET, intent=intent, names=tuple(names), own=subjects, changes=frozenset(), needs=frozenset()
        )
