"""Claims as values, and their JSON forms. May not do input or output. A ledger keeps thousands of claims: listing them
takes less time than importing pydantic, and a named tuple is made in a quarter of a frozen dataclass's time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import lru_cache
from json.encoder import encode_basestring as _text
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from vfioctl.claims.model.cdi import qualified_name
from vfioctl.core.frozen import value_class
from vfioctl.inventory.model.values import PciAddress, Subject, is_gpu_class
from vfioctl.placement.model.claims import Hugepages, Owner
from vfioctl.placement.model.share import GpuShare
from vfioctl.units import Uuid, format_cpu_list

if TYPE_CHECKING:
    from vfioctl.claims.model.difference import DifferenceKind
    from vfioctl.core.change import Outcome, Plan
    from vfioctl.inventory.model.functions import Inventory
    from vfioctl.placement.model.capacity import Capacity
    from vfioctl.placement.model.placement import Placement


class ClaimState(StrEnum):
    """The states of a claim. Its devices are nobody else's in the first four of them."""

    RESERVED = "reserved"
    """Its devices are taken, and not yet in the state that it needs."""
    HELD = "held"
    RELEASING = "releasing"
    WEDGED = "wedged"
    """A change of its devices could not be finished; `vfioctl recover` and a release come next."""
    RELEASED = "released"
    FAILED = "failed"
    """Its devices could not be brought into the state that it needs, and are what they were before."""


LIVE = frozenset({ClaimState.RESERVED, ClaimState.HELD, ClaimState.RELEASING, ClaimState.WEDGED})


LABEL = "libvirt"
"""The label of a claim that lasts as long as a domain runs. Its value is the URI of the domain's libvirt."""


class Undo(StrEnum):
    """What releasing a claim does to a device: nothing, if the claim changed nothing."""

    NOTHING = ""
    UNBIND = "unbind"
    REMOVE = "remove"
    """The claim created the vGPU."""


@value_class
class ClaimedDevice:
    """A device of a claim: a function, or a mediated device on one."""

    address: str
    """The function's address; of a mediated device its parent's, or the parent's name if that is no PCI function."""
    mdev: Uuid | None = None
    identity: str = ""
    """The function's ids and class, to recognize the device after a reboot; empty for an mdev."""
    asked: bool = True
    """False for a companion, which only travels with a device that was asked for."""
    undo: Undo = Undo.NOTHING

    @property
    def is_gpu(self) -> bool:
        """Whether it is a GPU or a vGPU. A created VF has no identity."""
        return self.mdev is not None or not self.identity or is_gpu_class(self.identity.rpartition(":")[2])

    @property
    def subject(self) -> Subject:
        """What changes and holders name: the mediated device, or the function."""
        return self.mdev or PciAddress(self.address)


class Claim(NamedTuple):
    """One claim. Times are ISO 8601 in UTC."""

    id: str
    owner: Owner
    state: ClaimState
    devices: tuple[ClaimedDevice, ...]
    since: str
    boot_id: str
    """The boot in which it was made."""
    cpus: tuple[int, ...] = ()
    hugepages: tuple[Hugepages, ...] = ()
    key: str = ""
    """The caller's name for the request, which makes repeating it harmless; empty for none."""
    labels: Mapping[str, str] = MappingProxyType({})
    expires: str | None = None
    ended: str | None = None
    why: str = ""
    """What went wrong, for a claim that failed or is wedged."""
    user: str = ""
    sudo_user: str = ""
    pid: int | None = None
    command: str = ""
    plans: tuple[str, ...] = ()
    """The ids of the plans that changed its devices."""
    shares: tuple[GpuShare, ...] = ()
    """What it has of GPUs that stay with their host driver; these are none of its `devices`."""

    @property
    def is_live(self) -> bool:
        """Whether its devices are still its own."""
        return self.state in LIVE

    def is_of(self, owner: str, libvirt: str) -> bool:
        """Whether it is a claim of a domain: its owner's, and not made for one of its name at another libvirt."""
        return self.owner == owner and self.labels.get(LABEL, libvirt) == libvirt

    @property
    def gpus(self) -> int:
        """The number of GPUs and vGPUs, for quotas: of the functions that were asked for, those of a GPU's class.
        A share counts as one."""
        return sum(device.asked and device.is_gpu for device in self.devices) + len(self.shares)

    @property
    def functions(self) -> tuple[PciAddress, ...]:
        """The functions that were asked for."""
        return tuple(PciAddress(device.address) for device in self.devices if device.asked and device.mdev is None)

    @property
    def asked(self) -> tuple[str, ...]:
        """The devices that were asked for, and the GPUs that it has shares of."""
        return (*(str(d.subject) for d in self.devices if d.asked), *(share.address for share in self.shares))

    @property
    def gpu_addresses(self) -> frozenset[str]:
        """The functions that it has, or parts of them."""
        return frozenset((*(device.address for device in self.devices), *(share.address for share in self.shares)))

    @property
    def mdevs(self) -> tuple[Uuid, ...]:
        return tuple(device.mdev for device in self.devices if device.mdev)


