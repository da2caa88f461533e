"""Compares the disk images of a domain with those of others, symbolic links resolved. May not write."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from vfioctl.domain.document.images import image_path, written_images
from vfioctl.errors import BadSpec, KernelRefused

if TYPE_CHECKING:
    from collections.abc import Iterator
    from xml.etree.ElementTree import Element

    from vfioctl.domain.document.reader import Domain
    from vfioctl.kernel.protocol import FileReader

_MOST_LINKS = 40
"""As many as the kernel follows (MAXSYMLINKS)."""


def real_path(reader: FileReader, path: str) -> str:
    """Return a path without symbolic links, as far as they can be read; a volume, `POOL VOLUME`, as it is."""
    if not path.startswith("/"):
        return path
    rest, done = path.strip("/").split("/"), ""
    for _ in range(_MOST_LINKS + len(rest)):
        if not rest:
            break
        place, rest = f"{done}/{rest[0]}", rest[1:]
        try:
            target = reader.link(place)
        except KernelRefused:
            done = place
            continue
        parts = image_path(target if target.startswith("/") else f"{done}/{target}").strip("/").split("/")
        rest, done = [*parts, *rest], ""
    return "/".join((done, *rest))


def shared_images(reader: FileReader, domain: Domain, others: Mapping[str, str]) -> Iterator[tuple[Element, str, str]]:
    """Yield each disk whose image another domain writes to, with the image and that domain.

    `others`: what other domains write to, each with the domain in words.
    """
    owners = {real_path(reader, image): who for image, who in others.items()}
    for disk, image in written_images(domain):
        if who := owners.get(real_path(reader, image)):
            yield disk, image, who


def refuse_shared_images(
    reader: FileReader, domain: Domain, others: Mapping[str, str], *, known: Collection[str] = ()
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
