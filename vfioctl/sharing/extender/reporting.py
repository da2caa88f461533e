"""Reports the GPUs of this host to the API server, as an annotation of its node, for the extender. May not change the
host: what pods have is read from the ledger, where the device plugin keeps it as the kubelet's PodResources has it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from vfioctl.claims.api import ClaimsApi
from vfioctl.errors import BadSpec, HostError, VfioctlError
from vfioctl.inventory.api import InventoryApi
from vfioctl.kubelet.api import KubeletApi
from vfioctl.kubelet.model.device import GONE
from vfioctl.kubelet.model.units import units_of
from vfioctl.placement.model.claims import PROVISIONAL
from vfioctl.sharing.extender.cluster import ApiError, Cluster
from vfioctl.sharing.extender.names import MEMORY, REPORT
from vfioctl.sharing.extender.report import Held, ReportedGpu, report_of

if TYPE_CHECKING:
    from vfioctl.claims.model.claim import Claim
    from vfioctl.kubelet.model.device import Resource
    from vfioctl.session import Session
    from vfioctl.sharing.extender.settings import ApiServer

_LOOK, _AGAIN = 5.0, 60.0
"""Seconds between two looks at the ledger; and after which the report is sent again, though nothing has changed."""
_TICK = 0.25
_log = logging.getLogger("vfioctl.extender")


class NodeReport:
    """The report of one host. `node`: the name of its node."""

    def __init__(self, session: Session, node: str, resource: str = MEMORY) -> None:
        """`resource`: the one that pods ask for. Raises BadSpec if the device plugin has no such resource."""
        self._session, self._node = session, node
        names = [one.name for one in KubeletApi(session).settings.resources]
        if resource not in names:
            raise BadSpec(
                f"the device plugin of this host has no resource {resource}",
                hint="add it to [[kubelet.resources]] in /etc/vfioctl/config.toml: vfioctl man give-shares-to-pods",
            )
        self._resource = resource

    def text(self) -> str:
        """Return the annotation as it is now. Raises what reading the host and the ledger raises."""
        resource = next(one for one in KubeletApi(self._session).status().resources if one.name == self._resource)
        claims = ClaimsApi(self._session).claims()
        return report_of([*self._gpus(resource, claims)], self._held(claims), resource.settings.size)

    def send(self, api_server: ApiServer, text: str) -> None:
        """Annotate the node. Raises HostError if the API server refuses it or does not answer."""
        try:
            Cluster.of(api_server).annotate_node(self._node, {REPORT: text})
        except ApiError as error:
            raise HostError(f"node {self._node} cannot be annotated: {error}") from None

    def run(self, api_server: ApiServer, stop: Callable[[], bool], ready: Callable[[str], None]) -> None:
        """Send the report whenever it changes, until `stop` returns true. What fails is logged, and tried again.
        `ready`: called with the node's name after the first one was sent."""
        sent, stamp, at, problem = "", object(), 0.0, ""
        while not stop():
            now, seen = time.monotonic(), self._session.ledger_stamp()
            if seen != stamp or now >= at + _AGAIN:
                try:
                    text = self.text()
                    if text != sent or now >= at + _AGAIN:
                        self.send(api_server, text)
                        if not sent:
                            ready(self._node)
                        sent, at = text, now
                    stamp, problem = seen, ""
                except VfioctlError as error:
                    if error.message != problem:
                        _log.warning("%s", error.message)
                    problem = error.message
            _wait(stop)

    def _gpus(self, resource: Resource, claims: Sequence[Claim]) -> Iterator[ReportedGpu]:
        known = {share.address: share.uuid for claim in claims for share in claim.shares}
        for gpu in sorted(InventoryApi(self._session).inventory().gpus, key=lambda gpu: gpu.address):
            if gpu.is_vf:
                continue
            of_gpu = [part for part in resource.devices if part.subject == gpu.address and part.reason != GONE]
            identity = (gpu.nvml.uuid if gpu.nvml else None) or known.get(gpu.address) or str(gpu.address)
            is_open = any(not part.reason and not part.claim for part in of_gpu)
            yield ReportedGpu(str(gpu.address), identity, len(of_gpu) * resource.settings.size, is_open)

    def _held(self, claims: Sequence[Claim]) -> Iterator[Held]:
        for claim in claims:
            is_of_pods = any(resource == self._resource for resource, _ in units_of(claim))
            for share in claim.shares:
                container = _container(claim) if is_of_pods else ""
                yield Held(str(share.address), share.held_memory, container, is_of_pods, claim.since)


def _container(claim: Claim) -> str:
    """Return NAMESPACE/POD/CONTAINER; nothing until it is known."""
    return claim.owner.name if claim.owner.kind == "pod" and claim.owner != PROVISIONAL else ""


def _wait(stop: Callable[[], bool]) -> None:
    until = time.monotonic() + _LOOK
    while not stop() and time.monotonic() < until:
        time.sleep(_TICK)
