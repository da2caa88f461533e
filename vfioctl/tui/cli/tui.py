"""`vfioctl tui`: opens the screens in a terminal. May not add behaviour to the apis."""

import os
import sys
from importlib.util import find_spec
from typing import Annotated

import typer

from vfioctl.console.choice import chosen, opened
from vfioctl.console.lazy import App
from vfioctl.console.output import settle
from vfioctl.errors import BadSpec, MissingLibrary
from vfioctl.host import Host
from vfioctl.tui.data.feed import Feed
from vfioctl.units import parse_duration

app = App(add_completion=False)
_LEAST, _MOST = 0.5, 3600.0
"""Seconds."""


@app.with_examples("""
  vfioctl tui --simulate hgx8
  vfioctl --simulate busy tui
  vfioctl tui --host a2 --interval 10s""")
def tui(
    ctx: typer.Context,
    *,
    interval: Annotated[
        str,
        typer.Option(metavar="DURATION", help="Look this often for what the host does not report, such as holders."),
    ] = "2s",
    read_only: Annotated[bool, typer.Option("--read-only", help="Offer no action that changes the host.")] = False,
) -> None:
    """Show devices, claims, vGPUs, domains and changes on live screens.

    Actions show their plan first, as --dry-run prints it, and only y applies it. A change goes on if its page is left;
    quitting meanwhile asks. Needs a terminal; the keys are on the page that ? shows. If the program is killed with
    SIGKILL, the command reset repairs the terminal."""
    seconds = parse_duration(interval)
    if not _LEAST <= seconds <= _MOST:
        raise BadSpec(f"--interval must be at least {_LEAST:g} and at most {_MOST:g} seconds")
    refuse_terminal()
    if find_spec("textual") is None:
        raise MissingLibrary("vfioctl tui needs the library textual", hint="pip install 'vfioctl[tui]'")
    if chosen(ctx).log_level:
        raise BadSpec("the log would be written over the screens", hint="leave out --verbose and --log-level")
    host = Host(opened(ctx))
    settle()
    feed = Feed(host, interval=seconds, read_only="--read-only was given" if read_only else "")
    feed.start()  # reads while textual is imported
    from vfioctl.tui.run import run

    run(host, feed)


def refuse_terminal() -> None:
    """Raise BadSpec if there is no terminal that can show the screens."""
    if not all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr)):
        raise BadSpec(
            "the screens need a terminal on stdin and stderr",
            hint="vfioctl watch prints the same facts to a file or a pipe",
            next_command="vfioctl watch",
        )
    if os.environ.get("TERM", "") in ("", "dumb", "unknown"):
        raise BadSpec(
            f"the terminal cannot show screens: TERM={os.environ.get('TERM', '')}",
            hint="vfioctl watch prints the same facts line by line",
            next_command="vfioctl watch",
        )
