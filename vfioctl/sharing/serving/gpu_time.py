"""The use cases of shared GPU time: measure once, serve, and thaw what was left frozen. Changes control groups only
through `vfioctl.sharing.throttling`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from vfioctl.core.events import Cancel, check_stop
from vfioctl.errors import HostError, NotPermitted
from vfioctl.sharing.model.gpu_time import Measurement, Usage, added, quotas

if TYPE_CHECKING:
    from vfioctl.session import Session
    from vfioctl.sharing.model.settings import SharingSettings

_PAUSE = 0.05


class GpuTime:
    """The GPU time of control groups of one host."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def settings(self) -> SharingSettings:
        """The table `[sharing]` of the configuration. Raises BadSpec."""
        settings: SharingSettings = self._session.settings("sharing")
        return settings

    def measure(self, seconds: float, *, cancel: Cancel | None = None) -> Measurement:
        """Measure for so many seconds, and freeze nothing. Raises BadSpec; HostError where no processes run."""
        from vfioctl.sharing.serving.service import ShareService

        settings, usages, would_freeze = self.settings, list[Usage](), set[str]()
        service = ShareService(self._session, settings, dry_run=True)
        begun = time.monotonic()
        try:
            service.tick()  # the counters as they are now
            while time.monotonic() < begun + seconds:
                self._sleep(min(settings.seconds("poll"), begun + seconds - time.monotonic()), cancel)
                usages += service.tick()
                would_freeze |= service.would_freeze
            sums = sorted(added(usages).items())
            return Measurement(
                time.monotonic() - begun,
                tuple(Usage(*key, *values) for key, values in sums),
                settings.weights,
                dict(service.problems),
                service.excluded(),
                tuple(sorted(would_freeze)),
                service.totals.counted().memory,
            )
        finally:
            service.close()

    @staticmethod
    def _sleep(seconds: float, cancel: Cancel | None) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            check_stop(cancel)
            time.sleep(min(_PAUSE, left))

    def serve(self, *, stop: Callable[[], bool], ready: Callable[[str], None], dry_run: bool = False) -> None:
        """Measure, and throttle if the settings say so, until `stop` returns true; then thaw everything. `ready`:
        called once it measures. `dry_run`: freeze nothing, and log which groups would be frozen.

        Raises BadSpec; HostError where no processes run, and for an address that is in use; NotPermitted; and
        MissingLibrary without prometheus-client, if the settings want metrics."""
        from vfioctl.serving.http import HttpServer
        from vfioctl.sharing.serving.service import ShareService

        settings = self.settings
        if settings.throttle and not dry_run:
            self._refuse_ordinary()
        service = ShareService(self._session, settings, dry_run=dry_run)
        http = None
        try:
            if settings.listen:
                from vfioctl.sharing.serving.metrics import ShareMetrics

                containers = (lambda: service.containers) if settings.container_metrics else None
                metrics = ShareMetrics(service.totals, quotas(settings.weights), containers)
                service.froze.append(metrics.froze)
                http = HttpServer(settings.listen, metrics.text, service.unwell, table="sharing")
                http.start()
            if settings.throttle and not dry_run:
                self._session.kernel.gpu_sharing().thaw_abandoned()  # of one that was killed with its watchdog
            service.run(stop, ready)
        finally:
            service.close()
            if http:
                http.close()

    def thaw(self) -> Mapping[str, str]:
        """Thaw what a service left frozen that was killed together with its watchdog. Return each group, with why it
        could not be thawed; empty if it was. Raises HostError, NotPermitted."""
        host = self._session.kernel.gpu_sharing()
        self._refuse_ordinary()
        done = host.thaw_abandoned()
        if failed := {path: why for path, why in done.items() if why}:
            path, why = next(iter(failed.items()))
            raise HostError(f"{path} could not be thawed: {why}", hint=f"echo 0 > /sys/fs/cgroup{path}/cgroup.freeze")
        return done

    @staticmethod
    def _refuse_ordinary() -> None:
        if os.geteuid() != 0:
            raise NotPermitted("only root may freeze and thaw control groups", hint="run it with sudo")
