"""What the parts of the kubelet share. May not call a plugin."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.kubelet.endpoint import Endpoint
from tests.kubelet.pods import Phase, Pod
from tests.kubelet.releases import Release
from tests.kubelet.table import Table

_ENDED = (Phase.FAILED, Phase.SUCCEEDED)


class Asked(NamedTuple):
    """One call that the kubelet made."""

    method: str
    resource: str
    ids: tuple[str, ...]


@dataclass
class Life:
    """What is known of a pod beside the kubelet: by the API server, and by the container runtime."""

    pod: Pod
    phase: Phase = Phase.PENDING
    message: str = ""
    running: set[str] = field(default_factory=set)

    @property
    def ended(self) -> bool:
        return self.phase in _ENDED


@dataclass
class State:
    release: Release
    plugins: Path
    """The directory of sockets, and of the checkpoint."""
    order: random.Random
    """Go's maps have no order, so no list that the kubelet sends has one."""
    table: Table = field(default_factory=Table)
    endpoints: dict[str, Endpoint] = field(default_factory=dict)
    lives: dict[str, Life] = field(default_factory=dict)
    """Each pod by uid. They outlive the kubelet."""
    arrived: set[str] = field(default_factory=set)
    """The pods that the kubelet was told of since its start."""
    sources_ready: bool = False
    """Whether the API server has answered: before, no pod counts as gone."""
    up: bool = False
    asked: list[Asked] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=lambda: threading.Condition(threading.RLock()))
    """Held while the rest is read or changed, never during a call."""

    def begin(self) -> None:
        """A new process: what it knows is what the checkpoint has."""
        self.table, self.endpoints = Table.load(self.plugins), {}
        self.arrived, self.sources_ready, self.up = set(), False, True

    def save(self) -> None:
        if self.up:
            self.table.save(self.plugins)

    def active(self) -> set[str]:
        return {uid for uid in self.arrived if uid in self.lives and not self.lives[uid].ended}

    def forget_ended(self) -> None:
        """The devices of pods that have ended are free from now on; nobody is told."""
        if self.sources_ready:
            self.table.forget_all_but(self.active())

    def wait(self, condition: Callable[[], bool], seconds: float = 10.0) -> None:
        """Waits for a change that makes the condition true. Raises TimeoutError."""
        with self.changed:
            if not self.changed.wait_for(condition, seconds):
                raise TimeoutError(f"not in {seconds} s: {self.table.healthy=} {self.table.unhealthy=}")
