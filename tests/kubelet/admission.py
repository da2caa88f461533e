"""How the kubelet gives devices to the containers of a pod, and asks a plugin before it starts one."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from tests.kubelet.endpoint import Refused, Stopped
from tests.kubelet.pods import Container, NotStarted, Pod
from tests.kubelet.state import Asked, State
from tests.kubelet.table import Choice, Place

Refusals = (Refused, Stopped, LookupError, ValueError)
"""Why a container got no devices: the plugin's word, or the kubelet's."""


class Admission:
    def __init__(self, state: State) -> None:
        self._state = state
        self._one_pod = threading.RLock()

    def admit(self, pod: Pod) -> None:
        """Allocates for each container in turn, one pod at a time. Raises one of Refusals."""
        with self._one_pod:
            reuse: dict[str, set[str]] = {}
            for container in pod.in_order:
                self._allocate(pod, container, reuse)
                if container.refused:
                    raise ValueError(container.refused)

    def prepare(self, pod: Pod, container: Container) -> None:
        """What happens each time before the container starts. Raises NotStarted."""
        for resource in container.needs:
            place = Place(pod.uid, container.name, resource)
            if self._state.table.knows(resource):
                self._pre_start(place)
        if any(
            self._state.table.knows(resource) and Place(pod.uid, container.name, resource) not in self._state.table.held
            for resource in container.needs
        ):
            with self._one_pod:
                try:
                    self._allocate(pod, container, {})
                except Refusals as error:
                    raise NotStarted(str(error)) from error

    def _allocate(self, pod: Pod, container: Container, reuse: dict[str, set[str]]) -> None:
        """All devices of one container. `reuse`: those of init containers, which the others get first."""
        needs = [*container.needs.items()]
        self._state.order.shuffle(needs)
        for resource, needed in needs:
            with self._state.changed:
                if not self._state.table.knows(resource):
                    continue
                self._state.forget_ended()
            place = Place(pod.uid, container.name, resource)
            if ids := self._chosen(place, needed, reuse.get(resource, set()), container.numa_node):
                self._ask_allocate(place, ids)
        for resource, held in self._state.table.of(pod.uid, container.name):
            of_init = reuse.setdefault(resource, set())
            if container.init:
                of_init.update(held.ids)
            else:
                of_init.difference_update(held.ids)

    def _chosen(self, place: Place, needed: int, reusable: set[str], numa_node: int | None) -> Sequence[str]:
        """The devices to ask for; none if the container has them already. `numa_node`: of which they are, if any."""
        table, resource = self._state.table, place.resource
        with self._state.changed:
            if self._has_its_devices(place, needed):
                return ()
            if resource not in table.healthy:
                raise LookupError(f"can't allocate unregistered device {resource}")
            choice = Choice(table, resource, needed, self._state.order)
            if choice.take(reusable):
                return choice.ids
            available = choice.available()
            if numa_node is not None:
                available = {device for device in available if table.nodes_of(resource, device) == [numa_node]}
        preferred = self._preferred(resource, available | {*choice.ids}, choice.ids, needed)
        with self._state.changed:
            _ = choice.take(available & preferred) or choice.take(available)
        return choice.ids

    def _has_its_devices(self, place: Place, needed: int) -> bool:
        table, resource = self._state.table, place.resource
        held = table.held.get(place)
        if held and len(held.ids) != needed:
            raise ValueError(f"container {place.container!r} changed request for resource {resource} to {needed}")
        if not self._state.release.checks_health:
            return held is not None
        if not self._state.sources_ready and place.container in self._state.lives[place.uid].running:
            return True  # only the kubelet was restarted
        if resource not in table.healthy:
            raise LookupError(f"cannot allocate unregistered device {resource}")
        if not table.healthy[resource]:
            raise LookupError(f"no healthy devices present; cannot allocate unhealthy devices {resource}")
        if held and not held.ids <= table.healthy[resource]:
            what = "previously allocated devices are no longer healthy"
            raise LookupError(f"{what}; cannot allocate unhealthy devices {resource}")
        return held is not None

    def _preferred(self, resource: str, available: set[str], must: Sequence[str], needed: int) -> set[str]:
        endpoint = self._state.endpoints.get(resource)
        if endpoint is None or not endpoint.options.get_preferred_allocation_available:
            return set()
        known = self._shuffled(available)
        self._state.asked.append(Asked("GetPreferredAllocation", resource, tuple(known)))
        try:
            return {*endpoint.prefer(known, must, needed)}
        except (Refused, Stopped) as error:
            raise ValueError(f"device plugin GetPreferredAllocation rpc failed with err: {error}") from error

    def _ask_allocate(self, place: Place, ids: Sequence[str]) -> None:
        endpoint = self._state.endpoints.get(place.resource)
        self._state.asked.append(Asked("Allocate", place.resource, tuple(ids)))
        try:
            if endpoint is None:
                raise LookupError(f"unknown Device Plugin {place.resource}")
            answer = endpoint.allocate(ids)
        except Refusals:
            with self._state.changed:
                self._state.table.count()
            raise
        with self._state.changed:
            self._state.table.hold(place, ids, answer)
            self._state.save()

    def _pre_start(self, place: Place) -> None:
        endpoint = self._state.endpoints.get(place.resource)
        if endpoint is None or not endpoint.options.pre_start_required:
            return
        held = self._state.table.held.get(place)
        if held is None:
            what = f"no devices found allocated in local cache for pod {place.uid}, container {place.container}"
            raise NotStarted(f"{what}, resource {place.resource}")
        ids = self._shuffled(held.ids)
        self._state.asked.append(Asked("PreStartContainer", place.resource, tuple(ids)))
        try:
            endpoint.pre_start(ids)
        except (Refused, Stopped) as error:
            raise NotStarted(f"device plugin PreStartContainer rpc failed with err: {error}") from error

    def _shuffled(self, ids: set[str] | frozenset[str]) -> list[str]:
        known = sorted(ids)
        self._state.order.shuffle(known)
        return known
