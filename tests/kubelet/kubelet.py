"""A kubelet, as a device plugin sees one: it registers plugins, keeps devices, admits pods and starts containers.

Written from the protocol files and from what kubelets 1.20 and 1.36 were seen to do. It runs no containers.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tests.kubelet.admission import Admission, Refusals
from tests.kubelet.endpoint import Stopped
from tests.kubelet.listing import allocatable, listed
from tests.kubelet.plugins import Plugins
from tests.kubelet.pods import Options, Phase, Pod, Rejected
from tests.kubelet.releases import V1_36, Release
from tests.kubelet.services import Service, pod_resources, registration
from tests.kubelet.state import Asked, Life, State
from tests.kubelet.table import CHECKPOINT

DEPRECATION = "DEPRECATION"


class Kubelet:
    """Plays a kubelet of one release below a folder, whose path must be short (sockets). Start and stop it."""

    def __init__(self, folder: Path, release: Release = V1_36, *, seed: int = 0) -> None:
        self.plugins, resources = folder / "device-plugins", folder / "pod-resources"
        self.plugins.mkdir(parents=True)
        resources.mkdir()
        self.socket, self.pod_resources = self.plugins / "kubelet.sock", resources / "kubelet.sock"
        self.state = State(release, self.plugins, random.Random(seed))
        self.registrations = Plugins(self.state)
        self._admission = Admission(self.state)
        self._services: list[Service] = []
        self.wait = self.state.wait

    # --- the program

    def start(self, *, api_server: bool = True) -> None:
        """Starts it. Static pods come at once, the others when the API server answers."""
        self.state.begin()
        self._clean()
        shown = (lambda: allocatable(self.state)) if self.state.release.has_get else None
        self._services = [
            pod_resources(self.pod_resources, lambda: listed(self.state), shown),
            registration(self.socket, self.registrations.register),
        ]
        self._readmit(static=True)
        if api_server:
            self.api_answers()

    def api_answers(self) -> None:
        """The API server tells which pods there are: those that have not ended are admitted anew."""
        self._readmit(static=False)
        self.state.sources_ready = True

    def stop(self) -> None:
        """Ends it as a kill does. The sockets stay, and containers go on running."""
        self.state.up = False
        self.registrations.disconnect()
        for service in self._services:
            service.stop()
        self._services = []

    def restart(self, *, checkpoint: bool = True) -> None:
        """Restarts it; `checkpoint`: whether it still knows who has what."""
        self.stop()
        if not checkpoint:
            (self.plugins / CHECKPOINT).unlink(missing_ok=True)
        self.start()

    def shut_down(self) -> None:
        """The node goes down: no container runs. Which pods there are is known elsewhere."""
        self.stop()
        for life in self.state.lives.values():
            life.running.clear()

    def _clean(self) -> None:
        for file in self.plugins.iterdir():
            removed = file.is_socket() or (self.state.release.removes_files and not file.is_dir())
            if removed and file.name not in {CHECKPOINT, DEPRECATION}:
                file.unlink()
        (self.plugins / DEPRECATION).touch()

    # --- devices

    def healthy(self, resource: str) -> frozenset[str]:
        """The devices that pods can get, or have."""
        with self.state.changed:
            return frozenset(self.state.table.healthy.get(resource, ()))

    def unhealthy(self, resource: str) -> frozenset[str]:
        with self.state.changed:
            return frozenset(self.state.table.unhealthy.get(resource, ()))

    def wait_for_loss(self) -> None:
        """Waits until it has seen that its plugins have ended: it calls them until then. Raises TimeoutError."""
        self.wait(lambda: not (self.state.up and any(self.state.table.healthy.values())), 60)

    def ids_of(self, pod: Pod) -> frozenset[str]:
        """The devices that the kubelet has given to a pod."""
        with self.state.changed:
            held = self.state.table.held.items()
            return frozenset(device for place, devices in held if place.uid == pod.uid for device in devices.ids)

    def asked(self, method: str) -> list[Asked]:
        """The calls of this method so far."""
        return [call for call in self.state.asked if call.method == method]

    # --- pods

    def run(self, pod: Pod) -> Mapping[str, Options]:
        """Admits a pod and starts its containers. Raises Rejected, NotStarted."""
        self.admit(pod)
        started = {}
        for container in pod.in_order:
            started[container.name] = self.start_container(pod, container.name)
            if container.init:
                self.life(pod).running.discard(container.name)
        return started

    def admit(self, pod: Pod) -> None:
        """Gives its devices to a pod. Raises Rejected; Stopped if the kubelet was stopped meanwhile."""
        with self.state.changed:
            life = self.state.lives.setdefault(pod.uid, Life(pod))
            self.state.arrived.add(pod.uid)
        try:
            self._admission.admit(pod)
        except Refusals as error:
            if not self.state.up:  # nobody has told the API server: the pod comes again
                raise Stopped(str(error)) from error
            rejected = Rejected(str(error))
            life.phase, life.message = Phase.FAILED, str(rejected)
            raise rejected from error
        life.phase = Phase.RUNNING

    def start_container(self, pod: Pod, name: str) -> Options:
        """Starts a container, the first time or again. Raises NotStarted."""
        life = self.life(pod)
        life.running.discard(name)
        self._admission.prepare(pod, pod.container(name))
        life.running.add(name)
        with self.state.changed:
            return self.state.table.options(pod.uid, name, cdi=self.state.release.keeps_cdi)

    def finish(self, pod: Pod) -> None:
        """All its containers have ended, and are not started again. The pod is still there."""
        self.life(pod).running.clear()
        self.life(pod).phase = Phase.SUCCEEDED

    def remove(self, pod: Pod) -> None:
        """The pod is deleted. No plugin is told."""
        with self.state.changed:
            del self.state.lives[pod.uid]

    def life(self, pod: Pod) -> Life:
        return self.state.lives[pod.uid]

    def _readmit(self, *, static: bool) -> None:
        for life in [*self.state.lives.values()]:
            if life.pod.static == static and not life.ended:
                with suppress(Rejected):
                    self.admit(life.pod)
