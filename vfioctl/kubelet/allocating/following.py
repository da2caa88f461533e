"""Follows which pod has which device, by what the kubelet tells: gives claims to pods, finishes what an earlier service
left half done, and finds the claims that are over. A release is the caller's, for it may hang."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from vfioctl.claims.api import ClaimsApi
from vfioctl.claims.model.claim import Claim
from vfioctl.claims.model.difference import DifferenceKind
from vfioctl.errors import VfioctlError
from vfioctl.kernel.feeds import stamp
from vfioctl.kubelet.allocating.deadline import Deadline
from vfioctl.kubelet.allocating.handovers import alone_with, count_of, forget
from vfioctl.kubelet.choosing.owners import Absences, names_of, verdicts
from vfioctl.kubelet.model.device import LABEL, PROVISIONAL, Listing, Pod
from vfioctl.kubelet.reading.checkpoint import allocated_ids

if TYPE_CHECKING:
    from vfioctl.kubelet.model.settings import KubeletSettings
    from vfioctl.session import Session

Failed = Callable[[str, str, VfioctlError], None]
"""Called with the resource, what was done, and its error."""
_POLLS = 2
"""A claim is over when so many lists in a row do not have it."""


class Over(NamedTuple):
    """A claim whose pod is gone, and how often it had been given to a container when that was decided."""

    claim: Claim
    given: int
    is_replaced: bool
    """Its container was made anew, with other devices."""


def claims_of_pods(claims: ClaimsApi) -> tuple[Claim, ...]:
    """Return the live claims of the device plugin, but for those that somebody has given to another kind of owner."""
    return tuple(claim for claim in claims.labelled(LABEL) if claim.owner.kind == "pod")


class Following:
    """Keeps the claims of pods as the kubelet's list is."""

    def __init__(self, session: Session, settings: KubeletSettings, send_again: Callable[[], None]) -> None:
        """`send_again`: sends the kubelet its devices once more, upon which it writes its checkpoint."""
        self._send_again = send_again
        self._claims, self._absences, self._settings = ClaimsApi(session), Absences(), settings
        self._poll, self._grace = settings.seconds("poll"), settings.seconds("grace")
        self._socket, self._calm = Path(settings.pod_resources), 0.0
        self._stamp: object = (None,)  # of a socket that is not there
        self._seen: set[str] = set()
        self._live: set[str] = set()

    def interrupted(self) -> Sequence[Claim]:
        """Return the claims whose process died while it made or released them, as a service that was killed: they are
        to be recovered."""
        claims = {claim.id: claim for claim in claims_of_pods(self._claims)}
        stale = self._claims.stale(claims.values())
        return [claims[name] for name, (kind, _) in stale.items() if kind is DifferenceKind.PROCESS_GONE]

    def follow(self, read: Callable[[], Listing], failed: Failed) -> Sequence[Over]:
        """Give claims to their pods; return those whose pods are gone, to be released. `read`: asks the kubelet, after
        the claims were read: an older list would give one back that was taken over. Raises StoreDamaged.

        The devices of these may be open still, as those of an init container, which the list never has."""
        claims = claims_of_pods(self._claims)
        counts = {claim.id: count_of(claim.id) for claim in claims}
        self._forget_ended({claim.id for claim in self._claims.labelled(LABEL)})
        listing = read()
        self._notice_start()
        said = verdicts(claims, listing)
        self._seen |= {verdict.claim.id for verdict in said if verdict.pods}
        for verdict in said:
            if pod := verdict.new_owner:
                self._give(verdict.claim, counts[verdict.claim.id], pod, failed)
        now = time.monotonic()
        after = {False: (_POLLS - 1) * self._poll, True: self._grace}
        over = tuple(self._absences.over(said, counts, now=now, after=after))
        owners = {pod.owner for pods in listing.pods.values() for pod in pods}
        gone = (Over(claim, counts[claim.id], claim.owner in owners) for claim in over if now >= self._calm)
        return tuple(one for one in gone if one.is_replaced or not self._is_held(one.claim))

    def _forget_ended(self, live: set[str]) -> None:
        forget(self._live - live)
        self._live, self._seen = live, self._seen & live

    def _notice_start(self) -> None:
        """Release nothing for a while once the kubelet has started: its list is empty then, and has only static pods
        until the API server answers."""
        if (now := stamp(self._socket)) != self._stamp:
            self._stamp, self._calm = now, time.monotonic() + self._grace
            self._absences.begin_again()
            self._seen.clear()

    def _give(self, claim: Claim, count: int, pod: Pod, failed: Failed) -> None:
        try:
            with alone_with(claim.id, Deadline(self._poll)):
                if count_of(claim.id) == count:
                    self._claims.transfer(claim.id, pod.owner, within_quota=False)
        except VfioctlError as error:
            failed(claim.labels[LABEL], f"giving claim {claim.id} to its pod", error)

    def _is_held(self, claim: Claim) -> bool:
        """Return whether a container was given its devices, though the list does not have them: the list of a kubelet
        that has started without its API server lacks pods that run, and none has init containers. If no runtime can be
        asked, the checkpoint says; also of a share, as containers do not show it, and its pod was told of its GPU.

        It may still have a pod that the kubelet has forgotten: so the kubelet is made to write it anew."""
        containers = self._claims.containers_with(claim)
        if containers or claim.id in self._seen:
            return bool(containers)
        is_of_this_boot = claim.boot_id == self._claims.boot_id  # no container of an earlier one runs
        if not claim.shares and (containers is not None or claim.owner == PROVISIONAL or not is_of_this_boot):
            return False
        is_known = not allocated_ids(self._settings.plugins).isdisjoint(names_of(claim))
        if is_known:
            self._send_again()
        return is_known
