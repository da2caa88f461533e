"""The JSON forms of claims and their events. May not do input or output, nor import pydantic, which slows listings."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from json.encoder import encode_basestring as _text
from typing import TYPE_CHECKING, Any, NamedTuple

from vfioctl.claims.model.cdi import qualified_name
from vfioctl.claims.model.claim import Claim, ClaimedDevice, Event
from vfioctl.units import format_cpu_list

if TYPE_CHECKING:
    from vfioctl.claims.model.difference import DifferenceKind


class Nodes(NamedTuple):
    """The device files of a claimed device, which a guest opens: one of them. None if it does not exist."""

    group: str | None = None
    """/dev/vfio/N"""
    cdev: str | None = None
    """/dev/vfio/devices/vfioN, for iommufd"""


Stale = Mapping[str, tuple["DifferenceKind", str]]
"""The claims that are stale, by id: in which way, and why."""
NOT_STALE: Stale = {}
ANOTHER_BOOT = "made in another boot, and not verified in this one: vfioctl reconcile"
NO_NODES: Mapping[str, Nodes] = {}


def claim_document(claim: Claim, nodes: Mapping[str, Nodes] = NO_NODES, *, stale: str = "") -> dict[str, Any]:
    """Return a claim as JSON has it. `nodes`: the devices' files, by subject, where they are known.

    `stale`: why nobody needs it any more.
    """
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
        f'"key":{_text(claim.key)},"devices":[{devices}],"cpus":"{format_cpu_list(claim.cpus) if claim.cpus else ""}",'
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


def _or_null(text: str | None) -> str:
    return "null" if text is None else _text(text)


def event_document(event: Event) -> dict[str, Any]:
    """Return an event as JSON has it."""
    return event._asdict()


def claims_text(claims: Iterable[Claim], stale: Stale = NOT_STALE) -> str:
    """Return the document of `vfioctl claim list --json`."""
    return f'{{"claims":[{",".join([claim_text(claim, why_stale(claim, stale)) for claim in claims])}]}}'


def unverified(claims: Iterable[Claim], boot_id: str) -> Stale:
    """Return the live claims that were not verified since the host booted, as JSON reports them beside stale ones.

    `boot_id`: empty if it is not known.
    """
    from vfioctl.claims.model.difference import DifferenceKind

    known = (DifferenceKind.REBOOTED, ANOTHER_BOOT)
    return {claim.id: known for claim in claims if claim.is_live and boot_id not in ("", claim.boot_id)}


def why_stale(claim: Claim, stale: Stale) -> str:
    """Return why a claim is stale; empty if it is not."""
    return stale[claim.id][1] if claim.id in stale else ""
