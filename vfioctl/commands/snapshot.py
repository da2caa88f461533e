"""`vfioctl snapshot`: saves this host as a host file, a text file for --host. May not change the host."""

from pathlib import Path
from typing import Annotated

import typer

from vfioctl.console.choice import opened
from vfioctl.console.lazy import App
from vfioctl.console.output import emit_file, refuse_to_replace, say, write_whole
from vfioctl.errors import BadSpec
from vfioctl.host import Host

app = App(add_completion=False)


@app.with_examples("""
  vfioctl snapshot -o mine.host && vfioctl inventory --host mine.host
  vfioctl snapshot --simulate hgx8 > hgx8.host""")
def snapshot(
    ctx: typer.Context,
    *,
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="FILE|-", help="Write it to FILE; - is stdout, the default.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")] = False,
) -> None:
    """Record this host in a text file.

    Serial numbers, MAC addresses, UUIDs and host names are left out, so you can attach the file to a bug report. Files
    that could not be read are listed on stderr."""
    if output == "":
        raise BadSpec("-o needs the name of a file", hint="without -o the snapshot goes to stdout")
    file = None if output in (None, "-") else Path(str(output))
    if file is not None:
        refuse_to_replace(file, force=force, otherwise="without -o the snapshot goes to stdout")
    text, unread = Host(opened(ctx)).snapshot()
    if file is None:
        emit_file(text)
    else:
        write_whole(file, text.encode())
    for path in unread:
        say(f"not read: {path}")
    if unread:
        say(f"{len(unread)} files could not be read; as root, a snapshot has more of them")
