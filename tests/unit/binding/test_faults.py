"""Bundled hosts, every GPU, each change: a fault, a death or a hang at each effect leaves *before* or *after*.

Effects are writes, persistence modes and services. What may fail is left out of *after*, and told.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import reduce
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import marks_of, memory
from tests.hosts.machines import (
    NAMES,
    STOPPABLE,
    copy,
    differing,
    effect,
    effects_of,
    in_use,
    machine,
    original,
    state,
    write_ledger,
)
from vfioctl.core.change import JournalState, Plan, Result, Step
from vfioctl.core.marks import MarkKind
from vfioctl.errors import DeviceInUse, KernelRefused, Stuck, Unfinished, VerifyError, VfioctlError
from vfioctl.host import Host
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel.protocol import EVERY_LINK, Directory, Prefixes
from vfioctl.kernel.recorded.tree import Tree
from vfioctl.kernel.simulated.faults import DIE, HANG, Fault, SimulatedDeath
from vfioctl.kernel.simulated.host import Simulated
from vfioctl.session import Session

ERRNOS = (errno.EACCES, errno.EBUSY, errno.EINVAL, errno.EIO, errno.ENODEV, errno.ENOMEM)
IN_USE = "in-use"
SCENES = (*(name for name in NAMES if name not in ("hgx8", "mi300x-vf")), IN_USE)
"""Those that are left out have changes as gh200 and mi300x have them."""
Make = Callable[[Host, PciAddress], Plan]


def to_vfio(host: Host, gpu: PciAddress) -> Plan:
    return host.binding.plan_bind((gpu,), with_group=True, allow_boot_vga=True, stop_services=STOPPABLE)


def and_back(host: Host, gpu: PciAddress) -> Plan:
    return host.binding.plan_unbind((gpu,))


def anew(host: Host, gpu: PciAddress) -> Plan:
    """A reset, by another method than the kernel's first where there is one, whoever has it open."""
    methods = host.inventory().by_address[gpu].reset_methods
    return host.binding.plan_reset(gpu, method=methods[-1] if methods else None, force_holders=True)


class Case:
    """One change of one GPU: how the host is before it, and the change."""

    def __init__(self, tree: Tree, gpu: PciAddress, ledger: Path, make: Make) -> None:
        self.tree, self.gpu, self.ledger, self.make = tree, gpu, ledger, make
        self.start = copy(tree)
        if make is and_back:
            host = machine(self.start, ledger)
            host.apply(to_vfio(host, gpu))
        self.saved = ledger.read_bytes() if ledger.exists() else None
        self.before = state(self.start)
        done = copy(self.start)
        host = machine(done, ledger)
        self.plan = make(host, gpu)
        result = host.apply(self.plan).result
        self.after = state(done)
        self.effects = effects_of(self.plan)
        self.twin = 0
        assert isinstance(host.session.kernel, Simulated)
        assert host.session.kernel.writes == [effect(step) for step in self.effects]
        assert state(self.walked()) == self.after
        # a host may have been recorded with a GPU on VFIO already
        assert result == (Result.DONE if self.effects else Result.NOTHING)
        assert (self.after != self.before) == (bool(self.effects) and make is not anew)

    @property
    def name(self) -> str:
        return f"{self.gpu} {self.make.__name__}"

    @property
    def shape(self) -> str:
        """What it does, whatever the device is called: a server's GPUs are twins."""
        names = {subject: f"function {number}" for number, subject in enumerate(self.plan.subjects)}
        text = " ".join(f"{step.action} {step.target} {step.value} {step.may_fail};" for step in self.plan.steps)
        return reduce(lambda known, name: known.replace(name, names[name]), names, text)

    @property
    def words(self) -> frozenset[str]:
        """Which files, modes and services it sets."""
        names = (step.target.rpartition("/")[2] for step in self.effects if step.target.startswith("/"))
        return frozenset((*names, *(step.action for step in self.effects)))

    def fresh(self) -> Tree:
        """The host and the ledger as before the change."""
        self.write_ledger(self.saved)
        return copy(self.start)

    def write_ledger(self, content: bytes | None) -> None:
        write_ledger(self.ledger, content)

    def host(self, tree: Tree, *faults: Fault) -> Host:
        return machine(tree, self.ledger, faults)

    def walked(self, without: Step | None = None) -> Tree:
        """The host after its steps were taken by hand, all but one."""
        kernel = Simulated(copy(self.start), "")
        for step in self.plan.steps:
            if step is without:
                continue
            if step.action == "load":
                kernel.load(step.target)
            elif step.action == "persistence":
                kernel.persist(step.target, on=step.value == "1")
            elif step.action == "service":
                kernel.set_unit(step.target, active=step.value == "active")
            elif step.action != "unheld":
                kernel.write(step.target, step.value)
        return kernel.tree

    def is_whole(self, tree: Tree) -> bool:
        """Whether the goal is reached, as far as facts tell: then recovery leaves it, otherwise it goes back."""
        silent = self.plan.changes_of("reset") or [c for c in self.plan.changes_of("persistence") if c.after != "0"]
        return not silent and not differing(state(tree), self.after)


