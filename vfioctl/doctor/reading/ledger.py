"""Adds what the ledger has to the facts: changes, and claims compared with the machine. May not write to the host."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from vfioctl.claims.api import ClaimsApi
from vfioctl.errors import VfioctlError

if TYPE_CHECKING:
    from vfioctl.claims.model.claim import Claim
    from vfioctl.core.published import BeingChanged
    from vfioctl.doctor.model.facts import Facts
    from vfioctl.session import Session


def with_ledger(session: Session, facts: Facts) -> tuple[Facts, tuple[Claim, ...]]:
    """Return the facts with the changes and the claims, and the live claims."""
    none: tuple[BeingChanged, ...] = ()
    changes, problem = session.from_ledger(session.being_changed, none)
    facts = replace(facts, unfinished=tuple(change.under_way for change in changes), ledger_problem=problem)
    return (facts, ()) if problem else _with_claims(session, facts)


def _with_claims(session: Session, facts: Facts) -> tuple[Facts, tuple[Claim, ...]]:
    """Return the facts with the differences of the claims. Without claims nothing is compared: it takes long."""
    api = ClaimsApi(session)
    claims: tuple[Claim, ...] = ()
    try:
        claims = api.claims()
        compared = api.reconciling.compare(facts.inventory) if claims else None
    except (VfioctlError, OSError) as error:
        return replace(facts, claims=len(claims) or 1, compare_problem=str(error)), claims
    if compared is None:
        return facts, ()
    problem = "; ".join(compared.unknown)
    differences = len(compared.differences)
    return replace(facts, claims=len(claims), differences=differences, compare_problem=problem), claims
