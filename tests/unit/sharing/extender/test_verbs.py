"""filter, prioritize and bind, as kube-scheduler asks for them over HTTP."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from tests.unit.sharing.extender.api_server import ApiServer, hanging, node, once, pod
from tests.unit.sharing.extender.conftest import Scheduler, Start
from tests.unit.sharing.extender.schema import check, in_lower_case
from vfioctl.sharing.extender import cluster, table
from vfioctl.sharing.extender.names import (
    ALLOCATION,
    ASSIGNED,
    ASSUMED,
    INDEX,
    MEMORY,
    OF_CONTAINER,
    OF_GPU,
    OF_POD,
    SHARES,
)


class TestFilter:
    @pytest.fixture
    def scheduler(self, api: ApiServer, start: Start) -> Scheduler:
        api.put("nodes", node("full", 2, 16))
        api.put("nodes", node("small", 8, 8))
        api.put("nodes", node("free", 2, 16))
        api.put("nodes", node("none", 0, 0))
        for name, index in (("a", 0), ("b", 1)):
            api.put("pods", pod(name, 10, node="full", annotations={INDEX: str(index)}))
        return start()

    def test_nodes_with_room_are_kept_and_the_others_have_a_reason(self, scheduler: Scheduler) -> None:
        answer = scheduler.filter(pod("new", 12), "full", "small", "free", "none", "unknown")
        assert answer["NodeNames"] == ["free"]
        assert answer["FailedNodes"] == {
            "full": "container c0 asks for 12 GiB, and the most that is free of one GPU is 6 GiB"
        }
        assert answer["FailedAndUnresolvableNodes"] == {
            "small": "container c0 asks for 12 GiB, and its largest GPU has 8 GiB",
            "none": f"it has no GPUs to share: it reports no {MEMORY}",
            "unknown": f"it has no GPUs to share: it reports no {MEMORY}",
        }
        assert (answer["Nodes"], answer["Error"]) == (None, "")

    def test_containers_that_do_not_fit_together(self, scheduler: Scheduler) -> None:
        answer = scheduler.filter(pod("new", 6, 6, 2), "full")
        words = "the containers (6 + 6 + 2 GiB) do not fit into what is free of its GPUs, 12 GiB in all"
        assert answer["FailedNodes"] == {"full": words}

    def test_whole_nodes_are_answered_with_whole_nodes(self, scheduler: Scheduler) -> None:
        """Without nodeCacheCapable. They are newer than what was watched."""
        items = [node("full", 2, 16), node("small", 1, 64), node("free", 2, 8)]
        arguments: dict[str, Any] = {"Pod": pod("new", 12), "Nodes": {"metadata": {}, "items": items}}
        arguments["NodeNames"] = None
        check(arguments, "ExtenderArgs")
        answer = scheduler.message("filter", arguments, "ExtenderFilterResult")
        assert answer["Nodes"]["items"] == [items[1]]
        assert answer["NodeNames"] is None
        assert answer["FailedNodes"].keys() == {"full"}
        assert answer["FailedAndUnresolvableNodes"].keys() == {"free"}

    def test_names_in_lower_case_are_read(self, scheduler: Scheduler) -> None:
        arguments = in_lower_case({"Pod": pod("new", 12), "NodeNames": ["full", "free"]})
        assert scheduler.message("filter", arguments, "ExtenderFilterResult")["NodeNames"] == ["free"]

    def test_a_pod_that_asks_for_nothing_fits_everywhere(self, scheduler: Scheduler) -> None:
        assert scheduler.filter(pod("new"), "full", "unknown")["NodeNames"] == ["full", "unknown"]

    @pytest.mark.parametrize("part", ["Pod", "Nodes", "NodeNames"])
    def test_null_and_missing_are_nothing(self, scheduler: Scheduler, part: str) -> None:
        arguments: dict[str, Any] = {"Pod": pod("new", 1), "Nodes": None, "NodeNames": ["free"]}
        scheduler.message("filter", {**arguments, part: None}, "ExtenderFilterResult")
        del arguments[part]
        scheduler.message("filter", arguments, "ExtenderFilterResult")

    def test_its_own_reservation_is_not_in_its_way(self, api: ApiServer, scheduler: Scheduler) -> None:
        new = pod("new", 16, 16)
        api.put("pods", new)
        api.faults.append(once("POST", "/binding", 500))
        assert "500" in scheduler.bind(new, "free")
        assert scheduler.filter(new, "free")["NodeNames"] == ["free"]
        assert scheduler.filter(pod("other", 16), "free")["NodeNames"] == [], "it may be bound"
        assert scheduler.bind(new, "free") == ""


class TestPrioritize:
    def test_the_less_is_left_the_higher_is_the_score(self, api: ApiServer, start: Start) -> None:
        api.put("nodes", node("empty", 2, 16))
        api.put("nodes", node("fuller", 2, 16))
        api.put("nodes", node("exact", 2, 16))
        api.put("pods", pod("a", 6, node="fuller", annotations={INDEX: "1"}))
        api.put("pods", pod("b", 8, node="exact", annotations={INDEX: "0"}))
        scores = start().scores(pod("new", 8), "empty", "fuller", "exact", "unknown")
        assert scores == {"empty": 5, "fuller": 9, "exact": 10, "unknown": 0}

    def test_of_a_pod_that_asks_for_nothing(self, start: Start) -> None:
        assert start().scores(pod("new"), "a", "b") == {"a": 0, "b": 0}


class TestBind:
    @pytest.fixture
    def scheduler(self, api: ApiServer, start: Start) -> Scheduler:
        api.put("nodes", node("n", 2, 16))
        return start()

    def test_annotations_and_node_are_set_in_one_request(self, api: ApiServer, scheduler: Scheduler) -> None:
        scheduler.place(pod("a", 10, annotations={"kept": "yes", INDEX: "7"}), "n")
        bound = api.pod("a")
        annotations = bound["metadata"]["annotations"]
        assert bound["spec"]["nodeName"] == "n"
        assert int(annotations.pop(ASSUMED)) > 1_700_000_000 * 10**9
        assert annotations == {
            "kept": "yes",
            SHARES: '{"c0":{"idx":0,"mem":10}}',
            ALLOCATION: '{"0":{"0":10}}',
            INDEX: "0",
            OF_POD: "10",
            OF_CONTAINER: "10",
            OF_GPU: "16",
            ASSIGNED: "false",
        }
        assert api.count("PATCH", "") == 0
        assert api.count("POST", "/binding") == 1

    def test_no_room(self, api: ApiServer, scheduler: Scheduler) -> None:
        api.put("pods", pod("a", 17))
        error = scheduler.bind(pod("a", 17), "n")
        assert error == "node n: container c0 asks for 17 GiB, and its largest GPU has 16 GiB"
        assert api.count("POST", "/binding") == 0

    def test_a_pod_that_is_not_there(self, scheduler: Scheduler) -> None:
        assert scheduler.bind(pod("a", 8), "n") == "there is no such pod"

    def test_another_pod_of_that_name(self, api: ApiServer, scheduler: Scheduler) -> None:
        api.put("pods", pod("a", 8, uid="new"))
        assert scheduler.bind(pod("a", 8, uid="old"), "n") == "there is another pod ml/a now"

    def test_one_that_asks_for_nothing(self, api: ApiServer, scheduler: Scheduler) -> None:
        api.put("pods", pod("a"))
        assert scheduler.bind(pod("a"), "n") == f"it asks for no {MEMORY}, or has ended"

    def test_a_conflict_is_retried_once(self, api: ApiServer, scheduler: Scheduler) -> None:
        api.put("pods", pod("a", 8))
        api.faults.append(once("POST", "/binding", 409))
        assert scheduler.bind(pod("a", 8), "n") == ""
        api.put("pods", pod("b", 8))
        api.faults += [once("POST", "/binding", 409)] * 2
        assert scheduler.bind(pod("b", 8), "n") == "the API server answers 409: for a test"
        assert scheduler.filter(pod("c", 16), "n")["NodeNames"] == ["n"], "what was reserved is free again"

    def test_one_that_somebody_else_has_bound_meanwhile(self, api: ApiServer, scheduler: Scheduler) -> None:
        api.put("pods", pod("a", 8))

        def bound() -> None:
            api.put("pods", pod("a", 8, node="other"))

        api.faults.append(once("POST", "/binding", 409, after=bound))
        assert scheduler.bind(pod("a", 8), "n") == "the API server answers 409: for a test"

    def test_one_that_an_earlier_request_has_bound(self, api: ApiServer, scheduler: Scheduler) -> None:
        """Its answer was lost. The GPU is the one of its annotations, not of this request."""
        api.put("pods", pod("a", 8))

        def bound() -> None:
            api.put("pods", pod("a", 8, node="n", annotations={INDEX: "1"}))

        api.faults.append(once("POST", "/binding", 409, after=bound))
        assert scheduler.bind(pod("a", 8), "n") == ""
        assert scheduler.service._verbs._table.gpus(["n"])[0].free == (16, 8)

    @pytest.mark.parametrize(("code", "free"), [(500, [(8, 16)]), (404, [(16, 16)])])
    def test_after_a_conflict_of_which_nothing_more_is_known(
        self, api: ApiServer, scheduler: Scheduler, code: int, free: list[tuple[int, int]]
    ) -> None:
        """It may be with an earlier request for the same pod, unless the pod is gone."""
        api.put("pods", pod("a", 8))
        scheduler.wait(lambda: scheduler.service._verbs._table.pod("uid-a"))
        api.faults += [once("POST", "/binding", 409), once("GET", "/namespaces/ml/pods/a", code)]
        assert scheduler.bind(pod("a", 8), "n")
        assert [gpus.free for gpus in scheduler.service._verbs._table.gpus(["n"])] == free

    def test_a_pod_is_counted_from_the_answer_to_its_binding_on(self, api: ApiServer, scheduler: Scheduler) -> None:
        """Before the watch tells of it: the API server says that it is bound, and shows it to nobody."""
        api.put("pods", pod("a", 16, 16))
        scheduler.wait(lambda: scheduler.service._verbs._table.pod("uid-a"))
        api.faults.append(once("POST", "/binding", 201))
        assert scheduler.bind(pod("a", 16, 16), "n") == ""
        known = scheduler.service._verbs._table.pod("uid-a")
        assert known
        assert known.node == "n"

    def test_binding_twice_succeeds_when_the_answer_was_lost(self, scheduler: Scheduler) -> None:
        scheduler.place(pod("a", 8), "n")
        assert scheduler.bind(pod("a", 8), "n") == ""
        scheduler.wait(lambda: scheduler.bind(pod("a", 8), "other") == "it is bound to node n")

    @pytest.mark.parametrize("text", ["", "[]", '"a"', "{", "\x00", "<html>"])
    def test_garbage_is_an_error_and_not_a_crash(self, api: ApiServer, scheduler: Scheduler, text: str) -> None:
        api.put("pods", pod("a", 8))
        api.faults.append(once("POST", "/binding", 200, text))
        assert "answer" in scheduler.bind(pod("a", 8), "n")
        assert scheduler.health()[0] == 200
        assert scheduler.filter(pod("b", 16, 16), "n")["NodeNames"] == [], "it may be bound"

    def test_what_was_bound_with_an_answer_that_is_too_long_stays_reserved(
        self, api: ApiServer, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cluster, "_MOST", 1000)
        api.put("pods", pod("a", 8))
        scheduler.wait(lambda: scheduler.service._verbs._table.pod("uid-a"))
        api.faults.append(once("POST", "/binding", 201, "x" * 2000))
        assert "too long" in scheduler.bind(pod("a", 8), "n")
        assert scheduler.service._verbs._table.gpus(["n"])[0].free == (8, 16)

    def test_an_api_server_that_hangs(
        self, api: ApiServer, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What it was asked for may happen later: the memory stays reserved, but not for ever."""
        monkeypatch.setattr(cluster.Cluster.__init__.__globals__["http"].client, "HTTPConnection", _impatient())
        monkeypatch.setattr(table, "SETTLED", 2.0)
        api.put("pods", pod("a", 16, 16))
        api.faults.append(hanging("POST", "/binding", 1.5))
        assert "no answer from the API server" in scheduler.bind(pod("a", 16, 16), "n")
        assert scheduler.filter(pod("b", 8), "n")["NodeNames"] == []
        scheduler.wait(lambda: scheduler.filter(pod("b", 8), "n")["NodeNames"])

    def test_pods_bound_at_once_never_overfill_a_gpu(self, api: ApiServer, scheduler: Scheduler) -> None:
        pods = [pod(f"p{number}", 5) for number in range(12)]
        for document in pods:
            api.put("pods", document)
        errors: list[str] = []
        gate = threading.Barrier(len(pods))

        def bind(document: dict[str, Any]) -> None:
            gate.wait(10)
            errors.append(scheduler.bind(document, "n"))

        threads = [threading.Thread(target=bind, args=(document,)) for document in pods]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert errors.count("") == 6, errors
        used = [0, 0]
        for document in pods:
            if SHARES in api.pod(document["metadata"]["name"])["metadata"]["annotations"]:
                share = api.places(document["metadata"]["name"])["c0"]
                used[share["idx"]] += share["mem"]
        assert used == [15, 15]

    def test_after_a_restart_the_annotations_tell_all(self, scheduler: Scheduler, start: Start) -> None:
        scheduler.place(pod("a", 10, 12), "n")
        again = start()
        assert again.filter(pod("b", 7), "n")["NodeNames"] == []
        assert again.place(pod("b", 6, 4), "n") == {"c0": {"idx": 1, "mem": 6}, "c1": {"idx": 0, "mem": 4}}

    def test_damaged_annotations_cost_their_pod_only(
        self, api: ApiServer, scheduler: Scheduler, caplog: pytest.LogCaptureFixture
    ) -> None:
        api.put("pods", pod("bad", 8, node="n", annotations={SHARES: '{"c0": {"idx": "\x1b[2J"}}'}))
        api.put("pods", pod("good", 8, node="n", annotations={SHARES: '{"c0": {"idx": 1}}'}))
        found = scheduler.service._verbs._table
        scheduler.wait(lambda: found.gpus(["n"])[0].free == (16, 8))
        assert [
            record
            for record in caplog.records
            if "ml/bad on n: annotation vfioctl.io/gpu-shares" in record.msg % record.args
        ]


def _impatient() -> Any:
    from http.client import HTTPConnection

    class Impatient(HTTPConnection):
        def __init__(self, host: str, port: int, timeout: float) -> None:
            super().__init__(host, port, timeout=min(timeout, 0.5) if timeout < 15 else timeout)

    return Impatient


def test_places_are_json_that_others_can_read(api: ApiServer, start: Start) -> None:
    api.put("nodes", node("n", 1, 16))
    start().place(pod("a", 3, 4), "n")
    annotations = api.pod("a")["metadata"]["annotations"]
    assert json.loads(annotations[ALLOCATION]) == {"0": {"0": 3}, "1": {"0": 4}}
    assert (annotations[OF_POD], annotations[OF_CONTAINER]) == ("7", "")
