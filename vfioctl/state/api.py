"""The use cases of the state: read it, compare it, make it so. May not write to the host but through plans."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from shlex import quote
from typing import TYPE_CHECKING

from vfioctl.binding.api import BindingApi
from vfioctl.errors import HostError, StalePlan, VerifyError, VfioctlError
from vfioctl.inventory.api import InventoryApi
from vfioctl.state.model.difference import Applied, Comparison, Prepared, Refusal
from vfioctl.vgpu.api import VgpuApi

if TYPE_CHECKING:
    from vfioctl.core.change import Intent, Outcome, Plan
    from vfioctl.core.events import Cancel, Progress
    from vfioctl.inventory.model.functions import Inventory
    from vfioctl.session import Session
    from vfioctl.state.model.difference import Difference, Step
    from vfioctl.state.model.document import HostState
    from vfioctl.state.model.facts import HostFacts
    from vfioctl.state.plan.places import Places


class StateApi:
    """The drivers, VFs, vGPUs and persistent devices of one host as one document."""

    def __init__(self, session: Session) -> None:
        self._session, self._kernel = session, session.kernel

    def read(self, name: str) -> HostState:
        """Return the document in a file; `-`: on stdin. Raises BadDocument, MissingLibrary."""
        from vfioctl.state.files.read import read_state

        return read_state(name)

    def present(self) -> tuple[HostState, tuple[str, ...]]:
        """Return the state of the host as it is now, and sentences about what the document cannot have."""
        from vfioctl.state.plan.present import present

        return present(self._facts())

    def compare(self, state: HostState) -> Comparison:
        """Return how the host differs from the document."""
        from vfioctl.state.plan.places import moved

        _, places, found = self._compared(state)
        return Comparison(ok=not found, differences=found, notes=moved(state, places))

    def prepare(self, state: HostState) -> Prepared:
        """Plan what differs, on the host as it is now, with a reason for each thing that cannot be planned.

        Changes nothing. What depends on other changes is named in `later`, and planned after these."""
        from vfioctl.state.plan.places import moved
        from vfioctl.state.plan.steps import steps_of

        facts, places, found = self._compared(state)
        steps = steps_of(state, facts, places, found)
        planned: list[tuple[Step, Plan]] = []
        refused = list(steps.refused)
        expected = {later.name for later in steps.later}
        for step in steps.steps:
            try:
                planned.append((step, self._planned(step, state, facts, places, expected)))
            except VfioctlError as error:
                refused += [Refusal(name=name, error=error) for name in step.names]
        return Prepared(
            planned=tuple(planned),
            refused=tuple(refused),
            later=steps.later,
            differences=found,
            notes=moved(state, places),
            inventory=facts.inventory,
        )

    def _compared(self, state: HostState) -> tuple[HostFacts, Places, tuple[Difference, ...]]:
        """Read the host; return its facts, where the document's devices are, and what differs."""
        from vfioctl.state.plan.compare import differences
        from vfioctl.state.plan.places import places_of

        facts = self._facts()
        places = places_of(state, facts.inventory)
        return facts, places, differences(state, facts, places)

    def _planned(self, step: Step, state: HostState, facts: HostFacts, places: Places, expected: set[str]) -> Plan:
        from vfioctl.state.plan.conflicts import conflict_in

        plan = self._plan(step.intent, facts.inventory)
        if plan.nothing_to_do:
            raise HostError(
                f"no change brings {', '.join(step.names)} there: {step.intent.title()} finds nothing to do",
                hint="vfioctl state assert shows what differs",
            )
        if conflict := conflict_in(plan, state, places, expected):
            raise conflict
        return plan

    def _plan(self, intent: Intent, found_in: Inventory) -> Plan:
        """Plan an intent. Raises StalePlan if an address has another device by now than where devices were found."""
        from vfioctl.state.plan.conflicts import exchanged
        from vfioctl.vgpu.model.intents import SetVfsIntent

        if isinstance(intent, SetVfsIntent):
            self._session.refuse_parts(intent.devices)
        plan = self._session.plan_again(intent)
        if address := exchanged(plan, found_in):
            raise StalePlan(f"another device has taken the place of {address}", hint="try again")
        return plan

    def apply(
        self,
        state: HostState,
        *,
        partial: bool = False,
        progress: Progress | None = None,
        cancel: Cancel | None = None,
        confirm: Callable[[Prepared], None] | None = None,
    ) -> Applied:
        """Make the host as the document says, one plan after the other: each is verified, or rolled back.

        If anything cannot be planned, nothing is changed; `partial`: the rest is changed all the same. A plan that
        fails ends it; what was changed before stays, and applying the document again goes on from there. `confirm`:
        called with the first plans; may raise to cancel.

        Raises what planning and `Session.apply` raise; VerifyError if a difference remains."""
        prepared, done = self.prepare(state), set[str]()
        outcomes: list[Outcome] = []
        _refuse(prepared, partial=partial, before="nothing was changed")
        if confirm:
            confirm(prepared)
        with _reporting(outcomes):
            while prepared.planned:
                for number, (step, plan) in enumerate(prepared.planned):
                    self._refuse_again(step.intent, done)
                    fresh = plan
                    if number:  # its facts may be those after the others
                        fresh = self._plan(step.intent, prepared.inventory)
                    outcomes.append(self._session.apply(fresh, progress=progress, cancel=cancel))
                prepared = self.prepare(state)
                _refuse(prepared, partial=partial)
            if prepared.differences and not prepared.refused:
                raise differs(Comparison(ok=False, differences=prepared.differences))
        return Applied(outcomes=tuple(outcomes), refused=prepared.refused)

    def _refuse_again(self, intent: Intent, done: set[str]) -> None:
        """Raise VerifyError if the same was changed before: something else changes it back."""
        text = f"{type(intent).__name__} {intent.canonical()}"
        if text in done:
            raise VerifyError(
                f"{intent.title()} was done, and is to be done again: something has changed it back",
                hint="vfioctl history and the kernel log may say what",
            )
        done.add(text)

    def _facts(self) -> HostFacts:
        from vfioctl.binding.model.definition import locate_all
        from vfioctl.state.model.facts import BoundAtBoot, HostFacts
        from vfioctl.vgpu.model.intents import CreateVgpuIntent, SetVfsIntent
        from vfioctl.vgpu.model.vgpu import VgpuState

        inventory = InventoryApi(self._session).inventory()
        definitions, damaged = BindingApi(self._session).at_boot.definitions()
        vgpus = VgpuApi(self._session)
        wanted, damaged_vgpus = vgpus.definitions()
        places = locate_all(definitions, inventory)
        return HostFacts(
            inventory=inventory,
            vgpus=tuple(v for v in vgpus.vgpus().instances if v.state is not VgpuState.DEFINED),
            devices_at_boot={
                place.address: BoundAtBoot(driver=definitions[file].driver, name=definitions[file].address)
                for file, place in places.items()
                if place.address
            },
            vfs_at_boot={i.devices[0]: i.vfs for i in wanted.values() if isinstance(i, SetVfsIntent)},
            vgpus_at_boot={
                str(next(iter(i.uuids), i.parent)): i for i in wanted.values() if isinstance(i, CreateVgpuIntent)
            },
            damaged=_by_name(damaged),
            damaged_vgpus=_by_name(damaged_vgpus),
            missing={definitions[file].address: place.why for file, place in places.items() if not place.address},
        )


