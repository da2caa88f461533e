"""Applying a document: all or nothing at first, one plan after the other, and again from wherever it ended."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.machines import NAMES, original
from tests.hosts.vgpu_machines import UUIDS, XE, BootableHost, beginning, differing, everything
from tests.unit.state.documents import having, only, planned, reach, shown, titles, with_vf
from vfioctl.claims.model.claim import Claim
from vfioctl.core.change import JournalState, Outcome, Plan
from vfioctl.core.events import EventKind, StepEvent
from vfioctl.errors import (
    Cancelled,
    ClaimConflict,
    DeviceInUse,
    DeviceMissing,
    KernelRefused,
    StalePlan,
    Unfinished,
    VerifyError,
    VfioctlError,
)
from vfioctl.host import Host
from vfioctl.inventory.api import InventoryApi
from vfioctl.inventory.model.functions import Inventory
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel.simulated.faults import DIE, Fault, SimulatedDeath
from vfioctl.kernel.simulated.host import Simulated
from vfioctl.placement.model.request import ClaimRequest
from vfioctl.state.model.difference import Prepared
from vfioctl.state.model.document import HostState

GPUS = ("0000:43:00.0", "0000:52:00.0", "0000:61:00.0")
BINDS = [f"bind {gpu} to vfio-pci" for gpu in GPUS]


@pytest.fixture
def server(fast_folder: Path) -> BootableHost:
    return BootableHost(fast_folder, original("hgx8"))


@pytest.fixture
def bound(server: BootableHost) -> HostState:
    """The document in which three GPUs are on VFIO."""
    state = only(shown(server.host), *GPUS)
    for gpu in GPUS:
        state = having(state, gpu, driver="vfio-pci")
    return state


def drivers(machine: BootableHost) -> list[str | None]:
    return [machine.host.inventory().by_address[gpu].driver for gpu in GPUS]  # type: ignore[index]


def claim(machine: BootableHost, gpu: str) -> Claim:
    return machine.host.claims.create(ClaimRequest(owner="vm/a", devices=(PciAddress(gpu),))).claim


def after_plan(host: Host, number: int, act: Callable[[], object]) -> Host:
    """A host on which something happens when so many plans have been carried out."""
    apply, done = host.session.apply, count(1)

    def acting(plan: Plan, **more: Any) -> Outcome:
        outcome = apply(plan, **more)
        if next(done) == number:
            act()
        return outcome

    host.session.apply = acting  # type: ignore[method-assign]
    return host


class Interrupting:
    """A progress callback that interrupts the second plan in its first step about a device."""

    def __init__(self) -> None:
        self._left = 1

    def __call__(self, event: StepEvent) -> None:
        if event.kind is EventKind.BEGIN and event.step and GPUS[1] in event.step.target and self._left:
            self._left -= 1
            raise KeyboardInterrupt


class TestAll:
    @pytest.fixture
    def claimed(self, server: BootableHost, bound: HostState) -> HostState:
        """One of the GPUs is to return to its driver, and somebody has claimed it."""
        claim(server, GPUS[1])
        return having(bound, GPUS[1], driver="nvidia")

    def test_is_planned_before_anything_is_changed(self, server: BootableHost, claimed: HostState) -> None:
        before = everything(server.tree)
        with pytest.raises(ClaimConflict) as caught:
            server.host.state.apply(claimed)
        assert "vm/a" in caught.value.message
        assert differing(before, everything(server.tree)) == []
        assert [r["name"] for r in caught.value.facts["refused"]] == [GPUS[1]]  # type: ignore[attr-defined]

    def test_reasons_are_told(self, server: BootableHost, claimed: HostState) -> None:
        identity = claimed.devices[0].identity
        assert identity is not None
        claimed = having(claimed, GPUS[0], identity=identity.model_copy(update={"device": "9999"}))
        with pytest.raises(DeviceMissing) as caught:
            server.host.state.apply(claimed)
        assert caught.value.message.startswith("2 things cannot be as the document says: 0000:43:00.0: no such device")
        assert "vm/a" in caught.value.message
        assert planned(server.host, claimed) == [BINDS[2]]

    def test_partial_changes_the_rest(self, server: BootableHost, claimed: HostState) -> None:
        applied = server.host.state.apply(claimed, partial=True)
        assert titles(applied) == [BINDS[0], BINDS[2]]
        assert [(r.name, type(r.error)) for r in applied.refused] == [(GPUS[1], ClaimConflict)]
        assert drivers(server) == ["vfio-pci"] * 3, "the claim keeps its own"

    def test_a_held_device(self, fast_folder: Path) -> None:
        machine = BootableHost(fast_folder, original("busy"))
        held = next(f.address for f in machine.host.inventory().gpus if f.driver == "nvidia")
        state = having(only(shown(machine.host), held), held, driver="vfio-pci")
        with pytest.raises(DeviceInUse) as caught:
            machine.host.state.apply(state)
        assert caught.value.exit_code == 4

    def test_is_confirmed_with_the_first_plans(self, server: BootableHost, bound: HostState) -> None:
        seen: list[Prepared] = []

        def decline(prepared: Prepared) -> None:
            seen.append(prepared)
            raise Cancelled("no")

        with pytest.raises(Cancelled):
            server.host.state.apply(bound, confirm=decline)
        assert [plan.intent.title() for plan in seen[0].plans] == BINDS
        assert drivers(server) == ["nvidia"] * 3


class TestBetweenTwoPlans:
    """Each plan is a change of its own in the journal: what was done stays, and the next run does the rest."""

    def test_an_interrupt(self, server: BootableHost, bound: HostState) -> None:
        with pytest.raises(KeyboardInterrupt) as caught:
            server.host.state.apply(bound, progress=Interrupting())
        assert f"done before, and kept: {BINDS[0]}" in caught.value.restored  # type: ignore[attr-defined]
        assert drivers(server) == ["vfio-pci", "nvidia", "nvidia"]
        assert reach(server, bound) == BINDS[1:]

    def test_a_cancellation(self, server: BootableHost, bound: HostState) -> None:
        stop = False

        def ask() -> None:
            nonlocal stop
            stop = True

        with pytest.raises(Cancelled) as caught:
            after_plan(server.host, 2, ask).state.apply(bound, cancel=lambda: stop)
        assert f"done before, and kept: {'; '.join(BINDS[:2])}; apply the document again" in caught.value.restored
        assert drivers(server) == ["vfio-pci", "vfio-pci", "nvidia"]
        assert reach(server, bound) == BINDS[2:]

    def test_someone_else_takes_the_next_device(self, server: BootableHost, bound: HostState) -> None:
        with pytest.raises(ClaimConflict) as caught:
            after_plan(server.host, 1, lambda: claim(server, GPUS[1])).state.apply(bound)
        assert caught.value.restored.startswith(f"done before, and kept: {BINDS[0]}")
        assert server.host.unfinished() == ()

    def test_something_undoes_what_was_done(self, server: BootableHost, bound: HostState) -> None:
        """It is not done again and again."""

        def undo() -> None:
            server.does(lambda host: host.binding.plan_unbind([GPUS[0]], to="nvidia"))

        with pytest.raises(VerifyError, match="something has changed it back"):
            after_plan(server.host, 3, undo).state.apply(bound)
        assert drivers(server) == ["nvidia", "vfio-pci", "vfio-pci"]


def test_a_device_that_is_exchanged_while_it_is_planned_for_is_not_taken(
    server: BootableHost, bound: HostState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was found by its identity; when it is planned for, its address has another device."""
    host, reading = server.host, InventoryApi.inventory

    def exchanging(api: InventoryApi, **more: Any) -> Inventory:
        found = reading(api, **more)
        monkeypatch.undo()
        functions = (replace(f, device_id="9999") if f.address == GPUS[0] else f for f in found.functions)
        return replace(found, functions=tuple(functions))

    identity = bound.devices[0].identity
    assert identity is not None
    bound = having(bound, GPUS[0], identity=identity.model_copy(update={"device": "9999"}))
    monkeypatch.setattr(InventoryApi, "inventory", exchanging)
    with pytest.raises(StalePlan, match=f"another device has taken the place of {GPUS[0]}"):
        host.state.apply(bound)
    assert drivers(server) == ["nvidia"] * 3


