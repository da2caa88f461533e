"""gRPC services without generated stubs, on sockets that behave as those of a Go program that was killed: the file
stays when its server has ended and answers nothing."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from vfioctl.kubelet.proto import deviceplugin_pb2 as plugin_api
from vfioctl.kubelet.proto import podresources_pb2 as pods_api

_NUMBERS = itertools.count(1)


class Call(NamedTuple):
    """One method: the request's class, and what answers it (or streams answers)."""

    request: Any
    serve: Callable[[Any, grpc.ServicerContext], Any]
    streams: bool = False


def failed(context: grpc.ServicerContext, why: str) -> None:
    """Ends the call as a Go server does whose method returned a plain error."""
    context.abort(grpc.StatusCode.UNKNOWN, why)


class Service:
    """A server of one service at one path. Starts at once."""

    def __init__(self, socket: Path, name: str, calls: Mapping[str, Call]) -> None:
        self._server = grpc.server(ThreadPoolExecutor(max_workers=16), options=(("grpc.so_reuseport", 0),))
        handlers = {
            method: _handler(call.serve, call.request.FromString, streams=call.streams)
            for method, call in calls.items()
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))
        own = socket.parent.parent / f".{next(_NUMBERS)}.sock"
        self._server.add_insecure_port(f"unix:{own}")
        self._server.start()
        # gRPC removes the name that it made when it stops; this one stays
        with suppress(FileNotFoundError):
            socket.unlink()
        os.link(own, socket)

    def stop(self) -> None:
        self._server.stop(grace=None).wait()


def _handler(
    serve: Callable[[Any, grpc.ServicerContext], Any], parse: Callable[[bytes], Any], *, streams: bool
) -> grpc.RpcMethodHandler[Any, Any]:
    make = grpc.unary_stream_rpc_method_handler if streams else grpc.unary_unary_rpc_method_handler
    return make(serve, request_deserializer=parse, response_serializer=lambda answer: answer.SerializeToString())


def registration(socket: Path, register: Callable[[plugin_api.RegisterRequest], None]) -> Service:
    """The service at which plugins register. `register` raises ValueError, TimeoutError to refuse one."""

    def serve(request: plugin_api.RegisterRequest, context: grpc.ServicerContext) -> plugin_api.Empty:
        try:
            register(request)
        except (ValueError, TimeoutError) as error:
            failed(context, str(error))
        return plugin_api.Empty()

    return Service(socket, "v1beta1.Registration", {"Register": Call(plugin_api.RegisterRequest, serve)})


def pod_resources(
    socket: Path,
    listed: Callable[[], Iterable[pods_api.PodResources]],
    allocatable: Callable[[], Iterable[pods_api.ContainerDevices]] | None,
) -> Service:
    """PodResources; without `allocatable`, List only."""

    def serve_list(_: object, __: object) -> pods_api.ListPodResourcesResponse:
        return pods_api.ListPodResourcesResponse(pod_resources=listed())

    def serve_get(
        request: pods_api.GetPodResourcesRequest, context: grpc.ServicerContext
    ) -> pods_api.GetPodResourcesResponse:
        wanted = (request.pod_namespace, request.pod_name)
        for pod in listed():
            if (pod.namespace, pod.name) == wanted:
                return pods_api.GetPodResourcesResponse(pod_resources=pod)
        failed(context, f"pod {wanted[1]} in namespace {wanted[0]} not found")
        raise AssertionError

    calls = {"List": Call(pods_api.ListPodResourcesRequest, serve_list)}
    if allocatable is not None:
        known = allocatable
        calls["Get"] = Call(pods_api.GetPodResourcesRequest, serve_get)
        calls["GetAllocatableResources"] = Call(
            pods_api.AllocatableResourcesRequest,
            lambda _, __: pods_api.AllocatableResourcesResponse(devices=known()),
        )
    return Service(socket, "v1.PodResourcesLister", calls)
