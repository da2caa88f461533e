"""Compares the disk images of domains: which file each is, and what it is based on. May not write."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from vfioctl.domain.document.images import written_images
from vfioctl.errors import BadSpec

if TYPE_CHECKING:
    from collections.abc import Iterator
    from xml.etree.ElementTree import Element

    from vfioctl.domain.document.reader import Domain
    from vfioctl.kernel.protocol import DiskImages

_LONGEST_CHAIN = 64


def shared_images(reader: DiskImages, domain: Domain, others: Mapping[str, str]) -> Iterator[tuple[Element, str, str]]:
    """Yield each disk whose image another domain writes to, with the image and that domain.

    Also if one of the two is based on the other: what is written to a backing image destroys those that are based on
    it. Two that are based on the same one are right. `others`: what other domains write to, each with the domain in
    words.
    """
    disks = [*written_images(domain)]
    theirs = [(_files(reader, image), who) for image, who in others.items()] if disks else []
    for disk, image in disks:
        own = _files(reader, image)
        if who := next((who for files, who in theirs if files[0] in own or own[0] in files), ""):
            yield disk, image, who


def _files(reader: DiskImages, image: str) -> list[str]:
    """Return the file that an image is, and those that it is based on; a volume, `POOL VOLUME`, as it is."""
    files: list[str] = [] if image.startswith("/") else [image]
    while image.startswith("/") and len(files) < _LONGEST_CHAIN:
        file, image = reader.disk_image(image)
        files.append(file)
    return files


def refuse_shared_images(
    reader: DiskImages, domain: Domain, others: Mapping[str, str], *, known: Collection[str] = ()
) -> None:
    """Raise BadSpec if another domain writes to an image of this one.

    `known`: images that the domain had before, which stay its own affair.
    """
    for _, image, who in shared_images(reader, domain, others):
        if image not in known:
            raise BadSpec(
                f"disk image {image} is also a disk of {who}: what both write destroys it",
                hint="give the domain an image of its own with --disk, or make the disk <readonly/> or <shareable/>",
                facts={"image": image},
            )
