"""The kubelet that is played behaves as the real ones: with a plugin that knows only what the test tells it."""

from __future__ import annotations

import json
import stat
import threading
from collections.abc import Iterator

import grpc
import pytest

from tests.kubelet.endpoint import Stopped, channel_to, method
from tests.kubelet.kubelet import Kubelet
from tests.kubelet.pods import Container, NotStarted, Phase, Pod, Rejected, pod
from tests.kubelet.releases import Release
from tests.kubelet.state import Asked
from tests.kubelet.stub import Stub
from tests.kubelet.table import CHECKPOINT
from vfioctl.kubelet.proto import podresources_pb2 as api

GPU = "example.com/gpu"
OTHER = "example.com/other"


@pytest.fixture
def stub(kubelet: Kubelet) -> Iterator[Stub]:
    plugin = Stub(kubelet.plugins)
    plugin.start()
    kubelet.wait(lambda: kubelet.healthy(GPU) == {"a", "b"})
    yield plugin
    plugin.stop()


def called(stub: Stub, name: str) -> list[tuple[str, ...]]:
    return [tuple(ids) for call, ids in stub.asked if call == name]


def listed(kubelet: Kubelet) -> dict[tuple[str, str], list[list[str]]]:
    """The entries of each container that PodResources lists."""
    with channel_to(kubelet.pod_resources) as channel:
        call = method(channel, "v1.PodResourcesLister/List", api.ListPodResourcesResponse)
        answer = call(api.ListPodResourcesRequest(), timeout=5)
    return {
        (shown.name, container.name): [list(entry.device_ids) for entry in container.devices]
        for shown in answer.pod_resources
        for container in shown.containers
    }


def test_options_come_with_the_request_or_are_asked_for(kubelet: Kubelet, stub: Stub, release: Release) -> None:
    asked = called(stub, "GetDevicePluginOptions")
    assert asked == ([()] if release.asks_options else [])
    assert kubelet.state.endpoints[GPU].options.pre_start_required


@pytest.mark.parametrize(
    ("version", "resource", "text"),
    [
        ("v1", GPU, 'requested API version "v1" is not supported by kubelet. Supported version is ["v1beta1"]'),
        ("v1beta1", "gpu", 'the ResourceName "gpu" is invalid'),
        ("v1beta1", "x.kubernetes.io/gpu", 'the ResourceName "x.kubernetes.io/gpu" is invalid'),
    ],
)
def test_a_request_of_another_version_or_name_is_refused(
    kubelet: Kubelet, version: str, resource: str, text: str
) -> None:
    with pytest.raises(grpc.RpcError) as refusal:
        Stub(kubelet.plugins, resource, version).register()
    assert refusal.value.code() == grpc.StatusCode.UNKNOWN
    assert refusal.value.details() == text


