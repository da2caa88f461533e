"""The JSON forms of claims and their events. May not do input or output, nor import pydantic, which slows listings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from vfioctl.claims.model.cdi import qualified_name
from vfioctl.claims.model.claim import Claim
from vfioctl.claims.model.difference import DifferenceKind
from vfioctl.claims.rows import Event, device_document
from vfioctl.inventory.model.values import format_cpu_list


class Nodes(NamedTuple):
    """The device files of a claimed device, which a guest opens: one of them. None if it does not exist."""

    group: str | None = None
    """/dev/vfio/N"""
    cdev: str | None = None
    """/dev/vfio/devices/vfioN, for iommufd"""


Stale = Mapping[str, tuple[DifferenceKind, str]]
"""The claims that are stale, by id: in which way, and why."""
NOT_STALE: Stale = {}
NO_NODES: Mapping[str, Nodes] = {}


def claim_document(claim: Claim, nodes: Mapping[str, Nodes] = NO_NODES, *, stale: str = "") -> dict[str, Any]:
    """Return a claim as JSON has it. `nodes`: the devices' files, by subject, where they are known.

    `stale`: why nobody needs it any more.
    """
    return {
        "id": claim.id,
        "owner": claim.owner,
        "state": claim.state,
        "stale": stale,
        "key": claim.key,
        "devices": [
            device_document(each)
            | {"cdi": qualified_name(each.subject) if each.asked and claim.is_live else None}
            | (nodes[each.subject]._asdict() if nodes and each.subject in nodes else {})
            for each in claim.devices
        ],
        "cpus": format_cpu_list(claim.cpus) if claim.cpus else "",
        "hugepages": [{"node": each.node, "size": each.size, "pages": each.pages} for each in claim.hugepages],
        "labels": dict(claim.labels),
        "since": claim.since,
        "expires": claim.expires,
        "ended": claim.ended,
        "boot_id": claim.boot_id,
        "user": claim.user,
        "sudo_user": claim.sudo_user,
        "pid": claim.pid,
        "command": claim.command,
        "plans": list(claim.plans),
        "why": claim.why,
    }


def event_document(event: Event) -> dict[str, Any]:
    """Return an event as JSON has it."""
    return event._asdict()


def claims_document(claims: Iterable[Claim], stale: Stale = NOT_STALE) -> dict[str, Any]:
    """Return the document of `vfioctl claim list --json`."""
    return {"claims": [claim_document(claim, stale=why_stale(claim, stale)) for claim in claims]}


def why_stale(claim: Claim, stale: Stale) -> str:
    """Return why a claim is stale; empty if it is not."""
    return stale[claim.id][1] if claim.id in stale else ""
