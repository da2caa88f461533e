"""Faults that gpushare is known for, each as a cluster would show it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from tests.unit.sharing.extender.api_server import ApiServer, node, pod
from tests.unit.sharing.extender.conftest import Start
from vfioctl.sharing.extender.names import ALLOCATION, ASSUMED, INDEX, REPORT, SHARES

GIB = 1 << 30


def test_a_pod_with_two_containers_gets_a_gpu_for_each(api: ApiServer, start: Start) -> None:
    """gpushare-scheduler-extender#143: it adds up the containers, and needs one GPU with room for the sum."""
    api.put("nodes", node("n", 2, 16))
    scheduler = start()
    placed = scheduler.place(pod("pair", 12, 10), "n")
    assert placed == {"c0": {"idx": 0, "mem": 12}, "c1": {"idx": 1, "mem": 10}}
    annotations = api.pod("pair")["metadata"]["annotations"]
    assert json.loads(annotations[ALLOCATION]) == {"0": {"0": 12}, "1": {"1": 10}}
    assert annotations[INDEX] == "-1", "one index cannot tell"
    scheduler.wait(lambda: scheduler.service._verbs._table.gpus(["n"])[0].free == (4, 6))


def test_two_containers_stay_on_one_gpu_that_has_room(api: ApiServer, start: Start) -> None:
    """So that gpushare's device plugin, which has one index for a pod, can serve it, too."""
    api.put("nodes", node("n", 2, 16))
    placed = start().place(pod("pair", 8, 8), "n")
    assert {share["idx"] for share in placed.values()} == {0}
    assert api.pod("pair")["metadata"]["annotations"][INDEX] == "0"


def test_pods_of_equal_size_are_told_apart_by_what_their_node_reports(api: ApiServer, start: Start) -> None:
    """gpushare's device plugin gives the oldest pod of the same total to whichever container the kubelet starts first:
    two pods may get each other's GPU. The node knows from the kubelet which container has which."""
    gpus = [{"id": "GPU-a", "memory": 16 * GIB}, {"id": "GPU-b", "memory": 24 * GIB}]
    api.put("nodes", node("n", 2, 20, {REPORT: json.dumps({"gpus": gpus})}))
    scheduler = start()
    first, second = scheduler.place(pod("first", 10), "n"), scheduler.place(pod("second", 10), "n")
    assert (first["c0"]["gpu"], second["c0"]["gpu"]) == ("GPU-a", "GPU-b")
    table = scheduler.service._verbs._table
    assert table.gpus(["n"])[0].free == (6, 14)
    swapped = {"gpus": gpus, "containers": {"ml/first/c0": "GPU-b", "ml/second/c0": "GPU-a"}}
    api.put("nodes", node("n", 2, 20, {REPORT: json.dumps(swapped)}))
    api.delete("pods", "first")
    scheduler.wait(lambda: table.gpus(["n"])[0].free == (6, 24))


def test_a_pod_is_not_counted_where_an_earlier_one_of_its_name_was(api: ApiServer, start: Start) -> None:
    """A pod of a StatefulSet comes again with its name, and the node's report may be late, or not come any more."""
    gpus = [{"id": "GPU-a", "memory": 16 * GIB}, {"id": "GPU-b", "memory": 16 * GIB}]

    def report(since: datetime) -> dict[str, str]:
        containers = {"ml/train-0/c0": {"id": "GPU-b", "since": since.isoformat(timespec="milliseconds")}}
        return {REPORT: json.dumps({"unit": GIB, "gpus": gpus, "containers": containers})}

    api.put("nodes", node("n", 2, 16, report(datetime.now(UTC) - timedelta(minutes=1))))
    scheduler = start()
    assert scheduler.place(pod("train-0", 10), "n")["c0"]["gpu"] == "GPU-a"
    table = scheduler.service._verbs._table
    assert table.gpus(["n"])[0].free == (6, 16)
    scheduler.wait(lambda: not table._reserved)
    assert table.gpus(["n"])[0].free == (6, 16), "what the annotations say"
    selected = datetime.fromtimestamp(int(api.pod("train-0")["metadata"]["annotations"][ASSUMED]) / 1e9, UTC)
    api.put("nodes", node("n", 2, 16, report(selected - timedelta(seconds=5))))
    scheduler.wait(lambda: table.gpus(["n"])[0].free == (16, 6))


