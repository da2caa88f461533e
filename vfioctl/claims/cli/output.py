"""What the commands of `vfioctl claim` share: the argument that names a claim, and what they print."""

from typing import TYPE_CHECKING, Annotated

import typer

from vfioctl.claims.api import ClaimsApi, suggest_claims
from vfioctl.claims.model.claim import Claim, Claimed, Preview, claim_document, why_stale
from vfioctl.console.options import completion
from vfioctl.console.output import draw, emit, emit_document, say, width
from vfioctl.session import Session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vfioctl.core.change import Plan

_NONE = "No claims to release."
_DRY = "Nothing was recorded or changed: this is a dry run."


ClaimId = Annotated[
    str,
    typer.Argument(
        metavar="CLAIM",
        help="The claim's id, or its beginning (4 characters or more).",
        autocompletion=completion(suggest_claims),
    ),
]


def print_claim(api: ClaimsApi, made: Claimed, *, as_json: bool, explain: bool = False) -> None:
    """Write a claim and what a guest needs of it."""
    print_problem(made)
    for warning in made.placement.warnings if made.placement else ():
        say(f"vfioctl: {warning}")
    nodes = api.nodes(made.claim)
    placement, inventory = (made.placement, made.inventory) if explain else (None, None)
    if as_json:
        document = claim_document(made.claim, nodes, stale=why_stale(made.claim, api.stale([made.claim])))
        emit_document(document | {"placement": placement.document()} if placement else document)
        return
    from vfioctl.claims.render.claims import claim_page

    draw(claim_page(made.claim, nodes))
    if placement and inventory:
        from vfioctl.placement.render import placement_page

        emit("")
        draw(placement_page(placement, inventory, width=width()))


def print_preview(session: Session, preview: Preview, owner: str, *, as_json: bool) -> None:
    """Write what creating a claim would do."""
    if as_json:
        from vfioctl.claims.model.preview_documents import CreatePreview

        id_ = preview.claim.id if preview.claim else None
        emit_document(CreatePreview(placement=preview.placement.document(), plan=preview.plan, claim=id_))
        return
    from vfioctl.placement.render import placement_page

    emit(f"Claim for {owner}")
    emit("")
    draw(placement_page(preview.placement, preview.inventory, width=width()))
    emit("")
    _draw_plan(session, preview.plan, "vfioctl claim release CLAIM")
    say(_DRY)


def print_releases(session: Session, releases: "Sequence[tuple[Claim, Plan | None]]", *, as_json: bool) -> None:
    """Write what releasing claims would do."""
    if as_json:
        from vfioctl.claims.model.preview_documents import ClaimRelease, ReleasePreview

        planned = (
            ClaimRelease(id=claim.id, owner=claim.owner, state=claim.state, plan=plan) for claim, plan in releases
        )
        emit_document(ReleasePreview(claims=tuple(planned)))
        return
    if not releases:
        emit(_NONE)
        return
    for number, (claim, plan) in enumerate(releases):
        if number:
            emit("")
        if claim.is_live:
            emit(f"Claim {claim.id} of {claim.owner} would be released.")
            _draw_plan(session, plan)
        else:
            emit(f"Claim {claim.id} of {claim.owner} is {claim.state} already.")
    say(_DRY)


def _draw_plan(session: Session, plan: "Plan | None", *undone_by: str) -> None:
    if plan is None:
        emit("Nothing has to be changed on the host.")
        return
    from vfioctl.console.plan_page import plan_page

    draw(plan_page(plan, session.registry, undone_by=undone_by))


def print_problem(made: Claimed) -> None:
    """Write why the CDI files do not follow the claim, if they should and do not."""
    if made.problem:
        say(f"vfioctl: claim {made.claim.id}: {made.problem}")


def print_claims(claims: list[Claim], *, as_json: bool) -> None:
    if as_json:
        emit_document({"claims": [claim_document(claim, {}) for claim in claims]})
        return
    if not claims:
        emit(_NONE)
        return
    from vfioctl.claims.render.claims import claims_table

    draw(claims_table(claims, {}, width=width()))
