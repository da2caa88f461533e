"""One resource's device plugin: its socket, and its streams of devices."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakSet

from grpclib.protocol import H2Protocol
from grpclib.server import Server

from vfioctl.kubelet.serving.loop import Loop
from vfioctl.kubelet.serving.messages import Calls, DevicePlugin, Lists

if TYPE_CHECKING:
    from vfioctl.kubelet.model.device import Device

_SECONDS = 1.0
"""Until the kubelet has read what was sent to it."""


class Devices:
    """The devices of a resource, which each stream sends when they change. Streams run in the loop; other methods are
    for any thread."""

    def __init__(self, loop: Loop) -> None:
        self._loop, self._changing = loop, threading.Lock()
        self._devices: tuple[int, Sequence[Device]] | None = None  # with the number of their version
        self._ended = 0
        self._streams: set[asyncio.Event] = set()
        self._silent_since = time.monotonic()

    def update(self, devices: Sequence[Device]) -> bool:
        """Send these devices, if they differ from the last ones; return whether they do."""
        with self._changing:
            version, last = self._devices or (0, None)
            if devices == last:
                return False
            self._devices = (version + 1, devices)
        self._loop.soon(self._wake)
        return True

    def send_again(self) -> None:
        """Send the last ones once more: the kubelet writes its checkpoint whenever it gets a list."""
        with self._changing:
            if self._devices:
                version, devices = self._devices
                self._devices = (version + 1, devices)
        self._loop.soon(self._wake)

    def is_silent(self, since: float) -> bool:
        """Return whether no kubelet has listened since then, in seconds of `time.monotonic`."""
        return not self._streams and self._silent_since < since

    def end_streams(self) -> None:
        """End the streams that are open now."""
        self._ended += 1
        self._loop.soon(self._wake)

    async def follow(self) -> Lists:
        """Yield the devices at once, and whenever they change, until the stream is over."""
        changed, ended, sent = asyncio.Event(), self._ended, 0
        self._streams.add(changed)
        try:
            while ended == self._ended:
                changed.clear()
                if self._devices and self._devices[0] != sent:
                    sent, devices = self._devices
                    yield devices
                else:
                    await changed.wait()
        finally:
            self._streams.discard(changed)
            self._silent_since = time.monotonic()

    async def all_ended(self) -> None:
        """Return when no stream is open."""
        while self._streams:
            await asyncio.sleep(0.01)

    def _wake(self) -> None:
        for changed in self._streams:
            changed.set()


class Plugin:
    """The server of one resource."""

    def __init__(self, socket: Path, calls: Calls, loop: Loop, threads: ThreadPoolExecutor) -> None:
        """`threads`: for calls, so that one which hangs costs no other."""
        self.socket, self.devices = socket, Devices(loop)
        self._loop, self._service = loop, DevicePlugin(calls, self.devices.follow, threads)
        self._server: _Server | None = None
        self._inode = 0

    @property
    def is_served(self) -> bool:
        """Whether its socket is there, and is its own: a kubelet that starts removes all."""
        try:
            return self._server is not None and self.socket.stat().st_ino == self._inode
        except OSError:
            return False

    @property
    def is_busy(self) -> bool:
        """Whether a call runs."""
        return self._service.running > 0

    def serve(self) -> None:
        """Serve the socket; again if it is gone. Raises OSError if it cannot be made."""
        self.end()
        with suppress(FileNotFoundError):
            self.socket.unlink()
        self._server = self._loop.run(_Server.started(self._service, self.socket))
        self._inode = self.socket.stat().st_ino

    def refuse_calls(self) -> None:
        """Remove the socket, and take no more calls; those that run go on."""
        self._service.is_over = True
        if self.is_served:
            with suppress(OSError):
                self.socket.unlink()

    def end(self) -> None:
        """End streams, calls and connections."""
        server, self._server = self._server, None
        if server:
            self.devices.end_streams()
            self._loop.run(server.ended(self.devices))


class _Server(Server):
    """A server that knows its connections, and closes them."""

    def __init__(self, service: DevicePlugin) -> None:
        super().__init__([service])
        self._connections = WeakSet[H2Protocol]()

    @classmethod
    async def started(cls, service: DevicePlugin, socket: Path) -> _Server:
        """Return a server that listens. Raises OSError."""
        server = cls(service)
        await server.start(path=str(socket))
        return server

    async def ended(self, devices: Devices) -> None:
        """Close it, once its streams have ended or some time has passed."""
        with suppress(TimeoutError):
            await asyncio.wait_for(devices.all_ended(), _SECONDS)
        self.close()
        for _ in range(2):  # one that was just accepted is made in the loop's next pass
            await asyncio.sleep(0)
        for protocol in self._connections:
            if hasattr(protocol, "connection"):
                protocol.connection.close()
        with suppress(TimeoutError):  # a kubelet that is stopped reads no more
            await asyncio.wait_for(self.wait_closed(), _SECONDS)

    def _protocol_factory(self) -> H2Protocol:
        protocol = super()._protocol_factory()
        self._connections.add(protocol)
        return protocol
