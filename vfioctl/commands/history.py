"""`vfioctl history`: lists the journal, shows one change, deletes old ones. May not change the host."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from vfioctl.console.changes import agree_on_terminal
from vfioctl.console.choice import opened
from vfioctl.console.lazy import App, Group
from vfioctl.console.options import AsJson, Yes, completion
from vfioctl.console.output import draw, emit, emit_document, say, width
from vfioctl.console.words import counted
from vfioctl.errors import BadSpec
from vfioctl.host import Host
from vfioctl.inventory.api import suggest_devices
from vfioctl.session import Session
from vfioctl.units import parse_duration

app = App(name="history", cls=Group, invoke_without_command=True, add_completion=False, rich_markup_mode="rich")


def suggest_changes(session: Session, _begun: str) -> list[tuple[str, str]]:
    """Return the numbers of all changes, each with what it was."""
    return [(str(entry.id), entry.plan.intent.title()) for entry in Host(session).history()]


@app.group_with_examples("""
  vfioctl history --simulate hgx8
  vfioctl history -n 3 --json --simulate hgx8
  vfioctl history --since 2d --device gpu1 --simulate hgx8
  vfioctl history --owner vm/web1 --simulate hgx8""")
def history(
    ctx: typer.Context,
    *,
    number: Annotated[int | None, typer.Option("-n", metavar="N", min=1, help="List only the last N changes.")] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="List only changes since TIME (30m, 2h, 3d or 2026-11-01)."),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            metavar="DEVICE",
            help="List only changes of DEVICE, which may be gone.",
            autocompletion=completion(suggest_devices),
        ),
    ] = None,
    owner: Annotated[
        str | None, typer.Option("--owner", metavar="OWNER", help="List only changes for claims that OWNER has or had.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the changes made to this host.

    The newest change comes first. Each line shows when it began, who made it, what it did to which devices, and how it
    ended. Times are in UTC."""
    if ctx.invoked_subcommand:
        if (number, since, device, owner, as_json) != (None, None, None, None, False):
            name = ctx.invoked_subcommand
            raise BadSpec(f"the options before {name} are those of the list", hint=f"give its own after {name}")
        return
    earliest = None if since is None else moment(since, now=datetime.now(UTC))
    session = opened(ctx)
    entries = Host(session).history(most=number or -1, since=earliest, device=device, owner=owner)
    if session.reads_published:
        from vfioctl.core.published_history import OLDER

        say(f"vfioctl: {OLDER}")
    if as_json:
        emit_document({"entries": entries})
    elif entries:
        from vfioctl.console.history_page import history_table

        draw(history_table(entries, width=width()))
    else:
        emit("No changes yet." if (since, device, owner) == (None, None, None) else "No such changes.")


@app.with_examples("""
  vfioctl bind gpu2 --yes --simulate hgx8
  vfioctl history show 1 --simulate hgx8
  vfioctl history show 1 --json --simulate hgx8""")
def show(
    ctx: typer.Context,
    change: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="The change's number, or the beginning of its plan's id (4 characters or more).",
            autocompletion=completion(suggest_changes),
        ),
    ],
    *,
    as_json: AsJson = False,
) -> None:
    """Show everything about one change.

    Shows how the change ended and why, who made it, what it changed and by which steps."""
    session = opened(ctx)
    entry = Host(session).change(change)
    if as_json:
        emit_document(entry)
        return
    from vfioctl.console.history_page import change_page

    draw(change_page(entry, session.registry))


@app.with_examples("""
  vfioctl history prune --older-than 90d --dry-run --simulate hgx8
  vfioctl history prune --older-than 90d --keep 100 --yes --simulate hgx8""")
def prune(
    ctx: typer.Context,
    *,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="TIME", help="Delete changes that began before TIME (90d or 2026-11-01)."),
    ] = None,
    keep: Annotated[int | None, typer.Option("--keep", metavar="N", min=1, help="Keep the newest N changes.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would be deleted, and delete nothing.")] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete old changes from the history.

    With both options, deletes only what both select. Always keeps the newest change, unfinished changes, and those that
    unbind needs to restore drivers or that created the vGPUs of this host."""
    if older_than is None and keep is None:
        raise BadSpec("nothing says which changes to delete", hint="give --older-than 90d, --keep 100, or both")
    host = Host(opened(ctx))
    before = None if older_than is None else moment(older_than, now=datetime.now(UTC))
    entries = host.prunable(keep=keep or 0, before=before)
    from vfioctl.console.history_page import history_table

    tables = [history_table(entries, width=width())] if entries else []
    if not (dry_run or yes):
        agree_on_terminal(lambda: tables)
    deleted = 0 if dry_run else host.prune(entries)
    if as_json:
        emit_document({"changes": [entry.id for entry in entries], "deleted": deleted})
    elif dry_run and entries:
        draw(*tables)
        say("Nothing was deleted: this is a dry run.")
    else:
        emit(f"Deleted {counted(deleted, 'change')}." if entries else "No change to delete.")


_HINT = "write it as 30m, 2h, 3d, 2w, 2026-11-01 or 2026-11-01T18:30"


def moment(text: str, *, now: datetime) -> datetime:
    """Return the moment that was `2h` or `3d` before `now`, or an ISO 8601 date or time, in UTC. Raises BadSpec."""
    try:
        with suppress(BadSpec):
            return now - timedelta(seconds=parse_duration(text))
        time = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise BadSpec(f"not a time: {text[:40]!r}", hint=_HINT) from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)
