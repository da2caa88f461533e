"""Translates between gRPC messages and values, and builds the service. Only this module knows the protocol's names.

Source: the protocol files in `vfioctl.kubelet.proto`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import aclosing
from typing import Any, Protocol, TypeVar

from google.protobuf.message import Message
from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError, ProtocolError, StreamTerminatedError
from grpclib.server import Stream

from vfioctl.errors import ConflictError, RequestError, VfioctlError
from vfioctl.kubelet.allocating.allocation import words_for_user
from vfioctl.kubelet.answer.answer import Answer
from vfioctl.kubelet.model.device import Device, Listing, Pod
from vfioctl.kubelet.proto import deviceplugin_pb2 as plugin
from vfioctl.kubelet.proto import podresources_pb2 as pods

VERSION = "v1beta1"
_HEALTH = {True: "Healthy", False: "Unhealthy"}
OPTIONS = plugin.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)
"""The same in the answer to GetDevicePluginOptions and in registrations: kubelets look at one or the other."""
_CODES = ((RequestError, Status.INVALID_ARGUMENT), (ConflictError, Status.FAILED_PRECONDITION))
"""By class of error; INTERNAL for others."""
Ids = Sequence[str]
Lists = AsyncGenerator[Sequence[Device], None]
_Answer = TypeVar("_Answer", bound=Message)


class Unanswered(Exception):
    """The kubelet has refused a call, or has not answered it; the text is its status and what it says."""

    def __init__(self, status: Status, words: str) -> None:
        super().__init__(f"{status.name}: {words}")
        self.status = status


class Calls(Protocol):
    """What a service of one resource does. Each may raise a VfioctlError, which becomes the status of the call."""

    def prefer(self, available: Ids, must: Ids, count: int) -> Ids:
        """Return the devices that a container should get."""

    def allocate(self, containers: Sequence[Ids]) -> Sequence[Answer]:
        """Give devices to containers: to all of them, or none."""

    def pre_start(self, ids: Ids) -> None:
        """Verify the devices of a container that starts."""


class DevicePlugin:
    """The service `v1beta1.DevicePlugin` of a resource. It lives in an event loop."""

    def __init__(self, calls: Calls, follow: Callable[[], Lists], threads: Executor) -> None:
        """`follow`: yields the devices at once, and whenever they change. `threads`: for calls."""
        self._calls, self._follow, self._threads = calls, follow, threads
        self.running = 0
        """The number of calls that run."""
        self.is_over = False
        """Whether further calls are refused."""

    def __mapping__(self) -> Mapping[str, Handler]:
        """Return the methods, as grpclib asks for them."""
        unary: Mapping[str, tuple[Callable[[Any], Message], type[Message], type[Message]]] = {
            "GetDevicePluginOptions": (lambda _: OPTIONS, plugin.Empty, plugin.DevicePluginOptions),
            "GetPreferredAllocation": (
                self._prefer,
                plugin.PreferredAllocationRequest,
                plugin.PreferredAllocationResponse,
            ),
            "Allocate": (self._allocate, plugin.AllocateRequest, plugin.AllocateResponse),
            "PreStartContainer": (
                self._pre_start,
                plugin.PreStartContainerRequest,
                plugin.PreStartContainerResponse,
            ),
        }
        prefix = f"/{VERSION}.DevicePlugin/"
        watch = Handler(self._watch, Cardinality.UNARY_STREAM, plugin.Empty, plugin.ListAndWatchResponse)
        return {f"{prefix}ListAndWatch": watch} | {
            f"{prefix}{name}": Handler(self._answering(behaviour), Cardinality.UNARY_UNARY, asked, answered)
            for name, (behaviour, asked, answered) in unary.items()
        }

    def _answering(self, behaviour: Callable[[Any], Message]) -> Callable[[Stream[Any, Any]], Any]:
        async def answer(stream: Stream[Any, Any]) -> None:
            request = await stream.recv_message()
            if self.is_over or request is None:
                raise GRPCError(Status.UNAVAILABLE, "the device plugin ends")
            self.running += 1
            try:
                loop = asyncio.get_running_loop()
                await stream.send_message(await loop.run_in_executor(self._threads, behaviour, request))
            except VfioctlError as error:
                code = next((code for kind, code in _CODES if isinstance(error, kind)), Status.INTERNAL)
                raise GRPCError(code, words_for_user(error)) from error
            finally:
                self.running -= 1

        return answer

    async def _watch(self, stream: Stream[plugin.Empty, plugin.ListAndWatchResponse]) -> None:
        await stream.recv_message()
        async with aclosing(self._follow()) as lists:
            async for devices in lists:
                await stream.send_message(plugin.ListAndWatchResponse(devices=map(_device, devices)))

    def _prefer(self, request: plugin.PreferredAllocationRequest) -> plugin.PreferredAllocationResponse:
        answers = [
            self._calls.prefer(asked.available_deviceIDs, asked.must_include_deviceIDs, asked.allocation_size)
            for asked in request.container_requests
        ]
        response = plugin.ContainerPreferredAllocationResponse
        return plugin.PreferredAllocationResponse(container_responses=[response(deviceIDs=ids) for ids in answers])

    def _allocate(self, request: plugin.AllocateRequest) -> plugin.AllocateResponse:
        answers = self._calls.allocate([asked.devicesIDs for asked in request.container_requests])
        return plugin.AllocateResponse(container_responses=map(_answer, answers))

    def _pre_start(self, request: plugin.PreStartContainerRequest) -> plugin.PreStartContainerResponse:
        self._calls.pre_start(request.devicesIDs)
        return plugin.PreStartContainerResponse()


def _device(device: Device) -> plugin.Device:
    """Return a device as the kubelet gets it: without topology if its NUMA node is not known; node 0 would be wrong."""
    nodes = [] if device.numa_node is None else [plugin.NUMANode(ID=device.numa_node)]
    topology = plugin.TopologyInfo(nodes=nodes) if nodes else None
    return plugin.Device(ID=device.id, health=_HEALTH[device.is_healthy], topology=topology)


def _answer(answer: Answer) -> plugin.ContainerAllocateResponse:
    nodes = [
        plugin.DeviceSpec(container_path=node.path, host_path=node.path, permissions=node.permissions)
        for node in answer.nodes
    ]
    return plugin.ContainerAllocateResponse(
        envs=dict(answer.environment),
        mounts=[plugin.Mount(container_path=path, host_path=path) for path in answer.mounts],
        devices=nodes,
        annotations=dict(answer.annotations),
        cdi_devices=[plugin.CDIDevice(name=name) for name in answer.cdi],
    )


async def register(socket: str, endpoint: str, resource: str, seconds: float) -> None:
    """Tell the kubelet of a resource whose socket, in the directory of its own, is served already. Raises
    Unanswered."""
    request = plugin.RegisterRequest(version=VERSION, endpoint=endpoint, resource_name=resource, options=OPTIONS)
    async with Channel(path=socket) as channel:
        await _call(channel, f"/{VERSION}.Registration/Register", request, plugin.Empty, seconds)


async def list_pods(channel: Channel, seconds: float) -> Listing:
    """Return which containers have which devices. Raises Unanswered."""
    request = pods.ListPodResourcesRequest()
    answer = await _call(channel, "/v1.PodResourcesLister/List", request, pods.ListPodResourcesResponse, seconds)
    return listing_of(answer.pod_resources)


async def has_devices(channel: Channel, pod: Pod, seconds: float) -> bool | None:
    """Return whether the kubelet says of a pod that its container has devices; None if it does not know the pod, or has
    no such call (before Kubernetes 1.27). A pod that is gone gives UNKNOWN, not NOT_FOUND."""
    request = pods.GetPodResourcesRequest(pod_name=pod.name, pod_namespace=pod.namespace)
    try:
        answer = await _call(channel, "/v1.PodResourcesLister/Get", request, pods.GetPodResourcesResponse, seconds)
    except Unanswered:
        return None
    return any(container.name == pod.container and container.devices for container in answer.pod_resources.containers)


async def allocatable(channel: Channel, seconds: float) -> frozenset[str] | None:
    """Return the resources that the kubelet knows devices of; None if it has no such call (before Kubernetes 1.21)."""
    method, request = "/v1.PodResourcesLister/GetAllocatableResources", pods.AllocatableResourcesRequest()
    try:
        answer = await _call(channel, method, request, pods.AllocatableResourcesResponse, seconds)
    except Unanswered:
        return None
    return frozenset(devices.resource_name for devices in answer.devices if devices.device_ids)


async def _call(channel: Channel, method: str, request: Message, answer: type[_Answer], seconds: float) -> _Answer:
    """Return the answer of the kubelet. Raises Unanswered."""
    try:
        return await UnaryUnaryMethod(channel, method, type(request), answer)(request, timeout=seconds)
    except GRPCError as error:
        raise Unanswered(error.status, error.message or "") from error
    except TimeoutError as error:
        raise Unanswered(Status.DEADLINE_EXCEEDED, f"no answer within {seconds:g} s") from error
    except OSError as error:
        raise Unanswered(Status.UNAVAILABLE, error.strerror or str(error)) from error
    except (StreamTerminatedError, ProtocolError) as error:
        raise Unanswered(Status.UNAVAILABLE, str(error)) from error
    except Exception as error:  # such as AssertionError for no message, and DecodeError for one of another kind
        raise Unanswered(Status.INTERNAL, f"the answer is not understood: {type(error).__name__}") from error


def listing_of(answer: Iterable[pods.PodResources]) -> Listing:
    """Return an answer of the kubelet: before Kubernetes 1.21 an entry has several devices."""
    having: dict[tuple[str, str], list[Pod]] = {}
    for pod in answer:
        for container in pod.containers:
            named = Pod(pod.namespace, pod.name, container.name)
            if not named.is_valid:
                continue
            for devices in container.devices:
                for name in devices.device_ids:
                    having.setdefault((devices.resource_name, name), []).append(named)
    return Listing({device: tuple(dict.fromkeys(containers)) for device, containers in having.items()})
