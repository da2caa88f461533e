"""Finds stale claims: their term is over, the process that made them is gone, or their owner is.

Only what is cheap and certain: a listing asks. Who is gone by libvirt or a container runtime is told by
`vfioctl reconcile`. Reads the host, and may not write to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from vfioctl.claims.lifecycle.liveness import now as time_now
from vfioctl.claims.lifecycle.liveness import runs
from vfioctl.claims.model.claim import Claim, ClaimState
from vfioctl.claims.model.difference import DifferenceKind
from vfioctl.claims.model.documents import Stale

if TYPE_CHECKING:
    from vfioctl.claims.ledger.ledger import ClaimLedger
    from vfioctl.kernel.protocol import Reader
    from vfioctl.session import Session

GRACE = timedelta(minutes=10)
"""An owner may not have started yet: a claim is made before its VM or container."""
_DOMAINS = ("/etc/libvirt/qemu", "/run/libvirt/qemu")
"""Where libvirt keeps the definitions of domains, and those that run."""


def stale_claims(session: Session, claims: Sequence[Claim], ledger: ClaimLedger) -> Stale:
    """Return the claims that are stale. Which processes run is not known of a host that reports no boot id."""
    kernel, now, boot_id = session.kernel, time_now(), session.known_boot_id
    stale: dict[str, tuple[DifferenceKind, str]] = {}
    perhaps_gone = []
    for claim in claims:
        if not claim.is_live:
            continue
        maker = (claim.pid, claim.boot_id)
        if boot_id and claim.state is ClaimState.RESERVED and not runs(*maker, boot_id):
            stale[claim.id] = DifferenceKind.PROCESS_GONE, "the process that was making it has ended"
        elif boot_id and claim.state is ClaimState.RELEASING and not _is_released(claim, boot_id, ledger):
            stale[claim.id] = DifferenceKind.PROCESS_GONE, "the process that was releasing it has ended"
        elif claim.expires and claim.expires <= now:
            stale[claim.id] = DifferenceKind.EXPIRED, "its term is over"
        elif claim.state is ClaimState.HELD and claim.owner.kind == "vm" and is_settled(claim, now):
            perhaps_gone.append(claim)
    guests = _guests(kernel) if perhaps_gone else None
    if guests is None:
        return stale
    for claim in perhaps_gone:
        if claim.owner.name not in guests and not _is_a_domain(kernel, claim.owner.name):
            words = f"no guest {claim.owner.name} runs, and libvirt has no such domain"
            stale[claim.id] = DifferenceKind.OWNER_GONE, words
    return stale


def _is_released(claim: Claim, boot_id: str, ledger: ClaimLedger) -> bool:
    """Return whether the process that began to release a claim still runs."""
    last = ledger.events(claim=claim.id)[-1]
    return runs(last.pid, last.boot_id, boot_id)


def is_settled(claim: Claim, now: str) -> bool:
    """Return whether the owner has had time to start."""
    return datetime.fromisoformat(now) - datetime.fromisoformat(claim.since) > GRACE


def _guests(kernel: Reader) -> frozenset[str] | None:
    """Return the names of running guests; None if not all processes can be seen.

    Also names of guests that no other command believes: any user can give a process one, and no claim is lost by it.
    """
    from vfioctl.errors import KernelRefused
    from vfioctl.inventory.api import guest_name, hidden, is_vmm
    from vfioctl.kernel.lenient import text_of

    try:
        names = kernel.texts_below("/proc", "comm").texts
    except KernelRefused:
        return None
    names = {pid: name for pid, name in names.items() if pid.isdecimal()}
    if kernel.processes_unknown or hidden(kernel, names):
        return None
    guests = (pid for pid, name in names.items() if is_vmm(name))
    return frozenset(name for pid in guests if (name := guest_name(text_of(kernel, f"/proc/{pid}/cmdline"))))


def _is_a_domain(kernel: Reader, name: str) -> bool:
    return any(kernel.has(f"{place}/{name}.xml") for place in _DOMAINS)
