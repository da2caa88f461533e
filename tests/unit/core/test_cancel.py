"""A change that its caller cancels ends after the step under way, and is put back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Event, Timer

import pytest

from tests.hosts.machines import copy, original, state
from vfioctl.core.change import JournalState, Plan, Result
from vfioctl.core.events import EventKind, StepEvent, check_stop
from vfioctl.errors import Cancelled, Stuck
from vfioctl.host import Host
from vfioctl.kernel.lock import held
from vfioctl.kernel.simulated.faults import HANG, Fault
from vfioctl.kernel.simulated.host import Simulated
from vfioctl.session import Session

GPU = "0000:0b:00.0"
IN_A_MOMENT, SOON = 0.2, 0.1 + 0.5
"""Seconds. A wait for the lock ends within a tenth of a second; a busy machine takes longer."""


class Changed:
    """A simulated workstation, and the plan to bind its card."""

    def __init__(self, folder: Path, *, faults: tuple[Fault, ...] = (), settle: float = 0.0) -> None:
        self.tree = copy(original("workstation"))
        self.before = state(self.tree)
        self.kernel = Simulated(self.tree, "simulated", faults=faults)
        self.host = Host(Session(self.kernel, folder / "x.db", settle=settle, lock_wait=30.0))
        self.plan: Plan = self.host.binding.plan_bind([GPU])
        self.events: list[StepEvent] = []

    def cancelled(self, cancel: Callable[[], bool]) -> Cancelled:
        with pytest.raises(Cancelled) as caught:
            self.host.apply(self.plan, progress=self.events.append, cancel=cancel)
        return caught.value

    def cancelled_at(self, moment: Callable[[StepEvent], bool]) -> Cancelled:
        return self.cancelled(lambda: any(map(moment, self.events)))


@pytest.fixture
def work(fast_folder: Path) -> Changed:
    return Changed(fast_folder)


def test_it_ends_after_the_step_under_way(fast_folder: Path) -> None:
    steps = len(Changed(fast_folder).plan.steps)
    for number in range(1, steps + 1):
        (fast_folder / str(number)).mkdir()
        work = Changed(fast_folder / str(number))
        error = work.cancelled_at(lambda event, n=number: event.kind == EventKind.BEGIN and event.number == n)  # type: ignore[misc]
        ends = [event.number for event in work.events if event.kind == EventKind.END]
        assert ends[number - 1] == number
        kinds = [event.kind for event in work.events[2 * number :]]
        assert kinds[0] == EventKind.ROLLBACK
        assert kinds[-1] == EventKind.CLOSED
        assert error.message == "cancelled"
        assert error.restored.endswith("put back as before")
        assert state(work.tree) == work.before, number
        (entry,) = work.host.history()
        assert (entry.state, entry.why) == (JournalState.BACK, "cancelled")


def test_it_ends_in_the_verification_before_that_is_over(fast_folder: Path) -> None:
    work = Changed(fast_folder, settle=30.0)
    apply, began = work.kernel.write, time.monotonic()

    def forgetful(path: str, value: str) -> None:
        """The driver never appears: the probe of the last step has no effect."""
        if not path.endswith("drivers_probe") or any(event.kind == EventKind.ROLLBACK for event in work.events):
            apply(path, value)

    work.kernel.write = forgetful  # type: ignore[method-assign]
    error = work.cancelled_at(lambda event: event.kind == EventKind.VERIFY)
    assert time.monotonic() - began < 10
    assert error.restored.endswith("put back as before")
    assert state(work.tree) == work.before


def test_before_the_first_step_nothing_is_changed_or_recorded(work: Changed) -> None:
    assert work.cancelled(lambda: True).restored == ""
    assert (work.kernel.writes, work.host.history()) == ([], ())


def test_once_it_is_verified_it_is_done(work: Changed) -> None:
    outcome = work.host.apply(
        work.plan,
        progress=work.events.append,
        cancel=lambda: any(event.kind == EventKind.CLOSED for event in work.events),
    )
    assert outcome.result == Result.DONE


def test_during_the_rollback_it_is_not_asked(work: Changed) -> None:
    asked: list[bool] = []

    def cancel() -> bool:
        asked.append(any(event.kind == EventKind.ROLLBACK for event in work.events))
        return any(event.kind == EventKind.BEGIN and event.number == 3 for event in work.events)

    work.cancelled(cancel)
    assert not any(asked)


def test_a_step_that_hangs_cannot_be_cancelled(fast_folder: Path) -> None:
    work = Changed(fast_folder, faults=(Fault(3, HANG),))
    with pytest.raises(Stuck):
        work.host.apply(
            work.plan, progress=work.events.append, cancel=lambda: any(e.kind == EventKind.FAILED for e in work.events)
        )
    assert work.host.history()[0].state == JournalState.STUCK


@contextmanager
def soon() -> Iterator[Event]:
    """An event that is set in a moment; what waits for it must end at once then."""
    stop, began = Event(), time.monotonic()
    timer = Timer(IN_A_MOMENT, stop.set)
    timer.start()
    yield stop
    assert IN_A_MOMENT <= time.monotonic() - began < IN_A_MOMENT + SOON
    timer.join()


def test_the_wait_for_the_lock_ends_at_once(work: Changed) -> None:
    with work.kernel.exclusive(work.host.session.store.lock_file, wait=0), soon() as stop:
        assert work.cancelled(stop.is_set).restored == ""
    assert (work.kernel.writes, work.host.history()) == ([], ())
    assert [event.kind for event in work.events] == [EventKind.LOCK]


def test_the_wait_for_another_process_ends_at_once(fast_folder: Path) -> None:
    lock = fast_folder / "lock"
    with (
        held(lock, wait=0),
        soon() as stop,
        pytest.raises(Cancelled),
        held(lock, wait=30, check=partial(check_stop, stop.is_set)),
    ):
        pytest.fail("held twice")
