"""How plugins register with the kubelet, and how it follows their devices."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence

from tests.kubelet.endpoint import Endpoint, Refused
from tests.kubelet.state import State
from vfioctl.kubelet.proto import deviceplugin_pb2 as api

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


class Plugins:
    def __init__(self, state: State) -> None:
        self._state = state
        self.requests: list[api.RegisterRequest] = []
        """Those that were accepted."""
        self.failures: list[str] = []
        """Why the kubelet could not connect to a plugin after it had accepted its request."""

    def register(self, request: api.RegisterRequest) -> None:
        """Raises ValueError, TimeoutError for a plugin that is refused."""
        if request.version != "v1beta1":
            what = f'requested API version "{request.version}" is not supported by kubelet'
            raise ValueError(f'{what}. Supported version is ["v1beta1"]')
        if not _NAME.fullmatch(request.resource_name) or "kubernetes.io/" in request.resource_name:
            raise ValueError(f'the ResourceName "{request.resource_name}" is invalid')
        if self._state.release.asks_options:
            self._connect(request)
        else:
            threading.Thread(target=self._connect_later, args=(request,), daemon=True).start()
        with self._state.changed:
            self.requests.append(request)
            self._state.changed.notify_all()

    def _connect_later(self, request: api.RegisterRequest) -> None:
        try:
            self._connect(request)
        except TimeoutError as error:
            with self._state.changed:
                self.failures.append(str(error))
                self._state.changed.notify_all()

    def _connect(self, request: api.RegisterRequest) -> None:
        endpoint = Endpoint(self._state.plugins / request.endpoint, request.resource_name)
        endpoint.options = request.options
        if self._state.release.asks_options:
            try:
                endpoint.ask_options()
            except Refused as error:
                endpoint.stop()
                raise ValueError(f"failed to get device plugin options: {error}") from error
        with self._state.changed:  # the newest plugin of a resource counts
            self._state.endpoints[request.resource_name] = endpoint
        endpoint.watch(lambda devices: self.update(endpoint, devices), lambda: self._lose(endpoint))

    def update(self, endpoint: Endpoint, devices: Sequence[api.Device]) -> None:
        """A list of the plugin has come."""
        with self._state.changed:
            if self._state.up:
                self._state.table.update(endpoint.resource, devices)
                self._state.save()
                self._state.changed.notify_all()

    def _lose(self, endpoint: Endpoint) -> None:
        with self._state.changed:
            if self._state.endpoints.get(endpoint.resource) is endpoint:
                self._state.table.lose(endpoint.resource)
            self._state.changed.notify_all()

    def disconnect(self) -> None:
        """The kubelet ends: its connections do, too."""
        with self._state.changed:
            endpoints, self._state.endpoints = self._state.endpoints, {}
        for endpoint in endpoints.values():
            endpoint.stop()