def test_a_node_that_counts_in_another_unit_says_so(api: ApiServer, start: Start) -> None:
    """gpushare takes its numbers for those of its own unit."""
    gpus = [{"id": "GPU-a", "memory": 80 * GIB}]
    api.put("nodes", node("n", 1, 40, {REPORT: json.dumps({"unit": 2 * GIB, "gpus": gpus})}))
    why = start().filter(pod("a", 8), "n")["FailedAndUnresolvableNodes"]["n"]
    assert why == "it has no GPUs to share: it counts aliyun.com/gpu-mem in 2 GiB, the extender in GiB (--unit)"


def test_equal_pods_that_are_bound_at_the_same_name_of_another_namespace(api: ApiServer, start: Start) -> None:
    api.put("nodes", node("n", 2, 16))
    scheduler = start()
    places = [scheduler.place(pod("same", 16, namespace=space, uid=f"uid-{space}"), "n") for space in ("a", "b")]
    found = [json.loads(api.objects["pods"][f"{s}/same"]["metadata"]["annotations"][SHARES]) for s in ("a", "b")]
    assert [each["c0"]["idx"] for each in found] == [0, 1]
    assert places[0] == found[0]


def test_an_index_that_is_gone_after_a_change_of_hardware(api: ApiServer, start: Start) -> None:
    """gpushare-scheduler-extender#191: its index has no GPU any more. The pod holds nothing, and all others go on."""
    api.put("nodes", node("n", 2, 16))
    api.put("pods", pod("old", 8, node="n", annotations={INDEX: "3"}))
    scheduler = start()
    assert scheduler.filter(pod("new", 16), "n")["NodeNames"] == ["n"]
    assert scheduler.place(pod("new", 16), "n")["c0"]["idx"] == 0


def test_a_node_that_gets_gpus_later_or_loses_one(api: ApiServer, start: Start) -> None:
    """gpushare keeps the first count of GPUs of a node until it is restarted."""
    api.put("nodes", node("n", 0, 0))
    scheduler = start()
    assert scheduler.filter(pod("a", 8), "n")["FailedAndUnresolvableNodes"].keys() == {"n"}
    api.put("nodes", node("n", 4, 16))
    scheduler.wait(lambda: scheduler.filter(pod("a", 8), "n")["NodeNames"])
    api.put("nodes", node("n", 1, 4))
    scheduler.wait(lambda: not scheduler.filter(pod("a", 8), "n")["NodeNames"])


def test_a_pod_keeps_its_gpu_when_the_order_of_gpus_changes(api: ApiServer, start: Start) -> None:
    """The index is that of a position; the identity stays."""
    gpus = [{"id": "GPU-a", "memory": 16 * GIB}, {"id": "GPU-b", "memory": 16 * GIB}]
    api.put("nodes", node("n", 2, 16, {REPORT: json.dumps({"gpus": gpus})}))
    scheduler = start()
    assert scheduler.place(pod("a", 10), "n")["c0"] == {"idx": 0, "mem": 10, "gpu": "GPU-a"}
    table = scheduler.service._verbs._table
    api.put("nodes", node("n", 2, 16, {REPORT: json.dumps({"gpus": gpus[::-1]})}))
    scheduler.wait(lambda: table.gpus(["n"])[0].free == (16, 6))
    api.put("nodes", node("n", 1, 16, {REPORT: json.dumps({"gpus": gpus[1:]})}))
    scheduler.wait(lambda: table.gpus(["n"])[0].free == (16,))


def test_memory_of_a_pod_that_is_being_deleted_is_still_used(api: ApiServer, start: Start) -> None:
    """gpushare counts it as free at once, while its processes run."""
    api.put("nodes", node("n", 1, 16))
    scheduler = start()
    scheduler.place(pod("a", 16), "n")
    ending = json.loads(json.dumps(api.pod("a")))
    ending["metadata"]["deletionTimestamp"] = "2026-11-28T00:00:00Z"
    api.put("pods", ending)
    api.put("nodes", node("other", 1, 16))
    scheduler.wait(lambda: scheduler.filter(pod("b", 16), "other")["NodeNames"])
    assert scheduler.filter(pod("b", 16), "n")["NodeNames"] == []
    api.delete("pods", "a")
    scheduler.wait(lambda: scheduler.filter(pod("b", 16), "n")["NodeNames"])


def test_the_report_of_a_node_does_not_make_the_extender_fail(api: ApiServer, start: Start) -> None:
    api.put("nodes", node("n", 2, 16, {REPORT: '{"gpus": "GPU-a"}'}))
    assert start().place(pod("a", 16), "n")["c0"]["idx"] == 0
