"""Puts a report together: the texts of its files, by name. Reads the host through the apis; writes nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from vfioctl.doctor.report.redaction import Redaction
from vfioctl.errors import KernelRefused
from vfioctl.kernel.lenient import text_of
from vfioctl.kernel.protocol import KERNEL_LOG

if TYPE_CHECKING:
    from vfioctl.claims.model.claim import Claim
    from vfioctl.core.change import JournalEntry
    from vfioctl.doctor.model.facts import Facts
    from vfioctl.kernel.protocol import Reader

_RELEVANT = re.compile(
    r"vfio|iommu|dmar|amd-vi|smmu|ivrs|mdev|nvrm|nvidia|nouveau|amdgpu|i915|\bxe\b|pcieport|\baer\b|simpledrm|efifb|"
    r"sr-?iov|blocked for more than|call trace|\b[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]\b",
    re.IGNORECASE,
)
_MOST_LINES, _MOST_CHANGES = 2000, 200
_KEPT = """\
Kept: PCI addresses, ids, drivers, IOMMU groups, NUMA nodes, sizes; the kernel's
version, and what of its command line is about devices; names of services and
programs; what vfioctl planned and did, with times.

Left out: serial numbers, UUIDs, MAC and IP addresses, the host's name, home
directories, names of users, guests, pods and other owners of claims, labels,
keys, command lines, the log of other programs. Names have pseudonyms, the same
in all files.

Read the files before you send them: the free text of drivers and firmware may
hold what vfioctl does not know to be private.
"""


class Known(NamedTuple):
    """What a report is made of."""

    kernel: Reader
    version: str
    snapshot: str
    unread: Sequence[str]
    doctor: str
    claims: Sequence[Claim]
    changes: Sequence[JournalEntry]
    problems: Sequence[str]
    """Why parts are missing."""


def private_words(
    kernel: Reader, claims: Sequence[Claim], changes: Sequence[JournalEntry]
) -> Iterator[tuple[str, str]]:
    """Yield the words that name somebody, each with its kind."""
    if host := text_of(kernel, "/proc/sys/kernel/hostname"):
        yield "host", host
    for claim in claims:
        kind, _, name = claim.owner.partition("/")
        yield from ((kind if kind == "user" else "owner", part) for part in name.split("/"))
        yield from (("user", user) for user in (claim.user, claim.sudo_user) if user)
    for entry in changes:
        yield from (("user", user) for user in (entry.caller.user, entry.caller.sudo_user) if user)


def names_in_facts(facts: Facts) -> Iterator[tuple[str, str]]:
    """Yield what names a person or a guest in what the checks say: see `Redaction`."""
    yield from (("owner", guest.domain) for guest in facts.guests if guest.domain)
    users = (limit.user.lstrip("@") for limit in facts.lock_limits)
    yield from (("user", user) for user in users if not user.isdecimal())


def report_files(known: Known, redaction: Redaction) -> Mapping[str, str]:
    """Return the text of each file of a report, the one that says what is in it first."""
    log, why = _kernel_log(known.kernel)
    changes = [_change(entry) for entry in known.changes[:_MOST_CHANGES]]
    files = {
        "host.host": (known.snapshot, "the host, for `vfioctl --host host.host ...`"),
        "doctor.json": (redaction.text(known.doctor), "what `vfioctl doctor --json` says"),
        "claims.json": (_json([_claim(claim, redaction) for claim in known.claims], redaction), "the claims"),
        "changes.json": (_json(changes, redaction), f"the last {len(changes)} changes of the journal"),
        "kernel.log": (redaction.text("\n".join(log)), f"{len(log)} lines of the kernel's log about devices"),
    }
    missing = [*known.problems, *([f"kernel.log: {why}"] if why else [])]
    missing += [f"host.host: {path} could not be read" for path in known.unread]
    listed = "".join(f"{name:13} {about}\n" for name, (_, about) in files.items())
    first = f"A report of vfioctl {known.version}\n\n{listed}\n{_KEPT}"
    if missing:
        first += "\nMissing:\n" + "".join(f"  {redaction.text(line)}\n" for line in missing)
    return {"README.txt": first, **{name: f"{text.rstrip()}\n" for name, (text, _) in files.items()}}


def _json(value: object, redaction: Redaction) -> str:
    return redaction.text(json.dumps(value, indent=1))


def _claim(claim: Claim, redaction: Redaction) -> dict[str, object]:
    kind, _, name = claim.owner.partition("/")
    return {
        "id": claim.id,
        "owner": "/".join((kind, *map(redaction.word, name.split("/")))),
        "state": claim.state,
        "devices": [
            {"device": str(d.subject), "on": d.address, "asked": d.asked, "undo": d.undo} for d in claim.devices
        ],
        "shares": [
            {"gpu": s.address, "cores": s.cores, "memory": s.memory, "enforce": s.enforce} for s in claim.shares
        ],
        "cpus": len(claim.cpus),
        "since": claim.since,
        "expires": claim.expires,
        "why": claim.why,
    }


def _change(entry: JournalEntry) -> dict[str, object]:
    """A change without the intent and the values of files, which may hold documents and names."""
    steps = [f"{step.phase}: {step.action} {step.target}" for step in entry.plan.steps]
    return {
        "id": entry.id,
        "plan": entry.plan.id,
        "verb": entry.plan.intent.model_dump()["verb"],
        "subjects": sorted(entry.plan.subjects),
        "state": entry.state,
        "began": entry.began,
        "ended": entry.ended,
        "why": entry.why,
        "steps": steps,
        "reached": entry.reached,
    }


def _kernel_log(kernel: Reader) -> tuple[list[str], str]:
    """Return the lines about devices, and why there are none."""
    try:
        lines = kernel.read(KERNEL_LOG).split("\n")
    except KernelRefused as refused:
        return [], f"the kernel's log could not be read: {refused.kernel_said or refused.message}"
    return [line for line in lines if _RELEVANT.search(line)][-_MOST_LINES:], ""
