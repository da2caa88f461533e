"""The disk images that a domain writes to. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from os.path import normpath
from typing import TYPE_CHECKING
from xml.etree.ElementTree import Element

if TYPE_CHECKING:
    from vfioctl.domain.document.reader import Domain

_SHARED = ("readonly", "shareable", "transient")


def written_images(domain: Domain) -> Iterator[tuple[Element, str]]:
    """Yield each disk that the domain writes to with its image: a path, or a volume as `POOL VOLUME`.

    Not what it shares with others on purpose: `<readonly/>`, `<shareable/>`, `<transient/>`, CD-ROMs and floppies.
    """
    for disk in domain.all("devices/disk"):
        source = disk.find("source")
        if (
            source is None
            or disk.get("device") in ("cdrom", "floppy")
            or any(disk.find(tag) is not None for tag in _SHARED)
        ):
            continue
        if path := source.get("file") or source.get("dev"):
            yield disk, image_path(path)
        elif volume := source.get("volume"):
            yield disk, f"{source.get('pool')} {volume}"


def image_path(text: str) -> str:
    """Return a path in one form. POSIX lets two slashes at the beginning mean something else; Linux does not."""
    path = normpath(text)
    return path[1:] if path.startswith("//") else path
