"""The hosts that come with vfioctl, by name. Touches no device."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from vfioctl.errors import BadDocument

_PACKAGE = Path(__file__).parents[2]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}", re.ASCII)


def bundled_hosts() -> Mapping[str, Path]:
    """Return the hosts that come with vfioctl, by name: in the package, or in the tests of a source checkout."""
    for home in (_PACKAGE / "hosts", _PACKAGE.parent / "tests" / "hosts"):
        if home.is_dir():
            return {file.stem: file for file in sorted(home.glob("*.host"))}
    return {}


def is_name(text: str) -> bool:
    """Return whether a text names a bundled host, and not a file."""
    return _NAME.fullmatch(text) is not None and (text in bundled_hosts() or not Path(text).exists())


def file_of(name: str) -> Path:
    """Return the file of a bundled host, or the path that `name` is. Raises BadDocument."""
    if not is_name(name):
        return Path(name)
    if name not in bundled_hosts():
        known = f"the bundled hosts are {', '.join(bundled_hosts())}"
        raise BadDocument(f"there is no host file and no bundled host {name!r}", hint=known)
    return bundled_hosts()[name]
