"""SIGKILL at random moments of real changes, each followed by recovery: the card is never left in between."""

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

from tests.lab.inside import pci
from tests.lab.inside.topology import Topology
from vfioctl.binding.model.binding import Binding
from vfioctl.core.change import JournalState, Plan, Result
from vfioctl.host import Host

ROUNDS = 6
CUT_SHORT_AT_LEAST = 2
State = tuple[tuple[str | None, str], ...]


def test_killed_six_times(tmp_path: Path, lab: Topology) -> None:
    host = Host.live(tmp_path / "ledger.db")
    native = _state(lab)
    seconds_of_two(host, lambda: _next(host, lab))  # the first loads modules
    span = seconds_of_two(host, lambda: _next(host, lab)) / 2
    seed = time.time_ns()
    moments = random.Random(seed)
    recovered = finished = 0
    for number in range(ROUNDS):
        before = _state(lab)
        plan = _next(host, lab)
        kill_after(moments.uniform(0, span), host, plan)
        outcomes = host.recover()
        recovered += len(outcomes)
        assert all(outcome.result in (Result.COMPLETE, Result.BACK) for outcome in outcomes)
        wanted = [Binding.parse(change.after) for change in plan.changes_of("binding")]
        goal = tuple((each.driver, each.driver_override or pci.NO_OVERRIDE) for each in wanted)
        assert _state(lab) in (before, goal), f"round {number} of seed {seed}: {_state(lab)}"
        finished += _state(lab) == goal
        assert not [e for e in host.history(most=1) if e.state in (JournalState.OPEN, JournalState.STUCK)]
    print(f"seed {seed}: {recovered} of {ROUNDS} rounds were cut short and recovered, {finished} reached their goal")
    assert not [e for e in host.history() if e.state in (JournalState.OPEN, JournalState.STUCK)]
    assert recovered >= CUT_SHORT_AT_LEAST, "the kills missed the changes"
    host.apply(host.binding.plan_unbind([lab.display]))
    assert _state(lab) == native


def _state(lab: Topology) -> State:
    return tuple((pci.driver_of(address), pci.attribute(address, "driver_override")) for address in lab.card)


def _next(host: Host, lab: Topology) -> Plan:
    if pci.driver_of(lab.display) == "vfio-pci":
        return host.binding.plan_unbind([lab.display])
    return host.binding.plan_bind([lab.display])


def seconds_of_two(host: Host, plan_next: Callable[[], Plan]) -> float:
    """What carrying out takes, without the planning: nothing is written then."""
    took = 0.0
    for _ in range(2):
        plan = plan_next()
        began = time.monotonic()
        host.apply(plan)
        took += time.monotonic() - began
    return took


def kill_after(seconds: float, host: Host, plan: Plan) -> None:
    """Carries a plan out in a child that is killed after so long."""
    child = os.fork()
    if child == 0:
        os.setsid()
        try:
            host.apply(plan)
        finally:
            os._exit(0)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
