"""`vfioctl watch`: shows the host's devices live, or its events line by line. May not add behaviour to the api."""

import gc
import json
import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from vfioctl.console.choice import opened
from vfioctl.console.lazy import App
from vfioctl.console.output import emit, emit_json_text, settle, width
from vfioctl.errors import BadSpec
from vfioctl.overview.api import OverviewApi
from vfioctl.overview.model.event import INTERVAL
from vfioctl.units import parse_duration

if TYPE_CHECKING:
    from vfioctl.overview.model.event import HostEvent

app = App(add_completion=False)
_SHORTEST = 0.1


@app.with_examples(
    """
  vfioctl watch
  vfioctl watch --interval 10s --all
  vfioctl watch --json | jq -r 'select(.source == "kernel") | .subject'"""
)
def watch(
    ctx: typer.Context,
    *,
    interval: Annotated[
        str,
        typer.Option(metavar="DURATION", help="Look this often for what the host does not report, such as holders."),
    ] = "2s",
    everything: Annotated[bool, typer.Option("--all", help="Show every PCI function.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print each event as JSON, one a line.")] = False,
) -> None:
    """Show the host's devices, and what happens to them, until interrupted.

    On a terminal a table, which changes when the kernel, the ledger or libvirt reports a change. In a pipe, and with
    --json, one event a line: functions that are bound, unbound, added or removed, claims, changes, domains."""
    seconds = parse_duration(interval)
    if seconds < _SHORTEST:
        raise BadSpec(f"--interval {interval[:40]} is too often", hint=f"the shortest is {_SHORTEST} s")
    api = OverviewApi(opened(ctx))
    gc.enable()  # off in commands that end soon
    if as_json or not _can_redraw():
        _lines(api, seconds, as_json=as_json)
    else:
        _table(api, seconds, everything=everything)


def _never() -> bool:
    return False  # a signal ends it


def _can_redraw() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


def _lines(api: OverviewApi, seconds: float, *, as_json: bool) -> None:
    from vfioctl.overview.render.page import event_document, event_line

    settle()
    for event in api.watch(stop=_never, interval=seconds):
        if event.action == INTERVAL:
            continue
        if as_json:
            emit_json_text(json.dumps(event_document(event)))
        else:
            emit(event_line(event))


def _table(api: OverviewApi, seconds: float, *, everything: bool) -> None:
    from rich.live import Live

    from vfioctl.console.screen import Screen
    from vfioctl.overview.render.page import overview_page

    screen, last = Screen(sys.stdout, width()), None
    with Live(console=screen, auto_refresh=False, vertical_overflow="ellipsis") as live:
        for overview, events in api.follow(stop=_never, interval=seconds):
            last = _newest(events) or last
            settle()
            screen.width, screen.height = os.get_terminal_size(sys.stdout.fileno())
            live.update(overview_page(overview, width=screen.width, everything=everything, event=last), refresh=True)


def _newest(events: "tuple[HostEvent, ...]") -> "HostEvent | None":
    """Return the newest event that names something."""
    return next((event for event in reversed(events) if event.subject), None)
