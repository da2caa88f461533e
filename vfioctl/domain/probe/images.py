"""Compares domains' disk images: writing to a base destroys images on it, while sharing one is right. May not write."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from vfioctl.domain.document.other_domains import written_images
from vfioctl.errors import BadSpec

if TYPE_CHECKING:
    from vfioctl.domain.document.reader import Domain
    from vfioctl.kernel.protocol import DiskImages

_LONGEST_CHAIN = 64


class ImageFiles(NamedTuple):
    """The file that an image is, and those that it is based on; a volume, `POOL VOLUME`, as it is."""

    own: str
    bases: tuple[str, ...] = ()
    unknown: str = ""
    """Why its bases are not known."""


def files_of(reader: DiskImages, image: str, base: str = "") -> ImageFiles:
    """Return the files of an image. `base`: that of an image which is not there yet."""
    files, unknown = [] if image.startswith("/") else [image], ""
    while image.startswith("/") and len(files) < _LONGEST_CHAIN:
        file, backing, unknown = reader.disk_image(image)
        files.append(file)
        image, base = backing or base, ""
    return ImageFiles(files[0], tuple(files[1:]), unknown)


class Writers:
    """Who writes to which images."""

    def __init__(self) -> None:
        self._writes, self._reads = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)

    def add(self, who: str, files: ImageFiles) -> None:
        self._writes[files.own].append(who)
        for base in files.bases:
            self._reads[base].append(who)

    def sharing(self, files: ImageFiles, but: str = "") -> Iterator[tuple[str, str]]:
        """Yield how an image is shared in a way that destroys one, and with whom; `but`: whose image it is."""
        yield from (("is also a disk of", who) for who in self._writes[files.own] if who != but)
        yield from (("is based on a disk of", who) for base in files.bases for who in self._writes[base])
        yield from (("is the base of a disk of", who) for who in self._reads[files.own])


class ComparedImages(NamedTuple):
    """The images of a domain that others share, each with how and with whom; and those of which no base is known."""

    shared: Mapping[str, str]
    unread: Mapping[str, str]


def compared_images(reader: DiskImages, domain: Domain, others: Mapping[str, str]) -> ComparedImages:
    """Compare the images of a domain with those that other domains write to, each with that domain in words."""
    own = {image: files_of(reader, image) for _, image in written_images(domain)} if others else {}
    theirs = {image: files_of(reader, image) for image in others} if own else {}
    writers = Writers()
    for image, files in theirs.items():
        writers.add(others[image], files)
    shared = {image: next(writers.sharing(files), ()) for image, files in own.items()}
    return ComparedImages(
        {image: " ".join(words) for image, words in shared.items() if words},
        {
            image: f"the base of disk image {image[:200]} is not known ({files.unknown}): other domains may write to it"
            for image, files in (theirs | own).items()
            if files.unknown
        },
    )


def refuse_shared_images(
    reader: DiskImages, domain: Domain, others: Mapping[str, str], *, known: Collection[str] = ()
) -> Mapping[str, str]:
    """Raise BadSpec if another domain writes to an image of this one. Return those of which no base is known. `known`:
    images that the domain had before, which stay its own affair."""
    compared = compared_images(reader, domain, others)
    for image, shares in compared.shared.items():
        if image not in known:
            raise BadSpec(
                f"disk image {image} {shares}: what both write destroys it",
                hint="give the domain an image of its own with --disk, or make the disk <readonly/> or <shareable/>",
                facts={"image": image},
            )
    return compared.unread
