"""Fair shares in simulation: groups that always want the GPU get what their weights say, and none waits for ever."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vfioctl.sharing.fairness.deficit_rounds import LONGEST_FREEZE, PATIENCE, DeficitRounds
from vfioctl.sharing.fairness.gpus import FairShares

QUANTUM, MIN_RUN, TICK = 2.0, 1.0, 0.5
GPU, SECOND = "0000:41:00.0", "0000:42:00.0"


class Simulation:
    """One GPU whose time the groups that run share in some ratio, if they want it."""

    def __init__(self, weights: dict[str, float], greed: dict[str, float], tick: float = TICK) -> None:
        self.rounds = DeficitRounds(weights, quantum=QUANTUM, min_run=MIN_RUN)
        self.used = dict.fromkeys(weights, 0.0)
        self.frozen_for = dict.fromkeys(weights, 0.0)
        self.longest = dict.fromkeys(weights, 0.0)
        self.frozen: frozenset[str] = frozenset()
        self.greed, self.tick, self.busy, self.seconds = greed, tick, 0.0, 0.0

    def run(self, seconds: float, wants: dict[str, float] | None = None) -> None:
        """`wants`: the most that a group uses of the GPU; all by default."""
        for _ in range(int(seconds / self.tick)):
            used = self._used(wants or {})
            for group, seconds_used in used.items():
                self.used[group] += seconds_used
            self.busy += sum(used.values())
            self.seconds += self.tick
            self.frozen = self.rounds.tick(self.tick, used)
            for group in self.used:
                self.frozen_for[group] = self.frozen_for[group] + self.tick if group in self.frozen else 0.0
                self.longest[group] = max(self.longest[group], self.frozen_for[group])

    def _used(self, wants: dict[str, float]) -> dict[str, float]:
        """Those that want little get it, and the others share what is left."""
        running = {group: greed for group, greed in self.greed.items() if group not in self.frozen}
        little = {group: wants[group] for group in running if group in wants}
        left, whole = 1.0 - sum(little.values()), sum(running[group] for group in running if group not in little)
        return {
            group: self.tick * (little[group] if group in little else left * greed / whole)
            for group, greed in running.items()
        }

    def shares(self) -> dict[str, float]:
        return {group: used / sum(self.used.values()) for group, used in self.used.items()}


names = st.lists(st.sampled_from("abcdef"), min_size=2, max_size=6, unique=True)


@st.composite
def simulations(draw: st.DrawFn) -> Simulation:
    groups = draw(names)
    weights = {group: float(draw(st.integers(10, 400))) for group in groups}
    greed = {group: draw(st.floats(0.1, 10.0)) for group in groups}
    return Simulation(weights, greed, draw(st.sampled_from([1 / 6, 0.25, 0.5, 1.0])))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(simulations())
def test_long_run_shares_are_within_one_percent_of_the_weights(simulation: Simulation) -> None:
    simulation.run(3000)
    weights = simulation.rounds._weights
    whole = sum(weights.values())
    for group, share in simulation.shares().items():
        assert share == pytest.approx(weights[group] / whole, abs=0.01)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(simulations())
def test_no_group_starves_and_no_freeze_is_longer_than_its_bound(simulation: Simulation) -> None:
    simulation.run(600)
    for group, longest in simulation.longest.items():
        assert longest <= simulation.rounds.longest_freeze(group) + simulation.tick
        assert simulation.used[group] > 0


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(simulations())
def test_somebody_always_runs_when_all_want_the_gpu(simulation: Simulation) -> None:
    simulation.run(300)
    assert simulation.busy == pytest.approx(simulation.seconds)


@settings(max_examples=25, deadline=None)
@given(st.floats(0.01, 1.0), st.sampled_from("ab"))
def test_a_single_active_group_is_never_frozen(load: float, alone: str) -> None:
    rounds = DeficitRounds({"a": 1.0, "b": 1000.0}, quantum=QUANTUM, min_run=MIN_RUN)
    for _ in range(200):
        assert not rounds.tick(TICK, {alone: load * TICK})


def test_a_group_runs_for_the_minimum_time_after_each_thaw() -> None:
    simulation = Simulation({"a": 1.0, "b": 1.0}, {"a": 9.0, "b": 1.0}, tick=0.25)
    runs, length = [], 0.0
    for _ in range(2000):
        was = "a" in simulation.frozen
        simulation.run(0.25)
        if "a" not in simulation.frozen:
            length += 0.25
        elif not was:
            runs.append(length)
            length = 0.0
    assert len(runs) > 50
    assert min(runs) >= MIN_RUN


def test_an_idle_group_gets_no_credit_for_later() -> None:
    simulation = Simulation({"a": 1.0, "b": 1.0}, {"a": 1.0, "b": 1.0})
    simulation.run(600, {"b": 0.0})
    before = dict(simulation.used)
    assert before["b"] == 0.0
    simulation.run(600)
    gained = {group: used - before[group] for group, used in simulation.used.items()}
    assert gained["b"] == pytest.approx(gained["a"], rel=0.05)


def test_a_group_that_wants_little_does_not_idle_the_gpu() -> None:
    simulation = Simulation({"a": 1.0, "b": 1.0}, {"a": 1.0, "b": 1.0})
    simulation.run(1000, {"b": 0.05})
    assert simulation.busy / simulation.seconds > 0.9
    assert simulation.used["b"] > 0


def test_those_that_want_much_share_by_weight_beside_one_that_wants_little() -> None:
    simulation = Simulation({"a": 1.0, "b": 3.0, "c": 4.0}, {"a": 1.0, "b": 1.0, "c": 1.0})
    simulation.run(4000, {"c": 0.02})
    assert simulation.busy / simulation.seconds > 0.9
    assert simulation.used["b"] / simulation.used["a"] == pytest.approx(3.0, rel=0.15)


def test_when_the_others_stop_a_frozen_group_is_thawed() -> None:
    simulation = Simulation({"a": 1.0, "b": 1.0}, {"a": 9.0, "b": 1.0})
    while "a" not in simulation.frozen:
        simulation.run(TICK)
    simulation.run(2 * PATIENCE + 2, {"b": 0.0})
    assert not simulation.frozen


def test_a_debt_is_not_forgotten_by_a_pause() -> None:
    rounds = DeficitRounds({"a": 1.0, "b": 1.0}, quantum=QUANTUM, min_run=MIN_RUN)
    for _ in range(4):
        rounds.tick(TICK, {"a": 5.0, "b": 0.01})
    owed = rounds._standings["a"].deficit
    assert owed < 0
    for _ in range(int(PATIENCE / TICK) + 1):
        rounds.tick(TICK, {"b": 0.01})
    assert rounds._standings["a"].deficit <= 0


def test_what_cannot_be_frozen_is_not() -> None:
    rounds = DeficitRounds({"a": 1.0, "b": 1.0}, quantum=QUANTUM, min_run=MIN_RUN)
    for _ in range(100):
        assert "a" not in rounds.tick(TICK, {"a": 0.45, "b": 0.05}, fixed={"a"})


def test_what_a_group_used_while_it_could_not_be_frozen_is_not_held_against_it_for_ever() -> None:
    rounds, seconds = DeficitRounds({"a": 1.0, "b": 1.0}, quantum=QUANTUM, min_run=MIN_RUN), 0.0
    for _ in range(int(3600 / TICK)):
        rounds.tick(TICK, {"a": 0.9 * TICK, "b": 0.1 * TICK}, fixed={"a"})
    frozen: frozenset[str] = frozenset()
    for _ in range(int(120 / TICK)):
        used = {group: TICK / (2 - len(frozen)) for group in "ab" if group not in frozen}
        seconds += used.get("a", 0.0)
        frozen = rounds.tick(TICK, used)
    assert seconds > 40


@pytest.mark.parametrize("weights", [{"a": 1.0, "b": 1.0}, {"a": 1.0, "b": 10_000.0}])
def test_no_freeze_is_allowed_to_last_longer_than_a_minute(weights: dict[str, float]) -> None:
    rounds = DeficitRounds(weights, quantum=QUANTUM, min_run=MIN_RUN)
    rounds.tick(60.0, {"a": 30.0, "b": 30.0})  # the process stood still
    assert rounds.longest_freeze("a") <= LONGEST_FREEZE


class TestSeveralGpus:
    @staticmethod
    def shares() -> FairShares:
        return FairShares(lambda: DeficitRounds({"a": 1.0, "b": 1.0}, quantum=QUANTUM, min_run=MIN_RUN))

    def test_groups_on_different_gpus_do_not_compete(self) -> None:
        shares = self.shares()
        for _ in range(200):
            assert not shares.tick(TICK, {GPU: {"a": TICK}, SECOND: {"b": TICK}})

    def test_a_group_that_takes_too_much_of_one_is_frozen(self) -> None:
        shares = self.shares()
        frozen = [shares.tick(TICK, {GPU: {"a": 0.4, "b": 0.1}, SECOND: {"a": TICK}}) for _ in range(100)]
        assert any("a" in groups for groups in frozen)

    def test_two_that_wait_for_each_other_go_on(self) -> None:
        shares = self.shares()
        frozen: frozenset[str] = frozenset()
        used = dict.fromkeys("ab", 0.0)
        for _ in range(2000):
            first = {} if "a" in frozen else {"a": 0.9 * TICK}
            first |= {} if "b" in frozen else {"b": 0.1 * TICK}
            second = {} if "a" in frozen else {"a": 0.1 * TICK}
            second |= {} if "b" in frozen else {"b": 0.9 * TICK}
            for group in "ab":
                used[group] += first.get(group, 0.0) + second.get(group, 0.0)
            frozen = shares.tick(TICK, {GPU: first, SECOND: second})
        assert min(used.values()) > 0.2 * 2000 * TICK
