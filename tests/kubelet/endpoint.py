"""The kubelet's end of one plugin: the calls of service v1beta1.DevicePlugin, without generated stubs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import grpc

from vfioctl.kubelet.proto import deviceplugin_pb2 as api

M = TypeVar("M")
PRE_START_SECONDS = 30.0
CONNECT_SECONDS = 10.0
_OPTIONS = (
    ("grpc.default_authority", "localhost"),  # as Go clients send it
    ("grpc.use_local_subchannel_pool", 1),  # a plugin that starts anew at the same path is another peer
)


class Refused(Exception):
    """A call failed; the text is as the kubelet, a Go program, writes it."""

    def __init__(self, error: grpc.RpcError) -> None:
        code = "".join(word.title() for word in error.code().name.split("_"))
        self.code, self.details = error.code(), error.details() or ""
        super().__init__(f"rpc error: code = {code} desc = {self.details}")


class Stopped(Exception):
    """The plugin has gone, so it is not called."""


def channel_to(socket: Path) -> grpc.Channel:
    return grpc.insecure_channel(f"unix:{socket}", options=_OPTIONS)


def method(channel: grpc.Channel, path: str, answer: type[M]) -> Callable[..., M]:
    """A unary call of that path (`package.Service/Method`). Raises grpc.RpcError."""
    return channel.unary_unary(
        f"/{path}",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=answer.FromString,  # type: ignore[attr-defined] # every message has it
    )


class Endpoint:
    """A connection to one plugin. Raises Refused, and Stopped once its stream has ended."""

    def __init__(self, socket: Path, resource: str) -> None:
        """Raises TimeoutError when nothing answers there."""
        self.resource, self.options = resource, api.DevicePluginOptions()
        self._channel = channel_to(socket)
        self._stopped = threading.Event()
        self._stream: Any = None
        try:
            grpc.channel_ready_future(self._channel).result(timeout=CONNECT_SECONDS)
        except grpc.FutureTimeoutError:
            self._channel.close()
            raise TimeoutError(f"failed to dial device plugin: {socket}") from None

    @property
    def stopped(self) -> bool:
        return self._stopped.is_set()

    def ask_options(self) -> None:
        self.options = self._call("GetDevicePluginOptions", api.Empty(), api.DevicePluginOptions)

    def watch(self, changed: Callable[[Sequence[api.Device]], None], ended: Callable[[], None]) -> None:
        """Reads ListAndWatch in a thread, until the plugin ends or `stop`."""
        self._stream = self._channel.unary_stream(
            "/v1beta1.DevicePlugin/ListAndWatch",
            request_serializer=api.Empty.SerializeToString,
            response_deserializer=api.ListAndWatchResponse.FromString,
        )(api.Empty())
        threading.Thread(target=self._read, args=(changed, ended), daemon=True).start()

    def _read(self, changed: Callable[[Sequence[api.Device]], None], ended: Callable[[], None]) -> None:
        with suppress(grpc.RpcError, ValueError):  # ValueError: the channel was closed meanwhile
            for answer in self._stream:
                changed(list(answer.devices))
        self.stop()
        ended()

    def prefer(self, available: Iterable[str], must: Iterable[str], size: int) -> Sequence[str]:
        """The devices that the plugin prefers; empty if it prefers none."""
        one = api.ContainerPreferredAllocationRequest(
            available_deviceIDs=available, must_include_deviceIDs=must, allocation_size=size
        )
        request = api.PreferredAllocationRequest(container_requests=[one])
        answer = self._call("GetPreferredAllocation", request, api.PreferredAllocationResponse)
        return list(answer.container_responses[0].deviceIDs) if answer.container_responses else []

    def allocate(self, ids: Sequence[str], timeout: float | None = None) -> api.ContainerAllocateResponse:
        """The kubelet has no timeout here; a test may have one."""
        request = api.AllocateRequest(container_requests=[api.ContainerAllocateRequest(devicesIDs=ids)])
        answer = self._call("Allocate", request, api.AllocateResponse, timeout)
        if not answer.container_responses:
            raise ValueError("no containers return in allocation response")
        return answer.container_responses[0]

    def pre_start(self, ids: Sequence[str]) -> None:
        request = api.PreStartContainerRequest(devicesIDs=ids)
        self._call("PreStartContainer", request, api.PreStartContainerResponse, PRE_START_SECONDS)

    def _call(self, name: str, request: object, answer: type[M], timeout: float | None = None) -> M:
        if self.stopped:
            raise Stopped(f"endpoint {self.resource} has been stopped")
        try:
            return method(self._channel, f"v1beta1.DevicePlugin/{name}", answer)(request, timeout=timeout)
        except grpc.RpcError as error:
            raise Refused(error) from error

    def stop(self) -> None:
        self._stopped.set()
        if self._stream is not None:
            self._stream.cancel()
        self._channel.close()
