"""The service: looks at the devices when something happens, keeps resources registered, follows which pod has which
device, and gives back what no pod has. One thread looks, one follows, and each release has its own: none waits for
another. Changes the host through the apis only."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from vfioctl.claims.api import ClaimsApi
from vfioctl.console.words import counted
from vfioctl.core.marks import MarkKind
from vfioctl.errors import DeviceInUse, VfioctlError
from vfioctl.inventory.api import InventoryApi
from vfioctl.kubelet.allocating.allocation import Allocation
from vfioctl.kubelet.allocating.following import Following
from vfioctl.kubelet.model.device import LABEL, PROVISIONAL, Device, Pod, Resource
from vfioctl.kubelet.model.settings import KubeletSettings
from vfioctl.kubelet.model.status import Status
from vfioctl.kubelet.reading.look import Look
from vfioctl.kubelet.serving.events import Events
from vfioctl.kubelet.serving.loop import Loop
from vfioctl.kubelet.serving.messages import Unanswered
from vfioctl.kubelet.serving.metrics import OK, Metrics
from vfioctl.kubelet.serving.plugin import Plugin
from vfioctl.kubelet.serving.pods import PodResources, ask_once
from vfioctl.kubelet.serving.registration import Registrations
from vfioctl.kubelet.serving.state import State
from vfioctl.kubelet.serving.work import PartsWork, ResourceWork

if TYPE_CHECKING:
    from vfioctl.claims.model.claim import Claim
    from vfioctl.kubelet.model.device import Listing
    from vfioctl.session import Session

_TICK = 0.75
"""Seconds between two looks at files."""
_CALM = 0.05
"""Seconds in which the events of one change are waited for."""
_LOOK = 120.0
"""Seconds between two looks at the devices without any event: for what the host does not report, such as holders."""
_AFTER = 4.0
"""Seconds after an event until one more look: a program may close a device just after it, which no event tells."""
_PODS = 5.0
"""Timeout of a question about pods."""
_COUNTED = 6
"""Polls of pods for each question which devices the kubelet counts."""
_AGAIN = 5.0
_HANGS = 60.0
"""Seconds after which a thread that should have run counts as hanging."""
_THREADS_OF_CALLS = 32
_log = logging.getLogger("vfioctl.kubelet")


class KubeletService:
    """The device plugin of one host: see `vfioctl.kubelet.serving.work.Service`."""

    def __init__(self, session: Session, settings: KubeletSettings) -> None:
        """Raises MissingLibrary."""
        self.session, self._settings = session, settings
        self.state, self.metrics = State(settings.run, session.ledger, settings.names), Metrics()
        self._threads, self._loop = ThreadPoolExecutor(_THREADS_OF_CALLS, thread_name_prefix="kubelet"), Loop()
        seconds = settings.seconds("allocate_timeout")
        self._plugins = {
            resource.name: Plugin(
                Path(settings.plugins, resource.endpoint),
                (PartsWork if resource.is_shared else ResourceWork)(self, resource, seconds),
                self._loop,
                self._threads,
            )
            for resource in settings.resources
        }
        self._registrations = Registrations(settings.plugins, self._plugins, self._loop, self.state)
        self._following = Following(session, settings, self._send_again)
        self._resources: Mapping[str, Resource] = {}
        self._gpus: Sequence[str] = ()
        self._looking = threading.Lock()
        self._look_due, self._follow_due, self._ended = threading.Event(), threading.Event(), threading.Event()
        self._working: set[str] = set()
        self._count_due, self._uncounted = 0.0, frozenset[str]()
        self._counting, self._running = threading.Lock(), 0
        self._beats: dict[str, float] = {}

    def run(self, stop: Callable[[], bool], ready: Callable[[str], None]) -> None:
        """Serve until `stop` returns true. `ready`: called once the sockets are served, with what is served."""
        with self._loop:
            self._run(stop, ready)

    def _run(self, stop: Callable[[], bool], ready: Callable[[str], None]) -> None:
        self.state.write()
        events = Events(self.session, self.state.failed)  # before the first look, so that no change between is missed
        try:
            self._look()
        except VfioctlError as error:  # such as a ledger that is locked for long
            self.state.failed("", "look", error)
            self._look_due.set()
        threads = [
            threading.Thread(target=work, name=work.__name__, daemon=True)
            for work in (self._keeps_ledger_open, self._looks, self._follows)
        ]
        for thread in threads:
            thread.start()
        told = False
        try:
            while not stop():
                self._beat("main")
                self._registrations.keep()
                if not told:
                    told = True
                    ready(counted(len(self._plugins), "resource"))
                events.watch_gpus(self._gpus)
                if events.wait(_TICK):
                    self._look_due.set()
        finally:
            events.close()
            self._end(threads)

    def _send_again(self) -> None:
        for plugin in self._plugins.values():
            plugin.devices.send_again()

    def unwell(self) -> Sequence[str]:
        """Return why the service does not work; nothing if it does. A broken device is no reason."""
        now = time.monotonic()
        return [f"its {name} thread hangs" for name, due in self._beats.items() if due < now]

    def devices(self, resource: str) -> Sequence[Device]:
        known = self._resources.get(resource)
        return known.devices if known else ()

    def look_again(self, resource: str) -> Sequence[Device]:
        self._look()
        return self.devices(resource)

    def listed(self) -> Listing | None:
        """See `Service`."""
        return ask_once(self._settings.pod_resources, _PODS)

    def changed(self) -> None:
        self._look_due.set()

    def follow_soon(self) -> None:
        self._follow_due.set()

    @contextmanager
    def calling(self) -> Iterator[None]:
        with self._counting:
            self._running += 1
        try:
            yield
        finally:
            with self._counting:
                self._running -= 1

    def ended(self, resource: str, call: str, seconds: float, error: Exception | None) -> None:
        if call == "Allocate":
            self.metrics.allocated(resource, seconds, type(error).__name__ if error else OK)
        elif error:
            self.metrics.failed(call, type(error).__name__)
        if error:
            self.state.failed(resource, call, error)
        else:
            _log.info("%s of %s: %.0f ms", call, resource, 1000 * seconds, extra={"resource": resource})

    def _beat(self, name: str, pause: float = 0.0) -> None:
        """Note that a thread runs, and is to run again after that pause."""
        self._beats[name] = time.monotonic() + pause + _HANGS

    def _keeps_ledger_open(self) -> None:
        """Keep a connection open: SQLite would write back its log whenever the last one is closed, in each call."""
        with suppress(VfioctlError), self.session.store.one_connection():
            self._ended.wait()

    def _looks(self) -> None:
        pause = _LOOK
        while not self._ended.is_set():
            self._beat("look", pause)
            pause = _AFTER if self._look_due.wait(pause) else _LOOK
            self._ended.wait(_CALM)
            self._look_due.clear()
            try:
                self._look()
            except Exception as error:  # noqa: BLE001 - the next look may succeed, and pods go on
                self.state.failed("", "look", error)
                self._ended.wait(1)

    def _look(self) -> None:
        """Look at all devices, and send what has changed."""
        with self._looking:
            look = Look(self.session, self._settings)
            self._resources = {resource.name: look.resource(resource) for resource in self._settings.resources}
            self._gpus = look.gpus_with_vgpus()
            for name, resource in self._resources.items():
                self._plugins[name].devices.update(resource.devices)
        status = Status(tuple(self._resources.values()), self.state.running)
        claims = Counter(claim.state for claim in ClaimsApi(self.session).claims())
        wedged = sum(mark.kind is MarkKind.WEDGED for mark in InventoryApi(self.session).marks().values())
        self.metrics.update(status, claims, wedged)

    def _follows(self) -> None:
        poll = self._settings.seconds("poll")
        with closing(PodResources(self._settings.pod_resources, self._loop, _PODS)) as kubelet:
            while not self._ended.is_set():
                self._beat("follow", poll)
                try:
                    self._follow(kubelet)
                except Unanswered as error:
                    self.state.pods(str(error))
                except Exception as error:  # noqa: BLE001 - the next time may succeed, and pods go on
                    self.state.failed("", "PodResources", error)
                self._follow_due.wait(poll)
                self._follow_due.clear()

    def _follow(self, kubelet: PodResources) -> None:
        for claim in self._following.interrupted():
            self._apart("recovery", self._recover, claim)
        if not Path(self._settings.pod_resources).exists():
            self.state.pods(f"there is no {self._settings.pod_resources}")
            return
        over = self._following.follow(kubelet.list, self.state.failed)
        self.state.pods("")
        for claim, count, is_replaced in over:
            if claim.id not in self._working and (is_replaced or not self._has_pod(kubelet, claim)):
                self._apart("release", self._release, claim, count)
        if time.monotonic() < self._count_due or (known := kubelet.allocatable()) is None:
            return
        self._count_due = time.monotonic() + _COUNTED * self._settings.seconds("poll")
        offered = [name for name in self._settings.names if any(device.is_healthy for device in self.devices(name))]
        before, self._uncounted = self._uncounted, frozenset(offered) - known
        for resource in offered:
            # Missing once says nothing: the kubelet may have been asked between a registration and the first devices.
            if resource in known or resource in before:
                self.state.counted(resource, known=resource in known)

    def _has_pod(self, kubelet: PodResources, claim: Claim) -> bool:
        """Return whether the kubelet says, when asked for its pod alone, that it is there with devices."""
        if claim.owner == PROVISIONAL:
            return False
        self._beat("follow", self._settings.seconds("poll"))
        return bool(kubelet.has_devices(Pod(*claim.owner.name.split("/"))))

    def _apart(self, what: str, work: Callable[..., None], claim: Claim, *arguments: object) -> None:
        """Work on a claim in a thread of its own, unless one does. `what`: for logs and metrics."""
        if claim.id in self._working:
            return
        self._working.add(claim.id)

        def run() -> None:
            try:
                with self.calling():
                    work(claim, *arguments)
            except DeviceInUse as error:
                _log.info("claim %s of %s stays: %s", claim.id, claim.owner, error.message, extra={"claim": claim.id})
                self._ended.wait(_AGAIN)
            except Exception as error:  # noqa: BLE001 - it is told, and tried again
                self.metrics.failed(what, type(error).__name__)
                self.state.failed(claim.labels[LABEL], what, error)
                self._ended.wait(_AGAIN)
            finally:
                self._working.discard(claim.id)
                self.changed()

        threading.Thread(target=run, name="claim", daemon=True).start()

    def _release(self, claim: Claim, count: int) -> None:
        if Allocation(self.session).release(claim, count):
            _log.info("claim %s of %s is released", claim.id, claim.owner, extra={"claim": claim.id})

    def _recover(self, claim: Claim) -> None:
        now = ClaimsApi(self.session).finish(claim)
        _log.info("claim %s was interrupted, and is %s", claim.id, now.state, extra={"claim": claim.id})

    def _end(self, threads: Sequence[threading.Thread]) -> None:
        """End gracefully: sockets go, running calls finish."""
        self._ended.set()
        self._look_due.set()
        self._follow_due.set()
        for plugin in self._plugins.values():
            plugin.refuse_calls()
        until = time.monotonic() + self._settings.seconds("allocate_timeout") + _CALM
        while (self._running or any(plugin.is_busy for plugin in self._plugins.values())) and time.monotonic() < until:
            time.sleep(_CALM)
        for plugin in self._plugins.values():
            plugin.end()  # last: a kubelet whose stream ends gives up its calls
        for thread in threads:
            thread.join(1)
        self._threads.shutdown(wait=False)
        self.state.remove()
