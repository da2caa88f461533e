"""A device plugin that knows only what its test tells it: what the client is tested against."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from tests.kubelet.endpoint import channel_to, method
from tests.kubelet.services import Call, Service
from vfioctl.kubelet.proto import deviceplugin_pb2 as api


@dataclass
class Stub:
    """One resource. Its devices are healthy or not, on a NUMA node or not."""

    folder: Path
    resource: str = "example.com/gpu"
    version: str = "v1beta1"
    pre_start_required: bool = True
    prefers: bool = True
    devices: dict[str, tuple[bool, int | None]] = field(default_factory=lambda: {"a": (True, 0), "b": (True, 1)})
    preferred: Sequence[str] = ()
    refuses: str = ""
    """Why each Allocate fails."""
    asked: list[tuple[str, Sequence[str]]] = field(default_factory=list)
    """Each call, with its devices."""
    must: list[Sequence[str]] = field(default_factory=list)
    """What each preferred allocation had to include."""

    def __post_init__(self) -> None:
        self._service: Service | None = None
        self._changed = threading.Condition()
        self._round = 0

    @property
    def endpoint(self) -> str:
        return f"{self.resource.replace('/', '_')}.sock"

    @property
    def options(self) -> api.DevicePluginOptions:
        return api.DevicePluginOptions(
            pre_start_required=self.pre_start_required, get_preferred_allocation_available=self.prefers
        )

    def serve(self) -> None:
        calls = {
            "GetDevicePluginOptions": Call(api.Empty, self._get_options),
            "ListAndWatch": Call(api.Empty, self._list, streams=True),
            "GetPreferredAllocation": Call(api.PreferredAllocationRequest, self._prefer),
            "Allocate": Call(api.AllocateRequest, self._allocate),
            "PreStartContainer": Call(api.PreStartContainerRequest, self._pre_start),
        }
        self._service = Service(self.folder / self.endpoint, "v1beta1.DevicePlugin", calls)

    def register(self) -> None:
        """Raises grpc.RpcError when the kubelet refuses it."""
        with channel_to(self.folder / "kubelet.sock") as channel:
            request = api.RegisterRequest(
                version=self.version, endpoint=self.endpoint, resource_name=self.resource, options=self.options
            )
            method(channel, "v1beta1.Registration/Register", api.Empty)(request, timeout=20, wait_for_ready=True)

    def start(self) -> None:
        self.serve()
        self.register()

    def stop(self) -> None:
        with self._changed:
            self._round += 1
            self._changed.notify_all()
        if self._service:
            self._service.stop()
            self._service = None

    def set(self, devices: Mapping[str, tuple[bool, int | None]]) -> None:
        """Sends other devices."""
        with self._changed:
            self.devices = dict(devices)
            self._changed.notify_all()

    def _get_options(self, _: object, __: object) -> api.DevicePluginOptions:
        self.asked.append(("GetDevicePluginOptions", ()))
        return self.options

    def _list(self, _: object, context: grpc.ServicerContext) -> Iterator[api.ListAndWatchResponse]:
        with self._changed:
            begun, sent = self._round, None
            while self._round == begun and context.is_active():
                if self.devices != sent:
                    sent = self.devices
                    yield api.ListAndWatchResponse(devices=[_device(name, *facts) for name, facts in sent.items()])
                self._changed.wait(0.05)

    def _prefer(self, request: api.PreferredAllocationRequest, _: object) -> api.PreferredAllocationResponse:
        one = request.container_requests[0]
        self.asked.append(("GetPreferredAllocation", tuple(one.available_deviceIDs)))
        self.must.append(tuple(one.must_include_deviceIDs))
        answer = api.ContainerPreferredAllocationResponse(deviceIDs=self.preferred)
        return api.PreferredAllocationResponse(container_responses=[answer])

    def _allocate(self, request: api.AllocateRequest, context: grpc.ServicerContext) -> api.AllocateResponse:
        ids = tuple(request.container_requests[0].devicesIDs)
        self.asked.append(("Allocate", ids))
        if self.refuses:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, self.refuses)
        answer = api.ContainerAllocateResponse(
            envs={"DEVICES": ",".join(ids)},
            devices=[api.DeviceSpec(container_path=f"/dev/{i}", host_path=f"/dev/{i}", permissions="rw") for i in ids],
            annotations={"cdi.k8s.io/example": ids[0]},
            cdi_devices=[api.CDIDevice(name=f"{self.resource}={i}") for i in ids],
        )
        return api.AllocateResponse(container_responses=[answer])

    def _pre_start(
        self, request: api.PreStartContainerRequest, context: grpc.ServicerContext
    ) -> api.PreStartContainerResponse:
        self.asked.append(("PreStartContainer", tuple(request.devicesIDs)))
        if self.refuses:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, self.refuses)
        return api.PreStartContainerResponse()


def _device(name: str, healthy: bool, node: int | None) -> api.Device:
    topology = None if node is None else api.TopologyInfo(nodes=[api.NUMANode(ID=node)])
    return api.Device(ID=name, health="Healthy" if healthy else "Unhealthy", topology=topology)