def test_a_refusal_of_the_kernel_puts_back_that_plan_only(server: BootableHost, bound: HostState) -> None:
    host = Host.simulated(str(server.file))
    first = len(host.state.prepare(bound).plans[0].steps)
    host = Host.simulated(str(server.file), faults=[Fault(at=first + 3, kind="errno", errno=16)])
    with pytest.raises(KernelRefused) as caught:
        host.state.apply(bound)
    assert f"done before, and kept: {BINDS[0]}" in caught.value.restored
    assert drivers(server) == ["vfio-pci", "nvidia", "nvidia"]
    assert server.host.unfinished() == ()
    assert reach(server, bound) == BINDS[1:]


@pytest.mark.parametrize("at", range(1, 24))
def test_a_death_at_any_write_is_recovered_and_applied_again(fast_folder: Path, at: int) -> None:
    machine = BootableHost(fast_folder, beginning("xe"))
    before = shown(machine.host)
    state = with_vf(having(before, XE, vfs=2, vfs_at_boot=2), "0000:03:00.1", XE, 0, driver="vfio-pci")
    host = Host.simulated(str(machine.file), faults=[Fault(at=at, kind=DIE)])
    assert isinstance(host.session.kernel, Simulated)
    host.session.kernel._die = _die
    try:
        host.state.apply(state)
    except SimulatedDeath:
        with pytest.raises(VfioctlError) as caught:
            raise_if_unfinished(machine, state)
        assert isinstance(caught.value, Unfinished | Cancelled)
        machine.host.recover()
    machine.host.state.apply(state)
    assert machine.host.state.compare(state).ok
    assert {entry.state for entry in machine.host.history()} <= {JournalState.DONE, JournalState.BACK}


