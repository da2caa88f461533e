"""`vfioctl report`: writes what a bug report needs, redacted. May not add behaviour to the api."""

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from vfioctl.console.choice import opened
from vfioctl.console.lazy import App
from vfioctl.console.output import emit, refuse_to_replace, say, write_whole
from vfioctl.doctor.api import DoctorApi
from vfioctl.errors import BadSpec

app = App(add_completion=False)
_FOLDER = "vfioctl-report"


@app.with_examples("""
  vfioctl report -o report.tar.gz --simulate hgx8
  vfioctl report --dry-run --simulate workstation""")
def report(
    ctx: typer.Context,
    *,
    output: Annotated[str, typer.Option("-o", "--output", metavar="FILE", help="Write this tar.gz file.")] = "",
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be in it; write nothing.")] = False,
) -> None:
    """Write what a bug report needs to a file, without what names a person or a machine.

    It has the host as `snapshot` records it, what `doctor` says, claims, changes, and the kernel's log about devices.
    Serial numbers, UUIDs, addresses of the network, and names of users, guests and other owners are left out or have
    pseudonyms. README.txt in it, which is also printed, lists what is kept and what is left out. Root can read more."""
    if not output and not dry_run:
        raise BadSpec("-o needs the name of a file", hint="vfioctl report -o report.tar.gz")
    file = Path(output) if output else None
    if file and not dry_run:
        refuse_to_replace(file, force=force, otherwise="name a file that does not exist")
    files = DoctorApi(opened(ctx)).report()
    for line in files["README.txt"].splitlines():
        emit(line)
    if dry_run or file is None:
        say("Nothing was written: this is a dry run.")
        return
    write_whole(file, packed(files))
    say(f"{file} is written.")


def packed(files: Mapping[str, str]) -> bytes:
    """Return a tar.gz file with these files in one folder. It names no user, and has no times."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, text in files.items():
            data, info = text.encode(), tarfile.TarInfo(f"{_FOLDER}/{name}")
            info.size, info.mode = len(data), 0o644
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()