def _by_name(damaged: Mapping[str, str]) -> Mapping[str, str]:
    """Why definitions cannot be used, by the device or UUID that their files are named after."""
    names = {file: file.rpartition("/")[2].removesuffix(".toml").removesuffix(".json") for file in damaged}
    return {names[file].lower(): f"damaged: {why}" for file, why in damaged.items()}


def _refuse(prepared: Prepared, *, partial: bool, before: str = "") -> None:
    """Raise the first reason why the document cannot be applied, with the words of all, unless `partial`.

    `before`: what became of the host."""
    if prepared.refused and not partial:
        error = refusal_of(prepared.refused)
        error.restored = before
        raise error


def refusal_of(refused: Sequence[Refusal]) -> VfioctlError:
    """Return the first error, with the words of all."""
    first, errors = refused[0].error, list({refusal.error.message: refusal.error for refusal in refused}.values())
    facts = [{"name": r.name, "kind": type(r.error).__name__, "message": r.error.message} for r in refused]
    first.facts = {**first.facts, "refused": facts}
    if errors[1:]:
        first.message = f"{len(errors)} things cannot be as the document says: " + "; ".join(e.message for e in errors)
        hints = dict.fromkeys(filter(None, (e.hint for e in errors)))
        first.hint, first.next_command = "\n".join(hints), ""
    return first


def differs(comparison: Comparison, name: str = "FILE") -> VerifyError:
    """Return the error about a host that is not as the document says. `name`: of its file."""
    number = len(comparison.differences)
    return VerifyError(
        f"the host is not as the document says, in {number} {'setting' if number == 1 else 'settings'}",
        next_command=f"vfioctl state apply {quote(name)} --dry-run",
    )


@contextmanager
def _reporting(outcomes: Sequence[Outcome]) -> Iterator[None]:
    """Say with an error or an interrupt what was changed before it, and stays."""
    try:
        yield
    except (VfioctlError, KeyboardInterrupt) as error:
        if outcomes:
            done = "; ".join(outcome.plan.intent.title() for outcome in outcomes)
            before = f"done before, and kept: {done}; apply the document again for the rest"
            restored = "; ".join(filter(None, (getattr(error, "restored", ""), before)))
            error.restored = restored  # type: ignore[union-attr] # as the engine gives it to an interrupt
        raise