def same(tree: Tree, expected: Mapping[str, Any], where: str) -> None:
    told = differing(state(tree), expected)
    assert told == [], where


@pytest.fixture(scope="module", params=SCENES)
def scene(request: pytest.FixtureRequest) -> Iterator[Sequence[Case]]:
    """All changes of one host's GPUs, made once for all tests. `twin` numbers those that do the same."""
    with memory() as folder:
        found = list(cases(request.param, folder))
        for number, case in enumerate(found):
            case.twin = sum(case.shape == other.shape for other in found[:number])
        assert found or request.param.startswith("iommu-")
        yield found


def cases(name: str, folder: Path) -> Iterator[Case]:
    tree = in_use() if name == IN_USE else original(name)
    gpus = machine(tree, folder / "none.db").inventory().numbered_gpus
    for gpu_name, gpu in gpus.items():
        for make in (to_vfio, and_back, anew):
            ledger = folder / f"{gpu_name}-{make.__name__}.db"
            try:
                case = Case(tree, gpu, ledger, make)
            except VfioctlError as error:
                assert error.exit_code in (3, 4), f"{name} {gpu}: {error}"  # noqa: PT017 - a refusal is a case as well
                continue
            if case.effects:
                yield case


def of_each_kind(scene: Sequence[Case]) -> list[Case]:
    """The shortest of those that take the same kinds of effects, however often."""
    longest_first = sorted(scene, key=lambda case: -len(case.effects))
    kinds = {(case.make, case.words): case for case in longest_first}
    return [*kinds.values()]


# -- an errno --------------------------------------------------------------------------------------------


def test_an_errno_at_each_effect_leaves_the_host_as_before_or_all_but_that_done(scene: Sequence[Case]) -> None:
    """Each errno for one of each set of twins, one of them for the others."""
    for case in scene:
        for at, step in enumerate(case.effects, start=1):
            for number in ERRNOS if case.twin == 0 else [ERRNOS[case.twin % len(ERRNOS)]]:
                (_goes_on if step.may_fail else _goes_back)(case, at, number)


def _goes_back(case: Case, at: int, number: int) -> None:
    tree = case.fresh()
    host = case.host(tree, Fault(at, "errno", number))
    with pytest.raises(KernelRefused) as caught:
        host.apply(case.plan)
    assert caught.value.errno == number
    assert caught.value.restored.endswith("put back as before"), f"{case.name} effect {at}"
    same(tree, case.before, f"{case.name} effect {at}")
    assert host.history()[0].state == JournalState.BACK
    assert host.recover() == ()


def _goes_on(case: Case, at: int, number: int) -> None:
    tree, step = case.fresh(), case.effects[at - 1]
    host = case.host(tree, Fault(at, "errno", number))
    with pytest.raises(VerifyError, match="but not everything was restored") as caught:
        host.apply(case.plan)
    path, _ = effect(step)
    assert path in caught.value.message
    assert errno.errorcode[number] in caught.value.message
    assert (caught.value.exit_code, caught.value.restored) == (6, "")
    assert caught.value.hint
    same(tree, state(case.walked(without=step)), f"{case.name} effect {at}")
    entry = host.history()[0]
    assert entry.state == JournalState.DONE
    assert path in entry.why
    assert host.recover() == ()


