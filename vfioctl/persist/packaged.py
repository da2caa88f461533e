"""What comes with vfioctl to be installed: files for the boot, completions, manual pages. Reads only those."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from vfioctl.console.completion import SCRIPTS
from vfioctl.errors import MissingLibrary
from vfioctl.kernel.untrusted_files import read_file
from vfioctl.persist.model.installed import COMPLETIONS, FILES, LINKS, PAGE, PAGES

_PACKAGE = Path(__file__).parents[1]
_PLACES = (_PACKAGE / "data", _PACKAGE.parent)
_LONGEST = 65_536


def packaged() -> Mapping[str, str]:
    """Return the text of each file, and the target of each link, by the path where it is installed.

    Raises MissingLibrary if this installation of vfioctl lacks what a boot needs."""
    return {**of_boot(), **of_documents()}


@lru_cache(maxsize=1)
def of_boot() -> Mapping[str, str]:
    """Return what a boot needs. Raises MissingLibrary."""
    return {**{path: _text(source) for path, source in FILES.items()}, **LINKS}


@lru_cache(maxsize=1)
def of_documents() -> Mapping[str, str]:
    """Return the completions, and the manual pages if this installation has them where man(1) does not look."""
    pages = () if pages_are_in_place() else sorted(_pages().glob("vfioctl*.1"))
    found = {f"{PAGES}/{page.name}": _read(page) for page in pages if PAGE.fullmatch(page.name)}
    return {**{path: SCRIPTS[shell] for path, shell in COMPLETIONS.items()}, **found}


def pages_are_in_place() -> bool:
    """Return whether pip has installed the manual pages where man(1) looks: in /usr/local, and not in an environment
    of vfioctl's own."""
    return sys.prefix in ("/usr", "/usr/local")


def _pages() -> Path:
    checkout = _PACKAGE.parent / "man"
    return checkout if checkout.is_dir() else Path(sys.prefix, "share/man/man1")


def _text(source: str) -> str:
    for place in _PLACES:
        if (place / source).is_file():
            return _read(place / source)
    raise MissingLibrary(f"this installation lacks {source}", hint="install vfioctl from its wheel or package again")


def _read(file: Path) -> str:
    return read_file(file, _LONGEST).decode().rstrip("\n")
