"""The files for the boot that come with vfioctl. Reads only those."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from vfioctl.errors import MissingLibrary
from vfioctl.kernel.untrusted_files import read_file
from vfioctl.persist.model.installed import FILES, LINKS

_PACKAGE = Path(__file__).parents[1]
_PLACES = (_PACKAGE / "data", _PACKAGE.parent)
_LONGEST = 65_536


@lru_cache(maxsize=1)
def packaged() -> Mapping[str, str]:
    """Return the text of each file, and the target of each link, by the path where it is installed.

    Raises MissingLibrary if this installation of vfioctl lacks them."""
    return {**{path: _text(source) for path, source in FILES.items()}, **LINKS}


def _text(source: str) -> str:
    for place in _PLACES:
        if (place / source).is_file():
            return read_file(place / source, _LONGEST).decode().rstrip("\n")
    raise MissingLibrary(f"this installation lacks {source}", hint="install vfioctl from its wheel or package again")
