"""Shows what was restored after a boot. May not know what the definitions define."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from vfioctl.console.changes import Session, preview, tell_all
from vfioctl.console.output import emit, emit_document, say_error

if TYPE_CHECKING:
    from vfioctl.core.restoring import Restored


def tell_restored(session: Session, restored: Restored, *, all_there: str, failed: str, as_json: bool) -> None:
    """Show the plans of a dry run, or the outcomes, then all failures; raise the first one with the messages of all.

    `all_there`: the sentence for a host on which nothing is missing. `failed`: follows the number of failures."""
    failures = restored.failures
    if as_json:
        texts = {name: {"message": error.message, "hint": error.hint} for name, error in failures.items()}
        emit_document({"plans": restored.plans, "outcomes": restored.outcomes, "failures": texts})
        if failures:
            raise typer.Exit(next(iter(failures.values())).exit_code)
        return
    for plan in restored.plans:
        preview(session, plan, as_json=False)
    tell_all(session, restored.outcomes)
    if not (restored.plans or restored.outcomes or failures):
        emit(all_there if restored.files else "Nothing is persistent.")
    if failures:
        first = next(iter(failures.values()))
        for name, error in failures.items():
            say_error(f"vfioctl: {name}: {error.message}")
        listed = "; ".join(f"{name}: {error.message}" for name, error in failures.items())
        first.message = f"{len(failures)} {failed}: {listed}"
        raise first
