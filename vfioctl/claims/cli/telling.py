"""What the commands of `vfioctl claim` share: the argument that names a claim, and what they print."""

from typing import TYPE_CHECKING, Annotated

import typer

from vfioctl.claims.api import Claimed, ClaimsApi
from vfioctl.console.options import completion
from vfioctl.console.output import draw, emit, emit_json, say, width
from vfioctl.session import Session

if TYPE_CHECKING:
    from vfioctl.claims.model.claim import Claim


def suggest_claims(session: Session, _begun: str) -> list[tuple[str, str]]:
    """Return the live claims' ids, each with its owner."""
    return [(claim.id, claim.owner) for claim in ClaimsApi(session).claims()]


ClaimId = Annotated[
    str,
    typer.Argument(
        metavar="CLAIM",
        help="The claim's id, or its beginning (4 characters or more).",
        autocompletion=completion(suggest_claims),
    ),
]


def tell(api: ClaimsApi, made: Claimed, *, as_json: bool, explain: bool = False) -> None:
    """Write a claim and what a guest needs of it."""
    tell_problem(made)
    nodes = api.nodes(made.claim)
    placed = made.choosing if explain else None
    if as_json:
        from vfioctl.claims.documents import claim_document

        document = claim_document(made.claim, nodes)
        emit_json(document | {"placement": placed.placement.document()} if placed and placed.placement else document)
        return
    from vfioctl.claims.render.claims import claim_page

    draw(claim_page(made.claim, nodes))
    if placed and placed.placement:
        from vfioctl.claims.render.placement import placement_page

        draw(placement_page(placed.placement, placed.inventory, width=width()))


def tell_problem(made: Claimed) -> None:
    """Write why the CDI files do not follow the claim, if they should and do not."""
    if made.problem:
        say(f"vfioctl: claim {made.claim.id}: {made.problem}")


def tell_all(claims: "list[Claim]", *, as_json: bool) -> None:
    if as_json:
        from vfioctl.claims.documents import claim_document

        emit_json({"claims": [claim_document(claim) for claim in claims]})
        return
    if not claims:
        emit("No claims to release.")
        return
    from vfioctl.claims.render.claims import claims_table

    draw(claims_table(claims, width=width()))