class Claimed(NamedTuple):
    """A claim, and the outcome of the change that was made for it; None if nothing had to be changed."""

    claim: Claim
    outcome: Outcome | None = None
    placement: Placement | None = None
    """Why these devices were chosen, on the host of `inventory`; None for a claim that existed already."""
    inventory: Inventory | None = None
    problem: str = ""
    """Why the CDI files could not be written again, if the configuration asks for that; an exceeded quota."""


class Preview(NamedTuple):
    """What a request would get on a host, and the plan that would be applied; None if nothing has to be changed."""

    placement: Placement
    inventory: Inventory
    plan: Plan | None = None
    claim: Claim | None = None
    """The claim that the request's key has already, which would be returned."""
    capacity: Capacity | None = None
    """The host that the placement was chosen from; None for a claim that is there already."""


class Event(NamedTuple):
    """One change of a claim's state, or of its owner or term. Times are ISO 8601 in UTC."""

    number: int
    claim: str
    state: str
    owner: str
    at: str
    boot_id: str
    user: str
    sudo_user: str
    pid: int | None
    command: str
    plan: str
    """The id of the plan that changed the devices; empty if none did."""
    why: str


class Nodes(NamedTuple):
    """The device files of a claimed device, which a guest opens: one of them. None if it does not exist."""

    group: str | None = None
    """/dev/vfio/N"""
    cdev: str | None = None
    """/dev/vfio/devices/vfioN, for iommufd"""


Stale = Mapping[str, tuple["DifferenceKind", str]]
"""The claims that are stale, by id: in which way, and why."""
ANOTHER_BOOT = "made in another boot, and not verified in this one: vfioctl reconcile"


def claim_document(claim: Claim, nodes: Mapping[str, Nodes], *, stale: str = "") -> dict[str, Any]:
    """Return a claim as JSON has it. `nodes`: known device files, by subject. `stale`: why nobody needs it any more."""
    document: dict[str, Any] = json.loads(claim_text(claim, stale))
    for device, shown in zip(claim.devices, document["devices"], strict=True):
        if device.subject in nodes:
            shown.update(nodes[device.subject]._asdict())
            if not any(nodes[device.subject]):
                shown["cdi"] = None
    return document


def claim_text(claim: Claim, stale: str = "") -> str:
    """Return a claim as JSON. Making the text at once takes a third of the time of a dictionary and `json.dumps`."""
    devices = ",".join([_device_text(device, live=claim.is_live) for device in claim.devices])
    return (
        f'{{"id":{_text(claim.id)},"owner":{_text(claim.owner)},"state":{_text(claim.state)},"stale":{_text(stale)},'
        f'"key":{_text(claim.key)},"devices":[{devices}],"shares":{_shares_text(claim.shares)},'
        f'"cpus":"{format_cpu_list(claim.cpus) if claim.cpus else ""}",'
        f'"hugepages":{json.dumps([pages._asdict() for pages in claim.hugepages]) if claim.hugepages else "[]"},'
        f'"labels":{json.dumps(dict(claim.labels), ensure_ascii=False) if claim.labels else "{}"},'
        f'"since":{_text(claim.since)},"expires":{_or_null(claim.expires)},"ended":{_or_null(claim.ended)},'
        f'"boot_id":{_text(claim.boot_id)},"user":{_text(claim.user)},"sudo_user":{_text(claim.sudo_user)},'
        f'"pid":{"null" if claim.pid is None else claim.pid},"command":{_text(claim.command)},'
        f'"plans":[{",".join(map(_text, claim.plans))}],"why":{_text(claim.why)}}}'
    )


@lru_cache(maxsize=4096)  # a host's few devices have many claims, one after the other
def _device_text(device: ClaimedDevice, *, live: bool) -> str:
    name = qualified_name(device.subject) if device.asked and live else None
    return json.dumps(vars(device) | {"cdi": name}, ensure_ascii=False, separators=(",", ":"))


def _shares_text(shares: tuple[GpuShare, ...]) -> str:
    documents = [share._asdict() | {"cdi": share.cdi or None} for share in shares]
    return json.dumps(documents, separators=(",", ":")) if documents else "[]"


def _or_null(text: str | None) -> str:
    return "null" if text is None else _text(text)


def claims_text(claims: Iterable[Claim], stale: Stale) -> str:
    """Return the document of `vfioctl claim list --json`."""
    return f'{{"claims":[{",".join([claim_text(claim, why_stale(claim, stale)) for claim in claims])}]}}'


def unverified(claims: Iterable[Claim], boot_id: str) -> Stale:
    """Return the live claims that were not verified since the host booted, as JSON reports them beside stale ones.
    `boot_id`: empty if it is not known."""
    from vfioctl.claims.model.difference import DifferenceKind

    known = (DifferenceKind.REBOOTED, ANOTHER_BOOT)
    return {claim.id: known for claim in claims if claim.is_live and boot_id not in ("", claim.boot_id)}


def why_stale(claim: Claim, stale: Stale) -> str:
    """Return why a claim is stale; empty if it is not."""
    return stale[claim.id][1] if claim.id in stale else ""