# -- a death ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("forward", [False, True])
def test_death_after_each_effect_is_recovered(scene: Sequence[Case], forward: bool) -> None:
    for case in scene:
        for at in range(1, len(case.effects) + 1):
            tree = case.fresh()
            _die_in(case, tree, at)
            heir = machine(tree, case.ledger)
            if case.twin == 0:
                _refuses_until_recovered(case, heir)
            whole = case.is_whole(tree)
            (outcome,) = heir.recover(forward=forward)
            same(tree, case.after if forward or whole else case.before, f"{case.name} death at {at}")
            assert outcome.result == (Result.COMPLETE if whole else Result.DONE if forward else Result.BACK)
            if case.plan.changes_of("reset") and forward:
                assert tree.properties[f"sim:{case.gpu}"]["resets"] in ("1", "2"), "that it was done, no fact tells"
            assert heir.recover() == ()


def test_death_during_recovery_is_recovered_too(scene: Sequence[Case]) -> None:
    """All pairs of deaths; of a long change, which repeats effects of the same kinds, those with every third first."""
    for case in of_each_kind(scene):
        last = len(case.effects) - 1
        for at in sorted({*range(1, last, 1 if last < 10 else 3), last} - {0}):
            dead = case.fresh()
            _die_in(case, dead, at)
            ledger = case.ledger.read_bytes()
            settled = case.after if case.is_whole(dead) else case.before
            for again in count(1):
                tree = copy(dead)
                case.write_ledger(ledger)
                try:
                    machine(tree, case.ledger, [Fault(again, DIE)]).recover()
                    break  # it has fewer effects than that
                except SimulatedDeath:
                    machine(tree, case.ledger).recover()
                same(tree, settled, f"{case.name} deaths at {at} and {again}")


def test_a_second_fault_on_the_way_back_is_stuck_and_recovered(scene: Sequence[Case]) -> None:
    """Or told, where it is a thing that may fail."""
    for case in scene:
        for at in (at for at, step in enumerate(case.effects, start=1) if at > 1 and not step.may_fail):
            tree = case.fresh()
            host = case.host(tree, Fault(at, "errno", errno.EIO), Fault(at + 1, "errno", errno.EBUSY))
            with pytest.raises(VfioctlError) as caught:
                host.apply(case.plan)
            if isinstance(caught.value, Stuck):
                assert host.history()[0].state == JournalState.STUCK
                settled = case.after if case.is_whole(tree) else case.before
                machine(tree, case.ledger).recover()
                same(tree, settled, f"{case.name} faults at {at}")
            else:
                assert "put back as before; but " in caught.value.restored
                assert host.history()[0].state == JournalState.BACK


def _die_in(case: Case, tree: Tree, at: int) -> None:
    host = case.host(tree, Fault(at, DIE))
    with pytest.raises(SimulatedDeath):
        host.apply(case.plan)
    assert host.history()[0].state == JournalState.OPEN


def _refuses_until_recovered(case: Case, host: Host) -> None:
    try:
        plan = case.make(host, case.gpu)
    except VfioctlError:
        return
    if not plan.nothing_to_do:
        with pytest.raises(Unfinished):
            host.apply(plan)


# -- a hang ----------------------------------------------------------------------------------------------


class Watched(Simulated):
    """A kernel that notes whose attributes are asked for that may block."""

    def __init__(self, tree: Tree) -> None:
        super().__init__(tree, "watched")
        self.asked: set[str] = set()

    def directory(self, path: str, wanted: Collection[str], links: Prefixes = EVERY_LINK) -> Directory:
        if "driver_override" in wanted:
            self.asked.add(path.rpartition("/")[2])
        return super().directory(path, wanted, links)


