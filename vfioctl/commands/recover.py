"""`vfioctl recover`: finishes interrupted changes. May change only their devices."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from vfioctl.console.changes import Session, confirm_all, progress_lines, reporting, tell_all
from vfioctl.console.choice import opened
from vfioctl.console.lazy import App
from vfioctl.console.options import AsJson, Yes
from vfioctl.console.output import draw, emit, emit_document, say
from vfioctl.host import Host

if TYPE_CHECKING:
    from vfioctl.core.change import Repair

_NOTHING = "Nothing to recover: no change was interrupted."

app = App(add_completion=False)


@app.with_examples("""
  vfioctl recover --dry-run --simulate hgx8
  vfioctl recover --simulate hgx8
  vfioctl recover --forward --simulate hgx8""")
def recover(
    ctx: typer.Context,
    *,
    forward: Annotated[bool, typer.Option("--forward", help="Complete the change instead of rolling it back.")] = False,
    this_host: Annotated[
        bool, typer.Option("--this-host", help="Keep the ledger although the machine-id of this host was changed.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and change nothing.")] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Recover interrupted changes.

    Rolls every unfinished change back to the state recorded before it, or with --forward completes it. A change that
    lacks only its last journal entry is closed as done either way."""
    session = opened(ctx)
    if this_host and session.has_ledger and not dry_run:
        session.store.keep()
    host = Host(session)
    if dry_run:
        _preview(session, host.plan_recovery(forward=forward), as_json=as_json)
        return
    if not yes:
        confirm_all(session, lambda: host.plan_recovery(forward=forward))
    with reporting():
        outcomes = host.recover(forward=forward, progress=progress_lines(session))
    if as_json:
        emit_document({"outcomes": outcomes})
    elif outcomes:
        tell_all(session, outcomes)
    else:
        emit(_NOTHING)


def _preview(session: Session, repairs: "Sequence[Repair]", *, as_json: bool) -> None:
    if as_json:
        emit_document({"repairs": repairs})
        return
    if not repairs:
        emit(_NOTHING)
        return
    from vfioctl.console.plan_page import repair_page

    for repair in repairs:
        draw(repair_page(repair, session.registry))
    say("Nothing was changed: this is a dry run.")
