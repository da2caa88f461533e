"""Asks the kubelet which pod has which device."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import TYPE_CHECKING, TypeVar

from grpclib.client import Channel

from vfioctl.kubelet.serving.loop import Loop
from vfioctl.kubelet.serving.messages import Unanswered, allocatable, has_devices, list_pods

if TYPE_CHECKING:
    from vfioctl.kubelet.model.device import Listing, Pod

T = TypeVar("T")


class PodResources:
    """The kubelet's service of this name, over one connection."""

    def __init__(self, socket: str, loop: Loop, seconds: float) -> None:
        """`seconds`: timeout of each question."""
        self._socket, self._loop, self._seconds = socket, loop, seconds
        self._channel: Channel | None = None

    def list(self) -> Listing:
        """Return which containers have which devices. Raises Unanswered."""
        return self._ask(lambda channel: list_pods(channel, self._seconds))

    def has_devices(self, pod: Pod) -> bool | None:
        """See `vfioctl.kubelet.serving.messages.has_devices`."""
        return self._ask(lambda channel: has_devices(channel, pod, self._seconds))

    def allocatable(self) -> frozenset[str] | None:
        """See `vfioctl.kubelet.serving.messages.allocatable`."""
        return self._ask(lambda channel: allocatable(channel, self._seconds))

    def close(self) -> None:
        """End the connection."""
        if self._channel:
            self._loop.soon(self._channel.close)

    def _ask(self, question: Callable[[Channel], Awaitable[T]]) -> T:
        async def ask() -> T:
            self._channel = self._channel or Channel(path=self._socket)
            return await question(self._channel)

        return self._loop.run(ask())


def ask_once(socket: str, seconds: float) -> Listing | None:
    """Return what the kubelet tells; None if it does not answer."""
    with Loop() as loop, closing(PodResources(socket, loop, seconds)) as kubelet:
        try:
            return kubelet.list()
        except Unanswered:
            return None
