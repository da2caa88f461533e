"""GPU time from the counters of DRM clients. May not do I/O.

The counters are exact, but read only now and then: what a client used before it was seen for the first time, or after
it was seen for the last time, is not known, nor who used what of a client that processes of several groups share. That
is what the time may be off."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from vfioctl.sharing.measuring.drm_fdinfo import DrmClient
from vfioctl.sharing.model.gpu_time import Source, Usage, added

_NANO = 1e9


class _Seen(NamedTuple):
    """What a client had counted when it was last read."""

    at: float
    group: str
    nanoseconds: Mapping[str, int]
    cycles: Mapping[str, int]
    total_cycles: Mapping[str, int]


class DrmTime:
    """The counters seen so far."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], _Seen] = {}
        self._at: float | None = None

    def take(self, found: Iterable[tuple[DrmClient, str]], now: float) -> list[Usage]:
        """Return the GPU time since the last call. `found`: each client that a process has open, with the name of the
        process's group; one client may be there several times, and counts once. `now`: seconds on a monotonic clock."""
        clients: dict[tuple[str, str], DrmClient] = {}
        groups: dict[tuple[str, str], dict[str, None]] = {}
        for client, group in found:
            key = client.gpu, client.client
            clients.setdefault(key, client)
            groups.setdefault(key, {})[group] = None
        usages = added([*self._used(clients, groups, now), *self._gone(clients, now)])
        self._at = now
        return [Usage(*key, *sums) for key, sums in usages.items()]

    def _used(
        self,
        clients: Mapping[tuple[str, str], DrmClient],
        groups: Mapping[tuple[str, str], Mapping[str, None]],
        now: float,
    ) -> Iterator[Usage]:
        for key, client in clients.items():
            before = self._seen.get(key)
            group = before.group if before and before.group in groups[key] else next(iter(groups[key]))
            if before is None:
                seconds, error = 0.0, self._unknown(client, now)
            else:
                seconds = min(_busiest(client, before, now), now - before.at)
                error = seconds if len(groups[key]) > 1 or group != before.group else 0.0
            self._seen[key] = _latest(client, before, now, group)
            yield Usage(group, client.gpu, Source.FDINFO, seconds, error)

    def _unknown(self, client: DrmClient, now: float) -> float:
        """Return what a new client may have used since the last look, if there was one."""
        if self._at is None:
            return 0.0
        known = max(client.nanoseconds.values(), default=0) / _NANO if not client.cycles else now - self._at
        return min(known, now - self._at)

    def _gone(self, clients: Mapping[tuple[str, str], DrmClient], now: float) -> Iterator[Usage]:
        for key in self._seen.keys() - clients.keys():
            before = self._seen.pop(key)
            yield Usage(before.group, key[0], Source.FDINFO, 0.0, now - before.at)


def _busiest(client: DrmClient, before: _Seen, now: float) -> float:
    """Return the seconds of the busiest engine. A counter that goes back, as it may, counts nothing."""
    seconds = [
        (count - before.nanoseconds[name]) / _NANO / _capacity(client, name)
        for name, count in client.nanoseconds.items()
        if name in before.nanoseconds
    ]
    for name, count in client.cycles.items():
        if name in before.cycles and name in before.total_cycles:
            total = client.total_cycles.get(name, 0) - before.total_cycles[name]
            if total > 0:
                part = (count - before.cycles[name]) / total / _capacity(client, name)
                seconds.append(part * (now - before.at))
    return max(0.0, *seconds) if seconds else 0.0


def _capacity(client: DrmClient, name: str) -> int:
    return max(1, client.capacities.get(name, 1))


def _latest(client: DrmClient, before: _Seen | None, now: float, group: str) -> _Seen:
    counters = client.nanoseconds, client.cycles, client.total_cycles
    if before is None:
        return _Seen(now, group, *counters)
    known = before.nanoseconds, before.cycles, before.total_cycles
    most = [
        {name: max(count, old.get(name, 0)) for name, count in new.items()}
        for new, old in zip(counters, known, strict=True)
    ]
    return _Seen(now, group, *most)
