"""Refuses one disk image for two domains: each would destroy what the other writes. May not do input or output."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from os.path import normpath
from typing import TYPE_CHECKING

from vfioctl.domain.xml import parse
from vfioctl.errors import BadDocument, BadSpec, Foreign

if TYPE_CHECKING:
    from vfioctl.domain.storage import Provided


def written_by(texts: tuple[str, ...]) -> frozenset[str]:
    """Return what a domain with these documents may write to: paths, and volumes as `POOL VOLUME`.

    Not what it shares with others on purpose: `<readonly/>`, `<shareable/>` and CD-ROMs. A document that is not
    understood writes to nothing that is known.
    """
    return frozenset(place for text in texts if text for place in _places(text))


def _places(text: str) -> Iterator[str]:
    try:
        root = parse(text).root
    except BadDocument:
        return
    for disk in root.iterfind("devices/disk"):
        source = disk.find("source")
        is_shared = disk.get("device") == "cdrom" or any(
            disk.find(tag) is not None for tag in ("readonly", "shareable")
        )
        if source is None or is_shared:
            continue
        if path := source.get("file") or source.get("dev"):
            yield normpath(path)
        elif volume := source.get("volume"):
            yield f"{source.get('pool')} {volume}"


def refuse_shared(fleet: Mapping[str, Provided], others: Mapping[str, frozenset[str]]) -> None:
    """Raise BadSpec if an image of a fleet's domain is a disk of another one, Foreign for a domain of `others`.

    `others`: what libvirt's domains write to, by name; a domain of the fleet may be among them.
    """
    writers: dict[str, set[str]] = defaultdict(set)
    for name, places in (*others.items(), *((name, map(normpath, each.spec.disks)) for name, each in fleet.items())):
        for place in places:
            writers[place].add(name)
    for name, (spec, storage) in fleet.items():
        for image, path in zip(storage.images if storage else (), spec.disks, strict=False):
            pool = storage.pool if storage else ""
            also = sorted((writers[normpath(path)] | writers[f"{pool} {image.name}"]) - {name})
            if also:
                raise (BadSpec if also[0] in fleet else Foreign)(
                    f"{name}: disk image {pool}/{image.name} is also a disk of domain {also[0]}",
                    hint="two domains would destroy what they write there: give the image another name",
                )
