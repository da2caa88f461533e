"""Finds and reads the templates of domains: those of the administrator, then those that come with vfioctl."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from vfioctl.domain.document.xml import LONGEST, Document, parse
from vfioctl.errors import BadDocument, BadSpec
from vfioctl.kernel.untrusted_files import read_file

OWN = Path("/etc/vfioctl/templates")
_PACKAGE = Path(__file__).parents[2]
_BUNDLED = (_PACKAGE / "data" / "libvirt-templates", _PACKAGE.parent / "libvirt-templates")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", re.ASCII)


def templates(own: Path = OWN) -> Mapping[str, Path]:
    """Return the files of all templates by name; one of the administrator's hides one that comes with vfioctl."""
    files: dict[str, Path] = {}
    for home in (*_BUNDLED, own):
        if home.is_dir():
            files.update({file.stem: file for file in sorted(home.glob("*.xml")) if _NAME.fullmatch(file.stem)})
    return files


def read_template(name: str, own: Path = OWN) -> Document:
    """Return a template's document. Raises BadSpec for an unknown name, BadDocument for what is no template."""
    known = templates(own)
    if name not in known:
        raise BadSpec(f"there is no template {name[:64]!r}", hint=f"there are {', '.join(known)}")
    file = known[name]
    try:
        document = parse(read_file(file, LONGEST))
    except OSError as error:
        raise BadDocument(f"the template {file} cannot be read: {error.strerror}") from None
    except BadDocument as error:
        raise BadDocument(f"the template {file}: {error.message}", hint=error.hint) from None
    if document.root.tag != "domain":
        raise BadDocument(f"the template {file} is no domain: its root is <{str(document.root.tag)[:40]}>")
    return document
