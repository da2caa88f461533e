"""Somebody else is faster between plan and write: what they made stays theirs, what they removed stays gone.

Our own part of the change is put back all the same.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hosts.machines import copy, effect
from tests.hosts.vgpu_machines import (
    LIMITER,
    MDEVS,
    OTHERS,
    UUIDS,
    XE,
    Case,
    create,
    differing,
    made_by,
    ours,
    remove_all,
    rows,
    unnumbered,
    vfs,
)
from vfioctl.core.change import JournalState, Plan, Result, Step
from vfioctl.errors import DeviceInUse, KernelRefused, NoCapacity, VfioctlError
from vfioctl.host import Host
from vfioctl.kernel.protocol import PCI_DEVICES
from vfioctl.kernel.recorded.tree import Tree
from vfioctl.kernel.simulated.faults import Fault
from vfioctl.kernel.simulated.host import Simulated
from vfioctl.session import Session
from vfioctl.vgpu.model.intents import CreateVgpuIntent
from vfioctl.vgpu.model.vgpu import FOREIGN

Deed = Callable[[Simulated], None]


class Raced(Simulated):
    """Just before some of our effects, by number, another process does something."""

    deeds: dict[int, Deed]

    def write(self, path: str, value: str) -> None:
        self._others()
        super().write(path, value)

    def _others(self) -> None:
        if deed := self.deeds.pop(len(self.writes) + 1, None):
            deed(Simulated(self.tree, "the other"))


class Race:
    """One change, and what another process does just before effect `at`."""

    def __init__(self, case: Case, at: int, deed: Deed, *faults: Fault) -> None:
        self.case, self.tree = case, case.fresh()
        kernel = Raced(self.tree, "simulated", faults=faults)
        kernel.deeds = {at: deed}
        self.host = Host(Session(kernel, case.ledger, settle=0.0, lock_wait=0.0))

    def loses(self) -> VfioctlError:
        with pytest.raises(VfioctlError) as caught:
            self.host.apply(self.case.plan)
        assert caught.value.restored.endswith("put back as before")
        assert self.host.history()[0].state == JournalState.BACK
        assert self.host.recover() == ()
        return caught.value

    def is_as_if_only(self, *deeds: Deed) -> None:
        """The host is as if only the other process had done something, and nothing of that is ours.

        Which group and node it got depends on what was there at that moment.
        """
        expected = copy(self.case.start)
        for deed in deeds:
            deed(Simulated(expected, "the other"))
        assert differing(unnumbered(self.tree), unnumbered(expected)) == []
        assert rows(self.host) == self.case.rows_before
        assert ours(self.host) <= set(self.case.rows_before)


def made_steps(case: Case) -> list[tuple[int, Step]]:
    return [(number, step) for number, step in enumerate(case.effects, start=1) if made_by(step)]


def owner(tree: Tree, ledger: Path, name: str) -> str:
    (found,) = (v for v in Host(Session(Simulated(tree, ""), ledger)).vgpu.vgpus().instances if v.id == name)
    return found.owner


@pytest.fixture
def three(request: pytest.FixtureRequest, fast_folder: Path) -> Case:
    """Three vGPUs that are made at once, with all that there may be about them."""
    host_name, kind, names = request.param
    parameters = () if host_name == "pool" else LIMITER
    ask = create(kind, names, count=3, parameters=parameters, persistent=True)
    return Case("three", fast_folder, host_name, ask)


MEDIATED = [("a2", "A2-4C", UUIDS[:3]), ("t4", "T4-4C", UUIDS[:3]), ("pool", "mbochs-medium", UUIDS[:3])]
VENDOR = [("l40s", "L40S-12Q", ())]


# -- a place is taken ------------------------------------------------------------------------------------


@pytest.mark.parametrize("three", MEDIATED, indirect=True)
def test_who_takes_our_uuid_keeps_it(three: Case) -> None:
    for at, step in made_steps(three):

        def take(other: Simulated, step: Step = step) -> None:
            other.write(step.target, step.value)

        race = Race(three, at, take)
        error = race.loses()
        assert isinstance(error, DeviceInUse)
        assert error.facts["errno"] == "EEXIST"
        race.is_as_if_only(take)
        assert owner(race.tree, three.ledger, step.value) == FOREIGN


@pytest.mark.parametrize("three", MEDIATED[:1], indirect=True)
def test_who_takes_our_vf_for_a_mediated_device_keeps_it(three: Case) -> None:
    for at, step in made_steps(three):

        def take(other: Simulated, step: Step = step) -> None:
            other.write(step.target, OTHERS)

        race = Race(three, at, take)
        error = race.loses()
        assert isinstance(error, NoCapacity)
        assert error.exit_code == 4
        race.is_as_if_only(take)
        assert owner(race.tree, three.ledger, OTHERS) == FOREIGN


@pytest.mark.parametrize("three", VENDOR, indirect=True)
@pytest.mark.parametrize("theirs", ["1153", "1163"], ids=["the same type", "another type"])
def test_who_takes_our_vf_keeps_it(three: Case, theirs: str) -> None:
    for at, step in made_steps(three):
        assert step.value == "1153"

        def take(other: Simulated, step: Step = step) -> None:
            other.write(step.target, theirs)

        race = Race(three, at, take)
        assert isinstance(race.loses(), NoCapacity)
        race.is_as_if_only(take)
        assert owner(race.tree, three.ledger, str(step.subject)) == FOREIGN


@pytest.mark.parametrize("three", VENDOR, indirect=True)
@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
def test_a_vf_that_we_had_not_come_to_yet_is_not_ours_either(three: Case, number: int) -> None:
    """The change fails at an earlier one; the VF has by then just what we would have given it."""
    steps = made_steps(three)
    for at, _ in steps[:-1]:
        for _, later in steps[at:]:

            def take(other: Simulated, step: Step = later) -> None:
                other.write(step.target, step.value)

            race = Race(three, at, take, Fault(at, "errno", number))
            race.loses()
            race.is_as_if_only(take)


@pytest.mark.parametrize("three", VENDOR, indirect=True)
def test_nor_is_it_after_an_interrupt(three: Case) -> None:
    steps = made_steps(three)
    _, last = steps[-1]

    def take(other: Simulated) -> None:
        other.write(last.target, last.value)
        raise KeyboardInterrupt

    race = Race(three, 2, take)
    with pytest.raises(KeyboardInterrupt):
        race.host.apply(three.plan)
    assert race.tree.files[race.tree.resolve(last.target)] == last.value
    _, first = steps[0]
    assert race.tree.files[race.tree.resolve(first.target)] == "0"
    assert rows(race.host) == {}


# -- the room is taken -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("three", "left"), [(MEDIATED[1], 0), (MEDIATED[2], 0)], indirect=["three"])
def test_who_takes_the_room_keeps_it(three: Case, left: int) -> None:
    """At the kth of three the others leave no room: those before it go again, and what is left is told."""
    for at, step in made_steps(three):

        def fill(other: Simulated, step: Step = step) -> None:
            for number in range(100):
                try:
                    other.write(step.target, f"0badcafe-0000-4000-8000-{number:012}")
                except KernelRefused as refused:
                    assert refused.symbol in ("EINVAL", "ENOSPC")  # noqa: PT017 - it is full
                    return

        race = Race(three, at, fill)
        error = race.loses()
        assert isinstance(error, NoCapacity)
        gone = [name for name in UUIDS[:3] if race.tree.exists(f"{MDEVS}/{name}")]
        assert gone == []
        theirs = [name for name in race.tree.directories[MDEVS] if name.startswith("0badcafe")]
        assert theirs
        assert f"room for {left + at - 1} more" in error.message, "what our own part has given back"
        assert rows(race.host) == {}


# -- it is gone already ----------------------------------------------------------------------------------


@pytest.mark.parametrize("three", MEDIATED, indirect=True)
def test_what_somebody_else_removed_is_not_made_again(three: Case, fast_folder: Path) -> None:
    name = three.name.split()[0]
    case = Case("remove", fast_folder, name, remove_all, lambda host: _again(host, three))
    removals = [(n, step) for n, step in enumerate(case.effects, start=1) if step.target.endswith("/remove")]
    assert len(removals) == 3
    for at, step in removals:

        def remove(other: Simulated, step: Step = step) -> None:
            other.write(*effect(step))

        race = Race(case, at, remove)
        assert race.host.apply(case.plan).result == Result.DONE
        case.as_after(race.tree, f"effect {at}")


def _again(host: Host, case: Case) -> Plan:
    asked = case.plan.intent
    assert isinstance(asked, CreateVgpuIntent)
    return host.vgpu.plan_create(
        asked.type, count=3, uuids=asked.uuids, parameters=asked.parameters, persistent=asked.persistent
    )


def test_a_vf_that_somebody_else_has_cleared_is_free_as_we_wanted(fast_folder: Path) -> None:
    case = Case("remove", fast_folder, "l40s", remove_all, create("L40S-12Q", count=2))
    step = case.effects[1]
    race = Race(case, 2, lambda other: other.write(*effect(step)))
    assert race.host.apply(case.plan).result == Result.DONE
    case.as_after(race.tree, "cleared by another")


# -- VFs -------------------------------------------------------------------------------------------------


def test_who_makes_other_vfs_keeps_them(fast_folder: Path) -> None:
    case = Case("set", fast_folder, "xe", vfs(XE, 2))
    home = f"{PCI_DEVICES}/{XE}"

    def three_of_them(other: Simulated) -> None:
        other.write(f"{home}/sriov_numvfs", "3")

    race = Race(case, 2, three_of_them)
    error = race.loses()
    assert isinstance(error, KernelRefused)
    assert error.symbol == "EBUSY"
    autoprobe = f"{home}/sriov_drivers_autoprobe"
    race.is_as_if_only(
        lambda other: other.write(autoprobe, "0"), three_of_them, lambda other: other.write(autoprobe, "1")
    )


def test_who_removes_the_vfs_on_their_way_to_another_count_changes_nothing(fast_folder: Path) -> None:
    case = Case("another", fast_folder, "xe", vfs(XE, 3), vfs(XE, 2))
    race = Race(case, 2, lambda other: other.write(f"{PCI_DEVICES}/{XE}/sriov_numvfs", "0"))
    assert race.host.apply(case.plan).result == Result.DONE
    case.as_after(race.tree, "no VFs meanwhile")
