"""Simulated hosts, each kind of change of vGPUs: a fault, a death, a hang or an interrupt at each effect.

It leaves *before* or *after*, in the host and in the ledger. What others made meanwhile stays theirs, see
test_taken.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

import pytest

from tests.conftest import marks_of, memory
from tests.hosts.machines import copy, effect, machine
from tests.hosts.vgpu_machines import (
    BOOT_ID,
    GIM,
    NEXT_BOOT,
    UUIDS,
    XE,
    Case,
    all_cases,
    beginning,
    create,
    differing,
    everything,
    is_nvidia,
    is_removal,
    kinds_of,
    made_by,
    ours,
    remove_all,
    rows,
    vfs,
)
from vfioctl.core.change import JournalState, Result, Step
from vfioctl.core.events import Progress, StepEvent
from vfioctl.core.marks import MarkKind
from vfioctl.errors import DeviceInUse, HostError, KernelRefused, NoCapacity, Stuck, Unfinished, VfioctlError
from vfioctl.host import Host
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel.recorded.tree import Tree
from vfioctl.kernel.simulated.faults import DIE, HANG, Fault, SimulatedDeath
from vfioctl.kernel.simulated.host import Simulated
from vfioctl.session import Session
from vfioctl.vgpu.model.report import vgpus_in
from vfioctl.vgpu.model.vgpu import OURS, VgpuState

HOSTS = ("a2", "l40s", "t4", "pool", "xe", "lab")
FULL = (errno.ENOSPC, errno.EUSERS)
NVIDIA_FULL = (*FULL, errno.EINVAL, errno.EIO, errno.EBUSY)
ERRNOS = (*NVIDIA_FULL, errno.ENODEV, errno.EACCES, errno.ENOENT, errno.ENOMEM)


@pytest.fixture(scope="module", params=HOSTS)
def scene(request: pytest.FixtureRequest) -> Iterator[Sequence[Case]]:
    """All changes on one host, made once for all tests."""
    with memory() as folder:
        yield list(all_cases(request.param, folder))


def of_each_kind(scene: Sequence[Case]) -> list[Case]:
    """The shortest of those that have the same kinds of effects."""
    longest_first = sorted(scene, key=lambda case: -len(case.effects))
    return [*{kinds_of(case): case for case in longest_first}.values()]


def numbers_for(at: int) -> Sequence[int]:
    """All errnos for the first effect of a change, in turn for the rest."""
    return ERRNOS if at == 1 else [ERRNOS[at % len(ERRNOS)]]


# -- an errno --------------------------------------------------------------------------------------------


def test_an_errno_at_each_effect_leaves_the_host_as_before(scene: Sequence[Case]) -> None:
    for case in scene:
        for at, step in enumerate(case.effects, start=1):
            for number in numbers_for(at):
                _goes_back(case, at, step, number)


def _goes_back(case: Case, at: int, step: Step, number: int) -> None:
    tree = case.fresh()
    host = case.host(tree, Fault(at, "errno", number))
    with pytest.raises(VfioctlError) as caught:
        host.apply(case.plan)
    error, name = caught.value, errno.errorcode[number]
    where = f"{name} at {at}"
    if made_by(step) and number in (NVIDIA_FULL if is_nvidia(step) else FULL):
        assert isinstance(error, NoCapacity), where
        assert error.exit_code == 4
        assert "room for" in error.message
        assert " more" in error.message, "what is left"
        assert error.kernel_said.startswith(f"{name}: ")
    elif step.target.endswith("/current_vgpu_type") and step.value == "0" and name in ("EBUSY", "EPERM"):
        assert isinstance(error, DeviceInUse), where
        assert error.kernel_said.startswith(f"{name}: ")
    else:
        assert isinstance(error, KernelRefused), f"{case.name}: {where}: {error!r}"
        assert (error.exit_code, error.errno, error.path) == (5, number, effect(step)[0])
    assert "put back as before" in error.restored
    case.as_before(tree, where)
    if number == numbers_for(at)[0]:
        assert ours(host) == case.ours_before
    assert host.history()[0].state == JournalState.BACK
    assert host.recover() == ()


def test_a_second_fault_on_the_way_back_is_stuck_and_recovered(scene: Sequence[Case]) -> None:
    for case in scene:
        for at in range(2, len(case.effects) + 1):
            tree = case.fresh()
            host = case.host(tree, Fault(at, "errno", errno.EACCES), Fault(at + 1, "errno", errno.EBUSY))
            with pytest.raises(Stuck, match="and the rollback failed") as caught:
                host.apply(case.plan)
            assert caught.value.next_command == "vfioctl recover"
            assert host.history()[0].state == JournalState.STUCK
            machine(tree, case.ledger).recover()
            case.as_before(tree, f"faults at {at}")


# -- a death ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("forward", [False, True])
def test_death_after_each_effect_is_recovered(scene: Sequence[Case], forward: bool) -> None:
    for case in scene:
        for at in range(1, len(case.effects) + 1):
            tree = case.fresh()
            _die_in(case, tree, at)
            heir = machine(tree, case.ledger)
            with pytest.raises(Unfinished):
                heir.apply(case.plan)
            (outcome,) = heir.recover(forward=forward)
            done = forward or case.is_done(at)
            (case.as_after if done else case.as_before)(tree, f"death at {at}")
            whole = case.is_done(at)
            assert outcome.result == (Result.COMPLETE if whole else Result.DONE if forward else Result.BACK)
            assert ours(heir) == (case.ours_after if done else case.ours_before)
            found = everything(tree)
            assert machine(tree, case.ledger).recover(forward=forward) == ()
            assert everything(tree) == found


def test_death_during_recovery_is_recovered_too(scene: Sequence[Case]) -> None:
    for case in of_each_kind(scene):
        for at in range(1, len(case.effects)):
            dead = case.fresh()
            _die_in(case, dead, at)
            ledger = case.ledger.read_bytes()
            for again in count(1):
                tree = copy(dead)
                case.write_ledger(ledger)
                try:
                    machine(tree, case.ledger, [Fault(again, DIE)]).recover()
                    break  # it has fewer effects than that
                except SimulatedDeath:
                    machine(tree, case.ledger).recover()
                case.as_before(tree, f"deaths at {at} and {again}")


def test_an_errno_during_recovery_stays_recoverable(scene: Sequence[Case]) -> None:
    for case in of_each_kind(scene):
        for at in range(1, len(case.effects)):
            tree = case.fresh()
            _die_in(case, tree, at)
            with pytest.raises(Stuck, match="could not be finished"):
                machine(tree, case.ledger, [Fault(1, "errno", errno.EIO)]).recover()
            (outcome,) = machine(tree, case.ledger).recover()
            assert outcome.result == Result.BACK
            case.as_before(tree, f"death at {at}")


def _die_in(case: Case, tree: Tree, at: int) -> None:
    host = case.host(tree, Fault(at, DIE))
    with pytest.raises(SimulatedDeath):
        host.apply(case.plan)
    assert host.history()[0].state == JournalState.OPEN


# -- an interrupt ----------------------------------------------------------------------------------------


def test_an_interrupt_between_steps_puts_everything_back(scene: Sequence[Case]) -> None:
    for case in scene:
        for at in range(1, len(case.plan.steps) + 1):
            tree = case.fresh()
            host = case.host(tree)
            with pytest.raises(KeyboardInterrupt) as caught:
                host.apply(case.plan, progress=_interrupting(at))
            assert getattr(caught.value, "restored", "").endswith("put back as before")
            case.as_before(tree, f"interrupted before step {at}")
            assert host.history()[0].state == JournalState.BACK
            assert host.recover() == ()


def _interrupting(at: int) -> Progress:
    """An interrupt that comes just before that step, once."""
    over: list[int] = []

    def interrupt(event: StepEvent) -> None:
        if event.number == at and not over:
            over.append(at)
            raise KeyboardInterrupt

    return interrupt


class Interrupted(Simulated):
    """An interrupt comes in the middle of an effect, which has its effect all the same."""

    moment = 0

    def write(self, path: str, value: str) -> None:
        super().write(path, value)
        self._perhaps()

    def replace_file(self, path: str, text: str | None) -> None:
        super().replace_file(path, text)
        self._perhaps()

    def manage_vfs(self, address: str, *, on: bool) -> str:
        said = super().manage_vfs(address, on=on)
        self._perhaps()
        return said

    def _perhaps(self) -> None:
        if len(self.writes) == self.moment:
            raise KeyboardInterrupt


def test_an_interrupt_in_an_effect_puts_that_back_too(scene: Sequence[Case]) -> None:
    for case in scene:
        for at in range(1, len(case.effects) + 1):
            tree = case.fresh()
            kernel = Interrupted(tree, "simulated")
            kernel.moment = at
            host = Host(Session(kernel, case.ledger, settle=0.0, lock_wait=0.0))
            with pytest.raises(KeyboardInterrupt):
                host.apply(case.plan)
            case.as_before(tree, f"interrupted in {at}")
            assert host.history()[0].state == JournalState.BACK


def test_vfs_that_come_back_find_the_drivers_that_they_had(fast_folder: Path) -> None:
    """And no others: of those that had none see the changes called `off` above."""
    names = ["0000:03:00.1", "0000:03:00.2"]
    case = Case("off-driven", fast_folder, "xe", vfs(XE, 0), vfs(XE, 2), lambda host: host.binding.plan_unbind(names))
    assert all(machine(case.start, case.ledger).inventory().by_address[PciAddress(n)].driver == "xe" for n in names)
    tree = case.fresh()
    kernel = Interrupted(tree, "simulated")
    kernel.moment = len(case.effects)
    with pytest.raises(KeyboardInterrupt):
        Host(Session(kernel, case.ledger, settle=0.0, lock_wait=0.0)).apply(case.plan)
    case.as_before(tree, "interrupted")


# -- a hang ----------------------------------------------------------------------------------------------


def test_a_hang_at_each_effect_is_told_marked_and_recovered(scene: Sequence[Case]) -> None:
    for case in scene:
        for at, step in enumerate(case.effects, start=1):
            tree = case.fresh()
            ticket = _hangs(case, tree, at)
            _stays_wedged(case, tree, step, ticket)
            Simulated(tree, "").release(ticket.removeprefix("sim:"))
            host = machine(tree, case.ledger)
            (outcome,) = host.recover()
            # what was given up may never have done anything; a write to the kernel that returned has
            done = case.is_done(at if step.action == "write" else at - 1)
            (case.as_after if done else case.as_before)(tree, f"hang at {at}")
            assert outcome.result == (Result.COMPLETE if done else Result.BACK)
            assert ours(host) == (case.ours_after if done else case.ours_before)
            assert not marks_of(host)
            assert host.recover() == ()


def _hangs(case: Case, tree: Tree, at: int) -> str:
    """The change hangs there; gives the ticket of the write."""
    host, step = case.host(tree, Fault(at, HANG)), case.effects[at - 1]
    with pytest.raises(Stuck, match="did not return") as caught:
        host.apply(case.plan)
    assert (caught.value.exit_code, caught.value.next_command) == (7, "vfioctl recover")
    assert not caught.value.restored
    assert host.history()[0].state == JournalState.STUCK
    assert isinstance(host.session.kernel, Simulated)
    assert host.session.kernel.writes[-1] == effect(step), "nothing more was tried"
    ticket = str(caught.value.facts["ticket"])
    found = {subject: (mark.kind, mark.ticket) for subject, mark in marks_of(host).items()}
    assert found == {step.subject: (MarkKind.WEDGED, ticket)}
    return ticket


def _stays_wedged(case: Case, tree: Tree, step: Step, ticket: str) -> None:
    host = machine(tree, case.ledger)
    hidden = {v.id: v for v in host.vgpu.vgpus().instances if v.state in (VgpuState.ZOMBIE, VgpuState.WEDGED)}
    if is_removal(step) or made_by(step):
        (vgpu_,) = hidden.values()
        place, _ = {**case.rows_before, **case.rows_after}[vgpu_.id]
        assert vgpu_.id == step.subject
        assert (f"{vgpu_.parent}/{vgpu_.type}", vgpu_.owner) == (place, OURS)
        assert (vgpu_.state is VgpuState.ZOMBIE) == step.target.endswith("/remove")
        with pytest.raises(DeviceInUse):
            host.vgpu.plan_remove([vgpu_.id])
    else:
        assert set(hidden) <= {step.subject}, "of a VF nothing is asked then"
    for forward in (False, True):
        with pytest.raises(Stuck) as still:
            host.recover(forward=forward)
        assert still.value.message.startswith(f"{step.subject} is still wedged: ")
        assert still.value.facts == {"ticket": ticket, "others": []}
        assert host.history()[0].state == JournalState.STUCK


@pytest.mark.parametrize(
    ("name", "kind", "mine"),
    [
        ("a2", "A2-4C", UUIDS[:2]),
        ("t4", "T4-4C", UUIDS[:2]),
        ("pool", "mbochs-medium", UUIDS[:2]),
        ("l40s", "L40S-12Q", ()),
    ],
)
def test_beside_one_whose_removal_hangs_others_can_be_made_and_removed(
    fast_folder: Path, name: str, kind: str, mine: tuple[str, ...]
) -> None:
    case = Case("remove-one", fast_folder, name, remove_all, create(kind, mine))
    tree = case.fresh()
    ticket = _hangs(case, tree, len(case.effects))
    host = machine(tree, case.ledger)
    outcome = host.apply(host.vgpu.plan_create(kind, uuids=UUIDS[5:6] if mine else ()))
    (made,) = vgpus_in(outcome.report)
    hidden = {vgpu.id for vgpu in host.vgpu.vgpus().instances if vgpu.state is VgpuState.ZOMBIE}
    assert hidden == ({mine[0]} if mine else set())
    assert made.id not in hidden
    found = {vgpu.id: vgpu for vgpu in host.vgpu.vgpus().instances}
    assert found[made.id].owner == OURS
    other = machine(tree, case.ledger)
    other.apply(other.vgpu.plan_create(kind, uuids=UUIDS[6:7] if mine else ()))
    other.apply(other.vgpu.plan_remove([made.id]))
    Simulated(tree, "").release(ticket.removeprefix("sim:"))
    (finished,) = machine(tree, case.ledger).recover()
    assert finished.result == Result.COMPLETE
    left = machine(tree, case.ledger)
    assert len(ours(left)) == 1, "the second that was made meanwhile"
    assert ours(left) == set(rows(left))


def test_a_hang_ends_with_the_next_boot(scene: Sequence[Case]) -> None:
    """vGPUs and VFs have gone by then; files below /etc have not, and are put back."""
    for case in of_each_kind(scene):
        for at in range(1, len(case.effects) + 1):
            hung = case.fresh()
            _hangs(case, hung, at)
            _is_as_after_a_boot(case, hung, f"hang at {at}")


# -- a reboot --------------------------------------------------------------------------------------------


def test_a_reboot_undoes_what_was_cut_short_and_puts_definitions_back(scene: Sequence[Case]) -> None:
    for case in scene:
        for at in range(1, len(case.effects) + 1):
            dead = case.fresh()
            _die_in(case, dead, at)
            _is_as_after_a_boot(case, dead, f"death at {at}")


def _is_as_after_a_boot(case: Case, cut: Tree, where: str) -> None:
    tree = booted(case.tree_of_boot, cut)
    host = machine(tree, case.ledger)
    assert not marks_of(host)
    (outcome,) = host.recover()
    assert outcome.result == Result.REBOOTED
    assert host.history()[0].state == JournalState.REBOOTED
    expected = everything(booted(case.tree_of_boot, case.start))
    assert differing(everything(tree), expected) == [], f"{case.name}, {where}"
    named = {name: row for name, row in case.rows_before.items() if row[1] and name.count("-") == 4}
    assert rows(host) == named, "an address is anybody's again"
    assert host.recover() == ()


def booted(fresh: Tree, before: Tree) -> Tree:
    """The host after a boot: what it is without vGPUs, with the files of /etc that there were."""
    tree = copy(fresh)
    tree.put(BOOT_ID, NEXT_BOOT)
    for path, text in before.files.items():
        if path.startswith("/etc/"):
            tree.put(path, text)
    return tree


# -- what is refused before anything ---------------------------------------------------------------------


def test_vfs_that_a_driver_makes_by_itself_are_never_touched(fast_folder: Path) -> None:
    tree = copy(beginning("mi300x-vf"))
    host, before = machine(tree, fast_folder / "x.db"), everything(tree)
    for wanted in (0, 4):
        with pytest.raises(HostError, match="gim creates its VFs when it is loaded"):
            host.vgpu.plan_vfs(GIM, wanted, foreign=True)
    assert everything(tree) == before
    assert host.history() == ()


def test_is_about_what_it_says(scene: Sequence[Case]) -> None:
    """Each host has changes that make and that unmake, of one effect and of several."""
    steps = [step for case in scene for step in case.effects]
    assert {len(case.effects) > 1 for case in scene} == {True, False}
    assert any(made_by(step) or step.target.endswith("/sriov_numvfs") for step in steps)
    assert any(is_removal(step) or (step.target.endswith("/sriov_numvfs") and step.value == "0") for step in steps)
    assert any(step.action == "file" for step in steps)