def test_a_plugin_that_does_not_serve_is_not_connected_to(
    kubelet: Kubelet, release: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.kubelet.endpoint.CONNECT_SECONDS", 0.3)
    plugin = Stub(kubelet.plugins)
    if release.asks_options:
        with pytest.raises(grpc.RpcError, match="failed to dial device plugin"):
            plugin.register()
    else:
        plugin.register()
        kubelet.wait(lambda: bool(kubelet.registrations.failures))
    assert GPU not in kubelet.state.endpoints


def test_each_list_replaces_the_one_before(kubelet: Kubelet, stub: Stub) -> None:
    stub.set({"a": (False, 0), "c": (True, None)})
    kubelet.wait(lambda: kubelet.healthy(GPU) == {"c"})
    assert kubelet.unhealthy(GPU) == {"a"}


def test_a_plugin_that_ends_has_no_healthy_device(kubelet: Kubelet, stub: Stub) -> None:
    stub.stop()
    kubelet.wait(lambda: kubelet.unhealthy(GPU) == {"a", "b"})
    with pytest.raises(Rejected, match=r"unavailable|no healthy devices present"):
        kubelet.admit(pod("late", app={GPU: 1}))
    stub.start()
    kubelet.wait(lambda: kubelet.healthy(GPU) == {"a", "b"})


def test_a_pod_gets_what_the_plugin_prefers(kubelet: Kubelet, stub: Stub, release: Release) -> None:
    stub.preferred = ["b"]
    started = kubelet.run(pod("one", app={GPU: 1}))["app"]
    assert called(stub, "Allocate") == [("b",)] == called(stub, "PreStartContainer")
    assert sorted(called(stub, "GetPreferredAllocation")[0]) == ["a", "b"]
    assert started.envs == {"DEVICES": "b"}
    assert started.devices == (("/dev/b", "/dev/b", "rw"),)
    assert started.annotations == {"cdi.k8s.io/example": "b"}
    assert started.cdi == ((f"{GPU}=b",) if release.keeps_cdi else ())


def test_a_preference_for_what_is_not_free_does_not_count(kubelet: Kubelet, stub: Stub) -> None:
    stub.preferred = ["b"]
    kubelet.run(pod("one", app={GPU: 1}))
    kubelet.run(pod("two", app={GPU: 1}))
    assert called(stub, "Allocate") == [("b",), ("a",)]


def test_an_unhealthy_device_is_not_given(kubelet: Kubelet, stub: Stub) -> None:
    stub.set({"a": (True, 0), "b": (False, 1)})
    kubelet.wait(lambda: kubelet.unhealthy(GPU) == {"b"})
    with pytest.raises(Rejected, match=f"unavailable for {GPU}. Requested: 2, Available: 1"):
        kubelet.admit(pod("two", app={GPU: 2}))
    assert called(stub, "Allocate") == []


def test_the_text_of_a_refusal_reaches_the_user(kubelet: Kubelet, stub: Stub) -> None:
    stub.refuses = "0000:41:00.0 is held by vm/a; see vfioctl holders 41:00.0"
    one = pod("one", app={GPU: 1})
    with pytest.raises(Rejected):
        kubelet.admit(one)
    text = f"rpc error: code = FailedPrecondition desc = {stub.refuses}"
    assert kubelet.life(one).message == f"Pod Allocate failed due to {text}, which is unexpected"
    assert kubelet.life(one).phase is Phase.FAILED
    stub.refuses = ""
    kubelet.run(pod("two", app={GPU: 2}))  # nothing is kept for the one that was refused


def test_a_pod_is_rejected_after_its_devices_were_allocated(kubelet: Kubelet, stub: Stub) -> None:
    one = Pod("one", [Container("app", {GPU: 2}), Container("beside", {}, refused="not enough cpus available")])
    with pytest.raises(Rejected, match="not enough cpus"):
        kubelet.admit(one)
    assert [call for call, _ in stub.asked if call in {"Allocate", "PreStartContainer"}] == ["Allocate"]
    assert all(entries == [] for entries in listed(kubelet).values())
    kubelet.run(pod("two", app={GPU: 2}))


def test_a_container_that_starts_again_is_not_allocated_for_again(kubelet: Kubelet, stub: Stub) -> None:
    one = pod("one", app={GPU: 1})
    first = kubelet.run(one)["app"]
    assert kubelet.start_container(one, "app") == first
    assert len(called(stub, "Allocate")) == 1
    assert len(called(stub, "PreStartContainer")) == 2
    stub.refuses = "0000:41:00.0 is not on vfio-pci"
    with pytest.raises(NotStarted, match=r"PreStartContainer rpc failed with err: rpc error.* not on vfio-pci"):
        kubelet.start_container(one, "app")
    assert kubelet.life(one).running == set()


def test_no_plugin_is_asked_before_a_start_unless_it_wants(kubelet: Kubelet) -> None:
    plugin = Stub(kubelet.plugins, pre_start_required=False, prefers=False)
    plugin.start()
    kubelet.wait(lambda: kubelet.healthy(GPU) == {"a", "b"})
    kubelet.run(pod("one", app={GPU: 1}))
    assert [call for call, _ in plugin.asked if call != "GetDevicePluginOptions"] == ["Allocate"]
    plugin.stop()


def test_removing_a_pod_is_seen_in_the_list_only(kubelet: Kubelet, stub: Stub) -> None:
    one = pod("one", app={GPU: 2})
    kubelet.run(one)
    before = len(stub.asked)
    kubelet.remove(one)
    assert listed(kubelet) == {}
    assert kubelet.ids_of(one) == frozenset()
    assert len(stub.asked) == before


def test_a_pod_that_has_ended_shows_no_devices(kubelet: Kubelet, stub: Stub, release: Release) -> None:
    one = pod("one", app={GPU: 2})
    kubelet.run(one)
    kubelet.finish(one)
    assert listed(kubelet) == ({} if release.lists_active_only else {("one", "app"): []})


def test_the_list_has_the_shape_of_the_release(kubelet: Kubelet, stub: Stub, release: Release) -> None:
    stub.set({"a": (True, 0), "b": (True, 0)})
    kubelet.wait(lambda: not kubelet.state.table.nodes_of(GPU, "b")[0])
    kubelet.run(pod("one", app={GPU: 2}, plain={}))
    entries = [["a"], ["b"]] if release.entry_per_device else [["a", "b"]]
    assert listed(kubelet) == {("one", "app"): entries, ("one", "plain"): []}


def test_get_is_there_from_a_release_on(kubelet: Kubelet, stub: Stub, release: Release) -> None:
    kubelet.run(pod("one", "team", app={GPU: 1}))
    with channel_to(kubelet.pod_resources) as channel:
        get = method(channel, "v1.PodResourcesLister/Get", api.GetPodResourcesResponse)
        known = method(channel, "v1.PodResourcesLister/GetAllocatableResources", api.AllocatableResourcesResponse)
        if release.has_get:
            shown = get(api.GetPodResourcesRequest(pod_name="one", pod_namespace="team")).pod_resources
            assert [len(container.devices) for container in shown.containers] == [1]
            assert [tuple(entry.device_ids) for entry in known(api.AllocatableResourcesRequest()).devices] == [
                ("a",),
                ("b",),
            ]
        with pytest.raises(grpc.RpcError) as missing:
            get(api.GetPodResourcesRequest(pod_name="two", pod_namespace="team"))
        code = grpc.StatusCode.UNKNOWN if release.has_get else grpc.StatusCode.UNIMPLEMENTED
        assert missing.value.code() == code


def test_the_device_of_an_init_container_is_given_again(kubelet: Kubelet, stub: Stub) -> None:
    one = Pod("one", [Container("app", {GPU: 2}), Container("before", {GPU: 1}, init=True)])
    kubelet.run(one)
    first, second = called(stub, "Allocate")
    assert len(first) == 1
    assert {*first} < {*second}
    assert stub.must == [(), first]
    assert [container for _, container in listed(kubelet)] == ["app"]


def test_a_restart_removes_the_sockets_and_keeps_who_has_what(kubelet: Kubelet, stub: Stub) -> None:
    one = pod("one", app={GPU: 1})
    kubelet.run(one)
    ids, inode = kubelet.ids_of(one), kubelet.socket.stat().st_ino
    kubelet.stop()
    assert stat.S_ISSOCK(kubelet.socket.stat().st_mode)
    assert (kubelet.plugins / stub.endpoint).exists()
    with channel_to(kubelet.pod_resources) as channel, pytest.raises(grpc.RpcError):
        method(channel, "v1.PodResourcesLister/List", api.ListPodResourcesResponse)(
            api.ListPodResourcesRequest(), timeout=1
        )
    kubelet.start()
    assert kubelet.socket.stat().st_ino != inode
    assert not (kubelet.plugins / stub.endpoint).exists()
    assert {file.name for file in kubelet.plugins.iterdir()} == {"kubelet.sock", CHECKPOINT, "DEPRECATION"}
    assert (kubelet.healthy(GPU), kubelet.ids_of(one)) == (frozenset(), ids)
    stub.stop()
    stub.start()
    kubelet.wait(lambda: kubelet.healthy(GPU) == {"a", "b"})
    kubelet.run(pod("two", app={GPU: 1}))
    assert len(called(stub, "Allocate")) == 2
    assert {*called(stub, "Allocate")[0]} == ids


def test_the_api_server_answers_later_than_static_pods_come(kubelet: Kubelet, stub: Stub) -> None:
    one, fixed = pod("one", app={GPU: 1}), pod("fixed", app={GPU: 1}, static=True)
    kubelet.run(one)
    kubelet.run(fixed)
    kubelet.stop()
    kubelet.start(api_server=False)
    assert [*listed(kubelet)] == [("fixed", "app")]
    assert kubelet.ids_of(one)
    kubelet.api_answers()
    assert {*listed(kubelet)} == {("fixed", "app"), ("one", "app")}
    assert len(called(stub, "Allocate")) == 2


def test_without_its_checkpoint_the_kubelet_knows_nothing(kubelet: Kubelet, stub: Stub) -> None:
    one = pod("one", app={GPU: 2})
    kubelet.run(one)
    kubelet.restart(checkpoint=False)
    stub.stop()
    stub.start()
    kubelet.wait(lambda: kubelet.healthy(GPU) == {"a", "b"})
    assert listed(kubelet) == {("one", "app"): []}
    assert kubelet.life(one).running == {"app"}
    kubelet.run(pod("two", app={GPU: 2}))  # the same devices, unless the plugin says no
    with pytest.raises(NotStarted, match="no devices found allocated in local cache"):
        kubelet.start_container(one, "app")


def test_after_a_boot_a_pod_has_its_devices_once_they_are_healthy(
    kubelet: Kubelet, stub: Stub, release: Release
) -> None:
    one, fixed = pod("one", app={GPU: 1}), pod("fixed", app={GPU: 1}, static=True)
    kubelet.run(one)
    kubelet.run(fixed)
    kubelet.shut_down()
    stub.stop()
    kubelet.start(api_server=False)
    assert (kubelet.life(fixed).phase is Phase.FAILED) == release.checks_health
    stub.start()
    kubelet.wait(lambda: kubelet.healthy(GPU) == {"a", "b"})
    kubelet.api_answers()
    kubelet.start_container(one, "app")
    assert kubelet.life(one).phase is Phase.RUNNING
    assert len(called(stub, "Allocate")) == 2
    assert called(stub, "PreStartContainer")[-1] == called(stub, "Allocate")[0]


def test_a_pod_comes_again_when_the_kubelet_ended_in_its_allocate(
    kubelet: Kubelet, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, leave = threading.Event(), threading.Event()
    allocate = stub._allocate

    def slowly(*arguments: object) -> object:
        entered.set()
        leave.wait(10)
        return allocate(*arguments)  # type: ignore[arg-type] # handed on

    stub.stop()
    monkeypatch.setattr(stub, "_allocate", slowly)
    stub.start()
    kubelet.wait(lambda: kubelet.healthy(GPU) == {"a", "b"})
    one, ended = pod("one", app={GPU: 1}), []

    def admit() -> None:
        try:
            kubelet.admit(one)
        except Stopped as error:
            ended.append(error)

    thread = threading.Thread(target=admit)
    thread.start()
    assert entered.wait(5)
    kubelet.stop()
    thread.join(10)
    leave.set()
    assert len(ended) == 1
    stub.stop()
    kubelet.start(api_server=False)
    stub.start()
    kubelet.wait(lambda: kubelet.healthy(GPU) == {"a", "b"})
    kubelet.api_answers()
    assert kubelet.life(one).phase is Phase.RUNNING
    assert len(kubelet.asked("Allocate")) == 2


def test_a_container_gets_what_all_its_resources_give(kubelet: Kubelet, stub: Stub) -> None:
    other = Stub(kubelet.plugins, OTHER, devices={"x": (True, None)})
    other.start()
    kubelet.wait(lambda: kubelet.healthy(OTHER) == {"x"})
    options = kubelet.run(pod("one", app={GPU: 1, OTHER: 1}))["app"]
    assert {path for path, _, _ in options.devices} > {"/dev/x"}
    assert options.envs["DEVICES"] in {"a", "b", "x"}
    assert Asked("Allocate", OTHER, ("x",)) in kubelet.asked("Allocate")
    other.stop()


def test_a_resource_that_no_plugin_gives_costs_nothing(kubelet: Kubelet) -> None:
    assert kubelet.run(pod("one", app={GPU: 1}))["app"].devices == ()


def test_the_checkpoint_has_the_form_of_the_kubelet(kubelet: Kubelet, stub: Stub) -> None:
    kubelet.run(pod("one", app={GPU: 1}))
    document = json.loads((kubelet.plugins / CHECKPOINT).read_text())
    assert sorted(document) == ["Checksum", "Data"]
    (entry,) = document["Data"]["PodDeviceEntries"]
    assert sorted(entry) == ["AllocResp", "ContainerName", "DeviceIDs", "PodUID", "ResourceName"]
    assert document["Data"]["RegisteredDevices"] == {GPU: ["a", "b"]}
