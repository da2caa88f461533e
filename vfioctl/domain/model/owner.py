"""The owner of a domain's claims: `vm/NAME`. May not do input or output."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from vfioctl.errors import BadSpec, ClaimConflict
from vfioctl.placement.model.claims import Owner

if TYPE_CHECKING:
    from vfioctl.claims.model.claim import Claim


def owner_of(name: str) -> Owner:
    """Return the owner of a domain's claims. Raises BadSpec for a name that no owner can have."""
    try:
        return Owner(f"vm/{name}")
    except BadSpec as error:
        raise BadSpec(
            f"domain {name!r} can hold no claim: no owner is called vm/{name[:60]}", hint=error.hint
        ) from None


def is_owner(name: str) -> bool:
    """Return whether a domain of this name can hold claims."""
    try:
        return bool(Owner(f"vm/{name}"))
    except BadSpec:
        return False


def refuse_foreign_claim(claim: Claim, name: str) -> None:
    """Raise BadSpec for a claim that has ended, ClaimConflict for one of another owner: the domain could not start."""
    if not claim.is_live:
        raise BadSpec(f"claim {claim.id} is {claim.state}: it holds nothing", next_command="vfioctl claim list")
    if claim.owner != f"vm/{name}":
        owner = f"call the domain {claim.owner.name}, or " if claim.owner.kind == "vm" else ""
        raise ClaimConflict(
            f"claim {claim.id} is of {claim.owner}, and not of vm/{name}",
            hint=f"{owner}give it the claim; vfioctl claim create --owner vm/NAME makes a new one",
            next_command=f"vfioctl claim transfer {claim.id} --to {quote(f'vm/{name}')}",
            facts={"claim": claim.id, "owner": str(claim.owner)},
        )
