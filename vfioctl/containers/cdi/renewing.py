"""What vfioctl's CDI files were written for, and how they differ from the claims and the machine. May not write."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from vfioctl.claims.model.cdi import CDEV_NODE, KIND, CdiDevice, Node, subject_called
from vfioctl.claims.model.difference import SeenCdi
from vfioctl.containers.cdi.choose import Passthrough, claimed, every_device, of_claims
from vfioctl.containers.cdi.intent import CdiIntent
from vfioctl.errors import BadDocument

if TYPE_CHECKING:
    from vfioctl.claims.model.claim import Claim
    from vfioctl.containers.cdi.files import CdiFileFound
    from vfioctl.containers.model.claims import Claims
    from vfioctl.inventory.model.values import Subject
    from vfioctl.session import Session

_WRITTEN = """
    SELECT plan FROM journal WHERE state = 'done' AND instr(plan, '"cdi generate"') AND instr(plan, ?) ORDER BY id DESC
"""


def written_for(session: Session, kind: str) -> CdiIntent | None:
    """Return the request that the file of a kind was last written for; None if the journal does not have it."""

    def ask(db: sqlite3.Connection) -> str:
        row = db.execute(_WRITTEN, (f'"kind":"{kind}"',)).fetchone()
        return str(row[0]) if row else ""

    try:
        text = session.store.read(ask, "")
        intent = session.registry.read_plan(text).intent if text else None
    except BadDocument:  # of an earlier release
        return None
    return intent if isinstance(intent, CdiIntent) and intent.kind == kind else None


def inferred(file: CdiFileFound, held: Collection[str], available: Passthrough) -> CdiIntent:
    """Return the request that a file's content suggests: all devices on VFIO, if it has some that no claim has."""
    subjects = [subject_called(name) for name in file.devices]
    everything = any(subject in available.nodes and subject not in held for subject in subjects)
    return CdiIntent(kind=file.kind, node=node_of(file), everything=everything)


def node_of(file: CdiFileFound) -> Node:
    """Return which node of its devices a file has."""
    nodes = [node for of_device in file.devices.values() for node in of_device]
    return Node.CDEV if any(CDEV_NODE.fullmatch(node) for node in nodes) else Node.GROUP


def differing(file: CdiFileFound, intent: CdiIntent, claims: Claims, available: Passthrough) -> Iterator[SeenCdi]:
    """Yield the devices of which a file has another node than they have, that it lacks, or that it should not have."""
    live = claims.claims()
    holders: dict[Subject, str] = {device.subject: claim.id for claim in live for device in claim.devices}
    listed = {subject_called(name): nodes[0] for name, nodes in file.devices.items() if nodes}
    devices = _wanted(intent, tuple(listed), live, available)
    wanted = {device.subject: device.node for device in devices}
    for subject in sorted({*listed, *wanted}, key=lambda subject: subject.order):
        node, right = listed.get(subject), wanted.get(subject)
        if node == right:
            continue
        if node is None:
            why = f"claim {holders[subject]} has it" if subject in holders else "it is on VFIO"
            words = f"{file.path} {'does not name it' if listed else 'is not there'}, and {why}"
        elif right is None and subject in available.nodes:
            words = f"{file.path} names it, and no claim has it"
        else:
            words = f"{file.path} says that its node is {node}, and it is {right or 'none'}"
        yield SeenCdi(file.path, str(subject), words, command(intent))


def _wanted(
    intent: CdiIntent, listed: Sequence[Subject], claims: Sequence[Claim], available: Passthrough
) -> tuple[CdiDevice, ...]:
    if intent.everything:
        return every_device(available, intent.node)
    if not intent.claim:
        return of_claims(claims, available, intent.node)
    # other claims' devices are in it only if they were asked for
    own = [subject for claim in claims if claim.id == intent.claim for subject in claimed(claim, intent.node)]
    kept = dict.fromkeys((*listed, *own))
    return tuple(CdiDevice(subject, available.nodes[subject]) for subject in kept if subject in available.nodes)


def command(intent: CdiIntent) -> str:
    """Return the command that writes the file."""
    options = (
        f" --claim {intent.claim}" if intent.claim else "",
        " --all" if intent.everything else "",
        f" --kind {intent.kind}" if intent.kind != KIND else "",
        f" --node {intent.node}" if intent.node is not Node.GROUP else "",
    )
    return f"vfioctl cdi generate{''.join(options)}"
