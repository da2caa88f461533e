"""The use cases of the device plugin: serve, status, cordon. Changes the host only through claims.

Devices of this host go to pods from the same ledger as to VMs and containers. See docs/architecture.md."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from vfioctl.claims.api import ClaimsApi
from vfioctl.core import caller
from vfioctl.core.events import Cancel, check_stop
from vfioctl.core.permission import refuse_read_only
from vfioctl.core.rollback import now
from vfioctl.errors import BadSpec, Busy, HostError, MissingLibrary, UnknownDevice, VfioctlError
from vfioctl.inventory.api import InventoryApi
from vfioctl.inventory.model.values import PciAddress, Subject
from vfioctl.kubelet.ledger.cordons import CordonRecords, cordons
from vfioctl.kubelet.model.cordon import CORDON, XID, Cordon, Cordons
from vfioctl.kubelet.model.device import LABEL
from vfioctl.units import UUID, Uuid

if TYPE_CHECKING:
    from vfioctl.claims.model.claim import Claim
    from vfioctl.kubelet.model.settings import KubeletSettings
    from vfioctl.kubelet.model.status import Status
    from vfioctl.session import Session

_PAUSE, _LONGEST_WHY = 0.5, 200
Waiting = Callable[[Sequence["Claim"], float], None]
"""Called with the claims that a cordon waits for, and the seconds that are left."""


class KubeletApi:
    """The device plugin of one host."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def settings(self) -> KubeletSettings:
        """The table `[kubelet]` of the configuration. Raises BadSpec."""
        settings: KubeletSettings = self._session.settings("kubelet")
        return settings

    def status(self) -> Status:
        """Return the resources with their devices as they are now, and what the running service tells.

        Raises BadSpec for a wrong configuration, StoreDamaged."""
        from vfioctl.kubelet.model.status import Status
        from vfioctl.kubelet.reading.look import Look
        from vfioctl.kubelet.reading.running import read_running

        settings = self.settings
        if not settings.resources:
            return Status((), read_running(settings.run, self._session.ledger))
        look = Look(self._session, settings)
        return Status(tuple(map(look.resource, settings.resources)), read_running(settings.run, self._session.ledger))

    def serve(self, *, stop: Callable[[], bool], ready: Callable[[str], None]) -> None:
        """Serve all resources until `stop` returns true; then end gracefully. `ready`: called once all are served.

        Raises BadSpec, also without resources; HostError for an address that is in use, MissingLibrary."""
        settings = self.settings
        if not settings.resources:
            raise BadSpec(
                "the configuration names no resource for the kubelet",
                hint="add a table [[kubelet.resources]] to /etc/vfioctl/config.toml: vfioctl man kubelet",
            )
        if why := self._session.why_read_only():
            raise HostError(f"no device can be given to a pod: {why}")
        try:
            from vfioctl.kubelet.serving.service import KubeletService
        except ImportError as error:
            package = (error.name or "").removeprefix("google.").partition(".")[0]
            raise MissingLibrary(f"{package} is not installed", hint="pip install 'vfioctl[kubelet]'") from None
        from vfioctl.serving.http import HttpServer

        service = KubeletService(self._session, settings)
        http = (
            HttpServer(settings.listen, service.metrics.text, service.unwell, table="kubelet")
            if settings.listen
            else None
        )
        if http:
            http.start()
        try:
            service.run(stop, ready)
        finally:
            if http:
                http.close()

    def cordons(self) -> Cordons:
        """Return the devices that no pod gets. Raises StoreDamaged."""
        return cordons(self._session)

    def cordon(
        self,
        words: Sequence[str],
        *,
        why: str = "",
        wait: float = math.inf,
        waiting: Waiting | None = None,
        cancel: Cancel | None = None,
    ) -> tuple[Subject, ...]:
        """Give these devices to no pod from now on, and wait until none has one of them: they can be bound and unbound
        then. `why`: one line, at most 200 characters. `wait`: seconds, at most; 0 for no waiting. Raises UnknownDevice,
        BadSpec; Busy when the time is over, unless it is 0."""
        refuse_read_only(self._session.kernel)
        if len(why) > _LONGEST_WHY or not why.isprintable():
            raise BadSpec(f"the reason must be one line of at most {_LONGEST_WHY} characters")
        subjects = self._subjects(words)
        this = caller.this_process()
        records = CordonRecords(self._session.store, self._session.publish)
        for subject in subjects:
            cordon = Cordon(str(subject), CORDON, why, now(), this.sudo_user or this.user)
            records.add(cordon, self._session.boot_id)
        if wait:
            self._await_pods(subjects, wait, waiting, cancel)
        return subjects

    def _await_pods(
        self, subjects: Sequence[Subject], wait: float, waiting: Waiting | None, cancel: Cancel | None
    ) -> None:
        until = time.monotonic() + wait
        while claims := self._of_pods(subjects):
            left = until - time.monotonic()
            if left <= 0:
                claim = claims[0]
                raise Busy(
                    f"{claim.owner} still has {', '.join(claim.asked)}",
                    hint="no other pod gets it; the claim ends when the pod is gone",
                    next_command=f"vfioctl claim show {claim.id}",
                    facts={"claims": [held.id for held in claims]},
                )
            check_stop(cancel)
            if waiting:
                waiting(claims, left)
            time.sleep(min(_PAUSE, left))

    def _of_pods(self, subjects: Sequence[Subject]) -> list[Claim]:
        """Return the claims of pods that have one of these devices, a vGPU on one, or a share of one."""
        functions = InventoryApi(self._session).inventory(nvml=False).functions
        names = {*map(str, subjects), *(str(f.address) for f in functions if f.physfn in subjects)}
        claims = ClaimsApi(self._session).labelled(LABEL)
        return [claim for claim in claims if names.intersection(claim.asked) or names & claim.gpu_addresses]

    def uncordon(self, words: Sequence[str]) -> tuple[Subject, ...]:
        """Give these devices to pods again, also after an error that NVML reported; return those that were cordoned.
        Raises UnknownDevice."""
        refuse_read_only(self._session.kernel)
        subjects = self._subjects(words)
        records = CordonRecords(self._session.store, self._session.publish)
        return tuple(subject for subject in subjects if records.remove(str(subject), CORDON, XID))

    def _subjects(self, words: Sequence[str]) -> tuple[Subject, ...]:
        """Return the devices that these words mean: also vGPUs that do not exist yet, and devices that are gone."""
        subjects: list[Subject] = []
        known = {device.id: device.subject for resource in self.status().resources for device in resource.devices}
        known |= {name: Uuid(name) if UUID.fullmatch(name) else PciAddress(name) for name in self.cordons()}
        for word in words:
            if word in known:
                subjects.append(known[word])
            elif UUID.fullmatch(word):
                raise UnknownDevice(f"no resource has a device {word}", next_command="vfioctl kubelet status")
            else:
                subjects += InventoryApi(self._session).find([word])
        return tuple(dict.fromkeys(subjects))


def suggest_devices(session: Session, _begun: str) -> list[tuple[str, str]]:
    """Return the devices of all resources, each with the resource."""
    try:
        resources = KubeletApi(session).status().resources
    except VfioctlError:
        return []
    return [(str(device.subject), resource.name) for resource in resources for device in resource.devices]
