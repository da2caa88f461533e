"""`vfioctl snapshot`: this host as a text file that others can read as a host."""

from pathlib import Path
from typing import Annotated

import typer

from vfioctl.console.choice import chosen
from vfioctl.console.lazy import HelpfulCommand
from vfioctl.console.output import emit, say
from vfioctl.console.writing import refuse_to_replace, write_whole

app = typer.Typer(add_completion=False)


@app.command(
    cls=HelpfulCommand,
    epilog="""[bold]Examples[/]
  vfioctl snapshot -o mine.host && vfioctl inventory --host mine.host
  vfioctl snapshot --simulate hgx8 > hgx8.host""",
)
def snapshot(
    ctx: typer.Context,
    *,
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write it there.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it is there.")] = False,
) -> None:
    """Write this host down as one text file.

    Serial numbers, MAC addresses, UUIDs and host names are left out, so the file can go into a bug report. What could
    not be read is named on stderr.
    """
    if output is not None:
        refuse_to_replace(output, force=force, otherwise="without -o the snapshot goes to stdout")
    text, unread = chosen(ctx).open().snapshot()
    if output is None:
        emit(text)
    else:
        write_whole(output, text.encode())
    for path in unread:
        say(f"not read: {path}")
    if unread:
        say(f"{len(unread)} files could not be read; as root, a snapshot has more of them")
