"""The table of actions: their keys, where they are offered, and why one is not possible here. May not call the library.

A reason here only saves a vain attempt; what holds is what planning says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from vfioctl.claims.model.claim import ClaimState
from vfioctl.inventory.model.functions import Function
from vfioctl.inventory.model.scope import scope_of
from vfioctl.overview.model.overview import Overview
from vfioctl.tui.model.sheet import View
from vfioctl.tui.screens.devices import VFS
from vfioctl.tui.screens.kubelet import not_uncordon
from vfioctl.tui.screens.lists import CARD, TYPE
from vfioctl.vgpu.model.vgpu import VgpuCard

if TYPE_CHECKING:
    from vfioctl.core.change import JournalEntry
    from vfioctl.kubelet.model.status import Status

Keys = Sequence[str]


@dataclass(frozen=True)
class Situation:
    """What an action is judged by: the host as it was read last, and where the user is."""

    view: View
    overview: Overview
    busy: str = ""
    """The title of the change that is under way; empty if there is none."""
    owner: str = ""
    """Who asks, as the owner of a claim."""
    changes: Mapping[str, JournalEntry] = field(default_factory=dict)
    kubelet: Status | None = None
    """The resources of the device plugin, if they were read."""


class Field(NamedTuple):
    """A value that an action asks for."""

    name: str
    label: str
    value: str
    """What it has at first."""
    hint: str = ""


class Action(NamedTuple):
    """Something that can be done."""

    name: str
    key: str
    title: str
    views: tuple[View, ...]
    why_not: Callable[[Situation, Keys], str]
    """Why it is not possible for the rows with these keys; empty if it may be."""
    fields: Callable[[Situation, Keys], tuple[Field, ...]] = lambda _, __: ()
    anywhere: bool = False
    """Whether it needs no row."""


def reason(action: Action, situation: Situation, keys: Keys) -> str:
    """Return why an action is not possible now; empty if it may be."""
    if situation.overview.read_only:
        return situation.overview.read_only
    if situation.busy:
        return f"a change is under way: {situation.busy}; p shows it"
    if not keys and not action.anywhere:
        return "nothing is selected"
    return action.why_not(situation, keys)


def offered(view: View) -> tuple[Action, ...]:
    """Return the actions of a screen."""
    return tuple(action for action in ACTIONS if view in action.views)


def called(view: View, key: str) -> Action | None:
    """Return the action of a screen with this key."""
    return next((action for action in offered(view) if action.key == key), None)


def addresses(situation: Situation, keys: Keys) -> tuple[str, ...]:
    """Return the functions that rows of devices stand for: the row of all VFs of a PF for each of them."""
    known, result = situation.overview.inventory.by_address, dict[str, None]()
    for key in keys:
        pf = next((f for address, f in known.items() if key == f"{VFS}{address}"), None)
        result |= dict.fromkeys(pf.virtfns if pf else (key,))
    return tuple(result)


def _functions(situation: Situation, keys: Keys) -> list[Function]:
    known = situation.overview.inventory.by_address
    return [f for address, f in known.items() if address in addresses(situation, keys)]


def _first(reasons: Iterable[str]) -> str:
    return next(filter(None, reasons), "")


def _device_reason(situation: Situation, keys: Keys) -> str:
    if len(_functions(situation, keys)) < len(addresses(situation, keys)):
        return "it could not be read"
    return _first(
        f"{f.address} is {f.mark.kind}: {f.mark.why}"
        if f.mark
        else "it is a bridge, which stays"
        if f.is_bridge
        else ""
        for f in _functions(situation, keys)
    )


def _not_bind(situation: Situation, keys: Keys) -> str:
    functions = _functions(situation, keys)
    if unclear := _device_reason(situation, keys):
        return unclear
    if not situation.overview.inventory.iommu.translating:
        return "the IOMMU is off, so no device can go to a guest"
    if all(f.on_vfio for f in functions):
        return f"bound to {functions[0].driver} already"
    return _first(f"{f.address} is claimed by {f.owner}" if f.owner else "" for f in functions)


def _not_unbind(situation: Situation, keys: Keys) -> str:
    functions = _functions(situation, keys)
    if unclear := _device_reason(situation, keys):
        return unclear
    if not any(f.on_vfio for f in functions):
        return "not bound to a VFIO driver"
    return _first(f"{f.address} is claimed by {f.owner}: x releases the claim" if f.owner else "" for f in functions)


def _shared(situation: Situation, keys: Keys) -> str:
    chosen = [function.address for function in _functions(situation, keys)]
    return "" if scope_of(situation.overview.inventory, chosen).foreign else "nothing shares its group"


def _not_bind_group(situation: Situation, keys: Keys) -> str:
    return _not_bind(situation, keys) or _shared(situation, keys)


def _not_unbind_group(situation: Situation, keys: Keys) -> str:
    return _not_unbind(situation, keys) or _shared(situation, keys)


def _not_claim(situation: Situation, keys: Keys) -> str:
    if situation.view is View.VGPUS:
        live = {vgpu.id for vgpu in situation.overview.vgpus.instances}
        return _first("" if key in live else "choose a vGPU: v creates one of this type" for key in keys)
    functions = _functions(situation, keys)
    return _device_reason(situation, keys) or _first(
        f"{f.address} is claimed by {f.owner} already" if f.owner else "" for f in functions
    )


def claims_of(situation: Situation, keys: Keys) -> tuple[str, ...]:
    """Return the ids of the claims that rows stand for: the claims themselves, or those of devices."""
    if situation.view is View.CLAIMS:
        return tuple(keys)
    reserved = situation.overview.inventory.reserved
    subjects = (*keys, *addresses(situation, keys))
    return tuple(dict.fromkeys(reserved[key].claim for key in subjects if key in reserved))


def _not_release(situation: Situation, keys: Keys) -> str:
    ids = claims_of(situation, keys)
    if not ids:
        return "no claim has it"
    if len(ids) > 1:
        return "release one claim at a time"
    claim = next((claim for claim in situation.overview.claims if claim.id == ids[0]), None)
    making = claim is not None and claim.state in (ClaimState.RESERVED, ClaimState.RELEASING)
    return f"a change of its devices is not finished: it is {claim.state}" if claim and making else ""


def card_of(situation: Situation, keys: Keys) -> VgpuCard | None:
    """Return the card that the first row is, or is of."""
    if not keys:
        return None
    name = keys[0].removeprefix(CARD).removeprefix(TYPE).partition("/")[0]
    by_vgpu = {vgpu.id: vgpu.card for vgpu in situation.overview.vgpus.instances}
    name = by_vgpu.get(name, name)
    return next((card for card in situation.overview.vgpus.cards if card.id == name), None)


def _not_create(situation: Situation, keys: Keys) -> str:
    card = card_of(situation, keys)
    if len(keys) > 1:
        return "choose one card or type"
    if card is None:
        return "it offers no vGPUs"
    kinds = [kind for kind in card.types if keys[0] == f"{TYPE}{card.id}/{kind.id}"] or list(card.types)
    return "" if any(kind.available.at_most != 0 for kind in kinds) else "there is no room for more"


def _create_fields(situation: Situation, keys: Keys) -> tuple[Field, ...]:
    card = card_of(situation, keys)
    kinds = card.types if card else ()
    wanted = keys[0].partition("/")[2] if keys and keys[0].startswith(TYPE) else ""
    kind = next((kind for kind in kinds if kind.id == wanted), None)
    kind = kind or next((kind for kind in kinds if kind.available.at_most != 0), None)
    names = ", ".join(kind.profile or kind.id for kind in kinds if kind.available.at_most != 0)
    return (
        Field("type", "Type", (kind.profile or kind.id) if kind else "", f"with room: {names}"),
        Field("count", "Number", "1"),
    )


def _not_remove(situation: Situation, keys: Keys) -> str:
    known = {vgpu.id: vgpu for vgpu in situation.overview.vgpus.instances}
    if any(key not in known for key in keys):
        return "choose vGPUs, not types or cards"
    foreign = [key for key in keys if known[key].owner != "vfioctl"]
    if foreign:
        return f"vfioctl did not create {foreign[0]}: vfioctl vgpu remove {foreign[0]} --foreign"
    reserved = situation.overview.inventory.reserved
    return _first(
        f"claim {reserved[key].claim} of {reserved[key].owner} has it" if key in reserved else "" for key in keys
    )


def _pf(situation: Situation, keys: Keys) -> Function | None:
    functions = _functions(situation, [key.removeprefix(VFS) for key in keys])
    return functions[0] if len(functions) == 1 else None


def _not_sriov(situation: Situation, keys: Keys) -> str:
    if len(keys) > 1:
        return "choose one function"
    pf = _pf(situation, keys)
    if pf is None or not pf.sriov_totalvfs:
        return "it has no SR-IOV"
    return f"{pf.address} is {pf.mark.kind}" if pf.mark else ""


def _sriov_fields(situation: Situation, keys: Keys) -> tuple[Field, ...]:
    pf = _pf(situation, keys)
    if pf is None:
        return ()
    hint = f"0 to {pf.sriov_totalvfs}; {len(pf.virtfns)} now"
    return (Field("count", "Number of VFs", str(len(pf.virtfns) or pf.sriov_totalvfs), hint),)


def _not_start(situation: Situation, keys: Keys) -> str:
    return _domain_reason(situation, keys, runs=False)


def _not_stop(situation: Situation, keys: Keys) -> str:
    return _domain_reason(situation, keys, runs=True)


def _domain_reason(situation: Situation, keys: Keys, *, runs: bool) -> str:
    if len(keys) > 1:
        return "choose one domain"
    domain = next((domain for domain in situation.overview.domains if domain.name in keys), None)
    if domain is None:
        return "choose a domain"
    if runs and domain.state == "defined":
        return "it does not run"
    return "it runs already" if not runs and domain.state != "defined" else ""


def _not_recover(situation: Situation, _keys: Keys) -> str:
    unfinished = situation.overview.unfinished
    if not unfinished:
        return "no change was interrupted"
    return "" if any(not change.under_way for change in unfinished) else "another process is still making the change"


def _owner_field(situation: Situation, _keys: Keys) -> tuple[Field, ...]:
    return (Field("owner", "Owner", situation.owner, "vm/NAME, pod/NAMESPACE/NAME/CONTAINER or user/NAME"),)


_EVERY = tuple(View)
_WHY = Field("why", "Reason", "", "may be empty; the screen shows it")
ACTIONS: tuple[Action, ...] = (
    Action("bind", "b", "Bind to VFIO, ready for a guest", (View.DEVICES,), _not_bind),
    Action("unbind", "u", "Unbind: back to the driver it had", (View.DEVICES,), _not_unbind),
    Action("bind-group", "g", "Bind with its whole group", (View.DEVICES,), _not_bind_group),
    Action("unbind-group", "G", "Unbind with its whole group", (View.DEVICES,), _not_unbind_group),
    Action("claim", "c", "Claim for an owner", (View.DEVICES, View.VGPUS), _not_claim, _owner_field),
    Action("release", "x", "Release its claim", (View.DEVICES, View.CLAIMS), _not_release),
    Action("create", "v", "Create vGPUs", (View.DEVICES, View.VGPUS), _not_create, _create_fields),
    Action("remove", "x", "Remove vGPUs", (View.VGPUS,), _not_remove),
    Action("sriov", "n", "Set the number of VFs", (View.DEVICES,), _not_sriov, _sriov_fields),
    Action("start", "t", "Start the domain", (View.DOMAINS,), _not_start),
    Action("stop", "x", "Shut the domain down", (View.DOMAINS,), _not_stop),
    Action("cordon", "c", "Cordon: no more pods get it", (View.KUBELET,), lambda _, __: "", lambda _, __: (_WHY,)),
    Action(
        *("uncordon", "u", "Uncordon: pods get it again", (View.KUBELET,)),
        lambda s, keys: not_uncordon(s.kubelet, keys),
    ),
    Action("recover", "R", "Recover interrupted changes", _EVERY, _not_recover, anywhere=True),
)
