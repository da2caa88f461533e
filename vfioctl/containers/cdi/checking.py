"""Checks CDI files that anyone may have written. Reads files only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vfioctl.containers.cdi.validate import MOST_BYTES, parsed, problems_of
from vfioctl.kernel.untrusted_files import read_file


@dataclass(frozen=True)
class Checked:
    """The result for one file."""

    path: str
    version: str = ""
    devices: int = 0
    problems: tuple[str, ...] = ()


def check(path: Path) -> Checked:
    """Return what is wrong with a file, if anything."""
    try:
        data = read_file(path, MOST_BYTES)
    except OSError as error:
        return Checked(str(path), problems=(f"cannot be read: {error.strerror}",))
    if problems := problems_of(data):
        return Checked(str(path), problems=problems)
    document = parsed(data)
    return Checked(str(path), document["cdiVersion"], len(document["devices"]))
