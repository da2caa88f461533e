"""`vfioctl snapshot`: this host as a text file that others can read as a host."""

import os
from pathlib import Path
from typing import Annotated

import typer

from vfioctl.cli.choice import chosen
from vfioctl.cli.lazy import HelpfulCommand
from vfioctl.cli.output import emit, say
from vfioctl.errors import BadSpec, HostError

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
        _refuse_to_replace(output, force=force)
    text, unread = chosen(ctx).open().snapshot()
    if output is None:
        emit(text)
    else:
        _write_whole(output, text)
    for path in unread:
        say(f"not read: {path}")
    if unread:
        say(f"{len(unread)} files could not be read; as root, a snapshot has more of them")


def _refuse_to_replace(path: Path, *, force: bool) -> None:
    """Raises BadSpec: neither a file that someone may need nor a device node is replaced."""
    if path.exists() and not path.is_file():
        raise BadSpec(f"{path} is not a plain file", hint="without -o the snapshot goes to stdout")
    if path.exists() and not force:
        raise BadSpec(f"{path} is there already", hint="choose another name, or --force to replace it")


def _write_whole(path: Path, text: str) -> None:
    """Either all of it appears under that name, or nothing."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        try:
            with draft.open("x", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise _not_written(path, error) from error


def _not_written(path: Path, error: OSError) -> HostError:
    failure = HostError(f"writing {path} failed", hint="choose a directory that you may write to")
    failure.kernel_said = error.strerror or str(error)
    return failure
