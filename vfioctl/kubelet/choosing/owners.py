"""Decides from the kubelet's list of pods what becomes of each claim. Pure. The kubelet tells nobody that a pod is
gone: its list no longer has the device. It is empty for a while after its start, and never has init containers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from vfioctl.claims.model.cdi import device_name
from vfioctl.claims.model.claim import Claim, ClaimState
from vfioctl.claims.model.difference import Difference, DifferenceKind
from vfioctl.kubelet.model.device import LABEL, PROVISIONAL, Listing, Pod
from vfioctl.kubelet.model.units import units_of

_SHOW = "vfioctl kubelet status"


class Verdict(NamedTuple):
    """What the list says of a claim."""

    claim: Claim
    pods: tuple[Pod, ...] = ()
    """The containers that have one of its devices: none, one, or by an error of somebody more."""

    @property
    def new_owner(self) -> Pod | None:
        """The pod that a provisional claim belongs to."""
        known = self.pods[0] if len(self.pods) == 1 else None
        return known if known and self.claim.owner == PROVISIONAL else None

    @property
    def is_gone(self) -> bool:
        """Whether no pod has its devices, as far as the list says."""
        return not self.pods and self.claim.state is ClaimState.HELD


def verdicts(claims: Iterable[Claim], listing: Listing) -> tuple[Verdict, ...]:
    """Return what the list says of each claim of a pod."""
    return tuple(Verdict(claim, _pods_of(claim, listing)) for claim in claims)


def _pods_of(claim: Claim, listing: Listing) -> tuple[Pod, ...]:
    return tuple(dict.fromkeys(pod for name in names_of(claim) for pod in listing.pods.get(name, ())))


def names_of(claim: Claim) -> Iterator[tuple[str, str]]:
    """Yield the resource and the ids by which the kubelet knows the devices of a claim."""
    yield from units_of(claim)
    for device in claim.devices:
        if device.asked:
            yield claim.labels[LABEL], str(device.subject)
            yield claim.labels[LABEL], device_name(device.subject)


class Absences:
    """Since when no pod has the devices of claims, by the claims' ids. Times in seconds of `time.monotonic`."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, int], float] = {}

    def over(
        self,
        said: Sequence[Verdict],
        counts: Mapping[str, int] = MappingProxyType({}),
        *,
        now: float,
        after: Mapping[bool, float],
    ) -> Iterator[Claim]:
        """Yield the claims whose devices no pod has had for long enough. `counts`: how often each was given to a
        container, from when on it counts. `after`: seconds, by whether it is that of a pod that is not known yet."""
        names = {v.claim.id: (v.claim.id, counts.get(v.claim.id, 0)) for v in said}
        gone = [names[verdict.claim.id] for verdict in said if verdict.is_gone]
        self._since = {name: self._since.get(name, now) for name in gone}
        for verdict in said:
            since = self._since.get(names[verdict.claim.id])
            if since is not None and now - since >= after[verdict.claim.owner == PROVISIONAL]:
                yield verdict.claim

    def begin_again(self) -> None:
        """Count from the next list on, as after the kubelet's start."""
        self._since.clear()


def differences(said: Sequence[Verdict], listing: Listing, resources: Collection[str]) -> Iterator[Difference]:
    """Yield where the kubelet and the ledger differ. `resources`: those that this host serves."""
    kind = DifferenceKind.KUBELET
    for verdict in said:
        claim, pods = verdict.claim, verdict.pods
        if words := _differs(claim, [pod.owner for pod in pods]):
            yield Difference(kind, words, _SHOW, claim.id, claim.owner)
    claimed = {name for verdict in said for name in names_of(verdict.claim)}
    for (resource, name), containers in listing.pods.items():
        if resource in resources and (resource, name) not in claimed:
            owner = containers[0].owner
            yield Difference(
                kind, f"the kubelet says that {owner} has it, and no claim does", _SHOW, owner=owner, device=name
            )


def _differs(claim: Claim, owners: Sequence[str]) -> str:
    if len(owners) > 1:
        return f"the kubelet gave its devices to {' and '.join(owners)}"
    if claim.owner == PROVISIONAL or claim.owner in owners:
        return ""
    return f"the kubelet says that {owners[0]} has its devices" if owners else "the kubelet knows no pod that has it"
