"""The extender as a service: follows the cluster in two threads, and answers a scheduler until it is stopped."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from pydantic import ValidationError

from vfioctl.sharing.extender.cluster import Cluster
from vfioctl.sharing.extender.following import Nodes, Pods
from vfioctl.sharing.extender.messages import (
    ExtenderArgs,
    ExtenderBindingArgs,
    ExtenderBindingResult,
    ExtenderFilterResult,
    HostPriorityList,
    sent,
)
from vfioctl.sharing.extender.metrics import ExtenderMetrics
from vfioctl.sharing.extender.server import ExtenderServer
from vfioctl.sharing.extender.settings import ExtenderSettings
from vfioctl.sharing.extender.table import Table
from vfioctl.sharing.extender.tls import ServingContext
from vfioctl.sharing.extender.verbs import Verbs

VERBS = ("filter", "prioritize", "bind")
_TICK = 0.25
"""Seconds between two looks at whether to stop."""


class ExtenderService:
    """The extender of one cluster."""

    def __init__(self, settings: ExtenderSettings) -> None:
        """Raises HostError for a certificate that cannot be read."""
        cluster, table = Cluster.of(settings.api_server), Table()
        self._following = (Nodes(cluster, table, settings.unit), Pods(cluster, table))
        self._verbs = Verbs(table, cluster, settings.unit)
        self._metrics = _metrics()
        text = self._metrics.text if self._metrics else None
        own = settings.certificate
        tls = ServingContext(own, settings.key, settings.clients).context if own else None
        self.server = ExtenderServer(settings.listen, VERBS, self.answer, self.unwell, tls, text)

    def run(self, stop: Callable[[], bool], ready: Callable[[str], None]) -> None:
        """Serve until `stop` returns true. `ready`: called once the extender listens. Raises HostError for an address
        that cannot be used."""
        self.server.start()
        try:
            for following in self._following:
                following.start()
            ready(f"port {self.server.port}")
            while not stop():
                time.sleep(_TICK)
        finally:
            for following in self._following:
                following.stop()
            self.server.close()

    def unwell(self) -> Sequence[str]:
        """Return why answers would be wrong; nothing if they are right."""
        return [why for following in self._following if (why := following.why_not())]

    def answer(self, verb: str, body: bytes) -> bytes:
        """Return the answer to a verb, as JSON. Raises ValueError for a body that is no message of the scheduler."""
        began, outcome = time.perf_counter(), "garbled"
        try:
            text = self._answer(verb, body)
            outcome = "answered"
        finally:
            if self._metrics:
                self._metrics.answered(verb, time.perf_counter() - began, outcome)
        return text

    def _answer(self, verb: str, body: bytes) -> bytes:
        try:
            if verb == "bind":
                binding = ExtenderBindingArgs.model_validate_json(body)
                why = "; ".join(self.unwell())
                return sent(ExtenderBindingResult(error=f"not ready: {why}") if why else self._verbs.bind(binding))
            args = ExtenderArgs.model_validate_json(body)
        except ValidationError as error:
            raise ValueError(_problem(error)) from None
        why = "; ".join(self.unwell())
        if verb == "filter":
            return sent(ExtenderFilterResult(error=f"not ready: {why}") if why else self._verbs.filter(args))
        return sent(HostPriorityList([]) if why else self._verbs.prioritize(args))


def _metrics() -> ExtenderMetrics | None:
    """None without prometheus-client: the extender works without it."""
    try:
        return ExtenderMetrics()
    except ImportError:
        return None


def _problem(error: ValidationError) -> str:
    first = error.errors(include_input=False, include_url=False)[0]
    return f"no message of a scheduler: {'.'.join(map(str, first['loc']))[:100]}: {first['msg'][:200]}"