def test_a_hang_at_each_effect_is_told_marked_and_recovered(scene: Sequence[Case]) -> None:
    for case in scene:
        for at, step in enumerate(case.effects, start=1):
            tree = case.fresh()
            ticket = _hangs(case, tree, at)
            if step.action != "service":  # that it hangs is nothing against the device
                _shows_what_is_wedged(case, tree, step)
                _refuses_what_is_wedged(case, tree, step, ticket)
            Simulated(tree, "").release(ticket.removeprefix("sim:"))
            host = machine(tree, case.ledger)
            whole = case.is_whole(tree)
            (outcome,) = host.recover()
            same(tree, case.after if whole else case.before, f"{case.name} hang at {at}")
            assert outcome.result == (Result.COMPLETE if whole else Result.BACK)
            assert not marks_of(host)
            assert host.recover() == ()


def test_a_hang_ends_with_the_next_boot(scene: Sequence[Case]) -> None:
    for case in scene:
        for at in range(1, len(case.effects) + 1):
            _hangs(case, case.fresh(), at)
            booted = copy(case.tree)
            booted.put("/proc/sys/kernel/random/boot_id", "11111111-1111-1111-1111-111111111111")
            host = machine(booted, case.ledger)
            assert not marks_of(host)
            (outcome,) = host.recover()
            assert outcome.result == Result.REBOOTED
            assert host.history()[0].state == JournalState.REBOOTED
            assert state(booted) == state(case.tree)
            assert host.recover() == ()


def _hangs(case: Case, tree: Tree, at: int) -> str:
    """The change hangs there; gives the ticket of the write."""
    host, step = case.host(tree, Fault(at, HANG)), case.effects[at - 1]
    with pytest.raises(Stuck, match="did not return") as caught:
        host.apply(case.plan)
    assert caught.value.exit_code == 7
    assert caught.value.next_command == "vfioctl recover"
    assert not caught.value.restored
    assert host.history()[0].state == JournalState.STUCK
    assert isinstance(host.session.kernel, Simulated)
    assert host.session.kernel.writes[-1] == effect(step), "nothing more was tried"
    ticket = str(caught.value.facts["ticket"])
    found = {address: (mark.kind, mark.ticket) for address, mark in marks_of(host).items()}
    assert step.subject or step.action == "service", "each has one, but for a unit that is nobody's"
    assert found == ({step.subject: (MarkKind.WEDGED, ticket)} if step.subject else {})
    return ticket


def _shows_what_is_wedged(case: Case, tree: Tree, step: Step) -> None:
    address, kernel = PciAddress(step.subject), Watched(tree)
    found = Host(Session(kernel, case.ledger)).inventory()  # WouldBlock, if it asked what must not be asked
    function = found.by_address[address]
    assert function.mark is not None
    assert function.mark.kind == MarkKind.WEDGED
    assert "driver_override" in function.unknown
    assert kernel.asked == {other.address for other in found.functions} - {address}


def _refuses_what_is_wedged(case: Case, tree: Tree, step: Step, ticket: str) -> None:
    address, host = step.subject, machine(tree, case.ledger)
    assert address
    for plan in (
        lambda a: host.binding.plan_bind([a], with_group=True, allow_boot_vga=True),
        lambda a: host.binding.plan_unbind([a]),
        host.binding.plan_reset,
    )[: 3 if case.twin == 0 else 0]:
        with pytest.raises(DeviceInUse, match="is wedged: writing") as caught:
            plan(address)
        assert caught.value.next_command == "vfioctl recover"
    for forward in (False, True):
        with pytest.raises(Stuck) as still:
            host.recover(forward=forward)
        assert still.value.message.startswith(f"{address} is still wedged: ")
        assert still.value.next_command == f"vfioctl holders {address}"
        assert still.value.facts == {"ticket": ticket, "others": []}
        assert host.history()[0].state == JournalState.STUCK


def test_a_reboot_undoes_by_itself(fast_folder: Path) -> None:
    case = next(cases("workstation", fast_folder))
    tree = case.fresh()
    _die_in(case, tree, 2)
    tree = copy(original("workstation"))
    tree.put("/proc/sys/kernel/random/boot_id", "11111111-1111-1111-1111-111111111111")
    host = machine(tree, case.ledger)
    (outcome,) = host.recover()
    assert outcome.result == Result.REBOOTED
    assert state(tree) == state(original("workstation"))
    assert host.history()[0].state == JournalState.REBOOTED
