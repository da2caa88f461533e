"""The loop of the service: measures, decides, freezes and thaws, a tick at a time, in one thread."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from vfioctl.errors import KernelRefused, StoreDamaged
from vfioctl.inventory.api import InventoryApi
from vfioctl.sharing.fairness.deficit_rounds import DeficitRounds
from vfioctl.sharing.fairness.gpus import FairShares
from vfioctl.sharing.measuring.gpus import gpus_of
from vfioctl.sharing.measuring.meter import GpuMeter
from vfioctl.sharing.measuring.nvml_time import LONGEST
from vfioctl.sharing.model.gpu_time import Source, Usage
from vfioctl.sharing.serving.containers import Known, read_known
from vfioctl.sharing.serving.totals import Totals
from vfioctl.sharing.throttling.exclusions import Exclusions
from vfioctl.sharing.throttling.throttle import Throttle

if TYPE_CHECKING:
    from vfioctl.session import Session
    from vfioctl.sharing.model.settings import SharingSettings

_STOP_CHECK = 0.25
_LOOK, _LOOK_ANYWAY = 5.0, 60.0
"""Seconds between two looks at the devices: if the ledger has changed, and if not. Drivers are loaded without it."""
_HANGS = 30.0
_log = logging.getLogger("vfioctl.sharing")


class ShareService:
    """Measures and throttles the control groups of one host. `dry_run`: freezes none, and logs which it would."""

    def __init__(self, session: Session, settings: SharingSettings, *, dry_run: bool = False) -> None:
        """Raises HostError on a host without control groups of version 2."""
        self._session, self._settings, self._dry_run = session, settings, dry_run
        self._poll = settings.seconds("poll")
        host = session.kernel.gpu_sharing()
        self._weights = {path: float(weight) for path, weight in settings.weights.items()}
        self._meter = GpuMeter(host, self._weights)
        groups = host.control_groups()
        self._exclusions = Exclusions(session.kernel, groups, lambda: {os.getpid(), self._throttle.watchdog_pid})
        self._throttle = Throttle(groups, host.thaw_watchdog, self._exclusions.why, self._froze)
        self.froze: list[Callable[[float], None]] = []
        """Called with the latency of each freeze in seconds."""
        self._shares = FairShares(self._rounds)
        self.totals = Totals()
        self.containers = Known()
        """The containers of pods, if the settings want their metrics."""
        self.would_freeze: frozenset[str] = frozenset()
        """The groups that used more than their part while others wanted the GPU."""
        self._at = self._looked = self._ticked = time.monotonic()
        self._seen, self._stamp = -_LOOK_ANYWAY, object()
        """When the devices were looked at, and how the ledger was then."""
        self._told: Mapping[str, str] = {}
        """The problems that the log has."""
        self._gpu_names: Mapping[str, str] = {}
        self._look()

    def _froze(self, seconds: float) -> None:
        for tell in self.froze:
            tell(seconds)

    def _rounds(self) -> DeficitRounds:
        quantum, min_run = self._settings.seconds("quantum"), self._settings.seconds("min_run")
        return DeficitRounds(self._weights, quantum=quantum, min_run=min_run, late=LONGEST)

    def run(self, stop: Callable[[], bool], ready: Callable[[str], None]) -> None:
        """Serve until `stop` returns true; then thaw everything. `ready`: called once it measures."""
        doing = "throttles" if self._throttles else "measures"
        ready(f"{doing} {len(self._weights)} control groups" if self._weights else "measures all control groups")
        for path in self._weights:
            if self._throttles and (why := self._exclusions.known(path)):
                _log.warning("never frozen: %s", why, extra={"cgroup": path})
        try:
            while not self._wait(stop):
                self.tick()
                self._tell()
        finally:
            self.close()

    @property
    def _throttles(self) -> bool:
        return self._settings.throttle and not self._dry_run

    def tick(self) -> list[Usage]:
        """Measure once, and freeze and thaw. Returns the usage since the last tick."""
        now = time.monotonic()
        elapsed, self._at = now - self._at, now
        if now >= self._looked + _LOOK:
            self._looked = now
            self._look()
        usages = self._meter.read()
        self.totals.add(usages, now)
        self.totals.set_memory(self._meter.memory)
        self._decide(usages, elapsed)
        self._ticked = time.monotonic()
        return usages

    def _tell(self) -> None:
        """Log what is not measured, once."""
        problems = self._meter.problems
        for name, why in problems.items():
            if self._told.get(name) != why:
                _log.warning("not measured: %s: %s", name, why)
        self._told = problems

    def _decide(self, usages: list[Usage], elapsed: float) -> None:
        wanted = self._shares.tick(elapsed, self._listed(usages), fixed=self._throttle.refused)
        new = wanted - self.would_freeze
        self.would_freeze = wanted
        if not self._throttles:
            for path in sorted(new):
                _log.info("would be frozen", extra={"cgroup": path})
            return
        self._throttle.apply(wanted, self._shares.longest_freeze)
        self.totals.set_frozen(self._throttle.frozen, self._throttle.seconds)

    def _listed(self, usages: list[Usage]) -> dict[str, dict[str, float]]:
        used: dict[str, dict[str, float]] = {}
        for usage in usages:
            if usage.source is not Source.LEASE and usage.group in self._weights:
                of_gpu = used.setdefault(usage.gpu, {})
                of_gpu[usage.group] = of_gpu.get(usage.group, 0.0) + usage.seconds
        return used

    def _look(self) -> None:
        """Look at the devices again, if the ledger has changed or a minute is over; at containers, each time."""
        stamp, now = self._session.ledger_stamp(), time.monotonic()
        try:
            if stamp != self._stamp or now >= self._seen + _LOOK_ANYWAY:
                inventory = InventoryApi(self._session).inventory(nvml=False)
                self._stamp, self._seen = stamp, now
                self._gpu_names = {str(gpu): name for gpu, name in inventory.gpu_names.items()}
                self._meter.measure_gpus(gpus_of(inventory.gpus, self._settings.gpus))
            if self._settings.container_metrics:
                self.containers = read_known(self._session, self._gpu_names)
        except (StoreDamaged, KernelRefused) as error:
            _log.warning("the devices could not be read: %s", error.message)

    def _wait(self, stop: Callable[[], bool]) -> bool:
        """Wait for the next tick; return whether to stop."""
        until = self._at + self._poll
        while not stop():
            left = until - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(left, _STOP_CHECK))
        return True

    @property
    def problems(self) -> Mapping[str, str]:
        """Why GPUs and groups are not measured, by their names."""
        return self._meter.problems

    def excluded(self) -> dict[str, str]:
        """Return why listed groups are never frozen, by path."""
        return {path: why for path in self._weights if (why := self._exclusions.known(path))}

    def unwell(self) -> list[str]:
        """Return why the service does not work; empty if it does. Called in threads."""
        reasons = [f"no tick for {_HANGS:g} s"] if time.monotonic() - self._ticked > _HANGS else []
        return reasons + ([self._throttle.problem] if self._throttle.problem else [])

    def close(self) -> None:
        """Thaw everything that was frozen, and end the programs."""
        try:
            self._throttle.close()
        finally:
            self._meter.close()
