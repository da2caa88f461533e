"""What the extender knows of a cluster: after events, lists that end, versions that are gone, and silence."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.sharing.extender.api_server import ApiServer, hanging, node, once, pod
from tests.unit.sharing.extender.conftest import Scheduler, Start
from vfioctl.sharing.extender import cluster, following
from vfioctl.sharing.extender.cluster import Cluster
from vfioctl.sharing.extender.following import Pods
from vfioctl.sharing.extender.names import INDEX
from vfioctl.sharing.extender.table import Table


def free(scheduler: Scheduler, name: str = "n") -> tuple[int, ...]:
    return scheduler.service._verbs._table.gpus([name])[0].free


def test_it_is_not_ready_before_the_first_list(api: ApiServer, start: Start) -> None:
    api.faults += [once("GET", "/nodes", 503)] * 1_000_000
    scheduler = start(wait=False)
    scheduler.wait(lambda: "nodes: the API server answers 503" in scheduler.health()[1])
    assert scheduler.health()[0] == 503
    assert scheduler.ask("livez", b"", "GET")[0] == 200
    assert scheduler.filter(pod("a", 1), "n")["Error"].startswith("not ready: nodes: ")
    assert scheduler.scores(pod("a", 1), "n") == {}
    assert scheduler.bind(pod("a", 1), "n").startswith("not ready: nodes: ")
    api.faults.clear()
    scheduler.wait(lambda: scheduler.health() == (200, "ok\n"))


def test_pods_come_and_go(api: ApiServer, start: Start) -> None:
    api.put("nodes", node("n", 2, 16))
    scheduler = start()
    api.put("pods", pod("a", 8, node="n", annotations={INDEX: "1"}))
    scheduler.wait(lambda: free(scheduler) == (16, 8))
    ended = pod("a", 8, node="n", annotations={INDEX: "1"})
    ended["status"]["phase"] = "Failed"
    api.put("pods", ended)
    scheduler.wait(lambda: free(scheduler) == (16, 16))
    api.put("pods", pod("b", 8, node="n", annotations={INDEX: "0"}))
    scheduler.wait(lambda: free(scheduler) == (8, 16))
    api.delete("pods", "b")
    scheduler.wait(lambda: free(scheduler) == (16, 16))
    api.delete("nodes", "n")
    scheduler.wait(lambda: free(scheduler) == ())


def test_a_long_list_comes_in_pages(api: ApiServer, start: Start) -> None:
    api.page = 3
    for number in range(10):
        api.put("nodes", node(f"n{number}", 1, 16))
        api.put("pods", pod(f"p{number}", 4, node=f"n{number}", annotations={INDEX: "0"}))
    scheduler = start()
    assert [free(scheduler, f"n{number}") for number in range(10)] == [(12,)] * 10


def test_pods_that_are_too_large_for_one_answer_are_asked_for_in_smaller_ones(
    api: ApiServer, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some users' pods must not keep all others from being listed."""
    monkeypatch.setattr(cluster, "_MOST", 40_000)
    api.put("nodes", node("n", 1, 16))
    api.page = 4
    for number in range(13):
        large = {"large": "x" * 12_000} if number in range(4, 9) else {}
        api.put("pods", pod(f"p{number}", 1, node="n", annotations={INDEX: "0", **large}))
    monkeypatch.setattr(cluster, "_PAGE", 4)
    assert free(start()) == (3,)


