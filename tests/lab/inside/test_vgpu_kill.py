"""SIGKILL at random moments while vGPUs are created and removed, each followed by recovery: all of them or none."""

import random
import time
from pathlib import Path

from tests.lab.inside import mdev
from tests.lab.inside.conftest import Load
from tests.lab.inside.test_kill import kill_after, seconds_of_two
from vfioctl.core.change import JournalState, Plan, Result
from vfioctl.host import Host

ROUNDS = 6
VGPUS = 6
CUT_SHORT_AT_LEAST = 2
MOST_ROUNDS = 5 * ROUNDS


def test_all_or_none_whenever_it_is_killed(load: Load, tmp_path: Path) -> None:
    load("mtty")
    host = Host.live(tmp_path / "ledger.db")
    theirs = mdev.create("mtty", "mtty-2")
    seconds_of_two(host, lambda: _next(host, theirs))  # the first imports
    span = seconds_of_two(host, lambda: _next(host, theirs)) / 2
    seed = time.time_ns()
    moments = random.Random(seed)
    recovered = finished = number = 0
    while number < ROUNDS or (recovered < CUT_SHORT_AT_LEAST and number < MOST_ROUNDS):
        number += 1
        plan = _next(host, theirs)
        kill_after(moments.uniform(0, span), host, plan)
        outcomes = host.recover()
        recovered += len(outcomes)
        assert all(outcome.result in (Result.COMPLETE, Result.BACK) for outcome in outcomes)
        there = mdev.instances()
        named = set(plan.subjects)
        assert there - {theirs} in (set(), named), f"round {number} of seed {seed}: {there}"
        assert theirs in there
        finished += ("remove" in plan.intent.verb) == (there == {theirs})
        assert not [e for e in host.history(most=1) if e.state in (JournalState.OPEN, JournalState.STUCK)]
        owners = {vgpu.id: vgpu.owner for vgpu in host.vgpu.vgpus().instances}
        assert owners == {theirs: "foreign"} | dict.fromkeys(there - {theirs}, "vfioctl")
    print(f"seed {seed}: {recovered} of {number} rounds were cut short and recovered, {finished} reached their goal")
    assert recovered >= CUT_SHORT_AT_LEAST, "the kills missed the changes"


def _next(host: Host, theirs: str) -> Plan:
    ours = mdev.instances() - {theirs}
    return host.vgpu.plan_remove(sorted(ours)) if ours else host.vgpu.plan_create("mtty-1", count=VGPUS)
