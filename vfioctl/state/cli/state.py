"""`vfioctl state`: the whole host as one document. May not add behaviour to the api."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from vfioctl.console.changes import agree_on_terminal, progress_lines, reporting, tell_all
from vfioctl.console.choice import opened
from vfioctl.console.lazy import group_app
from vfioctl.console.options import AsJson, DryRun, Yes
from vfioctl.console.output import draw, emit, emit_document, emit_file, say, width
from vfioctl.state.api import StateApi, differs, refusal_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from vfioctl.session import Session
    from vfioctl.state.model.difference import Prepared, Refusal

app = group_app("state")
File = Annotated[
    str,
    typer.Argument(metavar="FILE|-", help="TOML; YAML in *.yaml, JSON in *.json. - reads TOML from stdin."),
]


class Form(StrEnum):
    TOML = "toml"
    YAML = "yaml"


@app.group_with_examples("""
  vfioctl state show --simulate hgx8 > state.toml
  vfioctl state assert state.toml --simulate hgx8
  vfioctl state apply state.toml --dry-run --simulate hgx8""")
def state() -> None:
    """Show, compare and set drivers, VFs, vGPUs and what each boot restores, as one document.

    A document names devices by address and identity, as definitions of persistent devices do. What it does not name is
    left alone: other devices, and settings that it leaves out."""


@app.with_examples("""
  vfioctl state show --simulate hgx8
  vfioctl state show --format yaml --simulate l40s""")
def show(
    ctx: typer.Context,
    *,
    form: Annotated[Form, typer.Option("--format", help="Write TOML or YAML.")] = Form.TOML,
    as_json: AsJson = False,
) -> None:
    """Write the state of the host as it is now, as a document for `apply` and `assert`.

    It has the GPUs and their companions, other devices on VFIO now or at boot, PFs with VFs, and vGPUs. VFs that no
    guest can have are only counted. Applying it to the same host changes nothing."""
    document, left_out = StateApi(opened(ctx)).present()
    if as_json:
        emit_document(document)
    else:
        from vfioctl.state.files.write import toml_text, yaml_text

        emit_file(toml_text(document) if form is Form.TOML else yaml_text(document))
    for line in left_out:
        say(f"vfioctl: {line}")


@app.with_examples(
    """
  vfioctl state show --simulate hgx8 | vfioctl state assert - --simulate hgx8
  vfioctl state show --simulate t4 > t4.toml
  vfioctl state assert t4.toml --json --simulate hgx8 || test $? = 6""",
    name="assert",
)
def assert_state(ctx: typer.Context, file: File, *, as_json: AsJson = False) -> None:
    """Compare the host with a document. Exits with 6 if it differs, and lists how.

    Changes nothing, and works without root. A device that is not there, or cannot be told from another one, differs."""
    api = StateApi(opened(ctx))
    comparison = api.compare(api.read(file))
    if as_json:
        emit_document(comparison)
    elif comparison.ok:
        emit("The host is as the document says.")
        for note in comparison.notes:
            say(f"vfioctl: {note}")
    else:
        from vfioctl.state.render.page import differences_page

        draw(differences_page(comparison.differences, comparison.notes, width=width()))
    if comparison.ok:
        return
    failure = differs(comparison, file)
    if as_json:
        raise typer.Exit(failure.exit_code)
    raise failure


@app.with_examples("""
  vfioctl state show --simulate hgx8 | vfioctl state apply - --yes --simulate hgx8
  vfioctl state show --simulate hgx8 | sed 's/"nvidia"/"vfio-pci"/' > vfio.toml
  vfioctl state apply vfio.toml --dry-run --simulate hgx8
  vfioctl state apply vfio.toml --yes --json --simulate hgx8""")
def apply(
    ctx: typer.Context,
    file: File,
    *,
    partial: Annotated[
        bool, typer.Option("--partial", help="Change the rest if something cannot be as the document says.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Make the host as a document says, with the plans of `bind`, `unbind`, `sriov set`, `vgpu` and `persist`.

    Nothing is changed if anything cannot be planned: a device that is held, claimed or not there; all reasons are
    listed. Each plan is verified, or rolled back; those before a plan that fails stay, and applying again goes on.
    Applied again, nothing changes."""
    session = opened(ctx)
    api = StateApi(session)
    document = api.read(file)
    if dry_run:
        _show_prepared(session, api.prepare(document), as_json=as_json)
        return

    def agree(prepared: "Prepared") -> None:
        if not yes:
            agree_on_terminal(lambda: _pages(session, prepared))

    with reporting():
        applied = api.apply(document, partial=partial, progress=progress_lines(session), confirm=agree)
    if as_json:
        outcomes, refused = applied.outcomes, _documents(applied.refused)
        emit_document({"changed": bool(outcomes), "plans": (), "later": (), "outcomes": outcomes, "refused": refused})
    elif applied.outcomes or applied.refused:
        tell_all(session, applied.outcomes)
    else:
        emit("Nothing to change: the host is as the document says.")
    _fail(applied.refused, as_json=as_json)


def _pages(session: "Session", prepared: "Prepared") -> "Sequence[RenderableType]":
    from vfioctl.console.plan_page import planned_page
    from vfioctl.state.render.page import later_page

    if not prepared.plans:
        return ()
    pages: list[RenderableType] = [planned_page(plan, session.registry) for plan in prepared.plans]
    return [*pages, later_page(prepared.later, prepared.notes)]


def _show_prepared(session: "Session", prepared: "Prepared", *, as_json: bool) -> None:
    if as_json:
        refused = _documents(prepared.refused)
        changed = bool(prepared.plans)
        plans, later = prepared.plans, prepared.later
        emit_document({"changed": changed, "plans": plans, "later": later, "outcomes": (), "refused": refused})
    elif prepared.differences:
        for page in _pages(session, prepared):
            draw(page)
        say("Nothing was changed: this is a dry run.")
    else:
        emit("Nothing to change: the host is as the document says.")
    _fail(prepared.refused, as_json=as_json)


def _documents(refused: "Sequence[Refusal]") -> list[dict[str, str]]:
    return [{"name": r.name, "message": r.error.message, "hint": r.error.hint} for r in refused]


def _fail(refused: "Sequence[Refusal]", *, as_json: bool) -> None:
    if refused and as_json:
        raise typer.Exit(refused[0].error.exit_code)
    if refused:
        raise refusal_of(refused)