def test_one_object_that_is_too_large_is_told(api: ApiServer, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_MOST", 10_000)
    api.put("pods", pod("p", 1, annotations={"large": "x" * 12_000}))
    scheduler = start(wait=False)
    scheduler.wait(lambda: "pods: its answer is too long" in scheduler.health()[1])


def test_an_event_of_the_largest_pod_that_can_be_is_read(api: ApiServer, start: Start) -> None:
    """Of 1.5 MiB, each byte of which JSON writes as six."""
    api.put("nodes", node("n", 1, 16))
    scheduler = start()
    lists = api.count("GET", "/api/v1/pods?")
    api.put("pods", pod("a", 4, node="n", annotations={INDEX: "0", "large": "\x01" * (3 << 19)}))
    scheduler.wait(lambda: free(scheduler) == (12,))
    assert api.count("GET", "/api/v1/pods?") == lists


class _Document(dict[str, Any]):
    """One that can be followed to its end."""


def test_the_documents_of_a_list_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of a large cluster take more memory than the Deployment allows."""
    made, most = list[weakref.ref[_Document]](), 0

    def pages(*_: object) -> Iterator[dict[str, Any]]:
        nonlocal most
        for number in range(10):
            documents = [_Document(pod(f"p{number}-{place}", place % 2)) for place in range(4)]
            made.extend(map(weakref.ref, documents))
            most = max(most, sum(document() is not None for document in made))
            yield {"items": documents, "metadata": {"resourceVersion": "1"}}

    monkeypatch.setattr(Cluster, "pages", pages)
    table = Table()
    Pods(Cluster("http://127.0.0.1:1"), table)._list()
    assert most <= 3 * 4, "the documents of one page, of the one before it, and of the one that is read"
    assert [table.pod(f"uid-p9-{place}") is not None for place in range(4)] == [False, True] * 2


def test_a_watch_that_ends_goes_on_where_it_was(api: ApiServer, start: Start) -> None:
    api.put("nodes", node("n", 1, 16))
    scheduler = start()
    lists = api.count("GET", "/api/v1/pods")
    api.watch_ends.set()
    scheduler.wait(lambda: api.count("WATCH", "/pods") > 3)
    api.put("pods", pod("a", 4, node="n", annotations={INDEX: "0"}))
    scheduler.wait(lambda: free(scheduler) == (12,))
    api.watch_ends.clear()
    assert api.count("GET", "/api/v1/pods") == lists


def test_a_version_that_is_gone_is_followed_by_a_list(api: ApiServer, start: Start) -> None:
    """410, as a status and as an event. What was deleted meanwhile is not in the list."""
    api.put("nodes", node("n", 1, 16))
    api.put("pods", pod("a", 4, node="n", annotations={INDEX: "0"}))
    scheduler = start()
    for number in range(2):
        with api.changed:
            api.events.clear()
            api.objects["pods"].clear()
            api.version += 10
            if number:
                api.faults.append(once("GET", "pods?watch", 410))
            else:
                api.oldest = api.version
        lists = api.count("GET", "/api/v1/pods?")
        api.watch_ends.set()
        scheduler.wait(lambda: api.count("GET", "/api/v1/pods?") > lists)  # noqa: B023 - waited for here
        api.watch_ends.clear()
        scheduler.wait(lambda: free(scheduler) == (16,))
        api.put("pods", pod("a", 4, node="n", annotations={INDEX: "0"}))
        scheduler.wait(lambda: free(scheduler) == (12,))


@pytest.mark.parametrize(
    "text", ["garbage\n", '{"type": "ADDED"}\n', "[]\n", '{"type": 1, "object": {}}\n', "{" * 9000]
)
def test_garbage_in_a_watch_is_followed_by_a_list(api: ApiServer, start: Start, text: str) -> None:
    api.put("nodes", node("n", 1, 16))
    scheduler = start()
    lists = api.count("GET", "/api/v1/pods?")
    api.faults.append(once("GET", "pods?watch", 200, text))
    api.watch_ends.set()
    scheduler.wait(lambda: api.count("GET", "/api/v1/pods?") > lists)
    api.watch_ends.clear()
    api.put("pods", pod("a", 4, node="n", annotations={INDEX: "0"}))
    scheduler.wait(lambda: free(scheduler) == (12,))


def test_an_object_of_garbage_costs_itself(api: ApiServer, start: Start) -> None:
    api.objects["pods"]["x"] = {"metadata": {"name": 3, "uid": []}, "spec": "a", "status": None}
    api.objects["nodes"]["x"] = {"metadata": None}
    api.put("nodes", node("n", 1, 16))
    scheduler = start()
    api.tell("pods", "ADDED", {"metadata": {"labels": 3}, "spec": {"containers": [None, {"resources": 3}]}})
    api.tell("nodes", "DELETED", {"metadata": {}})
    api.tell("pods", "BOOKMARK", {"metadata": {}})
    api.put("pods", pod("a", 4, node="n", annotations={INDEX: "0"}))
    scheduler.wait(lambda: free(scheduler) == (12,))


def test_silence_is_told(api: ApiServer, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "SILENT", 0.3)
    api.put("nodes", node("n", 1, 16))
    scheduler = start(wait=False)
    api.faults += [once("GET", "pods?watch", 403)] * 1_000_000
    api.watch_ends.set()
    scheduler.wait(lambda: "pods: nothing heard for" in scheduler.health()[1])
    scheduler.wait(lambda: "403: for a test" in scheduler.health()[1])
    monkeypatch.setattr(following, "SILENT", 60.0)
    api.faults.clear()
    scheduler.wait(lambda: scheduler.health()[0] == 200)


def test_a_list_that_hangs_or_breaks_off_is_repeated(api: ApiServer, start: Start) -> None:
    api.put("nodes", node("n", 1, 16))
    api.faults += [hanging("GET", "/nodes?", 0.1), once("GET", "/nodes?", 200, "{"), once("GET", "/pods?", 200, "3")]
    assert free(start()) == (16,)
