"""Every bundled host, every GPU, bind and unbind: a fault or a death at each write leaves *before* or *after*."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.machines import NAMES, copy, machine, original, state
from vfioctl.errors import KernelRefused, NoIommu, Stuck, Unfinished, VfioctlError
from vfioctl.host import Host
from vfioctl.kernel.simulated.faults import DIE, HANG, Fault, SimulatedDeath
from vfioctl.kernel.tree import Tree
from vfioctl.model.change import JournalState, Plan, Result, StepKind
from vfioctl.model.values import PciAddress

ERRNOS = (errno.EACCES, errno.EBUSY, errno.EINVAL, errno.EIO, errno.ENODEV, errno.ENOMEM)
Make = Callable[[Host, PciAddress], Plan]


def to_vfio(host: Host, gpu: PciAddress) -> Plan:
    return host.plan_bind((gpu,), with_group=True, allow_boot_vga=True)


def and_back(host: Host, gpu: PciAddress) -> Plan:
    return host.plan_unbind((gpu,))


class Case:
    """One change of one GPU: how the host is before it, and the change."""

    def __init__(self, tree: Tree, gpu: PciAddress, ledger: Path, make: Make) -> None:
        self.gpu, self.ledger, self.make = gpu, ledger, make
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
        self.writes = sum(step.kind == StepKind.WRITE for step in self.plan.steps)
        # a host may have been recorded with a GPU on VFIO already
        assert (result, self.after != self.before) == ((Result.DONE, True) if self.writes else (Result.NOTHING, False))

    def fresh(self) -> Tree:
        """The host and the ledger as before the change."""
        for file in self.ledger.parent.glob(f"{self.ledger.name}*"):
            file.unlink()
        if self.saved is not None:
            self.ledger.write_bytes(self.saved)
        return copy(self.start)


def cases(name: str, folder: Path) -> Iterator[Case]:
    tree = original(name)
    gpus = machine(tree, folder / "none.db").inventory().numbered_gpus
    for gpu_name, gpu in gpus.items():
        for make in (to_vfio, and_back):
            ledger = folder / f"{gpu_name}-{make.__name__}.db"
            try:
                case = Case(tree, gpu, ledger, make)
            except (NoIommu, VfioctlError) as error:
                assert error.exit_code in (3, 4), f"{name} {gpu}: {error}"  # noqa: PT017 - a refusal is a case as well
                continue
            if case.writes:
                yield case


@pytest.mark.parametrize("name", NAMES)
def test_an_errno_at_each_write_leaves_the_host_as_before(name: str, fast_folder: Path) -> None:
    tried = 0
    for case in cases(name, fast_folder):
        for at in range(1, case.writes + 1):
            for number in ERRNOS:
                tried += 1
                tree = case.fresh()
                host = machine(tree, case.ledger, [Fault(at, "errno", number)])
                with pytest.raises(KernelRefused) as caught:
                    host.apply(case.make(host, case.gpu))
                assert caught.value.errno == number
                assert caught.value.restored
                assert state(tree) == case.before, f"{case.gpu} {case.make.__name__} write {at}"
                assert host.history()[0].state == JournalState.BACK
                assert host.recover() == ()
    assert tried or name.startswith("iommu-")


@pytest.mark.parametrize("forward", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_death_after_each_write_is_recovered(name: str, forward: bool, fast_folder: Path) -> None:  # noqa: FBT001 - pytest
    for case in cases(name, fast_folder):
        for at in range(1, case.writes + 1):
            tree = case.fresh()
            _die_in(case, tree, at)
            heir = machine(tree, case.ledger)
            _refuses_until_recovered(case, heir)
            (outcome,) = heir.recover(forward=forward)
            expected = case.after if forward or at == case.writes else case.before
            assert state(tree) == expected, f"{case.gpu} {case.make.__name__} death at {at}"
            assert outcome.result == (Result.DONE if expected is case.after else Result.BACK)
            assert heir.recover() == ()


@pytest.mark.parametrize("name", ["workstation", "hgx8"])
def test_death_during_recovery_is_recovered_too(name: str, fast_folder: Path) -> None:
    for case in cases(name, fast_folder):
        for at in range(1, case.writes):
            for again in range(1, case.writes):
                tree = case.fresh()
                _die_in(case, tree, at)
                try:
                    machine(tree, case.ledger, [Fault(again, DIE)]).recover()
                except SimulatedDeath:
                    machine(tree, case.ledger).recover()
                assert state(tree) == case.before, f"{case.gpu} {case.make.__name__} deaths at {at} and {again}"


@pytest.mark.parametrize("name", NAMES)
def test_a_second_fault_on_the_way_back_is_stuck_and_recovered(name: str, fast_folder: Path) -> None:
    for case in cases(name, fast_folder):
        for at in range(2, case.writes + 1):
            tree = case.fresh()
            host = machine(tree, case.ledger, [Fault(at, "errno", errno.EIO), Fault(at + 1, "errno", errno.EBUSY)])
            with pytest.raises(Stuck) as caught:
                host.apply(case.make(host, case.gpu))
            assert caught.value.exit_code == 7
            assert host.history()[0].state == JournalState.STUCK
            machine(tree, case.ledger).recover()
            assert state(tree) == case.before


@pytest.mark.parametrize("name", NAMES)
def test_a_write_that_never_returns_is_stuck_and_stays_in_the_journal(name: str, fast_folder: Path) -> None:
    for case in cases(name, fast_folder):
        for at in range(1, case.writes + 1):
            tree = case.fresh()
            host = machine(tree, case.ledger, [Fault(at, HANG)])
            with pytest.raises(Stuck):
                host.apply(case.make(host, case.gpu))
            assert host.history()[0].state == JournalState.STUCK
            _refuses_until_recovered(case, machine(tree, case.ledger))


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


def _die_in(case: Case, tree: Tree, at: int) -> None:
    host = machine(tree, case.ledger, [Fault(at, DIE)])
    with pytest.raises(SimulatedDeath):
        host.apply(case.make(host, case.gpu))
    assert host.history()[0].state == JournalState.OPEN


def _refuses_until_recovered(case: Case, host: Host) -> None:
    try:
        plan = case.make(host, case.gpu)
    except VfioctlError:
        return
    if not plan.nothing_to_do:
        with pytest.raises(Unfinished):
            host.apply(plan)
