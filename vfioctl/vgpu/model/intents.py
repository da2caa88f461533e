"""The intents of the vGPU subsystem: one class for each verb that changes vGPUs or VFs. May not do input or output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from shlex import quote
from typing import ClassVar, TypeVar

from pydantic import Field, ValidationError

from vfioctl.binding.model.intents import begins_at_its_facts
from vfioctl.console.words import listed
from vfioctl.core.change import Change, Intent, Plan
from vfioctl.core.value import first_problem
from vfioctl.errors import BadSpec
from vfioctl.inventory.model.exclusive_intent import MeetsHolders, TakesDevices
from vfioctl.inventory.model.holders import HolderKind
from vfioctl.inventory.model.values import PciAddress, Subject
from vfioctl.units import Uuid
from vfioctl.vgpu.model.kinds import (
    AUTOPROBE,
    BINDING,
    DEFINITION,
    MDEV,
    NVIDIA_VFS,
    PARAMETER,
    PROFILE,
    VF_COUNTS,
    VGPUS,
    changes_vfs,
    creates,
    own_folder,
    removes,
)
from vfioctl.vgpu.model.vgpu import Strategy

Asked = TypeVar("Asked", bound=Intent)
_OF_A_VGPU = frozenset((*VGPUS, PARAMETER, DEFINITION))
_OF_VFS = frozenset((*VF_COUNTS, AUTOPROBE, DEFINITION, BINDING))


class CreateVgpuIntent(MeetsHolders):
    """Create vGPUs of one type: all, or none. A rollback may remove VFs that are vGPUs: they do not count as held."""

    ignores: ClassVar[frozenset[HolderKind]] = frozenset({HolderKind.VGPU})
    verb: str = "vgpu create"
    done: ClassVar[str] = "created"

    type: str = Field(description="id, name or profile, as given in the request")
    parent: str | None = Field(default=None, description="the only card or place to create them on")
    numa: int | None = Field(default=None, description="the only NUMA node to create them on")
    count: int = Field(default=1, ge=1, le=65_535)
    placement: Strategy = Strategy.BINPACK
    uuids: tuple[Uuid, ...] = Field(default=(), description="one for each mediated device; empty for VFs")
    parameters: tuple[tuple[str, str], ...] = ()
    persistent: bool = Field(default=False, description="created again at boot")
    exclude: tuple[str, ...] = Field(default=(), description="parents to avoid, as they have just refused a vGPU")

    def title(self) -> str:
        words = [self.verb, f"{self.count} of {self.type}" if self.count > 1 else self.type]
        if self.parent or self.numa is not None:
            words.append(f"on {self.parent or f'NUMA node {self.numa}'}")
        if self.parameters:
            words += ["with", *_pairs(self.parameters)]
        return _with_options(words, persistent=self.persistent)

    def permits(self, plan: Plan) -> bool:
        """Whether the plan removes no vGPU, and changes only the vGPUs that it creates."""
        names = {change.subject for change in plan.changes if creates(change)}
        mdevs = {change.subject for change in plan.changes_of(MDEV)}
        return _is_about(plan, _OF_A_VGPU, names) and mdevs <= {*self.uuids} and not any(map(removes, plan.changes))

    def undone_by(self, plan: Plan) -> tuple[str, ...]:
        names = [change.subject for change in plan.changes if creates(change)]
        return (f"vfioctl vgpu remove {' '.join(names)}",)


class RemoveVgpuIntent(TakesDevices):
    """Remove vGPUs: all, or none. A VF that is a vGPU does not count as held for that reason."""

    ignores: ClassVar[frozenset[HolderKind]] = frozenset({HolderKind.VGPU})
    done: ClassVar[str] = "removed"

    verb: str = "vgpu remove"
    vgpus: tuple[Subject, ...]
    foreign: bool = Field(default=False, description="also vGPUs that vfioctl did not create")
    definition: bool = Field(default=False, description="also definitions that vfioctl did not write")

    def title(self) -> str:
        options = {"foreign": self.foreign, "definition": self.definition, "force_holders": self.force_holders}
        return _with_options([self.verb, listed(self.vgpus)], **options)

    def permits(self, plan: Plan) -> bool:
        """Whether the plan removes only the named vGPUs, and creates none."""
        return _is_about(plan, _OF_A_VGPU, self.vgpus) and not any(map(creates, plan.changes))

    def undone_by(self, plan: Plan) -> tuple[str, ...]:
        lines = [_created_again(plan, change) for change in plan.changes if removes(change)]
        return tuple(lines) or _definitions_again(plan)


class SetVfsIntent(TakesDevices):
    """Set the number of VFs of a PF."""

    verb: str = "sriov set"
    devices: tuple[PciAddress] = Field(description="the PF")
    vfs: int = Field(ge=0, le=65_535)
    foreign: bool = Field(default=False, description="also VFs that vfioctl did not create")
    persistent: bool = Field(default=False, description="created again at boot")

    def title(self) -> str:
        words = [self.verb, *self.devices, str(self.vfs)] if self.vfs else ["sriov off", *self.devices]
        return _with_options(words, persistent=self.persistent, foreign=self.foreign, force_holders=self.force_holders)

    def permits(self, plan: Plan) -> bool:
        """Whether the plan changes only VFs of this PF; the driver binding of the PF is only verified."""
        bindings = plan.changes_of(BINDING)
        return (
            _is_about(plan, _OF_VFS, self.devices)
            and all(change.before == change.after for change in bindings)
            and begins_at_its_facts(plan)
            and (not bindings or bool(plan.changes_of(NVIDIA_VFS)))
        )

    def undone_by(self, plan: Plan) -> tuple[str, ...]:
        lines = []
        for change in filter(changes_vfs, plan.changes):
            persistent = " --persistent" if _was_defined(plan, change) else ""
            back = f"set {change.subject} {change.before}{persistent}"
            lines.append(f"vfioctl sriov {back if change.before != '0' else f'off {change.subject}'}")
        return tuple(lines) or _definitions_again(plan)


class ProfileIntent(Intent):
    """Set profile values (scheduling and memory limits) of the PF or the VFs of an xe card."""

    verb: str = "sriov profile"
    devices: tuple[PciAddress] = Field(description="the PF")
    parameters: tuple[tuple[str, str], ...] = Field(description="`vf1/exec_quantum_ms` and its value, ...")

    def title(self) -> str:
        return " ".join([self.verb, *self.devices, *_pairs(self.parameters)])

    def permits(self, plan: Plan) -> bool:
        return _is_about(plan, {PROFILE}, self.devices)

    def undone_by(self, plan: Plan) -> tuple[str, ...]:
        lines = []
        for change in plan.changes_of(PROFILE):
            scope, _, name = change.name.partition("/sriov_admin/")[2].partition("/profile/")
            lines.append(f"vfioctl sriov profile {change.subject} {scope}/{name}={change.before}")
        return tuple(lines)


def asked(make: Callable[[], Asked]) -> Asked:
    """Return the intent that `make` builds. Raises BadSpec for a value that the intent cannot have."""
    try:
        return make()
    except ValidationError as error:
        raise BadSpec(first_problem(error)) from None


def refuse_uuids(uuids: Sequence[Uuid], count: int) -> None:
    """Raises BadSpec when the number of UUIDs is not `count`, or a UUID is given twice."""
    if uuids and len(uuids) != count:
        raise BadSpec(f"{len(uuids)} UUIDs for {count} vGPUs", hint="give --uuid once for each")
    if len(set(uuids)) < len(uuids):
        raise BadSpec("a UUID is given twice")


def _is_about(plan: Plan, kinds: AbstractSet[str], subjects: Iterable[str]) -> bool:
    return {change.kind for change in plan.changes} <= kinds and {*plan.subjects} <= {*subjects}


def _pairs(parameters: Iterable[tuple[str, str]]) -> Iterator[str]:
    return (f"{name}={value}" for name, value in parameters)


def _with_options(words: list[str], **options: bool) -> str:
    return " ".join([*words, *(f"--{name.replace('_', '-')}" for name, value in options.items() if value)])


def _was_defined(plan: Plan, change: Change) -> bool:
    return any(other.subject == change.subject and other.before for other in plan.changes_of(DEFINITION))


def _created_again(plan: Plan, change: Change) -> str:
    if change.kind == MDEV:
        parent, _, kind = change.before.partition("/")
        line = f"vfioctl vgpu create {kind} --parent {parent} --uuid {change.name}"
    else:
        line = f"vfioctl vgpu create {change.before} --parent {change.subject}"
    for parameter in plan.changes_of(PARAMETER):
        if parameter.subject == change.subject and parameter.before and parameter.name.endswith("/vgpu_params"):
            own = parameter.name.removeprefix(f"{own_folder(parameter.subject)}/")
            line += f" --param {quote(f'{own}={parameter.before}')}"
    return f"{line} --persistent" if _was_defined(plan, change) else line


def _definitions_again(plan: Plan) -> tuple[str, ...]:
    changes = plan.changes_of(DEFINITION)
    return tuple(f"writing {change.name} again" if change.before else f"rm {change.name}" for change in changes)
