"""What a device plugin does for the kubelet: prefer, allocate, prepare a start. Allocate and PreStartContainer work in
threads that a call outlives: a write to the kernel that never returns costs that call, and no other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Overdue
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol, TypeVar

from vfioctl.claims.api import ClaimsApi
from vfioctl.errors import Stuck, UnknownDevice
from vfioctl.kubelet.allocating.allocation import Allocation
from vfioctl.kubelet.allocating.deadline import Deadline
from vfioctl.kubelet.allocating.parts import PartsAllocation
from vfioctl.kubelet.answer.answer import Answer
from vfioctl.kubelet.choosing.shares import chosen_parts
from vfioctl.placement.api import PlacementApi

if TYPE_CHECKING:
    from vfioctl.kubelet.model.device import Device, Listing
    from vfioctl.kubelet.model.settings import ResourceSettings
    from vfioctl.kubelet.serving.messages import Ids
    from vfioctl.session import Session

T = TypeVar("T")
_PRE_START = 25.0
"""Seconds for PreStartContainer, which the kubelet gives 30."""
_MARGIN = 1.0
"""Seconds after the deadline in which a cancelled change is rolled back, before a call gives up on it."""


class Service(Protocol):
    """What the work of one resource needs of the whole service."""

    session: Session

    def devices(self, resource: str) -> Sequence[Device]:
        """Return the devices of a resource, as they were looked at last."""

    def look_again(self, resource: str) -> Sequence[Device]:
        """Look at the devices now, and return those of a resource."""

    def listed(self) -> Listing | None:
        """Return which containers have which devices; None if the kubelet does not tell."""

    def changed(self) -> None:
        """Look at the devices soon."""

    def follow_soon(self) -> None:
        """Ask the kubelet soon which pod has which device."""

    def calling(self) -> AbstractContextManager[None]:
        """Count a call that runs, so that the end of the service waits for it."""

    def ended(self, resource: str, call: str, seconds: float, error: Exception | None) -> None:
        """Count, and log, a call that has ended."""


class ResourceWork:
    """The calls of one resource: see `vfioctl.kubelet.serving.messages.Calls`."""

    def __init__(self, service: Service, settings: ResourceSettings, seconds: float) -> None:
        """`seconds`: how long an Allocate may take."""
        self._service, self._settings, self._seconds = service, settings, seconds

    @property
    def _allocation(self) -> Allocation:
        return Allocation(self._service.session)

    def prefer(self, available: Ids, must: Ids, count: int) -> Ids:
        """Return the devices that a claim would choose; advice only, so an unknown id is no error."""
        devices = {device.id: device for device in self._service.devices(self._settings.name)}
        names = {device.subject: device.id for device in devices.values()}
        known = [devices[name].subject for name in available if name in devices]
        wanted = [devices[name].subject for name in must if name in devices]
        nodes = {device.subject: device.numa_node for device in devices.values()}
        session = self._service.session
        chosen = PlacementApi(session).prefer(known, wanted, count, ClaimsApi(session).ledger.taken(), nodes)
        return [names[subject] for subject in chosen]

    def allocate(self, containers: Sequence[Ids]) -> Sequence[Answer]:
        """Give devices to containers. Raises Busy after the deadline, and what `Allocation.allocate` raises."""
        return self._called("Allocate", self._seconds, containers, self._allocation.allocate)

    def pre_start(self, ids: Ids) -> None:
        """Verify the devices of a container that starts, and restore what is missing."""
        seconds = min(_PRE_START, self._seconds)
        self._called("PreStartContainer", seconds, [ids], self._allocation.ready)
        self._service.follow_soon()

    def _called(
        self,
        call: str,
        seconds: float,
        containers: Sequence[Ids],
        work: Callable[[ResourceSettings, Sequence[Sequence[Device]], Deadline], T],
    ) -> T:
        began, deadline = time.monotonic(), Deadline(seconds)
        problem: Exception | None = None
        try:
            with self._service.calling():
                devices = [self._known(ids) for ids in containers]
                return _within(deadline, lambda: work(self._settings, devices, deadline))
        except Exception as error:
            problem = error
            raise
        finally:
            self._service.ended(self._settings.name, call, time.monotonic() - began, problem)
            self._service.changed()

    def _known(self, ids: Ids) -> Sequence[Device]:
        """Return these devices. Raises UnknownDevice."""
        for look in (self._service.devices, self._service.look_again):
            devices = {device.id: device for device in look(self._settings.name)}
            if devices.keys() >= set(ids):
                return [devices[name] for name in ids]
        unknown = next(name for name in ids if name not in devices)
        raise UnknownDevice(
            f"{self._settings.name} has no device {unknown[:80]!r}", next_command="vfioctl kubelet status"
        )


class PartsWork(ResourceWork):
    """The same for a resource of parts of GPUs."""

    @property
    def _allocation(self) -> PartsAllocation:
        return PartsAllocation(self._service.session, self._service.listed)

    def prefer(self, available: Ids, must: Ids, count: int) -> Ids:
        """Return parts of the GPU that would give them, with what the same container was given a moment ago."""
        there = [device for device in self._service.devices(self._settings.name) if device.id in {*available}]
        gpus = self._allocation.gpus_for(self._settings, count, there)
        return chosen_parts(available, must, count, gpus)


def _within(deadline: Deadline, work: Callable[[], T]) -> T:
    """Return what `work` returns, in a thread of its own. Raises what it raises; Stuck if it does not end."""
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            result.set_exception(error)

    threading.Thread(target=run, name="kubelet call", daemon=True).start()
    try:
        return result.result(deadline.left + _MARGIN)
    except Overdue:
        if result.done():  # it is an error of the work's own
            raise
        raise Stuck(
            f"the devices were not ready within {deadline.seconds:g} s, and the kernel does not answer",
            next_command="vfioctl kubelet status",
        ) from None
