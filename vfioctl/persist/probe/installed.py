"""Reads which files for the boot are in place. Reads only."""

from __future__ import annotations

from collections.abc import Mapping

from vfioctl.errors import KernelRefused
from vfioctl.kernel.protocol import FileReader
from vfioctl.persist.model.installed import FILES, LINKS


def installed(kernel: FileReader) -> Mapping[str, str]:
    """Return the text of each file, and the target of each link, that is there now; empty if there is none."""
    found = {path: kernel.read(path) if kernel.has(path) else "" for path in FILES}
    return {**found, **{path: _target(kernel, path) for path in LINKS}}


def _target(kernel: FileReader, path: str) -> str:
    try:
        return kernel.link(path)
    except KernelRefused:
        return ""
