"""What is free: never less than nothing, never more than a GPU has, whatever is bound, reserved and forgotten."""

from __future__ import annotations

import json
import time

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.unit.sharing.extender.api_server import node, pod
from vfioctl.sharing.extender import following
from vfioctl.sharing.extender.names import INDEX, SHARES, Unit
from vfioctl.sharing.extender.reading import Node, Pod, read_node, read_pod
from vfioctl.sharing.extender.table import SETTLED, Table

NODES = ("a", "b")
names = st.sampled_from([f"p{number}" for number in range(6)])
nodes = st.sampled_from(NODES)


def a_pod(name: str, *memories: int) -> Pod:
    found = read_pod(pod(name, *memories))
    assert found is not None
    return found


def a_node(name: str, gpus: int, each: int) -> Node:
    found = read_node(node(name, gpus, each), Unit.GIB)
    assert found is not None
    return found


class Bindings(RuleBasedStateMachine):
    """Pods are reserved, bound, seen and deleted in any order. A count by hand goes along."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.table = Table(lambda: self.now)
        self.held: dict[str, Pod] = {}
        for name in NODES:
            self.table.put_node(a_node(name, 2, 10))

    @rule(name=names, at=nodes, memories=st.lists(st.integers(1, 10), min_size=1, max_size=3))
    def reserve(self, name: str, at: str, memories: list[int]) -> None:
        if name in self.held:
            return
        new = a_pod(name, *memories)
        self.table.put_pod(new)
        if reserved := self.table.reserve(new, at):
            self.held[name] = reserved[0]

    @rule(name=names)
    def see_it_bound(self, name: str) -> None:
        if name in self.held:
            self.table.settle(self.held[name])
            self.table.put_pod(self.held[name])

    @rule(name=names)
    def bind(self, name: str) -> None:
        if name in self.held:
            self.table.bound(self.held[name])

    @rule(name=names)
    def see_an_older_state(self, name: str) -> None:
        if name in self.held:
            self.table.put_pod(self.held[name]._replace(node="", places={}))

    @rule(name=names)
    def refuse(self, name: str) -> None:
        if name in self.held and not (self.table.pod(f"uid-{name}") or self.held[name]).node:
            self.table.release(self.held[name])
            del self.held[name]

    @rule(name=names)
    def delete(self, name: str) -> None:
        self.table.drop_pod(f"uid-{name}")
        self.held.pop(name, None)

    @rule()
    def list_anew(self) -> None:
        self.now += 1
        found = [pod for n in list(self.held) if (pod := self.table.pod(f"uid-{n}"))]
        self.table.replace_pods(found, self.now)

    @invariant()
    def nothing_is_given_twice(self) -> None:
        for name in NODES:
            free = [10, 10]
            for held in self.held.values():
                for container in held.containers if held.node == name else ():
                    free[held.places[container.name].index] -= container.memory
            assert min(free) >= 0
            assert self.table.gpus([name])[0].free == tuple(free)


TestBindings = Bindings.TestCase
TestBindings.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


def reserved(table: Table, pod: Pod, node: str = "a") -> Pod:
    found = table.reserve(pod, node)
    assert found
    return found[0]


def test_a_binding_without_a_clear_result_is_waited_for_longer_than_a_watch_may_be_silent() -> None:
    """Until then a pod may be bound that the watch has not told of; after it nothing is bound."""
    now = [0.0]
    table = Table(lambda: now[0])
    table.put_node(a_node("a", 1, 10))
    placed = reserved(table, a_pod("p", 8))
    now[0] += 1000
    assert table.gpus(["a"])[0].free == (2,), "it is still being bound"
    table.settle(placed)
    now[0] += 1.5 * following.SILENT
    assert table.gpus(["a"])[0].free == (2,)
    now[0] += SETTLED
    assert table.gpus(["a"])[0].free == (10,)


def test_a_pod_that_was_bound_is_counted_for_ever() -> None:
    """Though the watch never tells of it, or tells of an older state."""
    now = [0.0]
    table = Table(lambda: now[0])
    table.put_node(a_node("a", 1, 10))
    table.bound(reserved(table, a_pod("p", 8)))
    table.put_pod(a_pod("p", 8))
    now[0] += 2 * SETTLED
    assert table.gpus(["a"])[0].free == (2,)
    table.drop_pod("uid-p")
    assert table.gpus(["a"])[0].free == (10,)


def test_a_pod_that_is_deleted_before_the_answer_to_its_binding_is_not_counted() -> None:
    table = Table()
    table.put_node(a_node("a", 1, 10))
    placed = reserved(table, a_pod("p", 8))
    table.drop_pod("uid-p")
    table.bound(placed)
    assert table.gpus(["a"])[0].free == (10,)


def test_requests_for_one_pod_do_not_end_each_others_reservation() -> None:
    now = [0.0]
    table = Table(lambda: now[0])
    table.put_node(a_node("a", 1, 10))
    table.put_node(a_node("b", 1, 10))
    first = reserved(table, a_pod("p", 8), "a")
    second = reserved(table, a_pod("p", 8), "b")
    table.release(first)
    table.settle(first)
    now[0] += 2 * SETTLED
    assert table.gpus(["b"])[0].free == (2,), "the second one is still being bound"
    table.bound(first)
    table.release(second)
    assert [gpus.free for gpus in table.gpus(["a", "b"])] == [(2,), (10,)]


def test_an_older_list_does_not_end_a_reservation() -> None:
    now = [0.0]
    table = Table(lambda: now[0])
    table.put_node(a_node("a", 1, 10))
    now[0] = 1.0
    placed = reserved(table, a_pod("p", 8))
    table.replace_pods([], 2.0)
    assert table.gpus(["a"])[0].free == (2,), "it is still being bound"
    table.bound(placed)
    table.replace_pods([a_pod("p", 8)], 0.5)
    assert table.gpus(["a"])[0].free == (2,), "it was listed before it was bound"
    table.replace_pods([], 0.5)
    assert table.gpus(["a"])[0].free == (2,), "it was created while others were listed"
    table.replace_pods([], 2.0)
    assert table.gpus(["a"])[0].free == (10,), "it is deleted"


def test_a_list_that_does_not_show_a_pod_as_bound_yet_does_not_end_its_reservation() -> None:
    """The answer to its binding was lost, and the API server may still carry it out."""
    table = Table(lambda: 1.0)
    table.put_node(a_node("a", 1, 10))
    table.settle(reserved(table, a_pod("p", 8)))
    table.replace_pods([a_pod("p", 8)], 2.0)
    assert table.gpus(["a"])[0].free == (2,)


def test_what_an_earlier_request_may_have_bound_is_not_given_to_others() -> None:
    """The scheduler tries a pod again, on another node or with another GPU, before anybody knows what came of it."""
    now = [0.0]
    table = Table(lambda: now[0])
    for name in ("a", "b"):
        table.put_node(a_node(name, 2, 10))
    first = reserved(table, a_pod("p", 8), "a")
    table.settle(first)
    assert table.reserve(a_pod("p", 8, 8, 8), "b") is None, "it does not fit"
    second = reserved(table, a_pod("p", 8), "b")
    assert [gpus.free for gpus in table.gpus(["a", "b"])] == [(2, 10), (2, 10)]
    again = reserved(table, a_pod("p", 8), "a")
    assert table.gpus(["a"])[0].free == (2, 10), "it has the GPU once, whichever of the two has bound it"
    table.release(again)
    assert table.gpus(["a"])[0].free == (2, 10)
    table.bound(second)
    assert [gpus.free for gpus in table.gpus(["a", "b"])] == [(10, 10), (2, 10)]


def test_the_owner_of_a_pod_cannot_make_it_count_for_nothing() -> None:
    table = Table()
    table.put_node(a_node("a", 2, 10))
    share = json.dumps({"c0": {"idx": 1, "mem": 8}})
    for written in ({SHARES: share}, {SHARES: "{}"}, {}, {INDEX: "0"}):
        found = read_pod(pod("p", 8, node="a", annotations=written))
        assert found
        table.put_pod(found)
        assert table.gpus(["a"])[0].free == (10, 2)
        table.replace_pods([found], time.monotonic())
        assert table.gpus(["a"])[0].free == (10, 2)


def test_a_pod_with_very_many_containers_has_no_room() -> None:
    table = Table()
    table.put_node(a_node("a", 2, 2001))
    assert table.reserve(a_pod("p", *[2] * 2001), "a") is None
    assert table.reserve(a_pod("q", *[2] * 200), "a")


def test_more_than_a_gpu_has_is_nothing_free() -> None:
    table = Table()
    table.put_node(a_node("a", 1, 10))
    for name in ("p", "q"):
        document = pod(name, 8, node="a", annotations={"ALIYUN_COM_GPU_MEM_IDX": "0"})
        found = read_pod(document)
        assert found
        table.put_pod(found)
    assert table.gpus(["a"])[0].free == (0,)
    table.drop_pod("uid-p")
    assert table.gpus(["a"])[0].free == (2,)