def _die() -> None:
    raise SimulatedDeath


def raise_if_unfinished(machine: BootableHost, state: HostState) -> None:
    """Apply the document; what an earlier run has left unfinished is not worked on."""
    machine.host.state.apply(state)
    raise Cancelled("it had been finished")


@pytest.mark.parametrize("name", NAMES)
def test_what_is_shown_is_restored_after_any_changes(name: str, fast_folder: Path) -> None:
    """Whatever the changes, in any order: the document of before brings the host back, or is refused with reasons and
    changes nothing; and what is then shown differs in nothing."""
    rnd = random.Random(name)
    machine = BootableHost(fast_folder, original(name))
    for _ in range(3):
        before = shown(machine.host)
        for _ in range(rnd.randint(1, 3)):
            _change(machine, rnd)
        now = shown(machine.host)
        assert machine.host.state.compare(now).ok
        assert not machine.host.state.apply(now).outcomes
        tree = everything(machine.tree)
        prepared = machine.host.state.prepare(before)
        try:
            machine.host.state.apply(before)
        except VfioctlError:
            if prepared.refused:
                assert differing(tree, everything(machine.tree)) == []
        else:
            assert machine.host.state.compare(before).ok
            assert not machine.host.state.apply(before).outcomes


def _change(machine: BootableHost, rnd: random.Random) -> None:
    """A change of one device or vGPU, if the host takes it."""
    host = machine.host
    inventory = host.inventory()
    gpu = rnd.choice([*inventory.gpus, *(f for f in inventory.functions if f.on_vfio)]).address
    kinds = [kind.id for card in host.vgpu.vgpus().cards for kind in card.types]
    lasting = rnd.random() < 0.5
    asks = [
        lambda: host.binding.plan_bind([gpu], persistent=lasting, with_group=True),
        lambda: host.binding.plan_unbind([gpu], persistent=lasting),
        lambda: host.vgpu.plan_vfs(gpu, rnd.choice([0, 1, 2, None]), persistent=lasting, foreign=True),
        lambda: host.vgpu.plan_create(rnd.choice(kinds or ["x"]), uuids=[rnd.choice(UUIDS)], persistent=lasting),
        lambda: host.vgpu.plan_remove([rnd.choice(host.vgpu.vgpus().instances).id], foreign=True),
    ]
    try:
        host.apply(rnd.choice(asks)())
    except (VfioctlError, IndexError):
        return
