"""Refuses one disk for two domains of a fleet, and a base image that a domain writes to. May not do input or output."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from os.path import basename, dirname, normpath
from typing import TYPE_CHECKING

from vfioctl.domain.document.xml import parse
from vfioctl.errors import BadDocument, BadSpec, Foreign

if TYPE_CHECKING:
    from vfioctl.domain.define.storage import Provided


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
            yield _path(path)
        elif volume := source.get("volume"):
            yield f"{source.get('pool')} {volume}"


def refuse_shared(fleet: Mapping[str, Provided], others: Mapping[str, frozenset[str]]) -> None:
    """Raise BadSpec for a disk of two domains of a fleet; Foreign if an image of one is a disk of another domain.

    The base of an image may be a disk of no domain at all, and no domain may have one disk twice.

    `others`: what libvirt's domains write to, by name; a domain of the fleet may be among them.
    """
    disks = {name: [*map(_path, each.spec.disks)] for name, each in fleet.items()}
    writers: dict[str, set[str]] = defaultdict(set)
    for name, places in (*others.items(), *disks.items()):
        for place in places:
            writers[place].add(name)
    for name, (spec, storage) in fleet.items():
        _refuse_twice(name, disks[name])
        images = storage.images if storage else ()
        for image, path in zip(images, disks[name], strict=False):
            pool, base = storage.pool if storage else "", _path(image.base) if image.base else ""
            if also := sorted((writers[path] | writers[f"{pool} {image.name}"]) - {name}):
                raise (BadSpec if also[0] in fleet else Foreign)(
                    f"{name}: disk image {pool}/{image.name} is also a disk of domain {also[0]}",
                    hint="two domains would destroy what they write there: give the image another name",
                )
            of_pool = f"{pool} {basename(base)}" if dirname(base) == dirname(path) else ""
            if writing := sorted(writers[base] | writers[of_pool]):
                raise (BadSpec if writing[0] in fleet else Foreign)(
                    f"{name}: base image {image.base} is a disk of domain {writing[0]}",
                    hint="what that domain writes would destroy the images with this base: use a copy of it",
                )
        for disk, path in [*zip(spec.disks, disks[name], strict=True)][len(images) :]:
            if of_fleet := sorted(writers[path].intersection(fleet) - {name}):
                raise BadSpec(
                    f"{name}: disk {disk} is also a disk of domain {of_fleet[0]}",
                    hint="two domains would destroy what they write there: give one of them another disk",
                )


def _path(text: str) -> str:
    """Return a path in one form. POSIX lets two slashes at the beginning mean something else; Linux does not."""
    path = normpath(text)
    return path[1:] if path.startswith("//") else path


def _refuse_twice(name: str, paths: Sequence[str]) -> None:
    """Raise BadSpec for a domain that has one disk twice; its images are among its disks."""
    if twice := next((path for path in paths if paths.count(path) > 1), ""):
        raise BadSpec(f"{name}: disk {twice} is there twice", hint="name it once, or give an image another name")
