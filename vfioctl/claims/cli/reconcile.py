"""`vfioctl reconcile`: compares the claims with the machine. May not add behaviour to the api."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vfioctl.claims.api import ClaimsApi
from vfioctl.console.changes import agree_on_terminal, progress_lines, reporting
from vfioctl.console.choice import on_this_host, opened
from vfioctl.console.lazy import App
from vfioctl.console.options import AsJson, DryRun, Yes
from vfioctl.console.output import draw, emit, emit_document, say
from vfioctl.errors import Drift

if TYPE_CHECKING:
    from vfioctl.claims.model.difference import Difference, Reconciled
    from vfioctl.claims.reconcile.reconcile import Fixed

app = App(add_completion=False)


@app.with_examples("""
  vfioctl reconcile --simulate hgx8
  vfioctl reconcile --fix --dry-run --simulate hgx8
  vfioctl reconcile --fix --yes --json --simulate hgx8""")
def reconcile(
    ctx: typer.Context,
    *,
    fix: Annotated[bool, typer.Option("--fix", help="Also fix what is safe to fix.")] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Compare the claims with the machine, and name a remedy for each difference.

    Looks at devices and drivers, at who has them open, at libvirt's domains, containers, vGPUs, CPUs, hugepages and CDI
    files. --fix releases stale claims whose devices are not in use, ends claims whose process died before it changed
    anything, and restores claims whose devices are the same: what they had bound is bound again, after a reboot or if
    another driver has it, and vGPUs that are gone are created again as they were. vfioctl's CDI files are written
    again. Users of a device without a claim are only shown. Exits with 4 if differences remain."""
    session = opened(ctx)
    api = ClaimsApi(session).reconciling
    reconciled = api.compare()
    fixed: Sequence[Fixed] = ()
    if fix and not dry_run:
        if not yes:
            agree_on_terminal(lambda: _pages([difference for difference in reconciled.differences if difference.fix]))
        with reporting():
            fixed = api.fix(reconciled.differences, progress=progress_lines(session))
        reconciled = api.compare() if fixed else reconciled
    if as_json:
        emit_document(_document(reconciled, fixed))
        if reconciled.differences:
            raise typer.Exit(Drift.exit_code)
        return
    _print(reconciled, fixed)
    if dry_run and any(difference.fix for difference in reconciled.differences):
        say("Nothing was changed: this is a dry run.")
    if reconciled.differences:
        many = "1 difference" if len(reconciled.differences) == 1 else f"{len(reconciled.differences)} differences"
        hint = "a line that begins with -> removes one"
        raise Drift(f"{many} between the claims and the machine", hint=hint)


def _pages(differences: "Sequence[Difference]") -> list[Any]:
    from vfioctl.claims.render.claims import differences_page

    return [differences_page(differences, on_this_host)] if differences else []


def _document(reconciled: "Reconciled", fixed: "Iterable[Fixed]") -> dict[str, object]:
    return {
        "differences": [_difference(difference) for difference in reconciled.differences],
        "fixed": [_difference(repair.difference) for repair in fixed if not repair.error],
        "failed": [
            _difference(repair.difference) | {"error": repair.error.message, "hint": repair.error.hint}
            for repair in fixed
            if repair.error
        ],
        "unknown": list(reconciled.unknown),
    }


def _difference(difference: "Difference") -> dict[str, object]:
    return asdict(difference) | {"remedy": on_this_host(difference.remedy)}


def _whose(difference: "Difference") -> str:
    if difference.claim:
        return f"claim {difference.claim} of {difference.owner}"
    return f"{difference.kind}: {difference.device}"


def _print(reconciled: "Reconciled", fixed: "Sequence[Fixed]") -> None:
    for line in dict.fromkeys(f"{_whose(e.difference)}: {e.error.message}" for e in fixed if e.error):
        say(f"vfioctl: {line}")
    for repair in fixed:
        if not repair.error:
            emit(f"fixed: {_whose(repair.difference)}: {repair.difference.words}")
    for page in _pages(reconciled.differences):
        draw(page)
    for why in reconciled.unknown:
        say(f"vfioctl: unknown: {why}")
    if not reconciled.differences:
        emit("The claims and the machine agree.")
