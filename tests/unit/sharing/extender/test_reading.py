"""Pods and nodes as the API server sends them: quantities, places, and damage that costs its own figures only."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.sharing.extender.api_server import node, pod
from vfioctl.sharing.extender.names import ALLOCATION, COUNT, INDEX, MEMORY, REPORT, SHARES, Unit
from vfioctl.sharing.extender.reading import Given, Node, Place, quantity, read_node, read_pod

GIB = 1 << 30
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("text", "number"),
    [("8", 8), (8, 8), ("0", 0), ("2k", 2000), ("16Ki", 16384), ("1e3", 1000), ("3E2", 300), ("1Mi", 1 << 20)],
)
def test_quantities(text: object, number: int) -> None:
    assert quantity(text) == number


@pytest.mark.parametrize("text", ["", "-1", "1.5", "100m", "9e99", "8GiB", True, None, [], "9" * 18, "\u0661"])
def test_what_is_no_whole_quantity(text: object) -> None:
    with pytest.raises(ValueError, match=r"quantity|too much"):
        quantity(text)


class TestPods:
    def test_places_come_from_the_first_annotation_that_can_be_read(self) -> None:
        ours, theirs = {"c0": {"idx": 1, "gpu": "GPU-a"}}, {"0": {"2": 8}}
        full = {SHARES: json.dumps(ours), ALLOCATION: json.dumps(theirs), INDEX: "3"}
        assert _places(full) == {"c0": Place(1, "GPU-a")}
        assert _places({**full, SHARES: "{"}) == {"c0": Place(2)}
        assert _places({INDEX: "3"}) == {"c0": Place(3)}
        assert _places({INDEX: "-1"}) == {}

    def test_memory_is_what_the_containers_have_whatever_annotations_say(self) -> None:
        document = pod("a", 8, node="n", annotations={SHARES: '{"c0": {"idx": 0, "mem": 1}}'})
        found = read_pod(document)
        assert found is not None
        assert [(c.name, c.memory) for c in found.containers] == [("c0", 8)]

    def test_a_missing_container_is_told(self) -> None:
        found = read_pod(pod("a", 4, 4, node="n", annotations={SHARES: '{"c0": {"idx": 0}}'}))
        assert found is not None
        assert list(found.places) == ["c0"]
        assert found.problems == (f"annotation {SHARES} names no GPU of c1",)

    def test_one_that_was_bound_by_hand_is_told(self) -> None:
        found = read_pod(pod("a", 4, node="n"))
        assert found is not None
        assert "by another scheduler, or by hand" in found.problems[0]

    @pytest.mark.parametrize(
        ("text", "time"), [("2026-11-28T19:00:00Z", 1_795_892_400 * 10**9), ("2026-11-28", 0), ("", 0), (3, 0)]
    )
    def test_when_it_was_created(self, text: object, time: int) -> None:
        document = pod("a", 4, node="n", annotations={INDEX: "0"})
        document["metadata"]["creationTimestamp"] = text
        found = read_pod(document)
        assert found
        assert found.created == time

    def test_a_static_pod_may_be_older_than_it_says(self) -> None:
        document = pod("a", 4, node="n", annotations={"kubernetes.io/config.mirror": "1"})
        document["metadata"]["creationTimestamp"] = "2026-11-28T19:00:00Z"
        found = read_pod(document)
        assert found
        assert Given("GPU-a", 1).is_of(found)

    def test_a_gpu_of_an_endless_name_is_none(self) -> None:
        shares = json.dumps({"c0": {"idx": 0, "gpu": "G" * 200_000}})
        found = read_pod(pod("a", 4, node="n", annotations={SHARES: shares}))
        assert found
        assert not found.places
        assert len(found.problems[0]) < 300

    def test_others_are_none(self) -> None:
        ended = pod("a", 4, node="n")
        ended["status"]["phase"] = "Succeeded"
        assert read_pod(ended) is None
        assert read_pod(pod("a")) is None
        assert read_pod(pod("a", 0)) is None

    def test_init_containers(self) -> None:
        document = pod("a", 4)
        init = {"name": "init", "resources": {"limits": {MEMORY: "2"}}}
        document["spec"]["initContainers"] = [init]
        found = read_pod(document)
        assert found is not None
        assert [(c.name, c.is_first) for c in found.containers] == [("init", True), ("c0", False)]
        document["spec"]["initContainers"] = [init | {"restartPolicy": "Always"}]
        found = read_pod(document)
        assert found is not None
        assert [c.is_first for c in found.containers] == [False, False]

    @settings(deadline=None)  # the machine may be busy
    @given(st.sampled_from((SHARES, ALLOCATION, INDEX)), json_values | st.text())
    def test_no_annotation_stops_the_reading(self, name: str, value: object) -> None:
        text = value if isinstance(value, str) else json.dumps(value)
        for damaged in (text, value):
            found = read_pod(pod("a", 4, node="n", annotations={name: damaged}))  # type: ignore[dict-item]
            assert found is not None
            assert found.places or found.problems
            assert all(place.index >= 0 for place in found.places.values())

    @settings(deadline=None)  # the machine may be busy
    @given(json_values)
    def test_nor_does_any_document(self, value: object) -> None:
        read_pod(value)
        read_pod({"metadata": value, "spec": value, "status": value})
        read_node({"metadata": {"name": "n", "annotations": value}, "status": {"allocatable": value}}, Unit.GIB)
        document = pod("a", 4, node="n")
        document["spec"]["initContainers"] = value
        assert read_pod(document)


class TestNodes:
    def test_gpus_are_equal_without_a_report(self) -> None:
        assert read_node(node("n", 2, 16), Unit.GIB) == Node("n", (16, 16))
        assert read_node(node("n", 0, 0), Unit.GIB) == Node("n")

    @pytest.mark.parametrize(("unit", "sizes"), [(Unit.GIB, (79, 15)), (Unit.MIB, (81559, 15360))])
    def test_a_report_tells_unequal_gpus_in_bytes(self, unit: Unit, sizes: tuple[int, ...]) -> None:
        gpus = [{"id": "GPU-a", "memory": 81559 << 20}, {"id": "GPU-b", "memory": 15 * GIB}]
        report = json.dumps({"unit": unit.bytes, "gpus": gpus, "containers": {"ml/a/c0": "GPU-b"}})
        found = read_node(node("n", 2, 40, {REPORT: report}), unit)
        assert found == Node("n", sizes, ("GPU-a", "GPU-b"), {"ml/a/c0": Given("GPU-b")})

    @pytest.mark.parametrize("since", ["2026-11-28T19:00:00.000+00:00", "2026-11-28T20:00:00+01:00"])
    def test_a_report_tells_since_when_a_container_has_its_gpu(self, since: str) -> None:
        containers = {"ml/a/c0": {"id": "GPU-b", "since": since}}
        found = read_node(node("n", 2, 40, {REPORT: json.dumps({"gpus": [], "containers": containers})}), Unit.GIB)
        assert found
        assert found.has == {"ml/a/c0": Given("GPU-b", 1_795_892_400 * 10**9)}

    @pytest.mark.parametrize(("unit", "words"), [(512 << 20, "512 MiB"), (2 * GIB, "2 GiB"), (1 << 20, "1 MiB")])
    def test_a_node_that_counts_in_another_unit_has_nothing_to_share(self, unit: int, words: str) -> None:
        report = json.dumps({"unit": unit, "gpus": [{"id": "GPU-a", "memory": 80 * GIB}]})
        found = read_node(node("n", 1, 40, {REPORT: report}), Unit.GIB)
        assert found == Node("n", problems=(f"it counts {MEMORY} in {words}, the extender in GiB (--unit)",))

    @pytest.mark.parametrize(
        "report",
        [
            "{",
            "[]",
            "{}",
            '{"gpus": 1}',
            '{"gpus": [{"id": "a"}]}',
            '{"gpus": [{"id": "a", "memory": 1}, {"id": "a", "memory": 1}]}',
            '{"gpus": [{"id": "", "memory": 1}]}',
            '{"gpus": [], "containers": 3}',
            '{"gpus": [], "containers": {"a": 3}}',
            '{"gpus": [], "containers": {"a": {"id": "b"}}}',
            '{"gpus": [], "containers": {"a": {"id": "b", "since": "2026-11-28T19:00:00"}}}',
            '{"gpus": [], "unit": "x"}',
        ],
    )
    def test_a_damaged_report_costs_the_report(self, report: str) -> None:
        found = read_node(node("n", 2, 16, {REPORT: report}), Unit.GIB)
        assert found is not None
        assert found.sizes == (16, 16)
        assert found.problems[0].startswith(f"annotation {REPORT}: ")

    def test_a_count_that_cannot_be_is_refused(self) -> None:
        found = read_node(
            {"metadata": {"name": "n"}, "status": {"allocatable": {MEMORY: "8", COUNT: "999999"}}}, Unit.GIB
        )
        assert found == Node("n", problems=("it counts 999999 GPUs",))


def _places(annotations: dict[str, str]) -> Any:
    found = read_pod(pod("a", 8, node="n", annotations=annotations))
    assert found is not None
    return found.places
